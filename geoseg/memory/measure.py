"""What one training step keeps in memory, counted byte by byte.

The count is of storages: every tensor an operation makes is looked up, its storage is watched by a weak reference, and
after every operation the sizes of all watched storages that still live are added up. That is exact on any device, also
where views share a storage or a storage is emptied and refilled, and it needs no memory when the tensors are fake. What
it cannot see is scratch memory inside one operation (layout copies, convolution workspaces): the resident memory of the
process, and on CUDA the allocator's own figures, are reported beside it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Loss = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

PRECISIONS: dict[str, torch.dtype | None] = {
    "32-true": None,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}


@dataclass(frozen=True)
class StepMemory:
    """Memory of one training step, in bytes.

    Attributes:
        weights: Parameters and buffers.
        gradients: One set of parameter gradients.
        optimizer: State of the optimiser after the step; 0 without one.
        saved: Tensors made by the forward pass that are alive after it, logits and loss among them.
        peak: The most bytes of tensors made in forward and backward that were alive at once, less `gradients`.
            Weights, optimiser state, gradients and the batch itself are outside it; logits and loss are inside.
        resident: Growth of the process's resident memory at its highest, sampled; None where it is not known.
        allocated: On CUDA: the allocator's peak in tensors, everything included.
        reserved: On CUDA: the allocator's peak in segments held; what runs out first.
        used: On CUDA: memory of the device in use as its driver says, other processes included.
        exchange: Buckets in which processes that train together exchange gradients; 0 for one process.
        modules: `saved` by the module that made it, innermost names; empty unless asked for.
    """

    weights: int
    gradients: int
    optimizer: int
    saved: int
    peak: int
    resident: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    used: int | None = None
    exchange: int = 0
    modules: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All terms that are alive together at the worst moment, the batch apart."""
        return self.weights + self.gradients + self.optimizer + self.peak + self.exchange

    @property
    def fragmentation(self) -> float | None:
        """Share of the reserved memory that held no tensor at the peak; None off CUDA."""
        if not self.reserved or self.allocated is None:
            return None
        return 1 - self.allocated / self.reserved

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON."""
        return asdict(self)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the storages made while it is active.

    Attributes:
        peak: The most bytes alive after any operation so far.
        label: What storages made from now on are booked under, see `by_label`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self.label = ""
        self._watched: dict[int, tuple[weakref.ref[torch.UntypedStorage], str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then count."""
        result = func(*args, **(kwargs or {}))
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            key = id(storage)
            # What an operation returns in the storage of an argument was not made by it: weights, batch, views.
            if key not in self._watched and key not in given:
                self._watched[key] = (weakref.ref(storage, self._forget(key)), self.label)
        self.peak = max(self.peak, self.now())
        return result

    def _forget(self, key: int) -> Callable[[Any], None]:
        watched = self._watched
        return lambda _: watched.pop(key, None) and None

    def now(self) -> int:
        """Bytes alive at this moment."""
        return sum(self.by_label().values())

    def by_label(self) -> dict[str, int]:
        """Bytes alive at this moment, by the label under which they were made."""
        sizes: dict[str, int] = {}
        for reference, label in list(self._watched.values()):
            storage = reference()
            if storage is not None:
                sizes[label] = sizes.get(label, 0) + storage.nbytes()
        return sizes


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, shared ones once."""
    return sum({id(storage): storage.nbytes() for storage in _storages(list(tensors))}.values())


def optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Return the bytes of an optimiser's state."""
    if optimizer is None:
        return 0
    return bytes_of(leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, Tensor))


