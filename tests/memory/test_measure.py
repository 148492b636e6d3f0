"""The byte counter against steps whose bytes are counted by hand."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from geoseg.memory import LiveBytes, StepMemory, measure_step

MAP = 4 * 64 * 64  # bytes of one float32 channel of the images below


def squared(output: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
    return output.sum()


def batch(channels: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, channels, 64, 64), torch.zeros(1, 64, 64, dtype=torch.long)


def test_a_new_tensor_counts_and_a_freed_one_does_not() -> None:
    with LiveBytes() as counter:
        first = torch.zeros(100)
        assert counter.now() == 400
        second = first + 1
        assert counter.now() == 800
        del first
        assert counter.now() == 400
        assert second is not None
    assert counter.peak == 800


def test_views_and_in_place_operations_add_nothing() -> None:
    outside = torch.zeros(100)
    with LiveBytes() as counter:
        inside = torch.zeros(100)
        views = [inside.view(10, 10), inside[3:], outside.t(), outside.view(4, 25)]
        outside.add_(1), inside.mul_(2), torch.add(outside, 1, out=outside)
        assert counter.now() == 400
        assert len(views) == 4


def test_a_view_keeps_the_whole_storage_alive() -> None:
    with LiveBytes() as counter:
        whole = torch.zeros(100)
        part = whole[:10]
        del whole
        assert counter.now() == 400
        assert part is not None


def test_emptied_storages_count_what_they_hold() -> None:
    with LiveBytes() as counter:
        tensor = torch.zeros(100)
        tensor.untyped_storage().resize_(0)
        assert counter.now() == 0
        tensor.untyped_storage().resize_(400)
        assert counter.now() == 400
    assert counter.peak == 400


def test_tensors_of_before_are_outside() -> None:
    before = torch.zeros(100)
    with LiveBytes() as counter:
        before += 1
        assert counter.now() == 0


def test_a_step_counted_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Sigmoid(), nn.Sigmoid())
    images, labels = batch()
    memory = measure_step(net, images, labels, squared)
    # Saved: the two sigmoids' outputs, and the loss of 4 bytes; the convolution's output is gone.
    assert memory.saved == 2 * 8 * MAP + 4
    assert memory.weights == memory.gradients == 8 * 8 * 9 * 4
    assert memory.optimizer == 0
    # Peak: at the last sigmoid's gradient both outputs live, and the new gradient (the sum's is an expanded number).
    assert memory.peak == 3 * 8 * MAP + 4 + 4 - memory.gradients


def test_the_peak_of_a_long_chain_is_in_its_forward_or_backward() -> None:
    net = nn.Sequential(*[nn.Sigmoid() for _ in range(10)])
    images, labels = batch()
    memory = measure_step(net, images.requires_grad_(), labels, squared)
    assert memory.saved == 10 * 8 * MAP + 4
    assert memory.peak == 11 * 8 * MAP + 4 + 4


def test_terms_of_the_optimizer() -> None:
    net = nn.Conv2d(8, 2, 3, padding=1)
    images, labels = batch()
    start = copy.deepcopy(net.state_dict())
    memory = measure_step(net, images, labels, optimizer=torch.optim.Adam)
    numbers = 8 * 2 * 9 + 2
    assert memory.gradients == memory.weights == 4 * numbers
    assert memory.optimizer == 4 * (2 * numbers + 2)  # two moments, and a step count for each of two parameters
    assert not torch.equal(start["weight"], net.weight)
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + memory.peak


def test_it_is_the_same_every_time_and_leaves_no_gradients() -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    images, labels = batch()
    first, second = (measure_step(net, images, labels) for _ in range(2))
    assert (first.saved, first.peak) == (second.saved, second.peak)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_mixed_precision_halves_the_saved_maps() -> None:
    net = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(32, 2, 1))
    images, labels = batch()
    full = measure_step(net, images, labels)
    half = measure_step(net, images, labels, precision="bf16-mixed")
    assert half.saved < 0.7 * full.saved
    with pytest.raises(ValueError, match="bf16-mixed"):
        measure_step(net, images, labels, precision="bf16")


def test_by_module_adds_up_to_saved() -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.Sequential(nn.Sigmoid(), nn.Sigmoid()))
    images, labels = batch()
    memory = measure_step(net, images, labels, squared, by_module=True)
    assert sum(memory.modules.values()) == memory.saved
    assert memory.modules["1.0"] == memory.modules["1.1"] == 16 * MAP
    assert not net._forward_hooks
    assert not net[0]._forward_pre_hooks


HUNGRY = """
import torch
from geoseg.memory import measure_step

class Hungry(torch.nn.Module):
    def forward(self, images):
        return torch.sigmoid(images.repeat(1, 400, 1, 1))  # 52 MB twice

images = torch.ones(2, 8, 32, 64).requires_grad_()
memory = measure_step(Hungry(), images, torch.zeros(2), lambda output, _: output.square().sum())
print(memory.resident, memory.peak)
"""


def test_resident_memory_grows_by_at_least_the_count() -> None:
    """In a process of its own: one that has freed much before does not grow."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    resident, peak = done.stdout.split()
    if resident == "None":
        pytest.skip("this system does not tell the resident memory")
    assert int(peak) >= 2 * 400 * 2 * 8 * 32 * 64 * 4
    assert int(resident) > 0.5 * int(peak)


def test_figures_of_cuda_are_absent_elsewhere() -> None:
    memory = measure_step(nn.Conv2d(8, 2, 1), *batch())
    assert memory.allocated is memory.reserved is memory.used is memory.fragmentation is None
    assert StepMemory(**memory.to_dict()) == memory


def test_an_error_in_the_step_leaves_nothing_behind() -> None:
    def failing(_output: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    net = nn.Conv2d(8, 2, 1)
    with pytest.raises(RuntimeError, match="no"):
        measure_step(net, *batch(), failing, by_module=True)
    assert not net._forward_hooks
    assert measure_step(net, *batch(), F.cross_entropy).saved > 0


_LARGE = """
import subprocess, sys
held = b"x" * 900_000_000
words = "import pathlib, sys; sys.path[:0] = [{0!r}]; from geoseg.memory.measure import peak_resident_bytes as peak; "
words += "first = peak(); held = b'x' * 100_000_000; print(first, peak() - first)"
sys.exit(subprocess.call([sys.executable, "-c", words.format(sys.argv[1])]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells it for a program")
def test_the_peak_is_that_of_the_program_not_of_the_one_that_started_it() -> None:
    words = [sys.executable, "-c", _LARGE, str(Path(__file__).resolve().parents[2])]
    first, more = map(int, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())

    assert first < 800_000_000
    assert 95_000_000 < more < 130_000_000
