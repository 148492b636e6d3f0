"""Proof that a module is invertible as written: rebuilt input, gradients, buffers, and nothing else touched."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geoseg.memory.reversible.contract import InvertibleStep
from geoseg.memory.reversible.sequence import ReversibleSequence


@dataclass(frozen=True, slots=True)
class InvertibilityReport:
    """How far rebuilding is from ordinary autograd; errors are relative to the largest value of what is compared.

    Attributes:
        rebuilt: Error of the rebuilt input.
        output: Of the output.
        input_gradient: Of the gradient of the input.
        parameter_gradients: Of the worst parameter gradient.
        buffers: Of the worst buffer after the step.
    """

    rebuilt: float
    output: float
    input_gradient: float
    parameter_gradients: float
    buffers: float


def check_invertible(
    module: InvertibleStep | ReversibleSequence, sample: Tensor | Sequence[Tensor], tolerance: float | None = None
) -> InvertibilityReport:
    """Run a step or a sequence forwards and backwards, rebuilding and under ordinary autograd, and compare.

    The module and the sample are left as they are. The modes are the module's own. Give a float64 sample and module
    for a sharp answer.

    Args:
        module: A step or a sequence.
        sample: Its input, (N, C, ...), or the tensors of its state.
        tolerance: Largest relative error accepted; None for 1e-9 in float64 and 1e-4 otherwise.

    Returns:
        The errors.

    Raises:
        ValueError: An error above the tolerance, or a changed input; the text lists each.
    """
    inputs = [sample] if isinstance(sample, Tensor) else list(sample)
    limit = tolerance if tolerance is not None else (1e-9 if inputs[0].dtype == torch.float64 else 1e-4)
    rebuilding, oracle = _copy_of(module, save_memory=True), _copy_of(module, save_memory=False)
    state = torch.get_rng_state()
    found = _step(rebuilding, inputs)
    torch.set_rng_state(state)
    right = _step(oracle, inputs)
    torch.set_rng_state(state)
    report = InvertibilityReport(
        rebuilding.inverse_error if rebuilding.inverse_error is not None else float("nan"),
        _worst(found.outputs, right.outputs),
        _worst(found.input_gradients, right.input_gradients),
        _worst(found.parameter_gradients, right.parameter_gradients),
        _worst(found.buffers, right.buffers),
    )
    wrong = [f"{name} is off by {getattr(report, name):.2g}" for name in report.__slots__]
    wrong = [text for name, text in zip(report.__slots__, wrong, strict=True) if not getattr(report, name) <= limit]
    if not found.input_unchanged:
        wrong.append("the input was changed in place")
    if wrong:
        raise ValueError(
            f"{type(module).__name__}: found {', '.join(wrong)}, expected at most {limit:.2g}; "
            "check that inverse undoes transform, that branches use their input alone, that parameters are registered"
        )
    return report


@dataclass(slots=True)
class _Outcome:
    outputs: list[Tensor | None]
    input_gradients: list[Tensor | None]
    parameter_gradients: list[Tensor | None]
    buffers: list[Tensor | None]
    input_unchanged: bool


def _copy_of(module: InvertibleStep | ReversibleSequence, save_memory: bool) -> ReversibleSequence:
    copied = copy.deepcopy(module)
    sequence = copied if isinstance(copied, ReversibleSequence) else ReversibleSequence(copied)
    sequence.save_memory = save_memory
    sequence.monitor_every = 1
    sequence.tolerance = float("inf")
    return sequence


def _step(sequence: ReversibleSequence, inputs: Sequence[Tensor]) -> _Outcome:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = sequence(*leaves)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in outputs]
    kept = [y.detach().clone() for y in outputs]
    sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)).backward()
    return _Outcome(
        [*kept],
        [x.grad for x in leaves],
        [p.grad for p in sequence.parameters()],
        [b.clone() for b in sequence.buffers()],
        all(torch.equal(x.detach(), y) for x, y in zip(leaves, inputs, strict=True)),
    )


def _worst(found: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    """Return the largest difference, relative to the largest value of the whole group.

    (A bias before a batch norm has a gradient of zero but for rounding; alone it would say nothing.)
    """
    scale = max((float(y.double().abs().max()) for y in right if y is not None and y.numel()), default=0.0)
    errors = [_difference(x, y) for x, y in zip(found, right, strict=True)]
    return max(errors, default=0.0) / max(scale, 1e-30)


def _difference(found: Tensor | None, right: Tensor | None) -> float:
    if found is None and right is None:
        return 0.0
    # An unused parameter may have no gradient on one side and zeros on the other.
    x = torch.zeros_like(right) if found is None and right is not None else found
    y = torch.zeros_like(found) if right is None and found is not None else right
    if x is None or y is None or x.numel() == 0:
        return 0.0
    return float((x.double() - y.double()).abs().max())
