"""Running out of memory is an answer, and leaves nothing behind."""

import weakref

import pytest
import torch
import toys

from geoseg.errors import CapacityError
from geoseg.learn import outofmemory
from geoseg.learn.capacity import is_out_of_memory
from geoseg.learn.outofmemory import advice, explained
from geoseg.learn.sizing import StepWork
from geoseg.models import build_model

CPU_TEXT = "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
WORK = StepWork(toys.SIZE, toys.BANDS, toys.CLASSES, "32-true", "cross_entropy", "adam")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError(CPU_TEXT), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("The size of tensor a must match"), False),
        (ValueError("not enough memory of the past"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) == expected


def test_a_real_allocation_that_fails_counts():
    with pytest.raises(CapacityError, match="room for a training step"), explained(lambda: "train less"):
        torch.empty(2**60, dtype=torch.uint8)


def test_what_the_failed_step_held_is_let_go():
    held = []

    def step():
        activations = torch.zeros(1000, requires_grad=True) * 2
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")

    with pytest.raises(CapacityError, match=r"memory: found CUDA out of memory\. Tried to allocate 2 GiB \(") as caught:
        run_explained(step)
    assert "train less" in str(caught.value)
    assert held[0]() is None


def run_explained(step):
    with explained(lambda: "train less"):
        step()


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), explained(lambda: "nothing"):
        print(1 / 0)


def job_of(tmp_path, name, batch_size):
    return toys.make_job(tmp_path, model=build_model(name, toys.BANDS, toys.CLASSES), batch_size=batch_size)


def test_the_advice_is_the_batch_that_fits_and_what_needs_less(tmp_path, monkeypatch):
    """Room for the weights and a few images."""
    job = job_of(tmp_path, "unetsmall", 512)
    monkeypatch.setattr(outofmemory, "device_memory", lambda device: 700 * 2**20)
    fits = outofmemory._largest(job, WORK)
    assert 1 <= fits < 512
    text = advice(job, WORK, accumulate=2)
    assert f"training.batch_size {fits} fits: set it, with training.accumulate {-(-1024 // fits)}" in text
    assert "reversible_unet" in text
    monkeypatch.setattr(outofmemory, "device_memory", lambda device: 610 * 2**20)
    assert "not even one sample fits" in advice(job, WORK, 1)
    monkeypatch.setattr(outofmemory, "device_memory", lambda device: 64 * 2**30)
    assert "something else holds the memory" in advice(job, WORK, 1)


def test_a_reversible_network_is_not_told_to_become_one(tmp_path):
    assert "reversible_unet" not in advice(job_of(tmp_path, "reversible_unet", 4), WORK, 1)
