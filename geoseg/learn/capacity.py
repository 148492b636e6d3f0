"""How large a batch fits: from the estimate of a step's memory to a batch size, and a real step to make sure.

The estimate counts tensors. A device also holds what the driver and the libraries load, the workspaces of
convolutions, and gaps that the allocator cannot use; `Margin` says how much is set aside for those, and measured runs
(`memory.json`) replace its share by what was seen.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from geoseg.errors import CapacityError, ConfigError, problem
from geoseg.memory import StepMemory

GIB, MIB = 1 << 30, 1 << 20
_UNITS = {"": 1, "B": 1} | {f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}
_UNITS |= {f"{p}IB": 1024**i for i, p in enumerate("KMGT", 1)}
# What torch's allocators say on a CPU, where they raise a plain RuntimeError.
_CPU_TEXT = re.compile(r"not enough memory|can't allocate memory|cannot allocate memory|std::bad_alloc", re.IGNORECASE)
# Batches whose steps are estimated; between them the need is taken from the straight line, which lies above the curve.
POINTS = (1, 4, 32, 512)


@dataclass(frozen=True)
class Margin:
    """What is set aside of a device's memory.

    Attributes:
        context: Bytes that the driver and the libraries take before the first tensor.
        share: Share of the step's bytes for workspaces, copies and gaps between tensors.
    """

    context: int = 600 * MIB
    share: float = 0.1

    def room(self, memory: int) -> int:
        """Return the bytes of tensors that a device of so many bytes has room for."""
        return int((memory - self.context) / (1 + self.share))


@dataclass(frozen=True)
class Needs:
    """Bytes of tensors that a training step needs, by batch size; at least two are known.

    Attributes:
        known: (batch size, bytes), ascending; the batch itself included.
    """

    known: tuple[tuple[int, int], ...]

    def at(self, batch_size: int) -> int:
        """Return the bytes for a batch size: exact where known, never too few between, extended beyond."""
        sizes = [size for size, _ in self.known]
        right = min(max(bisect_left(sizes, batch_size), 1), len(sizes) - 1)
        (low, few), (high, many) = self.known[right - 1], self.known[right]
        return -((few - many) * (batch_size - low) // (high - low)) + few

    def largest(self, room: int) -> int:
        """Return the largest batch size whose step has room; 0 if none has."""
        low, high = 0, 1
        while self.at(high) <= room:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle) <= room else (low, middle)
        return low


def needs_of(estimate: Callable[[int], StepMemory], batch_bytes: int, points: Sequence[int] = POINTS) -> Needs:
    """Estimate a step at some batch sizes.

    Args:
        estimate: Maps a batch size to its step's memory.
        batch_bytes: Bytes of one image with its label on the device.
        points: Batch sizes to estimate, ascending, at least two.
    """
    return Needs(tuple((size, estimate(size).total + size * batch_bytes) for size in points))


def sample_bytes(channels: int, size: int) -> int:
    """Return the bytes of one image (float32) and its label (int64) on the device."""
    return size * size * (4 * channels + 8)


def largest_batch(
    estimate: Callable[[int], StepMemory], memory: int, batch_bytes: int, margin: Margin | None = None
) -> int:
    """Return the largest batch size whose training step fits a device; 0 if not even one image does.

    Args:
        estimate: Maps a batch size to its step's memory, such as a partial `geoseg.memory.estimate_step`.
        memory: Bytes of the device.
        batch_bytes: Bytes of one image with its label, see `sample_bytes`.
        margin: What is set aside; None is the default one.
    """
    return needs_of(estimate, batch_bytes).largest((margin or Margin()).room(memory))


def parse_memory(text: str | int, where: str = "memory") -> int:
    """Return the bytes in "11GiB", "11 GB" (of 1000 MB), or a number.

    Args:
        text: What the user wrote.
        where: What to call it in a message.

    Raises:
        ConfigError: Not an amount of memory.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS or float(match.group(1)) <= 0:
        raise ConfigError(problem(where, repr(text), "an amount such as 11GiB or 24GB", "correct it"))
    return int(float(match.group(1)) * _UNITS[unit])


def device_memory(device: str) -> int:
    """Return the bytes that a training may use on this machine's "cuda" or "cpu"."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 4 * GIB
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))


def calibrated(files: Sequence[Path], margin: Margin | None = None) -> Margin:
    """Return a margin whose share is the largest one that was measured.

    Args:
        files: `memory.json` of runs on a GPU: objects with `predicted` (a StepMemory's numbers, and `batch`: the bytes
            of the batch) and `reserved` (the allocator's peak).
        margin: Where the context is taken from.

    Raises:
        ConfigError: A file cannot be read, or has no figures of a GPU.
    """
    shares = [_measured_share(path) for path in files]
    margin = margin or Margin()
    return Margin(margin.context, max(shares)) if shares else margin


def _measured_share(path: Path) -> float:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        predicted = record["predicted"]
        terms = ("weights", "gradients", "optimizer", "peak", "exchange")
        total = float(sum(predicted[key] for key in terms) + predicted.get("batch", 0))
        share = float(record["reserved"]) / total - 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        found = f"no figures of a GPU ({type(error).__name__}: {error})"
        raise ConfigError(problem(path, found, "memory.json of a run on a GPU", "leave it out")) from error
    return max(0.0, share)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_CPU_TEXT.search(str(error)))


def fitted_batch(
    step: Callable[[int], None], batch_size: int, on_step_down: Callable[[str], None] | None = None
) -> int:
    """Return the largest batch size, from `batch_size` down by eighths, whose real step does not run out of memory.

    Args:
        step: Runs one training step with a batch of so many images.
        batch_size: The first to try.
        on_step_down: Told each time that a batch did not fit.

    Raises:
        CapacityError: Not even one image fits.
    """
    size = batch_size
    while size >= 1:
        try:
            step(size)
            return size
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            smaller = min(size - 1, size * 7 // 8)
        # Outside the handler, so that the traceback no longer holds the step's tensors.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if on_step_down is not None and smaller:
            on_step_down(f"a batch of {size} did not fit in memory although it should have; trying {smaller}")
        size = smaller
    remedy = "choose a model that needs less, such as reversible_unet, or smaller samples"
    raise CapacityError(problem("training.batch_size", "no room for a single image", "room for one", remedy))


@contextmanager
def left_as_it_was(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Undo on leaving what training steps do: to weights, buffers, gradients, optimiser and random numbers.

    Args:
        model: The model that will be trained; copies of its weights are kept on the CPU meanwhile.
        optimizer: Its optimiser, learning rates included.
    """
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    gradients = [parameter.grad for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else {}
    devices = list({tensor.device.index for tensor in tensors if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        if optimizer is not None:
            _restore(optimizer, state)


def _restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    if not state["state"]:
        optimizer.state.clear()
