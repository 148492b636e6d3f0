"""Overviews: every 2 x 2 pixels become one, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from geoseg.geo.grid import Window

#: Side of the tiles of overviews, and of the largest overview that needs no further one.
TILE = 512


def level_shapes(height: int, width: int) -> list[tuple[int, int]]:
    """Return (height, width) of a raster and of its overviews, each half as large, until one fits a tile."""
    shapes = [(height, width)]
    while max(shapes[-1]) > TILE:
        shapes.append((-(-shapes[-1][0] // 2), -(-shapes[-1][1] // 2)))
    return shapes


def write_overview(
    read: Callable[[Window], NDArray[Any]],
    shape: tuple[int, int],
    target: Path,
    profile: dict[str, Any],
    resampling: str,
) -> None:
    """Write the overview of an image, tile by tile.

    Args:
        read: Returns (count, h, w) of a window of the image.
        shape: (height, width) of the image.
        target: File to write, a tiled GeoTIFF.
        profile: rasterio's profile of the file, without its sides.
        resampling: "mode", "nearest" or "average".
    """
    height, width = half_shape(shape)
    with rasterio.open(target, "w", height=height, width=width, **profile) as out:
        for row in range(0, height, TILE):
            for col in range(0, width, TILE):
                part = Window(row, col, min(TILE, height - row), min(TILE, width - col))
                bottom, right = min(2 * part.row_stop, shape[0]), min(2 * part.col_stop, shape[1])
                values = read(Window(2 * row, 2 * col, bottom - 2 * row, right - 2 * col))
                place = ((part.row_off, part.row_stop), (part.col_off, part.col_stop))
                out.write(halved(values, resampling, profile.get("nodata")), window=place)


def half_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the sides of an overview, rounded up."""
    return -(-shape[0] // 2), -(-shape[1] // 2)


def halved(values: NDArray[Any], resampling: str, nodata: float | None = None) -> NDArray[Any]:
    """Return an image with one pixel for every 2 x 2: (count, h, w) -> (count, ceil(h / 2), ceil(w / 2)).

    "mode" takes the most frequent value, among equally frequent ones the first in reading order; "average" the mean,
    rounded for whole numbers; "nearest" the upper left. Pixels of nodata (NaN too) count only where all are.
    """
    if resampling == "nearest":
        return np.ascontiguousarray(values[:, ::2, ::2])
    padding = [(0, 0), (0, values.shape[1] % 2), (0, values.shape[2] % 2)]
    even = np.pad(values, padding, mode="edge") if any(after for _, after in padding) else values
    corners = [np.ascontiguousarray(even[:, row::2, col::2]) for row in (0, 1) for col in (0, 1)]
    if resampling == "mode":
        return _mode(corners, nodata)
    return _mean(corners, nodata)


def _mode(corners: list[NDArray[Any]], nodata: float | None) -> NDArray[Any]:
    a, b, c, d = corners
    if nodata is None:
        out, known = a.copy(), [True] * 3
    else:
        marker = a.dtype.type(nodata)
        out = np.where(a != marker, a, np.where(b != marker, b, np.where(c != marker, c, d)))
        known = [corner != marker for corner in (a, b, c)]
    # Of two pairs the one that begins earlier wins: it is written later.
    np.copyto(out, c, where=(c == d) & known[2])
    np.copyto(out, b, where=((b == c) | (b == d)) & known[1])
    np.copyto(out, a, where=((a == b) | (a == c) | (a == d)) & known[0])
    return out


def _mean(corners: list[NDArray[Any]], nodata: float | None) -> NDArray[Any]:
    kind = corners[0].dtype
    total = np.zeros(corners[0].shape, np.float64)
    count = np.zeros(corners[0].shape, np.uint8)
    for corner in corners:
        good = np.ones(corner.shape, bool) if nodata is None else corner != kind.type(nodata)
        if kind.kind == "f":
            good &= ~np.isnan(corner)
        total += np.where(good, corner, 0)
        count += good
    mean = total / np.maximum(count, 1)
    if kind.kind != "f":
        mean = np.floor(mean + 0.5)
    empty = np.nan if nodata is None else nodata
    return np.where(count > 0, mean, empty if kind.kind == "f" or nodata is not None else 0).astype(kind)
