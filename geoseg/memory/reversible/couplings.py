"""Couplings: one half of the channels changes by what a network says of the other half.

    additive:  a += f(b);                   b += g(a)
    affine:    a = a * scale(b) + shift(b); b = b * scale(a) + shift(a)

On the way back each branch runs once: its output undoes the sum, and the same run's history gives the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from geoseg.memory.reversible.contract import InvertibleStep, ParameterGradients, Tape
from geoseg.memory.reversible.replay import Call, first_run, second_run


class _Coupling(InvertibleStep):
    """What the couplings share: running a branch, and running it again with history."""

    def __init__(self, f: nn.Module, g: nn.Module | None) -> None:
        super().__init__()
        self.f = f
        self.g = g

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths unchanged."""
        widths = super().channels(widths)
        self._require(
            widths[0] == widths[1],
            f"{widths[0] + widths[1]} channels in halves of {widths[0]} and {widths[1]}",
            "an even number of channels",
        )
        return widths

    def _evaluate(self, branch: nn.Module, x: Tensor) -> Tensor:
        """Run a branch on a half that it must leave as it is."""
        version = _version(x)
        y: Tensor = branch(_as_branch_wants(branch, x))
        self._require_unchanged(x, version)
        return y

    def _first(self, branch: nn.Module, x: Tensor, calls: list[Call]) -> Tensor:
        x = self.stream.leave(x)
        version = _version(x)
        # A branch may take another path where a graph is built; an exact stream wants the rebuild's own path.
        with torch.set_grad_enabled(self.stream.exact and not torch.is_inference_mode_enabled()):
            y, call = first_run(branch, _as_branch_wants(branch, x))
        y = y.detach()
        self._require_unchanged(x, version)
        calls.append(call)
        return y

    def _require_unchanged(self, x: Tensor, version: int) -> None:
        if _version(x) != version:
            raise RuntimeError(
                f"{self.name}: a branch changed its input in place, expected it to be left as it is; "
                "use inplace=False in the branch's first layer"
            )

    def _check_shape(self, shift: Tensor, x: Tensor, widths: int = 1) -> None:
        expected = (x.shape[0], x.shape[1] * widths, *x.shape[2:])
        if tuple(shift.shape) != expected:
            raise ValueError(
                f"{self.name}: found a branch output of shape {tuple(shift.shape)}, expected {expected}; "
                "a branch keeps the size of its input and gives the channels of the other half"
            )


