"""How the residual stream is stored: plain floats, floats on a fixed-point grid, or 16-bit integers.

The stream is what a reversible sequence keeps and rebuilds. Its number type decides how exactly it comes back:

* plain: `(x + f) - f` is off by a rounding error, which grows slowly with depth;
* grid: `f` is rounded to a multiple of 2**-bits before it is added. As long as |x| < 2**(24 - bits) in float32
  (2**(53 - bits) in float64) additions are exact, so the rebuilt stream has the same bits at any depth, and branches
  may run in any precision;
* int16: the same grid in two bytes a number. Values are bounded by 2**(15 - bits); sums wrap around, which is still
  exactly invertible, but the numbers are then wrong: `limit` says where, and a monitored sequence warns.

The gradient of rounding is taken to be one.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

StreamName = Literal["float32", "int16"]


class Stream:
    """Plain floats: the dtype of the input, but never below float32."""

    exact = False
    in_floats = True

    def enter(self, x: Tensor) -> Tensor:
        """Return x (a float tensor) as a stream tensor; differentiable."""
        return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x

    def store(self, x: Tensor) -> Tensor:
        """Return a new tensor of the stream's number type, dense in the memory format of x."""
        return dense_like(x, self.enter(x))

    def leave(self, x: Tensor) -> Tensor:
        """Return a stream tensor as float; the same tensor where it is float already."""
        return x

    def plus(self, x: Tensor, shift: Tensor) -> Tensor:
        """Return x + shift; differentiable, for the network under ordinary autograd, where x is float."""
        return x + shift

    def add_(self, x: Tensor, shift: Tensor) -> None:
        """Add in place."""
        x.add_(shift)

    def subtract_(self, x: Tensor, shift: Tensor) -> None:
        """Undo `add_` in place."""
        x.sub_(shift)

    @property
    def limit(self) -> float | None:
        """The absolute value that stream values must stay under, or None."""
        return None


class GridStream(Stream):
    """Floats that are multiples of 2**-bits."""

    exact = True

    def __init__(self, bits: int = 12) -> None:
        """Args:
        bits: Binary digits after the point: resolution 2**-bits.
        """
        if not 0 <= bits <= 20:
            raise ValueError(f"bits: found {bits}, expected 0 to 20; choose 8 to 16 for most networks")
        self.bits = bits

    def enter(self, x: Tensor) -> Tensor:
        """Return x rounded to the grid."""
        return self.round(super().enter(x))

    def plus(self, x: Tensor, shift: Tensor) -> Tensor:
        """Return x + round(shift)."""
        return x + self.round(shift.to(x.dtype))

    def add_(self, x: Tensor, shift: Tensor) -> None:
        """Add the rounded shift in place."""
        x.add_(self.round(shift.to(x.dtype)))

    def subtract_(self, x: Tensor, shift: Tensor) -> None:
        """Undo `add_` in place."""
        x.sub_(self.round(shift.to(x.dtype)))

    def round(self, x: Tensor) -> Tensor:
        """Return x rounded to the grid; its gradient passes unchanged."""
        rounded: Tensor = _Round.apply(x, self.bits)  # type: ignore[no-untyped-call]
        return rounded

    @property
    def limit(self) -> float | None:
        """Below this, float32 sums are exact."""
        return float(2 ** (24 - self.bits))


class Int16Stream(GridStream):
    """16-bit integers that stand for multiples of 2**-bits."""

    in_floats = False

    def __init__(self, bits: int = 8) -> None:
        """Args:
        bits: Binary digits after the point: resolution 2**-bits, values below 2**(15 - bits).
        """
        if not 0 <= bits <= 14:
            raise ValueError(f"bits: found {bits}, expected 0 to 14 for an int16 stream; choose 6 to 10")
        super().__init__(bits)

    def store(self, x: Tensor) -> Tensor:
        """Return the nearest int16 numbers."""
        return dense_like(x, self.integers(x))

    def leave(self, x: Tensor) -> Tensor:
        """Return the values as float32, a new tensor."""
        return x.float().mul_(2.0**-self.bits) if x.dtype == torch.int16 else x

    def add_(self, x: Tensor, shift: Tensor) -> None:
        """Add the rounded shift in place, wrapping around."""
        x.add_(self.integers(shift))

    def subtract_(self, x: Tensor, shift: Tensor) -> None:
        """Undo `add_` in place."""
        x.sub_(self.integers(shift))

    def integers(self, x: Tensor) -> Tensor:
        """Return the int16 numbers nearest to x * 2**bits, clamped to their range."""
        return x.float().mul(2.0**self.bits).round_().clamp_(-32768, 32767).to(torch.int16)

    @property
    def limit(self) -> float | None:
        """The end of the range."""
        return float(2 ** (15 - self.bits))


def memory_format(x: Tensor) -> torch.memory_format:
    """Return channels_last for a tensor (or a slice of one) whose channels lie side by side, else contiguous."""
    channels_last = x.dim() == 4 and x.shape[1] > 1 and x.stride(1) == 1 and not x.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format


def dense_like(x: Tensor, values: Tensor) -> Tensor:
    """Return `values` dense in the memory format of x, in memory that x does not share."""
    if values.untyped_storage()._cdata != x.untyped_storage()._cdata:
        return values.contiguous(memory_format=memory_format(x))
    return values.clone(memory_format=memory_format(x))


class _Round(torch.autograd.Function):
    """Round to multiples of 2**-bits; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, bits: int) -> Tensor:
        return x.mul(2.0**bits).round_().mul_(2.0**-bits)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def make_stream(name: StreamName, exact: bool, bits: int | None) -> Stream:
    """Return the stream for a sequence's options.

    Raises:
        ValueError: An unknown name, or bits that do not fit or have no use.
    """
    if name not in ("float32", "int16"):
        raise ValueError(f"stream: found {name!r}, expected 'float32' or 'int16'; choose one of these")
    if name == "int16":
        return Int16Stream() if bits is None else Int16Stream(bits)
    if exact:
        return GridStream() if bits is None else GridStream(bits)
    if bits is not None:
        raise ValueError(
            "bits: found a number with a plain float stream, expected None; set exact=True or stream='int16'"
        )
    return Stream()
