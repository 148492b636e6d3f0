"""Running out of memory as an answer: how much there was, how large a batch fits, and what else would help."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from geoseg.errors import CapacityError, problem
from geoseg.learn.capacity import MIB, device_memory, is_out_of_memory, largest_batch
from geoseg.learn.job import Job
from geoseg.learn.sizing import StepWork, estimator
from geoseg.memory import ReversibleSequence


@contextmanager
def explained(advice: Callable[[], str]) -> Iterator[None]:
    """Turn running out of memory into a CapacityError, and let go of what the failed step held.

    Args:
        advice: Says what would help; it is called when the memory is free again.
    """
    failed = None
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        numbers = _numbers()  # before anything is freed
        failed = f"{_first_line(error)} ({numbers})"
        # The frames of the failed step hold its tensors: activations, gradients, the batch.
        traceback.clear_frames(error.__traceback__)
    if failed is not None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise CapacityError(problem("memory", failed, "room for a training step", advice()))


def advice(job: Job, work: StepWork, accumulate: int) -> str:
    """Return what a run that does not fit could change, cheapest first."""
    job.model.zero_grad(set_to_none=True)
    fits = _largest(job, work)
    helps = []
    if 0 < fits < job.batch_size:
        together = -(-job.batch_size * accumulate // fits)
        helps.append(
            f"the plan says that training.batch_size {fits} fits: set it, with training.accumulate {together} for "
            "steps over as many samples"
        )
    elif fits:
        helps.append("the plan says that this batch fits, so something else holds the memory: see what else is running")
    else:
        helps.append("the plan says that not even one sample fits")
    if job.runtime.precision == "32-true" and job.runtime.device == "cuda":
        helps.append("set training.precision to bf16-mixed")
    if not any(isinstance(module, ReversibleSequence) for module in job.model.modules()):
        helps.append("choose checkpointed_unet or reversible_unet, which keep fewer activations")
    return "; ".join(helps)


def _largest(job: Job, work: StepWork) -> int:
    """Return the largest batch that fits what is free now, with what the training holds already; 0 if none does."""
    device = job.runtime.device
    held = sum(p.numel() * p.element_size() for p in job.model.parameters())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else device_memory(device)
    return largest_batch(estimator(job.model, work), free + held, work.image_bytes)


def _numbers() -> str:
    if not torch.cuda.is_available():
        return f"{device_memory('cpu') / MIB:,.0f} MiB of memory are available"
    free, total = torch.cuda.mem_get_info()
    figures = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "used in all": total - free,
        "on the GPU": total,
    }
    return ", ".join(f"{value / MIB:,.0f} MiB {name}" for name, value in figures.items())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200] or "no more memory"
