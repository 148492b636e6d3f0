"""Running a branch a second time exactly as it ran the first time.

A reversible block evaluates each of its branches twice: once on the way forward and once on the way back, to rebuild
its input. The second run must see what the first one saw (the same dropout masks, the same train and eval modes, the
same numbers in its buffers, the same autocast), and must leave no trace: batch-norm statistics move once per step,
and the random streams continue where they were. `first_run` notes what is needed, `second_run` puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SMALL_BUFFER = 1 << 14
_TRACK = "track_running_stats"


@dataclass(frozen=True, slots=True)
class Autocast:
    """The autocast state of one device type."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, device_type: str) -> Autocast:
        """Return the state that is active now."""
        return cls(device_type, torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))

    def again(self) -> torch.autocast:
        """Return a context with this state and without autocast's weight cache.

        The cache would keep casts made under no_grad, and a later ordinary use of the same weight would then take
        a cast that has no history: its gradient would be lost.
        """
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled, cache_enabled=False)


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of the CPU's random stream, and of the device's if it has its own."""

    cpu: Tensor
    device: torch.device | None
    on_device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """Return a copy of the present state."""
        if device.type in ("cpu", "meta"):
            return cls(torch.get_rng_state(), None, None)
        state: Tensor = torch.get_device_module(device).get_rng_state(device)
        return cls(torch.get_rng_state(), device, state)

    def restore(self) -> None:
        """Make this the present state."""
        torch.set_rng_state(self.cpu)
        if self.on_device is not None:
            torch.get_device_module(self.device).set_rng_state(self.on_device, self.device)

    def differs(self, other: RandomState) -> bool:
        """Say whether random numbers were drawn between the two."""
        if not torch.equal(self.cpu, other.cpu):
            return True
        return self.on_device is not None and not torch.equal(self.on_device, _present(other.on_device))


def _present(state: Tensor | None) -> Tensor:
    if state is None:
        raise RuntimeError("two random states of different devices were compared")
    return state


@dataclass(frozen=True, slots=True)
class Call:
    """What the first run of a branch leaves for the second.

    Attributes:
        modes: `training` of each of the branch's modules.
        random: The random state before the run, if the run drew random numbers.
        buffers: Buffers that the run changed, other than batch-norm statistics, with their values before it.
    """

    modes: tuple[bool, ...]
    random: RandomState | None
    buffers: tuple[tuple[Tensor, Tensor], ...]


def first_run(branch: nn.Module, x: Tensor) -> tuple[Tensor, Call]:
    """Run a branch and note how, for `second_run`.

    Args:
        branch: Any module from a tensor to a tensor.
        x: Its input.

    Returns:
        The output and the note.
    """
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in _moving_buffers(branch)]
    before = RandomState.now(x.device) if _real(x) else None
    output = branch(x)
    random = before if before is not None and before.differs(RandomState.now(x.device)) else None
    changed = tuple((buffer, value) for buffer, version, value in buffers if _may_have_changed(buffer, version))
    return output, Call(tuple(module.training for module in branch.modules()), random, changed)


@contextmanager
def second_run(branch: nn.Module, call: Call) -> Iterator[None]:
    """Context in which the branch runs as it did at `call`, and after which nothing of this shows."""
    with ExitStack() as stack:
        stack.enter_context(_modes(branch, call.modes))
        stack.enter_context(_buffers(call.buffers))
        if call.random is not None:
            stack.enter_context(_random(call.random))
        yield


def _moving_buffers(branch: nn.Module) -> list[Tensor]:
    """Buffers that a run may change; batch-norm statistics are dealt with by not tracking them."""
    return [
        buffer
        for module in branch.modules()
        if module.training and not isinstance(module, _BatchNorm)
        for buffer in module.buffers(recurse=False)
    ]


def _may_have_changed(buffer: Tensor, version: int) -> bool:
    """Say whether a run may have written a buffer; some kernels write without counting it, so small ones always may."""
    return buffer._version != version or buffer.numel() <= SMALL_BUFFER


def _real(x: Tensor) -> bool:
    """Say whether this is a tensor with numbers; a fake one (a plan of memory) has no random state to keep."""
    return type(x) is torch.Tensor and x.device.type != "meta"


@contextmanager
def _modes(branch: nn.Module, modes: Sequence[bool]) -> Iterator[None]:
    modules = list(branch.modules())
    present = [module.training for module in modules]
    tracking = [m for m, training in zip(modules, modes, strict=True) if _tracks(m, training)]
    try:
        for module, training in zip(modules, modes, strict=True):
            module.training = training
        for norm in tracking:
            setattr(norm, _TRACK, False)
        yield
    finally:
        for norm in tracking:
            setattr(norm, _TRACK, True)
        for module, training in zip(modules, present, strict=True):
            module.training = training


def _tracks(module: nn.Module, training: bool) -> bool:
    return isinstance(module, _BatchNorm) and training and module.track_running_stats


@contextmanager
def _buffers(values: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    present = [buffer.clone() for buffer, _ in values]
    try:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for (buffer, _), value in zip(values, present, strict=True):
                buffer.copy_(value)


@contextmanager
def _random(state: RandomState) -> Iterator[None]:
    device = state.device if state.device is not None else torch.device("cpu")
    present = RandomState.now(device)
    try:
        state.restore()
        yield
    finally:
        present.restore()
