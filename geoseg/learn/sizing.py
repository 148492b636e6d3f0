"""The memory of a run's training steps: foreseen, made sure of by a real step, and recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from geoseg.errors import CapacityError, problem
from geoseg.learn.capacity import MIB, device_memory, fitted_batch, largest_batch, left_as_it_was, sample_bytes
from geoseg.learn.files import write_json
from geoseg.learn.losses import Loss, LossSetting, build_loss, mean
from geoseg.learn.optimise import OPTIMIZERS
from geoseg.learn.runtime import Runtime
from geoseg.memory import StepMemory, estimate_step, measure_step

IGNORE = 255


@dataclass(frozen=True)
class StepWork:
    """What a training step works on, the model and the batch size apart.

    Attributes:
        size: Side of a sample, pixels.
        channels: Bands.
        classes: Classes.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        loss: What `build_loss` takes.
        optimizer: A name in OPTIMIZERS.
        accumulation: Batches per step of the optimiser.
        processes: Processes that train together.
        label_smoothing: Of cross entropy.
        hard_examples: Share of the pixels that count.
    """

    size: int
    channels: int
    classes: int
    precision: str
    loss: LossSetting
    optimizer: str
    accumulation: int = 1
    processes: int = 1
    label_smoothing: float = 0.0
    hard_examples: float = 1.0

    @property
    def image_bytes(self) -> int:
        """Bytes of one image with its label on the device."""
        return sample_bytes(self.channels, self.size)


def estimator(model: nn.Module, work: StepWork) -> Callable[[int], StepMemory]:
    """Return what maps a batch size to the memory of a step, by estimate; the model is not touched."""
    return functools.partial(
        estimate_step,
        model,
        size=work.size,
        in_channels=work.channels,
        num_classes=work.classes,
        loss=_loss_of(work),
        precision=work.precision,
        optimizer=_optimizer_of(work),
        accumulation=work.accumulation,
        processes=work.processes,
    )


def auto_batch_size(
    model: nn.Module,
    work: StepWork,
    runtime: Runtime,
    samples: int,
    memory: int | None = None,
    on_step_down: Callable[[str], None] | None = None,
) -> int:
    """Return the largest batch size that fits, at most `samples`: planned, then tried with a real step.

    Weights, buffers and random numbers are left as they were.

    Args:
        model: The model that will be trained; it is moved to the run's device.
        work: What a step works on.
        runtime: Where it runs.
        samples: Number of training samples.
        memory: Bytes to plan for; None takes those of the device.
        on_step_down: Told when a batch that should fit does not.

    Raises:
        CapacityError: Not even one image fits.
    """
    memory = memory or device_memory(runtime.device)
    planned = min(samples, largest_batch(estimator(model, work), memory, work.image_bytes))
    if planned < 1:
        found = f"room for {memory / MIB:,.0f} MiB, and a step of one image needs more"
        remedy = "choose a model that needs less, such as reversible_unet, or smaller samples"
        raise CapacityError(problem("training.batch_size", found, "room for one image", remedy))
    return fitted_batch(lambda size: _discard(measured_step(model, work, runtime, size)), planned, on_step_down)


def measured_step(model: nn.Module, work: StepWork, runtime: Runtime, batch_size: int) -> StepMemory:
    """Run a real step on made-up images and return its memory; the model is left as it was, on the run's device."""
    device = runtime.fabric.device
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with left_as_it_was(model):
        model.train()
        shape = (batch_size, work.channels, work.size, work.size)
        images = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, work.classes, (batch_size, work.size, work.size), device=device)
        return measure_step(model, images, labels, _loss_of(work), _optimizer_of(work), work.precision)


def memory_record(model: nn.Module, work: StepWork, runtime: Runtime, batch_size: int) -> dict[str, Any]:
    """Return what `memory.json` says of a run's steps: the estimate and a measured step, in bytes."""
    predicted = estimator(model, work)(batch_size)
    measured = measured_step(model, work, runtime, batch_size)
    return {
        "batch_size": batch_size,
        "device": runtime.device,
        "precision": work.precision,
        "predicted": {**predicted.to_dict(), "batch": batch_size * work.image_bytes},
        "measured": measured.to_dict(),
        "reserved": measured.reserved,
        "epochs": [],
    }


def add_epoch(record: dict[str, Any], row: Mapping[str, float]) -> None:
    """Add an epoch's peak to a record: the allocator's on a GPU, the process's so far on a CPU."""
    epoch: dict[str, float] = {"epoch": row["epoch"], "peak_memory_mb": row["peak_memory_mb"]}
    if record["device"] == "cuda":
        free, total = torch.cuda.mem_get_info()
        epoch["reserved_mb"] = torch.cuda.max_memory_reserved() / MIB
        epoch["used_mb"] = (total - free) / MIB
    record["epochs"].append(epoch)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write `memory.json`, whole or not at all."""
    write_json(path, record)


def describe(record: Mapping[str, Any]) -> str:
    """Return one line about the memory of a step, and which figure decides when it runs out."""
    predicted, measured = record["predicted"], record["measured"]
    terms = ("weights", "gradients", "optimizer", "peak", "exchange")
    foreseen, counted = (sum(source[term] for term in terms) / MIB for source in (predicted, measured))
    text = f"a step of {record['batch_size']} samples: {counted:,.0f} MiB of tensors ({foreseen:,.0f} foreseen)"
    if measured["reserved"] is None:
        # What the process grew by says little here: freed memory of an earlier step is used again.
        return text
    allocated, reserved, used = (measured[name] / MIB for name in ("allocated", "reserved", "used"))
    return (
        f"{text}; GPU: {allocated:,.0f} MiB allocated, {reserved:,.0f} reserved, {used:,.0f} used in all "
        "(reserved is what runs out)"
    )


def _loss_of(work: StepWork) -> Callable[[Tensor, Tensor], Tensor]:
    return functools.partial(_mean_loss, build_loss(work.loss, work.label_smoothing, work.hard_examples))


def _mean_loss(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    return mean(*loss(logits, labels, IGNORE, None))


def _optimizer_of(work: StepWork) -> Callable[..., torch.optim.Optimizer]:
    return functools.partial(OPTIMIZERS[work.optimizer], lr=1e-3, weight_decay=0.0)


def _discard(_memory: StepMemory) -> None:
    return None
