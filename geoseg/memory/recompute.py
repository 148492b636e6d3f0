"""Keep the inputs of a part of a network and run the part again when its gradient is due.

`recompute(module)` does that to any module from outside. Its class, its keys and its numbers stay as they are; what
changes is that the tensors made inside it are not kept between forward and backward. The rules it holds:

1. Nothing runs twice in eval mode, under `no_grad`, or where nothing needs a gradient.
2. The second run sees what the first one saw: the random numbers, autocast, each submodule's mode, and the buffers as
   they were when the first run started.
3. The second run leaves no trace: random state, modes and buffers are afterwards what they were before it. Batch-norm
   statistics therefore move once per step. It runs on copies of the buffers, so nobody's buffer is written.
4. What would make the second run another one raises: weights or inputs that were changed in between.
5. There is no backward pass inside a backward pass: hooks on gradients, accumulation and distributed training, also
   with unused parameters, work as without it.

Hooks on modules inside a wrapped one run in both runs; hooks on the wrapped module itself run once.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

ModuleT = TypeVar("ModuleT", bound=nn.Module)

# Up to this many bytes a buffer is copied without asking whether the first run changes it: batch norm's kernels write
# their statistics without raising the version counter that would tell.
SMALL_BUFFER = 1 << 16


def recompute(module: ModuleT) -> ModuleT:
    """Make a module recompute its activations when it trains; returns the same module.

    Copies (`copy.deepcopy`) and pickles of the module recompute too; its state dict is unchanged. A module that
    recomputes already is left alone.

    Args:
        module: Any module whose forward can be run twice. It must not change its inputs in place.

    Raises:
        TypeError: Not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"recompute takes a torch module, found {type(module).__name__}")
    inner = module.__dict__.get("forward")
    if not isinstance(inner, _Recomputed):
        module.forward = _Recomputed(module, inner)
    return module


class _Recomputed:
    """Stands in for a module's `forward`; an object rather than a closure, so that it can be copied and pickled."""

    def __init__(self, module: nn.Module, inner: Callable[..., Any] | None) -> None:
        self.module = module
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self.inner or functools.partial(type(self.module).forward, self.module)
        return run_recomputed(run, *args, modules=(self.module,), **kwargs)


def run_recomputed(function: Callable[..., Any], *args: Any, modules: Sequence[nn.Module], **kwargs: Any) -> Any:
    """Call a function so that what it saves for backward is recomputed; the rules are those of `recompute`.

    Args:
        function: What to run; it may be run again during backward, with the same arguments.
        args: Its arguments; the tensors among them are kept.
        modules: The modules that it uses, all of them; none for a function of its arguments alone.
        kwargs: Its named arguments, likewise.

    Raises:
        RuntimeError: The function changes an input in place; during backward: weights or inputs have changed since.
    """
    parameters = [parameter for module in modules for parameter in module.parameters()]
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if (
        not torch.is_grad_enabled()
        or (modules and not any(module.training for module in modules))
        or not any(tensor.requires_grad for tensor in (*inputs, *parameters))
    ):
        return function(*args, **kwargs)
    scene = Surroundings(modules, inputs)
    return checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (scene.first_run(), _Reentered(scene.again)), **kwargs
    )


