"""The estimate under fake tensors against the count of a real step."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from geoseg.memory import StepMemory, estimate_step, measure_step
from geoseg.models import MODELS, build_model

TERMS = ("weights", "gradients", "optimizer", "saved", "peak")
CHANNELS, CLASSES = 3, 4


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, CHANNELS, CLASSES)


def measured(net: nn.Module, batch: int, size: int, **options: object) -> StepMemory:
    images, labels = torch.randn(batch, CHANNELS, size, size), torch.randint(0, CLASSES, (batch, size, size))
    return measure_step(net, images, labels, **options)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_estimate_is_the_measurement(name: str, precision: str) -> None:
    net = built(name)
    estimate = estimate_step(net, 2, 64, CHANNELS, CLASSES, precision=precision, optimizer=torch.optim.Adam)
    found = measured(net, 2, 64, precision=precision, optimizer=torch.optim.Adam)
    for term in TERMS:
        assert getattr(estimate, term) == pytest.approx(getattr(found, term), rel=0.02), term


def test_nothing_of_the_model_is_touched() -> None:
    net = built("unetsmall").eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    estimate_step(net, 4, 32)
    assert torch.equal(state, torch.get_rng_state())
    assert not net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_it_takes_seconds_for_what_no_machine_could_hold() -> None:
    started = time.process_time()
    memory = estimate_step(built("unetsmall"), 4096, 1024)
    assert memory.peak > 1 << 42  # terabytes
    assert time.process_time() - started < 20


def test_a_rectangle_and_a_square_of_equal_area_need_the_same() -> None:
    net = built("unetsmall")
    assert estimate_step(net, 2, (32, 128)).peak == estimate_step(net, 2, 64).peak


def test_accumulated_gradients_stay_while_the_next_are_made() -> None:
    net = nn.Conv2d(CHANNELS, CLASSES, 3, padding=1)
    net.in_channels = CHANNELS
    once, twice = (estimate_step(net, 2, 32, accumulation=number) for number in (1, 2))
    assert twice.gradients == once.gradients
    assert twice.saved == once.saved
    assert once.peak <= twice.peak <= once.peak + 2 * once.gradients
    assert estimate_step(net, 2, 32, accumulation=7) == twice


def test_processes_keep_one_more_set_of_gradients() -> None:
    net = built("unetsmall")
    one, four = (estimate_step(net, 1, 16, processes=number) for number in (1, 4))
    assert one.exchange == 0
    assert four.exchange == four.gradients
    assert four.total == one.total + one.gradients


def test_frozen_weights_have_no_gradients() -> None:
    net = built("unetsmall")
    net.encoder.requires_grad_(False)
    memory = estimate_step(net, 1, 32, optimizer=torch.optim.Adam)
    free = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    assert memory.gradients == 4 * free
    assert 8 * free <= memory.optimizer < 8 * free + 1000


def test_other_networks_tell_their_bands_by_their_first_convolution() -> None:
    net = nn.Sequential(nn.Conv2d(7, 2, 1))
    assert estimate_step(net, 1, 16) == estimate_step(net, 1, 16, in_channels=7)
    with pytest.raises(ValueError, match="in_channels"):
        estimate_step(nn.Sequential(nn.ReLU()), 1, 16)


@pytest.mark.parametrize("wrong", [{"accumulation": 0}, {"processes": 0}, {"precision": "half"}])
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        estimate_step(built("unetsmall"), 1, 16, **wrong)
    with pytest.raises(ValueError, match="batch_size"):
        estimate_step(built("unetsmall"), 0, 16)
