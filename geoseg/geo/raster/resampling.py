"""A raster read as if its pixels had another size: averaged where it is finer, interpolated where it is coarser."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoseg.geo.grid import Window
from geoseg.geo.raster.info import RasterInfo
from geoseg.geo.raster.reading import Pixels, Raster

_CHUNK_BYTES = 32 * 2**20


def resampled_info(info: RasterInfo, height: int, width: int) -> RasterInfo:
    """Return the info of a raster over exactly the same ground with other numbers of rows and columns."""
    scale = Affine.scale(info.width / width, info.height / height)
    transform = info.transform @ scale if info.georeferenced else info.transform
    return replace(info, height=height, width=width, transform=transform)


class Resampled(Raster):
    """A raster over the ground of another one, with other numbers of rows and columns.

    Along an axis where its pixels are larger, a pixel is the mean of those that it covers, in part or whole; where they
    are smaller, it lies on the line between the two nearest. Invalid pixels have no part in it. A pixel is valid where
    at least half of what it is made of is. Its value does not depend on the window that is read.

    Args:
        source: The raster to read; closed with this one.
        height: Rows.
        width: Columns.
    """

    def __init__(self, source: Raster, height: int, width: int) -> None:
        super().__init__(resampled_info(source.info, height, width), source.bands)
        self._source = source

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._source.close()

    def _read_inside(self, window: Window, shape: tuple[int, int] | None = None) -> Pixels:
        there = self._source.info
        if shape is not None:
            return self._source._read_inside(there.window, shape)
        tall, wide = there.height / self.info.height, there.width / self.info.width
        columns = _taps(window.col_off, window.col_stop, wide, there.width)
        row_bytes = 8 * (len(self.bands) + 1) * window.width * max(1.0, wide) * max(1.0, tall)
        step = max(1, int(_CHUNK_BYTES / row_bytes))
        chunks = []
        for top in range(window.row_off, window.row_stop, step):
            rows = _taps(top, min(top + step, window.row_stop), tall, there.height)
            chunks.append(self._resampled(rows, columns))
        image = np.concatenate([chunk.image for chunk in chunks], axis=1)
        return Pixels(image, np.concatenate([chunk.valid for chunk in chunks]))

    def _resampled(self, rows: _Taps, columns: _Taps) -> Pixels:
        top, left = int(rows[0].min()), int(columns[0].min())
        here = Window(top, left, int(rows[0].max()) + 1 - top, int(columns[0].max()) + 1 - left)
        pixels = self._source._read_inside(here)
        known = _weighted(pixels.valid.astype(np.float64)[None], rows, columns, (top, left))[0]
        values = _weighted(np.where(pixels.valid, pixels.image, 0), rows, columns, (top, left))
        np.divide(values, known, out=values, where=known > 0)
        valid = known >= 0.5 - 1e-9  # weights are rounded
        values[:, ~valid] = 0
        dtype = np.dtype(self.info.dtype)
        return Pixels((np.rint(values) if dtype.kind in "iu" else values).astype(dtype), valid)


# For each pixel of an axis, the source pixels (k, n) it is made of, and their weights, whose sum is 1.
_Taps = tuple[NDArray[np.int64], NDArray[np.float64]]


def _taps(start: int, stop: int, scale: float, length: int) -> _Taps:
    """Return what pixels are made of along an axis.

    Args:
        start: The first of them.
        stop: The one after the last.
        scale: Source pixels for one of them.
        length: Source pixels of the axis.
    """
    places = np.arange(start, stop, dtype=np.float64)
    if scale >= 1:
        first, last = places * scale, (places + 1) * scale
        index = np.floor(first) + np.arange(math.ceil(scale) + 1)[:, None]
        weight = np.clip(np.minimum(index + 1, last) - np.maximum(index, first), 0, None) / scale
    else:
        centre = (places + 0.5) * scale - 0.5
        index = np.floor(centre) + np.arange(2)[:, None]
        weight = 1 - np.abs(centre - index)
    return np.clip(index, 0, length - 1).astype(np.int64), weight


def _weighted(values: NDArray[Any], rows: _Taps, columns: _Taps, origin: tuple[int, int]) -> NDArray[np.float64]:
    """Return the weighted sums (bands, n, m) of pixels (bands, H, W) of which the first lies at `origin`."""
    down = np.zeros((len(values), rows[0].shape[1], values.shape[2]))
    for index, weight in zip(*rows, strict=True):
        down += values[:, index - origin[0]] * weight[:, None]
    across = np.zeros((*down.shape[:2], columns[0].shape[1]))
    for index, weight in zip(*columns, strict=True):
        across += down[:, :, index - origin[1]] * weight
    return across
