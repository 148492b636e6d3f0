"""Batch sizes that a run decides for itself, and what it records about its memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from geoseg.errors import CapacityError
from geoseg.learn import sizing
from geoseg.learn.capacity import Margin
from geoseg.learn.runtime import Runtime, setup
from geoseg.learn.sizing import StepWork, auto_batch_size, describe, estimator, measured_step, memory_record
from geoseg.models import build_model

WORK = StepWork(size=32, channels=2, classes=3, precision="32-true", loss="cross_entropy", optimizer="adam")
MIB = 2**20


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return setup(seed=1, device="cpu", precision="32-true")


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model("unetsmall", 2, 3, dropout=True)


def state(model: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def test_the_answer_is_the_plan_s_and_leaves_everything_as_it_was(model, runtime) -> None:
    before, random = state(model), torch.get_rng_state()
    memory = 700 * MIB
    size = auto_batch_size(model, WORK, runtime, samples=10_000, memory=memory)
    room = Margin().room(memory)

    def need(batch: int) -> int:
        return estimator(model, WORK)(batch).total + batch * (32 * 32 * (2 * 4 + 8))

    assert need(size) <= room
    assert need(size + size // 10 + 2) > room  # the plan is straight lines between a few estimates, a little above
    assert all(torch.equal(a, b) for a, b in zip(before, state(model), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_never_more_than_there_are_samples(model, runtime) -> None:
    assert auto_batch_size(model, WORK, runtime, samples=3, memory=2**34) == 3


def test_no_room_for_one_image_names_the_remedy(model, runtime) -> None:
    with pytest.raises(CapacityError, match="reversible_unet"):
        auto_batch_size(model, WORK, runtime, samples=3, memory=600 * MIB)


def test_a_batch_that_does_not_fit_after_all_is_stepped_down_loudly(model, runtime, monkeypatch) -> None:
    tried, said = [], []

    def step(_model, _work, _runtime, size):
        tried.append(size)
        if size > 7:
            raise MemoryError

    monkeypatch.setattr(sizing, "measured_step", step)
    assert auto_batch_size(model, WORK, runtime, 10, 2**34, said.append) == 7
    assert tried == [10, 8, 7]
    assert len(said) == 2
    assert "10" in said[0]


def test_the_record_s_estimate_is_the_measured_step(model, runtime, tmp_path: Path) -> None:
    record = memory_record(model, WORK, runtime, 4)
    for term in ("weights", "gradients", "optimizer", "saved", "peak"):
        assert record["predicted"][term] == pytest.approx(record["measured"][term], rel=0.02), term
    assert record["predicted"]["batch"] == 4 * 32 * 32 * (2 * 4 + 8)
    assert record["reserved"] is None  # no GPU here
    sizing.add_epoch(record, {"epoch": 1, "peak_memory_mb": 12.5})
    sizing.write_record(tmp_path / "memory.json", record)
    assert json.loads((tmp_path / "memory.json").read_text())["epochs"] == [{"epoch": 1, "peak_memory_mb": 12.5}]


def test_the_line_says_which_figure_decides() -> None:
    numbers = {"weights": MIB, "gradients": MIB, "optimizer": 2 * MIB, "peak": 6 * MIB, "exchange": 0}
    gpu = {"allocated": 11 * MIB, "reserved": 20 * MIB, "used": 900 * MIB}
    line = describe({"batch_size": 2, "predicted": numbers, "measured": {**numbers, **gpu}})
    assert "10 MiB of tensors" in line
    assert "11 MiB allocated, 20 reserved, 900 used" in line
    assert "reserved is what runs out" in line


def test_a_measured_step_moves_nothing(model, runtime) -> None:
    model.eval()
    before = state(model)
    assert measured_step(model, WORK, runtime, 2).peak > 0
    assert all(torch.equal(a, b) for a, b in zip(before, state(model), strict=True))
    assert not model.training


@pytest.mark.parametrize(
    "loss", ["focal", "jaccard", "lovasz", {"cross_entropy": 1.0, "dice": 0.5, "boundary": 0.1}], ids=str
)
def test_the_memory_of_every_loss_is_foreseen(loss, runtime) -> None:
    """With a network of one convolution and many classes the loss is what is measured."""
    network = torch.nn.Conv2d(2, 16, 1)
    hard = 0.5 if loss == "focal" else 1.0
    work = dataclasses.replace(WORK, classes=16, loss=loss, hard_examples=hard)
    predicted, measured = estimator(network, work)(4), measured_step(network, work, runtime, 4)
    assert predicted.saved == pytest.approx(measured.saved, rel=0.02)
    assert predicted.peak == pytest.approx(measured.peak, rel=0.02)