class AdditiveCoupling(_Coupling):
    """a += f(b), then b += g(a)."""

    def __init__(self, f: nn.Module, g: nn.Module | None = None, slices: int = 1) -> None:
        """Args:
        f: Any network that keeps its input's size, from the channels of b to those of a.
        g: The same from a to b; None leaves b as it is.
        slices: Parts of the batch that branches are run on one after the other; more need less memory on the way
            back. Not with batch norm, which looks at the whole batch.
        """
        super().__init__(f, g)
        self._require(slices >= 1, f"{slices} slices", "1 or more")
        if slices > 1 and any(isinstance(module, _BatchNorm) for module in self.modules()):
            raise ValueError(
                f"{self.name}: found batch norm and {slices} slices, expected a norm of each sample by itself; "
                "use group norm, or slices=1"
            )
        self.slices = slices

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the coupled halves."""
        a, b = state
        shift = self._evaluate(self.f, b)
        self._check_shape(shift, a)
        a = self.stream.plus(a, shift)
        if self.g is not None:
            shift = self._evaluate(self.g, a)
            self._check_shape(shift, b)
            b = self.stream.plus(b, shift)
        return a, b

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves before coupling."""
        a, b = state
        if self.g is not None:
            b = self.stream.plus(b, -self._evaluate(self.g, a))
        return self.stream.plus(a, -self._evaluate(self.f, b)), b

    def run(self, state: list[Tensor], calls: list[Call]) -> None:
        """Couple in place."""
        self._shift(self.f, state[0], state[1], calls)
        if self.g is not None:
            self._shift(self.g, state[1], state[0], calls)

    def _shift(self, branch: nn.Module, target: Tensor, other: Tensor, calls: list[Call]) -> None:
        for x, y in self._parts(target, other):
            shift = self._first(branch, y, calls)
            self._check_shape(shift, x)
            self.stream.add_(x, shift)

    def _parts(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the tensors' slices along the batch, as views."""
        return list(zip(*(x.tensor_split(min(self.slices, len(x))) for x in tensors), strict=True))

    def rewind(
        self,
        state: list[Tensor],
        gradients: list[Tensor],
        tape: Tape,
        calls: Sequence[Call],
        parameters: ParameterGradients,
    ) -> None:
        """Uncouple in place, each branch run once."""
        a, b = self._parts(state[0], gradients[0]), self._parts(state[1], gradients[1])
        if self.g is not None:
            for target, other, call in zip(b, a, calls[len(a) :], strict=True):
                self._unshift(self.g, target, other, tape, call, parameters)
        for target, other, call in zip(a, b, calls[: len(a)], strict=True):
            self._unshift(self.f, target, other, tape, call, parameters)

    def _unshift(
        self,
        branch: nn.Module,
        target: tuple[Tensor, ...],
        other: tuple[Tensor, ...],
        tape: Tape,
        call: Call,
        parameters: ParameterGradients,
    ) -> None:
        """Undo target += branch(other), each given with its gradient."""
        with second_run(branch, call):
            x = self.stream.leave(other[0]).detach().requires_grad_()
            with torch.enable_grad(), tape.autocast.again():
                shift = branch(_as_branch_wants(branch, x))
            self.stream.subtract_(target[0], shift.detach())
            if not shift.requires_grad:
                return
            # The history is enough from here on: keep its end, not the output's memory.
            end, gradient = get_gradient_edge(shift), target[1].to(shift.dtype)
            del shift
            wanted = parameters.among(branch)
            found = torch.autograd.grad([end], [x, *wanted], [gradient], allow_unused=True)
        if found[0] is not None:
            other[1].add_(found[0])
        parameters.add(wanted, found[1:])


class AffineCoupling(_Coupling):
    """a = a * scale(b) + shift(b), then b = b * scale(a) + shift(a), with scale between exp(-limit) and exp(limit)."""

    def __init__(self, f: nn.Module, g: nn.Module | None = None, limit: float = 0.5) -> None:
        """Args:
        f: Any network that keeps its input's size, from the channels of b to twice those of a.
        g: The same from a to b; None leaves b as it is.
        limit: Bound of the logarithm of the scale; small bounds keep the inverse accurate at depth.
        """
        super().__init__(f, g)
        self._require(limit > 0, f"limit {limit}", "a positive number")
        self.limit = limit

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the coupled halves."""
        self._refuse_exact()
        a, b = state
        scale, shift = self._scale_and_shift(self._evaluate(self.f, b), a)
        a = a * scale + shift
        if self.g is not None:
            scale, shift = self._scale_and_shift(self._evaluate(self.g, a), b)
            b = b * scale + shift
        return a, b

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves before coupling."""
        a, b = state
        if self.g is not None:
            scale, shift = self._scale_and_shift(self._evaluate(self.g, a), b)
            b = (b - shift) / scale
        scale, shift = self._scale_and_shift(self._evaluate(self.f, b), a)
        return (a - shift) / scale, b

    def run(self, state: list[Tensor], calls: list[Call]) -> None:
        """Couple in place."""
        self._refuse_exact()
        scale, shift = self._scale_and_shift(self._first(self.f, state[1], calls), state[0])
        state[0].mul_(scale).add_(shift)
        if self.g is not None:
            scale, shift = self._scale_and_shift(self._first(self.g, state[0], calls), state[1])
            state[1].mul_(scale).add_(shift)

    def rewind(
        self,
        state: list[Tensor],
        gradients: list[Tensor],
        tape: Tape,
        calls: Sequence[Call],
        parameters: ParameterGradients,
    ) -> None:
        """Uncouple in place, each branch run once."""
        if self.g is not None:
            self._unscale(self.g, (state[1], gradients[1]), (state[0], gradients[0]), tape, calls[1], parameters)
        self._unscale(self.f, (state[0], gradients[0]), (state[1], gradients[1]), tape, calls[0], parameters)

    def _unscale(
        self,
        branch: nn.Module,
        target: tuple[Tensor, Tensor],
        other: tuple[Tensor, Tensor],
        tape: Tape,
        call: Call,
        parameters: ParameterGradients,
    ) -> None:
        """Undo target = target * scale(other) + shift(other), each given with its gradient."""
        value, gradient = target
        with second_run(branch, call):
            x = other[0].detach().requires_grad_()
            with torch.enable_grad(), tape.autocast.again():
                raw = branch(_as_branch_wants(branch, x))
            with torch.enable_grad():
                scale, shift = self._scale_and_shift(raw, value)
            del raw
            value.sub_(shift.detach()).div_(scale.detach())
            wanted = parameters.among(branch)
            ends = [(scale, gradient * value), (shift, gradient)]
            live = [(end, value) for end, value in ends if end.requires_grad]
            found: Sequence[Tensor | None] = [None] * (1 + len(wanted))
            if live:
                outputs, values = zip(*live, strict=True)
                found = torch.autograd.grad(outputs, [x, *wanted], values, allow_unused=True)
            gradient.mul_(scale.detach())
        if found[0] is not None:
            other[1].add_(found[0])
        parameters.add(wanted, found[1:])

    def _scale_and_shift(self, raw: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self._check_shape(raw, x, widths=2)
        raw_scale, shift = raw.to(x.dtype).chunk(2, dim=1)
        return (self.limit * torch.tanh(raw_scale)).exp(), shift

    def _refuse_exact(self) -> None:
        self._require(
            not self.stream.exact,
            "a fixed-point stream (exact or int16)",
            "a plain float stream: products do not stay on the grid; use AdditiveCoupling",
        )


def _as_branch_wants(branch: nn.Module, x: Tensor) -> Tensor:
    """Return x in the number type that the branch computes in: the stream itself never leaves float32.

    Under autocast that is autocast's type, so that norms and activations of the branch are cheap too; else the type of
    the branch's parameters, so that a network of bfloat16 weights works.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind)) if x.dtype == torch.float32 else x
    for parameter in branch.parameters():
        if parameter.is_floating_point():
            return x.to(parameter.dtype)
    return x


def _version(x: Tensor) -> int:
    """Return how often x was changed in place; tensors made in inference mode do not count."""
    return 0 if x.is_inference() else x._version
