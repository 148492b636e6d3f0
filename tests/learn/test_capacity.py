"""Largest batches, by hand-made curves and by real steps."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from geoseg.errors import CapacityError, ConfigError
from geoseg.learn.capacity import (
    GIB,
    MIB,
    Margin,
    Needs,
    calibrated,
    device_memory,
    fitted_batch,
    largest_batch,
    left_as_it_was,
    needs_of,
    parse_memory,
    sample_bytes,
)
from geoseg.memory import StepMemory, estimate_step
from geoseg.models.unet import UNet


def fake_estimate(batch_size: int) -> StepMemory:
    """A step that needs 100 MiB for weights and the like, and 10 MiB an image but at least 35."""
    return StepMemory(40 * MIB, 20 * MIB, 40 * MIB, 0, max(35 * MIB, 10 * MIB * batch_size))


def test_largest_batch_by_hand() -> None:
    # (11264 - 600) / 1.1 = 9694 MiB; less 100 leaves 9594, at 10 + 1 an image: 872.
    assert largest_batch(fake_estimate, 11 * GIB, MIB) == 872
    assert largest_batch(fake_estimate, 11 * GIB, MIB, Margin(0, 0.0)) == (11264 - 100) // 11
    assert largest_batch(fake_estimate, 700 * MIB, MIB) == 0


def test_between_known_sizes_the_need_is_never_too_small() -> None:
    needs = needs_of(fake_estimate, MIB)
    for size in range(1, 600):
        true = fake_estimate(size).total + size * MIB
        assert needs.at(size) >= true
        assert size < 32 or needs.at(size) == true


@given(st.integers(1, 50), st.integers(1, 100), st.integers(0, 5000))
def test_the_largest_is_the_largest(per_image: int, fixed: int, room: int) -> None:
    needs = Needs(tuple((size, fixed + per_image * size) for size in (1, 8)))
    largest = needs.largest(room)
    assert largest == max(0, (room - fixed) // per_image)


def test_the_answer_of_a_model_holds_for_its_own_estimate() -> None:
    torch.manual_seed(0)
    net = UNet(4, 5, widths=(8, 16))
    memory, margin = GIB, Margin(context=100 * MIB, share=0.05)

    def estimate(batch_size: int) -> StepMemory:
        return estimate_step(net, batch_size, 64)

    batch = largest_batch(estimate, memory, sample_bytes(4, 64), margin)
    for size, fits in ((batch, True), (batch + 1, False)):
        need = estimate(size).total + size * sample_bytes(4, 64)
        assert (need * 1.05 + 100 * MIB <= memory) == fits


def test_sample_bytes() -> None:
    assert sample_bytes(4, 256) == 4 * 256 * 256 * 4 + 256 * 256 * 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [("11GiB", 11 << 30), ("11 GB", 11 * 10**9), ("1.5gib", 3 << 29), ("512MiB", 512 << 20), (4096, 4096)],
)
def test_amounts_of_memory(text: str | int, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "eleven", "11 gigs", "-3GB", "0GB", "GB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="11GiB"):
        parse_memory(text)


def test_this_machine_has_memory() -> None:
    assert device_memory("cpu") > 64 * MIB


def record(path: Path, reserved: int) -> Path:
    predicted = fake_estimate(8).to_dict() | {"batch": 20 * MIB}
    path.write_text(json.dumps({"predicted": predicted, "reserved": reserved}))
    return path


def test_measured_runs_replace_the_share(tmp_path: Path) -> None:
    files = [record(tmp_path / "a.json", 220 * MIB), record(tmp_path / "b.json", 250 * MIB)]  # of 200 predicted
    assert calibrated(files).share == pytest.approx(0.25)
    assert calibrated(files).context == Margin().context
    assert calibrated([record(tmp_path / "c.json", 100 * MIB)]).share == 0
    assert calibrated([]) == Margin()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"predicted": {"weights": 1}, "reserved": 2}'])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "memory.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"memory\.json"):
        calibrated([path])
    with pytest.raises(ConfigError, match="absent"):
        calibrated([tmp_path / "absent.json"])


def test_a_batch_that_does_not_fit_is_lowered_loudly() -> None:
    tried, told = [], []

    def step(size: int) -> None:
        tried.append(size)
        if size > 12:
            raise torch.OutOfMemoryError("no")

    assert fitted_batch(step, 20, told.append) == 12
    assert tried == [20, 17, 14, 12]
    assert len(told) == 3
    assert "20" in told[0]
    assert "17" in told[0]


def test_no_room_for_one_is_an_error_and_other_errors_pass() -> None:
    def step(_size: int) -> None:
        raise MemoryError

    with pytest.raises(CapacityError, match="single image"):
        fitted_batch(step, 4)
    with pytest.raises(ZeroDivisionError):
        fitted_batch(lambda size: size / 0, 4)


def test_trial_steps_leave_no_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Conv2d(4, 2, 1))
    net[1].eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    images = torch.randn(2, 2, 8, 8)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    for _ in range(2):
        with left_as_it_was(net, optimizer):
            net.train()
            net(images).sum().backward()
            optimizer.param_groups[0]["lr"] = 5.0
            optimizer.step()
        assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
        assert torch.equal(random, torch.get_rng_state())
        assert all(parameter.grad is None for parameter in net.parameters())
        assert not optimizer.state
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert not net[1].training
    net(images).sum().backward()
    optimizer.step()
    momentum = optimizer.state[net[0].weight]["exp_avg"].clone()
    with left_as_it_was(net, optimizer):
        net(images).sum().backward()
        optimizer.step()
    assert torch.equal(momentum, optimizer.state[net[0].weight]["exp_avg"])
