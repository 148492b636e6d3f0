"""ReversibleSequence: a program of invertible steps of which only the output is kept for the way back.

Forward runs without history. What autograd sees is a chain of small Functions linked by empty tokens:

    enter(inputs) -> step(parameters) -> step(parameters) -> ... -> exit() -> outputs

`exit` saves the outputs. On the way back it copies them and their gradients into the tape; each step then turns the
tape's state and gradients into those before it, in place, and returns its parameters' gradients at once; `enter`
returns the inputs' gradients. So parameters are inputs of the graph (hooks, accumulation and DistributedDataParallel
work), nothing that anyone else can see is overwritten, and a second backward over a retained graph starts from the
saved outputs again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from geoseg.memory.reversible.contract import InvertibleStep, ParameterGradients, Tape, halves
from geoseg.memory.reversible.replay import Autocast
from geoseg.memory.reversible.stream import Stream, StreamName, make_stream, memory_format


class ReversibleSequence(nn.Module):
    """Invertible steps, run one after the other.

    Called with one tensor (N, C, ...), it halves the channels, and joins them again at the end. Called with several,
    they are the state and a tuple comes back. Under autocast the state is float32 and so is the output.

    Attributes:
        inverse_error: What the monitor measured last: error of the rebuilt input, relative to its largest value.
    """

    def __init__(
        self,
        *steps: InvertibleStep | Iterable[InvertibleStep],
        save_memory: bool = True,
        exact: bool = False,
        stream: StreamName = "float32",
        bits: int | None = None,
        channels: int | None = None,
        monitor_every: int = 0,
        share_output: bool = True,
    ) -> None:
        """Args:
            steps: The program, as arguments or as one iterable.
            save_memory: False runs the same program under ordinary autograd, which keeps every activation.
            exact: Keep the state on a fixed-point grid, so that it is rebuilt bit by bit.
            stream: Number type of the state: float32 (or the input's, if wider) or int16, a grid in two bytes.
            bits: Binary digits after the point of the grid; None for 12 (exact) or 8 (int16).
            channels: Channels of the input, if every step is to be checked now rather than when it runs.
            monitor_every: Check the rebuilt input in every n-th training step; 0 never does.
            share_output: With int16: save the float output, which the next layer saves as well (convolutions and norms
                do), rather than the numbers it was made of. False is better where the output is soon dropped.

        Raises:
            TypeError: A step is not invertible.
            ValueError: Options that contradict each other, or channels that a step cannot take.
        """
        super().__init__()
        self.steps = nn.ModuleList(_flat(steps))
        self.save_memory = save_memory
        self.stream: Stream = make_stream(stream, exact, bits)
        self.monitor_every = monitor_every
        self.share_output = share_output
        self.tolerance = 1e-6 if self.stream.exact else 1e-2
        self.inverse_error: float | None = None
        self._passes = 0
        for number, step in enumerate(self.program):
            step.position = f"step {number}, "
            step.stream = self.stream
        if channels is not None:
            self._check_channels(channels)

    @property
    def program(self) -> list[InvertibleStep]:
        """The steps in order."""
        return [cast(InvertibleStep, step) for step in self.steps]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the program.

        Args:
            inputs: One tensor (N, C, ...) with an even C; or the halves and skips of the state.

        Returns:
            One tensor, or a tuple; float32 under autocast.

        Raises:
            ValueError: A shape that a step cannot take.
        """
        if not inputs:
            raise TypeError("ReversibleSequence: found no input, expected a tensor or the tensors of the state")
        single = len(inputs) == 1
        state = halves(inputs[0], "ReversibleSequence") if single else inputs
        if not self.save_memory:
            outputs = self._run_with_history(state)
        elif torch.is_grad_enabled() and self._needs_gradient(inputs):
            run = self._run_rebuilding
            if torch.compiler.is_compiling():
                # As a decorator it would import the compiler, which takes a second, into every program.
                run = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
            return run(state, single)
        else:
            outputs = self._run_without_history(state)
        return joined(outputs) if single else outputs

    def inverse(self, *outputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the inputs that lead to these outputs; modes as now, so use it in eval mode or without batch norm.

        Args:
            outputs: What `forward` returned.
        """
        single = len(outputs) == 1
        state = list(halves(outputs[0], "ReversibleSequence") if single else outputs)
        for step in reversed(self.program):
            state[: step.gives] = step.inverse(*state[: step.gives])
        return joined(state) if single else tuple(state)

    def extra_repr(self) -> str:
        """Return the options that are not modules."""
        return f"save_memory={self.save_memory}, stream={type(self.stream).__name__}"

    def _needs_gradient(self, inputs: Sequence[Tensor]) -> bool:
        return any(x.requires_grad for x in inputs) or any(p.requires_grad for p in self.parameters())

    def _run_with_history(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        state = [self.stream.enter(x) for x in inputs]
        for step in self.program:
            state[: step.takes] = step.transform(*state[: step.takes])
        return tuple(state)

    def _run_without_history(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            state = [self.stream.store(x) for x in inputs]
            for step in self.program:
                step.run(state, [])
            return tuple(self.stream.leave(x) for x in state)

    def _run_rebuilding(self, inputs: Sequence[Tensor], single: bool) -> Tensor | tuple[Tensor, ...]:
        tape = Tape(self.stream, Autocast.of(inputs[0].device.type), watch=self._watch(inputs))
        token: Tensor = _Enter.apply(tape, *inputs)  # type: ignore[no-untyped-call]
        for step in self.program:
            token = _Step.apply(tape, step, token, *_parameters(step))  # type: ignore[no-untyped-call]
        outputs: Tensor | tuple[Tensor, ...] = _Exit.apply(tape, single, self.share_output, token)  # type: ignore[no-untyped-call]
        return outputs

    def _check_channels(self, channels: int) -> None:
        if channels % 2:
            raise ValueError(
                f"ReversibleSequence: found {channels} channels, expected an even number; change the width by one"
            )
        widths = [channels // 2, channels // 2]
        for step in self.program:
            widths = step.channels(widths)

    def _watch(self, inputs: Sequence[Tensor]) -> _Watch | None:
        if not self.monitor_every or type(inputs[0].detach()) is not Tensor:
            return None
        self._passes += 1
        return _Watch(self, inputs) if self._passes % self.monitor_every == 0 else None

    def report_inverse_error(self, error: float, largest: float) -> None:
        """Take in what the monitor measured; warns if it is too much.

        Args:
            error: Largest absolute error of the rebuilt input, relative to the input's largest value.
            largest: Largest absolute value of the stream at its ends.
        """
        self.inverse_error = error
        if not error <= self.tolerance:
            warnings.warn(
                f"the input of a reversible sequence came back with a relative error of {error:.2g} (largest value "
                f"{largest:.3g}), expected at most {self.tolerance:.2g}; gradients suffer: use exact=True, branches of "
                "higher precision, fewer couplings, or save_memory=False",
                RuntimeWarning,
                stacklevel=2,
            )
        if self.stream.limit is not None and not largest < self.stream.limit / 2:
            warnings.warn(
                f"the stream of a reversible sequence holds values of {largest:.3g}, expected to stay well below "
                f"{self.stream.limit:.3g}; use fewer bits",
                RuntimeWarning,
                stacklevel=2,
            )


class _Watch:
    """Compares the first sample of a sequence's input with what is rebuilt of it."""

    def __init__(self, sequence: ReversibleSequence, inputs: Sequence[Tensor]) -> None:
        self.sequence = sequence
        self.first = [sequence.stream.leave(sequence.stream.store(x.detach()[:1])) for x in inputs]
        self.largest = _largest(inputs)

    def leaves(self, state: Sequence[Tensor]) -> None:
        self.largest = max(self.largest, _largest(state))

    def returns(self, state: Sequence[Tensor]) -> None:
        rebuilt = [self.sequence.stream.leave(x[:1]) for x in state]
        error = max(float((x - y).abs().amax()) for x, y in zip(rebuilt, self.first, strict=True))
        self.sequence.report_inverse_error(error / max(_largest(self.first), 1e-30), self.largest)


def _largest(tensors: Sequence[Tensor]) -> float:
    return max(float(x.detach()[:1].abs().amax()) for x in tensors)


class _Enter(torch.autograd.Function):
    """Takes copies of the inputs into the tape; gives their gradients back."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, *inputs: Tensor) -> Tensor:
        ctx.tape = tape
        ctx.dtypes = [x.dtype for x in inputs]
        tape.state[:] = [tape.stream.store(x) for x in inputs]
        return _token(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor | None, ...]:
        tape: Tape = ctx.tape
        if tape.watch is not None:
            tape.watch.returns(tape.state)
        gradients = [x.to(dtype) for x, dtype in zip(tape.gradients, ctx.dtypes, strict=True)]
        tape.clear()
        return None, *gradients


class _Step(torch.autograd.Function):
    """One step on the tape, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, step: InvertibleStep, token: Tensor, *parameters: Tensor) -> Tensor:
        ctx.tape, ctx.step, ctx.number = tape, step, len(tape.calls)
        # Weights are saved to be told when somebody changes them before the way back; it costs no memory.
        ctx.save_for_backward(*parameters)
        calls: list[Any] = []
        try:
            with tape.autocast.again():
                step.run(tape.state, calls)
        except BaseException:
            tape.clear()
            raise
        tape.calls.append(calls)
        return _token(token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor | None, ...]:
        tape: Tape = ctx.tape
        parameters: Sequence[Tensor] = ctx.saved_tensors
        if not tape.state:
            raise RuntimeError(
                "ReversibleSequence: its state is gone, because a backward pass failed; run forward again"
            )
        wanted = [cast(nn.Parameter, p) for p, need in zip(parameters, ctx.needs_input_grad[3:], strict=True) if need]
        gradients = ParameterGradients(wanted)
        try:
            ctx.step.rewind(tape.state, tape.gradients, tape, tape.calls[ctx.number], gradients)
        except BaseException:
            tape.clear()
            raise
        if not ctx.needs_input_grad[2]:
            # Nothing before this step is trained: autograd stops here, and so does the rebuilding.
            if ctx.number == 0 and tape.watch is not None:
                tape.watch.returns(tape.state)
            tape.clear()
        return None, None, torch.zeros_like(token), *(gradients.of(parameter) for parameter in parameters)


class _Exit(torch.autograd.Function):
    """Hands the state out; takes copies of it and of its gradient in on the way back."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, single: bool, share: bool, token: Tensor) -> Tensor | tuple[Tensor, ...]:
        ctx.tape, ctx.single, ctx.share = tape, single, share or tape.state[0].is_floating_point()
        state = list(tape.state)
        tape.clear()
        outputs = [tape.stream.leave(x) for x in state]
        if tape.watch is not None:
            tape.watch.leaves(outputs)
        whole = joined(outputs) if single else None
        # Outputs that are saved themselves are noticed by autograd when somebody changes them in place.
        shared = outputs if whole is None else [whole]
        ctx.save_for_backward(*(shared if ctx.share else state))
        return tuple(outputs) if whole is None else whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tape: Tape = ctx.tape
        saved: Sequence[Tensor] = ctx.saved_tensors
        state = saved[0].chunk(2, dim=1) if ctx.single and ctx.share else saved
        incoming = gradients[0].chunk(2, dim=1) if ctx.single else gradients
        whole = ctx.share and not tape.stream.in_floats
        tape.state[:] = [tape.stream.store(x) if whole else x.clone(memory_format=memory_format(x)) for x in state]
        tape.gradients[:] = [g.clone(memory_format=memory_format(x)) for x, g in zip(state, incoming, strict=True)]
        return None, None, None, torch.zeros((), device=saved[0].device)


def joined(state: Sequence[Tensor]) -> Tensor:
    """Return the two halves as one tensor.

    Raises:
        ValueError: Skips are left over.
    """
    if len(state) != 2:
        raise ValueError(
            f"ReversibleSequence: found {len(state) - 2} skips left at the end, expected none; "
            "add a MergeSkip for each SplitSkip, or call it with the halves to get a tuple back"
        )
    return torch.cat(tuple(state), dim=1)


def _token(like: Tensor) -> Tensor:
    return torch.zeros((), device=like.device)


def _parameters(step: InvertibleStep) -> list[nn.Parameter]:
    return list(step.parameters())


def _flat(steps: Sequence[InvertibleStep | Iterable[InvertibleStep]]) -> list[InvertibleStep]:
    if len(steps) == 1 and not isinstance(steps[0], nn.Module):
        steps = list(steps[0])
    for number, step in enumerate(steps):
        if not isinstance(step, InvertibleStep):
            raise TypeError(f"step {number}: found {type(step).__name__}, expected an InvertibleStep; see the contract")
    return cast(list[InvertibleStep], list(steps))
