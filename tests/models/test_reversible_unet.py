"""The reversible U-Net against itself under ordinary autograd, and its memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from geoseg.errors import ConfigError
from geoseg.memory import measure_step
from geoseg.models import build_model

MIB = 2**20


def built(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return build_model("reversible_unet", 4, 5, **{"width": 16, **options})


def batch(count: int = 2, side: int = 32, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 4, side, side, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(0, 5, (count, side, side), generator=generator)


def step(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    loss = F.cross_entropy(net(images), labels)
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "balanced"},
        {"preset": "accurate"},
        {"branch": "postact"},
        {"branch": "preact_single"},
        {"coupling": "affine"},
        {"norm": "group", "slices": 2},
        {"levels": 1, "depth": 1},
        {"levels": 3, "depth": (1, 0, 1, 2), "hidden": 0.5},
        {"stem": 8, "head": 12, "down": "haar", "keep": True},
        {"exact": True},
        {"stream": "int16", "bits": 7},
        {"stream": "int16", "keep": True, "stem": 0, "head": 0},
    ],
    ids=str,
)
def test_gradients_and_statistics_equal_ordinary_autograd(options: dict) -> None:
    dtype = torch.float32 if "exact" in options or "stream" in options else torch.float64
    nets = [built(**options, save_memory=save_memory).to(dtype) for save_memory in (True, False)]
    for number in range(2):
        images, labels = batch(2 + number, 40, dtype)
        losses = [step(net, images, labels) for net in nets]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    largest = max(float(p.grad.abs().max()) for p in nets[1].parameters())
    for (name, one), two in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert float((one.grad - two.grad).abs().max()) <= tolerance * largest, name
    for (name, one), two in zip(nets[0].named_buffers(), nets[1].buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=name)
    assert list(nets[0].state_dict()) == list(nets[1].state_dict())


def test_losses_of_fifty_steps_do_not_depend_on_saving_memory() -> None:
    histories = []
    for save_memory in (True, False):
        net = built(save_memory=save_memory)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        history = []
        for _ in range(50):
            optimizer.zero_grad()
            history.append(step(net, *batch(2, 16)))
            optimizer.step()
        histories.append(history)
    assert histories[0] == pytest.approx(histories[1], rel=1e-4)
    assert histories[0][-1] < 0.9 * histories[0][0]


def test_the_state_comes_back_in_training() -> None:
    net = built(width=32, monitor_every=1)
    step(net, *batch(2, 64))
    assert net.body.inverse_error < 3e-6


def _mib_per_sample(net: nn.Module, channels_last: bool = False) -> tuple[float, float]:
    """Saved and peak of four quarters of a usual sample: every large term is proportional to the pixels."""
    images, labels = batch(4, 128)
    if channels_last:
        images, net = images.to(memory_format=torch.channels_last), net.to(memory_format=torch.channels_last)
    memory = measure_step(net, images, labels, loss=F.cross_entropy)
    return memory.saved / MIB, memory.peak / MIB


@pytest.mark.parametrize("channels_last", [False, True])
def test_preset_small_fits_where_it_must(channels_last: bool) -> None:
    net = build_model("reversible_unet", 4, 5)
    assert sum(p.numel() for p in net.parameters()) <= 2.0e6
    saved, peak = _mib_per_sample(net, channels_last)
    assert saved <= 10
    assert peak <= 20


@pytest.mark.parametrize("preset", ["balanced", "accurate"])
def test_the_other_presets_fit(preset: str) -> None:
    net = build_model("reversible_unet", 4, 5, preset=preset)
    assert sum(p.numel() for p in net.parameters()) <= 2.0e6
    assert _mib_per_sample(net)[1] <= 45


@pytest.mark.parametrize("branch", ["preact", "preact_single", "postact"])
def test_any_branch_stays_below_34(branch: str) -> None:
    assert _mib_per_sample(build_model("reversible_unet", 4, 5, branch=branch))[1] <= 34


def test_memory_is_flat_with_depth() -> None:
    shallow = _mib_per_sample(build_model("reversible_unet", 4, 5, depth=1))
    deep = _mib_per_sample(build_model("reversible_unet", 4, 5, depth=8))
    assert deep[0] == pytest.approx(shallow[0], rel=0.02)
    assert deep[1] == pytest.approx(shallow[1], rel=0.02)


def test_an_int16_stream_needs_less() -> None:
    assert _mib_per_sample(build_model("reversible_unet", 4, 5, stream="int16"))[1] <= 17


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"width": 15}, r"width: found 15 channels after the stem.*take 16"),
        ({"width": 18}, r"width: found 18 channels after the stem.*take 20"),
        ({"depth": (1, 2)}, "depth: found 2 numbers, expected 3"),
        ({"depth": (1, -1, 1)}, r"depth: found \[1, -1, 1\]"),
        ({"hidden": 0.0}, "hidden: found"),
        ({"branch": "unheard"}, "branch: found 'unheard', expected one of preact"),
        ({"slices": 2}, "slices: found 2 with batch norm.*group"),
        ({"stream": "int16", "down": "haar"}, "down: found haar with an int16 stream"),
        ({"preset": "huge"}, "preset"),
        ({"colour": 1}, "colour: found an unknown option"),
    ],
)
def test_wrong_options_are_named(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        built(**options)
