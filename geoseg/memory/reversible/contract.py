"""The contract of an invertible step, and the record that a forward pass leaves for the way back.

A *state* is a list of tensors: two halves `a, b`, then the skips that wait for the way up, the newest first. A step
takes the first `takes` tensors of the state and puts `gives` tensors in their place. To write a new one:

1. Subclass `InvertibleStep`, set `takes` and `gives` if they are not 2, and write `transform` (ordinary,
   differentiable) and `inverse`. That alone is right for a step without networks inside, and costs one run of
   `inverse` and one of `transform` on the way back.
2. Every parameter that the step uses is registered in it: what is not is never trained.
3. Tensors handed to `run` and `rewind` are the sequence's own: they may be changed in place or dropped. The tensors
   handed to `transform` and `inverse` are somebody else's: they are read only.
4. A step with networks inside overrides `run` and `rewind` too, and runs them by `replay.first_run` and inside
   `replay.second_run`, which keep random streams, modes, buffers and statistics right; `couplings` shows how.
5. A step without parameters that only moves numbers about subclasses `Rearrangement`: its gradient is its inverse.
6. Prove it: `check_invertible(step, sample)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from geoseg.memory.reversible.replay import Autocast, Call
from geoseg.memory.reversible.stream import Stream


class Watch(Protocol):
    """What looks on as a state leaves a sequence and comes back."""

    def leaves(self, state: Sequence[Tensor]) -> None:
        """See the output, as float."""

    def returns(self, state: Sequence[Tensor]) -> None:
        """See the rebuilt input, in the stream's number type."""


@dataclass(slots=True)
class Tape:
    """What one forward pass leaves for the way back, besides the output: a few small notes.

    Attributes:
        stream: The number type of the state.
        autocast: The autocast state of the forward pass.
        calls: For each step, how its branches were run.
        state: Way back: the state rebuilt so far. Empty otherwise.
        gradients: Way back: the gradient of the loss with respect to `state`.
        watch: Looks at the output and at the rebuilt input, or None.
    """

    stream: Stream
    autocast: Autocast
    calls: list[list[Call]] = field(default_factory=list)
    state: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    watch: Watch | None = None

    def clear(self) -> None:
        """Let go of the state and the gradients."""
        self.state.clear()
        self.gradients.clear()


