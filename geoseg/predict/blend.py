"""Averaging of overlapping windows in memory that does not grow with the raster.

The windows of a scene lie on a grid: window (r, k) begins at row ``r * stride`` and column ``k * stride`` and has the
side ``stride + overlap``. Once it has been added, the cell of ``stride`` x ``stride`` pixels in its upper left is
final, because no later window reaches it. So only two things are kept: the pixels of the window at hand, and the
``overlap`` rows below the row of windows just done, for as many columns as a budget allows. A raster that is wider is
cut into strips; a strip begins with the windows left of it that reach into it, which are computed again.

Every pixel meets its windows in the same order (row by row, left to right) whatever the strips are, so the result is
the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from geoseg.geo.grid import Tile, Window

STATE_BYTES = 64 * 2**20
_SMALLEST_STRIP = 4  # windows; with fewer, the windows computed twice would outweigh the memory saved


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


@dataclass(frozen=True, slots=True)
class Strip:
    """Columns of windows that are blended together.

    Attributes:
        lead: First column of windows to compute; those before ``first`` only reach into the strip.
        first: First column of cells that the strip finishes.
        stop: The column of cells after its last.
    """

    lead: int
    first: int
    stop: int


def window_count(length: int, stride: int, overlap: int) -> int:
    """Return how many windows cover ``length`` pixels; the last one may reach beyond the end."""
    return 1 + max(0, -(-(length - stride - overlap) // stride))


def strips(columns: int, stride: int, overlap: int, channels: int, budget: int = STATE_BYTES) -> list[Strip]:
    """Cut the columns of windows into strips whose kept rows fit ``budget`` bytes (but never below a few windows)."""
    reach = -(-overlap // stride)
    cell_bytes = 4 * (channels + 1) * max(overlap, 1) * stride
    size = max(_SMALLEST_STRIP, budget // cell_bytes)
    return [Strip(max(0, first - reach), first, min(columns, first + size)) for first in range(0, columns, size)]


def hann_tiles(height: int, width: int, stride: int, overlap: int, strip: Strip) -> Iterator[Tile]:
    """Yield the windows of a strip in the order in which `StripBlender` wants them.

    A tile's ``read`` is the whole window, its ``write`` the cell that becomes final with it, clipped to the scene; the
    last cell of an axis reaches to the scene's edge.
    """
    rows = window_count(height, stride, overlap)
    columns = window_count(width, stride, overlap)
    side = stride + overlap
    for row in range(rows):
        top = row * stride
        tall = stride if row < rows - 1 else height - top
        for column in range(strip.lead, strip.stop):
            left = column * stride
            wide = stride if column < columns - 1 else width - left
            yield Tile(write=Window(top, left, tall, wide), read=Window(top, left, side, side))


class StripBlender:
    """The running weighted mean over one strip.

    A running mean, not a sum divided at the end: where all windows agree, the result is their value to the last bit.

    Args:
        channels: Number of score channels.
        stride: Side of a cell in pixels.
        overlap: Pixels that neighbouring windows share.
        strip: The columns of windows that will come.
        device: Where the scores live.
        dtype: Type of the scores.
    """

    def __init__(
        self, channels: int, stride: int, overlap: int, strip: Strip, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._stride, self._overlap, self._strip = stride, overlap, strip
        side = stride + overlap
        self._left = strip.lead * stride
        kept_width = (strip.stop - strip.lead) * stride + overlap
        axis = hann_weights(side, overlap)
        self._weights = (axis[:, None] * axis[None, :]).to(device, dtype)
        # Channel 0 is the sum of weights so far, the others are the mean of the scores.
        self._kept = torch.zeros(channels + 1, overlap, kept_width, device=device, dtype=dtype)
        self._open = torch.zeros(channels + 1, side, side, device=device, dtype=dtype)

    def add(self, tile: Tile, scores: Tensor | None) -> Tensor | None:
        """Add a window and return the mean over the cell that is final now.

        Args:
            tile: One tile of `hann_tiles`, in order.
            scores: (C, side, side); None for a window that has nothing to say.

        Returns:
            (C, height, width) of ``tile.write``; None for the windows left of the strip.
        """
        left = tile.read.col_off - self._left
        self._advance(left)
        if scores is not None:
            total, mean = self._open[0], self._open[1:]
            total += self._weights
            mean.lerp_(scores, self._weights / total)
        self._keep(left)
        if tile.read.col_off < self._strip.first * self._stride:
            return None
        return self._open[1:, : tile.write.height, : tile.write.width]

    def _advance(self, left: int) -> None:
        """Move the open window to ``left``: what the previous window shares stays, the rest comes from above."""
        side, overlap, stride = self._stride + self._overlap, self._overlap, self._stride
        fresh = 0
        if left > 0:
            self._open[:, :, :overlap] = self._open[:, :, stride:].clone()
            fresh = overlap
        self._open[:, :, fresh:] = 0
        self._open[:, :overlap, fresh:] = self._kept[:, :, left + fresh : left + side]

    def _keep(self, left: int) -> None:
        """Store the rows that the next row of windows goes on with.

        Columns right of the cell are stored again by the next window; the row's last window stores them for good.
        """
        side = self._stride + self._overlap
        self._kept[:, :, left : left + self._stride] = self._open[:, self._stride :, : self._stride]
        if left + side == self._kept.shape[2]:
            self._kept[:, :, left + self._stride :] = self._open[:, self._stride :, self._stride :]
