"""Averaging of overlapping windows in memory that does not grow with the raster.

The windows of a scene lie on a grid: window (r, k) begins at row ``r * stride`` and column ``k * stride`` and has the
side ``stride + overlap``. Once it has been added, the cell of ``stride`` x ``stride`` pixels in its upper left is
final, because no later window reaches it. A window's weights are a product of weights along the two axes, so windows
are averaged along each row of windows first and the rows then: what is kept is the window at hand, and the ``overlap``
rows below the row of windows just done, for the columns of one strip. A strip, and a run of rows, begins with the
windows before it that reach into it, which are computed again.

Every pixel meets its windows in the same order (row by row, left to right) wherever strips and runs begin, so the
result is the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from geoseg.geo.grid import Tile, Window

_SIGMAS = 8  # of a Gaussian in a window's side, as is usual


def hann_weights(side: int, overlap: int) -> Tensor:
    """Return the weights of a window along one axis: (side,) float64 in (0, 1].

    The first and last ``overlap`` pixels (at most half the side) follow a Hann window sampled at pixel centres, so that
    the weights of two neighbours add up to 1 and none is ever 0; between them the weight is 1.
    """
    ramp = min(overlap, side // 2)
    weights = torch.ones(side, dtype=torch.float64)
    if ramp:
        rise = torch.sin((torch.arange(ramp, dtype=torch.float64) + 0.5) * (math.pi / (2 * ramp))) ** 2
        weights[:ramp] = rise
        weights[side - ramp :] = rise.flip(0)
    return weights


def gaussian_weights(side: int) -> Tensor:
    """Return a Gaussian's weights along one axis: (side,) float64 in (0, 1], its standard deviation an eighth of it."""
    distance = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    return torch.exp(-0.5 * (distance * (_SIGMAS / side)) ** 2)


def axis_weights(blending: str, side: int, overlap: int) -> Tensor:
    """Return the weights of a window along one axis for "hann" or "gaussian"; none is 0, at a raster's edge neither."""
    return gaussian_weights(side) if blending == "gaussian" else hann_weights(side, overlap)


class Span(NamedTuple):
    """Windows along one axis that are blended together.

    Attributes:
        lead: First window to compute; those before ``first`` only reach into the span.
        first: First cell that the span finishes.
        stop: The cell after its last.
    """

    lead: int
    first: int
    stop: int


def window_count(length: int, stride: int, overlap: int) -> int:
    """Return how many windows cover ``length`` pixels; the last one may reach beyond the end."""
    return 1 + max(0, -(-(length - stride - overlap) // stride))


def overlapping_tiles(height: int, width: int, stride: int, overlap: int, rows: Span, columns: Span) -> Iterator[Tile]:
    """Yield windows in the order in which `StripBlender` wants them.

    A tile's ``read`` is the whole window, its ``write`` the cell that becomes final with it, clipped to the scene; the
    last cell of an axis reaches to the scene's edge.
    """
    last_row, last_column = (window_count(length, stride, overlap) - 1 for length in (height, width))
    side = stride + overlap
    for row in range(rows.lead, rows.stop):
        top = row * stride
        tall = stride if row < last_row else height - top
        for column in range(columns.lead, columns.stop):
            left = column * stride
            wide = stride if column < last_column else width - left
            yield Tile(write=Window(top, left, tall, wide), read=Window(top, left, side, side))


class StripBlender:
    """The running weighted mean over a strip of windows.

    A running mean, not a sum divided at the end: where all windows agree, the result is their value to the last bit.

    Args:
        channels: Number of score channels.
        stride: Side of a cell in pixels.
        weights: `axis_weights` of a window; what its side is longer than the stride is the overlap.
        rows: The rows of windows that will come.
        columns: The columns of windows that will come.
        device: Where the scores live.
        dtype: Type of the scores.
    """

    def __init__(
        self,
        channels: int,
        stride: int,
        weights: Tensor,
        rows: Span,
        columns: Span,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        side = len(weights)
        self._stride, self._overlap, self._rows, self._columns = stride, side - stride, rows, columns
        self._weights = weights
        self._across = weights.new_zeros(self._overlap)  # weights so far of the columns shared with windows to the left
        self._down = weights.new_zeros(self._overlap)  # the same for rows
        kept_width = (columns.stop - columns.lead) * stride + self._overlap
        self._kept = torch.zeros(channels, self._overlap, kept_width, device=device, dtype=dtype)
        self._open = torch.zeros(channels, side, side, device=device, dtype=dtype)

    def add(self, tile: Tile, scores: Tensor | None) -> Tensor | None:
        """Add a window and return the mean over the cell that is final now.

        Args:
            tile: One tile of `overlapping_tiles`, in order.
            scores: (C, side, side), which is taken over and changed; None for a window that has nothing to say about
                any of its pixels.

        Returns:
            (C, height, width) of ``tile.write``, valid until the next call; None for the windows before the strip.
        """
        stride = self._stride
        row, column = tile.read.row_off // stride, tile.read.col_off // stride
        scores = torch.zeros_like(self._open) if scores is None else scores.contiguous()
        self._merge_across(scores, first=column == self._columns.lead)
        # The last window of a row finishes all its columns.
        wide = stride if column + 1 < self._columns.stop else stride + self._overlap
        self._merge_down((column - self._columns.lead) * stride, wide, first=row == self._rows.lead)
        if column + 1 == self._columns.stop:
            self._down = self._grown(self._down, first=row == self._rows.lead)
        if row < self._rows.first or column < self._columns.first:
            return None
        return self._open[:, : tile.write.height, : tile.write.width]

    def _merge_across(self, scores: Tensor, first: bool) -> None:
        """Average the window, in place, with those to its left."""
        if self._overlap and not first:
            here = scores[:, :, : self._overlap]
            torch.lerp(self._open[:, :, self._stride :], here, self._share(self._across), out=here)
        self._across = self._grown(self._across, first)
        self._open = scores

    def _merge_down(self, left: int, wide: int, first: bool) -> None:
        """Average the finished columns of the window with those above, and keep what the next row goes on with."""
        above, here = self._kept[:, :, left : left + wide], self._open[:, : self._overlap, :wide]
        if self._overlap and not first:
            torch.lerp(above, here, self._share(self._down)[:, None], out=here)
        above.copy_(self._open[:, self._stride :, :wide])

    def _share(self, before: Tensor) -> Tensor:
        """Return the weight of the window at hand in the mean, given the weights of those before it."""
        fresh = self._weights[: self._overlap]
        return (fresh / (before + fresh)).to(self._kept)

    def _grown(self, before: Tensor, first: bool) -> Tensor:
        """Return the weights so far as the next window will meet them."""
        total = self._weights.clone()
        if not first:
            total[: self._overlap] += before
        return total[self._stride :]