class ParameterGradients:
    """Collects the gradients of one step's parameters."""

    def __init__(self, wanted: Iterable[nn.Parameter]) -> None:
        """Args:
        wanted: The parameters whose gradients are asked for.
        """
        self._wanted = {id(parameter): parameter for parameter in wanted}
        self._found: dict[int, Tensor] = {}

    def among(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the wanted parameters of a module."""
        return [parameter for parameter in module.parameters() if id(parameter) in self._wanted]

    def add(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        """Take gradients in; those of a parameter met twice are summed."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                found = self._found.get(id(parameter))
                self._found[id(parameter)] = gradient if found is None else found + gradient

    def of(self, parameter: Tensor) -> Tensor | None:
        """Return a parameter's gradient, or None."""
        return self._found.get(id(parameter))


class InvertibleStep(nn.Module):
    """One step of a reversible program. See the module's text for what a new one must keep to."""

    takes = 2
    gives = 2

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream()
        self.position = ""

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return what the step makes of `takes` tensors; differentiable."""
        raise NotImplementedError

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return what `transform` was given, from its `gives` results."""
        raise NotImplementedError

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the channel counts of the state after the step.

        Args:
            widths: Channel counts before it.

        Raises:
            ValueError: They do not suit the step.
        """
        self._require(len(widths) >= self.takes, f"{len(widths)} tensors", f"at least {self.takes}")
        return list(widths)

    def run(self, state: list[Tensor], calls: list[Call]) -> None:
        """Replace the state by what follows it, without history; in place where possible.

        Args:
            state: The sequence's own tensors, in the stream's number type.
            calls: Receives a note for each branch that is run.
        """
        taken = [self.stream.leave(x) for x in state[: self.takes]]
        self._require(not self.stream.exact, "exact or int16 numbers", "plain float numbers")
        state[: self.takes] = self.transform(*taken)

    def rewind(
        self,
        state: list[Tensor],
        gradients: list[Tensor],
        tape: Tape,
        calls: Sequence[Call],
        parameters: ParameterGradients,
    ) -> None:
        """Replace state and gradients by those before the step, and hand in the gradients of the parameters.

        Args:
            state: The sequence's own tensors, as `run` left them.
            gradients: Of the loss, with respect to them; the sequence's own too.
            tape: The pass: its autocast and stream.
            calls: The notes of `run`.
            parameters: Receives the gradients of the step's parameters.
        """
        with torch.no_grad(), tape.autocast.again():
            before = [x.detach() for x in self.inverse(*state[: self.gives])]
        inputs = [x.requires_grad_() for x in before]
        with torch.enable_grad(), tape.autocast.again():
            after = self.transform(*inputs)
        wanted = parameters.among(self)
        found = torch.autograd.grad(after, [*inputs, *wanted], gradients[: self.gives], materialize_grads=True)
        state[: self.gives] = before
        for x in before:
            x.requires_grad_(False)
        gradients[: self.gives] = found[: self.takes]
        parameters.add(wanted, found[self.takes :])

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the step alone, under ordinary autograd.

        Args:
            inputs: `takes` tensors; or one (N, C, ...), whose channels are halved and joined again.

        Returns:
            A tuple of `gives` tensors; or one tensor for one.
        """
        if len(inputs) == 1 and self.takes == self.gives == 2:
            return torch.cat(self.transform(*halves(inputs[0], self.name)), dim=1)
        self._require(len(inputs) == self.takes, f"{len(inputs)} tensors", f"{self.takes} tensors")
        return self.transform(*inputs)

    def invert(self, *outputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Undo `forward`."""
        if len(outputs) == 1 and self.takes == self.gives == 2:
            return torch.cat(self.inverse(*halves(outputs[0], self.name)), dim=1)
        self._require(len(outputs) == self.gives, f"{len(outputs)} tensors", f"{self.gives} tensors")
        return self.inverse(*outputs)

    @property
    def name(self) -> str:
        """What errors call this step; a sequence adds the position."""
        return self.position + type(self).__name__

    def _require(self, good: bool, found: str, expected: str) -> None:
        if not good:
            raise ValueError(f"{self.name}: found {found}, expected {expected}")


class Rearrangement(InvertibleStep):
    """A step that only moves numbers: it has no parameters, and gradients go back as the state does."""

    def run(self, state: list[Tensor], calls: list[Call]) -> None:
        """Move the numbers."""
        self.move(state)

    def rewind(
        self,
        state: list[Tensor],
        gradients: list[Tensor],
        tape: Tape,
        calls: Sequence[Call],
        parameters: ParameterGradients,
    ) -> None:
        """Move state and gradients back."""
        self.move_back(state)
        self.move_back(gradients)

    def move(self, state: list[Tensor]) -> None:
        """Replace the taken tensors by the given ones; new or in place, never views of what was there."""
        state[: self.takes] = self.transform(*state[: self.takes])

    def move_back(self, state: list[Tensor]) -> None:
        """Undo `move`."""
        state[: self.gives] = self.inverse(*state[: self.gives])


def halves(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return the two halves of the channels, as views.

    Raises:
        ValueError: The channels cannot be halved.
    """
    if x.dim() < 2 or x.shape[1] % 2:
        found = f"{x.shape[1]} channels" if x.dim() > 1 else f"{x.dim()} dimensions"
        raise ValueError(
            f"{name}: found {found}, expected an even number of channels to halve; change the width by one"
        )
    a, b = x.chunk(2, dim=1)
    return a, b
