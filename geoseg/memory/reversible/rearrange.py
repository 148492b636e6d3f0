"""Invertible steps that move numbers and compute nothing: down and up, skips, exchange of channels.

PixelUnshuffleDown is the invertible max-pool: no number is lost, space becomes channels. One level down in a U-Net is
`SplitSkip` (half of the channels waits as the skip, the other half becomes the two new halves) and
`PixelUnshuffleDown`; one level up is `PixelShuffleUp` and `MergeSkip`. The state never changes in size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from geoseg.memory.reversible.contract import Rearrangement
from geoseg.memory.reversible.stream import memory_format


class PixelUnshuffleDown(Rearrangement):
    """(N, C, H, W) becomes (N, C f f, H / f, W / f), for each half."""

    def __init__(self, factor: int = 2) -> None:
        """Args:
        factor: f, by which height and width are divided.
        """
        super().__init__()
        self._require(factor >= 2, f"factor {factor}", "2 or more")
        self.factor = factor

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves with space folded into channels."""
        return tuple(self._down(x) for x in state)

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves with space unfolded."""
        return tuple(self._up(x) for x in state)

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths, those of the halves multiplied by f f."""
        a, b, *skips = super().channels(widths)
        return [a * self.factor**2, b * self.factor**2, *skips]

    def move(self, state: list[Tensor]) -> None:
        """Fold one half after the other."""
        for place in range(2):
            state[place] = self._down(state[place])

    def move_back(self, state: list[Tensor]) -> None:
        """Unfold one half after the other."""
        for place in range(2):
            state[place] = self._up(state[place])

    def _down(self, x: Tensor) -> Tensor:
        n, c, h, w = self._size(x)
        f = self.factor
        self._require(h % f == 0 and w % f == 0, f"a size of {h} x {w}", f"multiples of {f}")
        y = x.reshape(n, c, h // f, f, w // f, f).permute(0, 1, 3, 5, 2, 4)
        return _densely(y, (n, c * f * f, h // f, w // f), memory_format(x))

    def _up(self, x: Tensor) -> Tensor:
        n, c, h, w = self._size(x)
        f = self.factor
        self._require(c % (f * f) == 0, f"{c} channels", f"a multiple of {f * f}")
        y = x.reshape(n, c // (f * f), f, f, h, w).permute(0, 1, 4, 2, 5, 3)
        return _densely(y, (n, c // (f * f), h * f, w * f), memory_format(x))

    def _size(self, x: Tensor) -> tuple[int, int, int, int]:
        self._require(x.dim() == 4, f"{x.dim()} dimensions", "4 (N, C, H, W)")
        n, c, h, w = x.shape
        return n, c, h, w


class PixelShuffleUp(PixelUnshuffleDown):
    """(N, C f f, H, W) becomes (N, C, H f, W f), for each half: PixelUnshuffleDown undone."""

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves with space unfolded."""
        return super().inverse(*state)

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves with space folded into channels."""
        return super().transform(*state)

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths, those of the halves divided by f f."""
        a, b, *skips = list(widths)
        square = self.factor**2
        self._require(a % square == 0 and b % square == 0, f"halves of {a} and {b} channels", f"multiples of {square}")
        return [a // square, b // square, *skips]

    def move(self, state: list[Tensor]) -> None:
        """Unfold one half after the other."""
        super().move_back(state)

    def move_back(self, state: list[Tensor]) -> None:
        """Fold one half after the other."""
        super().move(state)


class HaarDown(PixelUnshuffleDown):
    """PixelUnshuffleDown of 2, then the four pixels of a cell become their mean (times two) and three differences.

    The transform is orthogonal, so gradients go back as the state does. The means do not depend on where in a cell an
    edge lies, which the layers below learn from fewer samples.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def _down(self, x: Tensor) -> Tensor:
        return _hadamard(super()._down(x))

    def _up(self, x: Tensor) -> Tensor:
        # The copy keeps the caller's tensor as it is; the transform is its own inverse.
        history = torch.is_grad_enabled() and x.requires_grad
        return super()._up(_hadamard(x if history else x.clone()))

    def _not_in_integers(self) -> None:
        whole = self.stream.limit is not None and not self.stream.in_floats
        self._require(
            not whole, "an int16 stream", "floats, because means are no whole numbers; use PixelUnshuffleDown"
        )

    def move(self, state: list[Tensor]) -> None:
        """Transform one half after the other."""
        self._not_in_integers()
        super().move(state)


class HaarUp(HaarDown):
    """HaarDown undone."""

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves at twice the resolution."""
        return super().inverse(*state)

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves at half the resolution."""
        return super().transform(*state)

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths, those of the halves divided by four."""
        a, b, *skips = list(widths)
        self._require(a % 4 == 0 and b % 4 == 0, f"halves of {a} and {b} channels", "multiples of 4")
        return [a // 4, b // 4, *skips]

    def move(self, state: list[Tensor]) -> None:
        """Transform back one half after the other."""
        self._not_in_integers()
        super().move_back(state)

    def move_back(self, state: list[Tensor]) -> None:
        """Transform one half after the other."""
        super(HaarDown, self).move(state)


class SplitSkip(Rearrangement):
    """(a, b) becomes (first half of a, second half of a, skip b)."""

    gives = 3

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the new halves and the skip."""
        a, b = state
        self._require(a.shape[1] % 2 == 0, f"a half of {a.shape[1]} channels", "an even number of channels")
        first, second = a.chunk(2, dim=1)
        return first, second, b

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves as they were."""
        first, second, b = state
        return torch.cat((first, second), dim=1), b

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths with a half more."""
        a, b, *skips = super().channels(widths)
        self._require(a % 2 == 0, f"a half of {a} channels", "an even number of channels")
        return [a // 2, a // 2, b, *skips]

    def move(self, state: list[Tensor]) -> None:
        """Split into memory of their own, so that each part can be dropped by itself."""
        first, second, b = self.transform(*state[:2])
        kind = memory_format(state[0])
        state[:2] = [first.clone(memory_format=kind), second.clone(memory_format=kind), b]


class MergeSkip(Rearrangement):
    """(a, b, skip) becomes (a and b joined, skip): SplitSkip undone."""

    takes = 3

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the joined half and the skip as the other."""
        first, second, skip = state
        return torch.cat((first, second), dim=1), skip

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves and the skip."""
        a, skip = state
        self._require(a.shape[1] % 2 == 0, f"a half of {a.shape[1]} channels", "an even number of channels")
        first, second = a.chunk(2, dim=1)
        return first, second, skip

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths with a skip less."""
        first, second, skip, *skips = super().channels(widths)
        return [first + second, skip, *skips]

    def move_back(self, state: list[Tensor]) -> None:
        """Split into memory of their own."""
        first, second, skip = self.inverse(*state[:2])
        kind = memory_format(state[0])
        state[:2] = [first.clone(memory_format=kind), second.clone(memory_format=kind), skip]


class ChannelExchange(Rearrangement):
    """The second part of a and the first part of b change places, so that later couplings mix other channels."""

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves after the exchange."""
        a, b = state
        self._require(a.shape[1] == b.shape[1] and a.shape[1] % 2 == 0, _widths(a, b), "equal, even halves")
        part = a.shape[1] // 2
        return torch.cat((a[:, :part], b[:, :part]), dim=1), torch.cat((a[:, part:], b[:, part:]), dim=1)

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Exchange again, which undoes it."""
        return self.transform(*state)

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths unchanged."""
        widths = super().channels(widths)
        a, b = widths[:2]
        self._require(a == b and a % 2 == 0, f"halves of {a} and {b} channels", "equal, even halves")
        return widths

    def move(self, state: list[Tensor]) -> None:
        """Exchange in place."""
        a, b = state[:2]
        part = a.shape[1] // 2
        moved = a[:, part:].clone()
        a[:, part:] = b[:, :part]
        b[:, :part] = moved

    def move_back(self, state: list[Tensor]) -> None:
        """Exchange in place again."""
        self.move(state)


class SwapHalves(Rearrangement):
    """(a, b) becomes (b, a); free."""

    def transform(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves in the other order."""
        return state[1], state[0]

    def inverse(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the halves in the other order."""
        return state[1], state[0]

    def channels(self, widths: Sequence[int]) -> list[int]:
        """Return the widths in the other order."""
        a, b, *skips = super().channels(widths)
        return [b, a, *skips]


def _hadamard(x: Tensor) -> Tensor:
    """Replace the values p, q, r, s of each four channels by half of their sums and differences.

    In place, or into new memory where history is kept. Exact on a fixed-point grid, with one more binary digit.
    """
    n, c, h, w = x.shape
    y = x.view(n, c // 4, 2, 2, h, w) if not x.requires_grad else x.reshape(n, c // 4, 2, 2, h, w)
    if torch.is_grad_enabled() and x.requires_grad:
        for dim in (2, 3):
            first, second = y.unbind(dim)
            y = torch.stack((first + second, first - second), dim)
        return (y.reshape(n, c, h, w) * 0.5).contiguous(memory_format=memory_format(x))
    for dim in (2, 3):
        first, second = y.unbind(dim)
        first.add_(second)
        second.mul_(-2).add_(first)
    return x.mul_(0.5)


def _widths(a: Tensor, b: Tensor) -> str:
    return f"halves of {a.shape[1]} and {b.shape[1]} channels"


def _densely(x: Tensor, shape: tuple[int, ...], kind: torch.memory_format) -> Tensor:
    """Return x in a new shape and memory format by one copy; differentiable where history is kept."""
    if torch.is_grad_enabled() and x.requires_grad:
        return x.reshape(shape).contiguous(memory_format=kind)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=kind)
    y.view(x.shape).copy_(x)
    return y