class Surroundings:
    """The modes, buffers, weights and inputs that a run of some modules saw, to be seen again by the next.

    Args:
        modules: The modules that will run.
        inputs: Tensors that they will read.
    """

    def __init__(self, modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> None:
        self._modes = [(part, part.training) for module in modules for part in module.modules()]
        self._weights = [(p, p._version) for module in modules for p in module.parameters()]
        # Weakly: inside another recomputed part, an input must be free to go.
        self._inputs = [(weakref.ref(tensor), tensor._version) for tensor in inputs if not tensor.is_inference()]
        self._buffers = [
            _Buffer(part, name, buffer, buffer._version, buffer.detach().clone())
            for part, _ in self._modes
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    @contextlib.contextmanager
    def first_run(self) -> Iterator[None]:
        """Surround the first run; afterwards only what a second run will need is kept."""
        yield
        if self._changed_inputs():
            raise RuntimeError(
                "a recomputed module changed its input in place, so it cannot be run again on it: "
                "make its first operation one that is not in place"
            )
        self._buffers = [buffer for buffer in self._buffers if buffer.may_have_changed()]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Surround a later run: as the first one saw things, and afterwards as if it had not been."""
        self._check()
        modes = [(part, part.training) for part, _ in self._modes]
        buffers = [(part, dict(part._buffers)) for part, _ in self._modes]
        try:
            for part, training in self._modes:
                part.training = training
            for buffer in self._buffers:
                buffer.module._buffers[buffer.name] = buffer.start.clone()  # a retained graph may need a third run
            yield
        finally:
            for part, training in modes:
                part.training = training
            for part, values in buffers:
                part._buffers.update(values)

    def _changed_inputs(self) -> bool:
        alive = ((reference(), version) for reference, version in self._inputs)
        return any(tensor is not None and tensor._version != version for tensor, version in alive)

    def _check(self) -> None:
        weights = any(tensor._version != version for tensor, version in self._weights)
        if weights or self._changed_inputs():
            raise RuntimeError(
                f"the {'weights' if weights else 'inputs'} of a recomputed module were changed in place between its "
                "forward and its backward pass, so its activations cannot be recomputed: run backward first"
            )


class _Reentered:
    """A context that can be entered again and again: a retained graph is run back more than once."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._open.append(self._make())
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)


class _Buffer(NamedTuple):
    """A buffer of a module, and its values when the first run started."""

    module: nn.Module
    name: str
    tensor: Tensor
    version: int
    start: Tensor

    def may_have_changed(self) -> bool:
        small = self.start.numel() * self.start.element_size() <= SMALL_BUFFER
        same = self.module._buffers.get(self.name) is self.tensor and self.tensor._version == self.version
        return (small and self.module.training) or not same


class Replay:
    """A call whose result can be made again instead of being kept.

    Make it before the first run; inside `holding`, `get` returns that run's result, and afterwards it runs the function
    again, without a graph and under the same surroundings. A tensor that is needed late and cheap to make, such as a
    U-Net's finest skip, then needs no memory in between.

    Args:
        function: What to run again; its result is a tensor.
        args: Its arguments; they are kept.
        modules: The modules that it uses, all of them.
    """

    def __init__(self, function: Callable[..., Tensor], *args: Any, modules: Sequence[nn.Module]) -> None:
        self._function, self._args = function, args
        self._inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        self._scene = Surroundings(modules, self._inputs)
        self._device = next((tensor.device.type for tensor in self._inputs), "cpu")
        self._autocast = (torch.is_autocast_enabled(self._device), torch.get_autocast_dtype(self._device))
        self._random = torch.get_rng_state()
        self._device_random = get_device_states(*self._inputs)
        self._result: Tensor | None = None
        self._needs_grad = False

    @contextlib.contextmanager
    def holding(self, result: Tensor) -> Iterator[None]:
        """Let `get` return the result of the first run for as long as this lasts."""
        self._result, self._needs_grad = result, result.requires_grad
        try:
            yield
        finally:
            self._result = None

    def get(self) -> Tensor:
        """Return the result, made again if it is not held."""
        if self._result is not None:
            return self._result
        enabled, dtype = self._autocast
        devices, states = self._device_random
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices, device_type=self._device if self._device != "cpu" else "cuda"),
            torch.autocast(self._device, dtype, enabled=enabled, cache_enabled=False),
            self._scene.again(),
        ):
            torch.set_rng_state(self._random)
            set_device_states(devices, states, device_type=self._device)
            result = self._function(*self._args)
        return result.requires_grad_(self._needs_grad)