@dataclass(frozen=True)
class StepOptions:
    """What a training step does besides running the model.

    Attributes:
        loss: Maps (output, labels) to a scalar.
        optimizer: An optimiser of the model's parameters, or what makes one from a list of them; None moves nothing.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        accumulation: Batches whose gradients are added up before the optimiser moves.
        processes: Processes that train together; more than one keep buckets of gradients for their exchange.
    """

    loss: Loss = nn.functional.cross_entropy
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None
    precision: str = "32-true"
    accumulation: int = 1
    processes: int = 1

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown, choose one of {', '.join(PRECISIONS)}")
        if min(self.accumulation, self.processes) < 1:
            raise ValueError("accumulation and processes must be at least 1")

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return the optimiser of a model."""
        if self.optimizer is None or isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer
        return self.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])


def count_step(
    model: nn.Module, images: Tensor, labels: Tensor, options: StepOptions, by_module: bool = False
) -> StepMemory:
    """Run one training step under the counter, on real or on fake tensors; `measure_step` is the public form."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    optimizer = options.optimizer_of(model)
    counter = LiveBytes()
    with counter, _booked(model, counter) if by_module else contextlib.nullcontext():
        # The second batch finds the gradients of the first; further ones are like it.
        for _ in range(min(options.accumulation, 2)):
            with _autocast(images.device.type, PRECISIONS[options.precision]):
                value = options.loss(model(images), labels)
            alive = counter.by_label()
            value.backward()  # type: ignore[no-untyped-call]
    gradients = bytes_of(p.grad for p in parameters if p.grad is not None)
    saved = sum(alive.values()) - (gradients if options.accumulation > 1 else 0)
    if optimizer is not None:
        optimizer.step()
    return StepMemory(
        weights=bytes_of([*parameters, *model.buffers()]),
        gradients=gradients,
        optimizer=optimizer_bytes(optimizer),
        saved=saved,
        peak=max(counter.peak - gradients, saved),
        exchange=gradients if options.processes > 1 else 0,
        modules=alive if by_module else {},
    )


def _autocast(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype)


@contextlib.contextmanager
def _booked(model: nn.Module, counter: LiveBytes) -> Iterator[None]:
    """Book what each module makes under its name."""
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
            stack.append(name)
            counter.label = name

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            stack.pop()
            counter.label = stack[-1] if stack else ""

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure_step(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Loss = nn.functional.cross_entropy,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    precision: str = "32-true",
    by_module: bool = False,
) -> StepMemory:
    """Run one training step and return what it kept in memory.

    The step is a real one: buffers move, and the weights too if an optimiser is given. Gradients are cleared before
    and after it.

    Args:
        model: The network, in the mode it is to be measured in.
        images: Its input, on its device.
        labels: What the loss compares the output with.
        loss: Maps (output, labels) to a scalar.
        optimizer: An optimiser of the model's parameters, or what makes one from them.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        by_module: Also return the saved bytes by module.

    Raises:
        ValueError: The precision is unknown.
    """
    options = StepOptions(loss, optimizer, precision)
    gc.collect()  # garbage of earlier steps would be freed in this one and hide part of its growth
    device = images.device if images.is_cuda else None
    if device is not None:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    with ResidentMemory() as resident:
        memory = count_step(model, images, labels, options, by_module)
    extra: dict[str, int | None] = {"resident": resident.growth}
    if device is not None:
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        extra["allocated"] = torch.cuda.max_memory_allocated(device)
        extra["reserved"] = torch.cuda.max_memory_reserved(device)
        extra["used"] = total - free
    for parameter in model.parameters():
        parameter.grad = None
    return StepMemory(**{**memory.to_dict(), **extra})


class ResidentMemory:
    """Sample the resident memory of this process in a thread; `growth` is the highest rise in bytes, or None."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.growth: int | None = None
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ResidentMemory:
        """Start to sample."""
        self._start = resident_bytes()
        if self._start is not None:
            self.growth = 0
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop, with one last sample."""
        self._done.set()
        if self._start is not None:
            self._thread.join()
            self._sample()

    def _watch(self) -> None:
        while not self._done.is_set():
            self._sample()
            time.sleep(self._seconds)

    def _sample(self) -> None:
        now = resident_bytes()
        if now is not None and self._start is not None and self.growth is not None:
            self.growth = max(self.growth, now - self._start)


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None where the system does not say (other than Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize()


def peak_resident_bytes() -> int | None:
    """Return the most resident memory this program had so far, or None where the system does not say (Windows).

    Not `ru_maxrss` on Linux: a process takes that over from the one that started it, however large it was.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
