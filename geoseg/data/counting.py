"""Pixels per class, of a label and of all windows of a block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Block, Window

_COUNTED = 2**16  # pixels that stay in a core's cache
_CELL = 2**10  # pixels; counting smaller cells costs more than counting a pixel twice
_COMPARED = 24  # classes; more are counted faster all at once


def count_classes(label: NDArray[np.uint8], num_classes: int) -> list[int]:
    """Return the number of pixels of each class id."""
    rows = max(1, _COUNTED // max(1, label.shape[1]))
    total = np.zeros(num_classes, np.int64)
    for start in range(0, label.shape[0], rows):
        chunk = np.ascontiguousarray(label[start : start + rows])
        if num_classes > _COMPARED:
            total += np.bincount(chunk.ravel(), minlength=256)[:num_classes]
        else:
            total += [np.count_nonzero(chunk == index) for index in range(num_classes)]
    return total.tolist()  # type: ignore[no-any-return]


class WindowCounts:
    """Pixels per class of the windows of a block.

    Where windows overlap on a grid, each pixel is counted once, in the cells that the windows' edges cut the block in;
    a window is a sum of cells.

    Args:
        label: Of the block, (h, w).
        block: The block and its windows.
        num_classes: Background included.
    """

    def __init__(self, label: NDArray[np.uint8], block: Block, num_classes: int) -> None:
        self._label, self._outer, self._classes = label, block.window, num_classes
        inside = [window.intersection(block.window) for window in block.windows]
        rows = sorted({edge for w in inside if w for edge in (w.row_off, w.row_stop)})
        cols = sorted({edge for w in inside if w for edge in (w.col_off, w.col_stop)})
        area = sum(w.height * w.width for w in inside if w)
        cells = (len(rows) - 1) * (len(cols) - 1)
        self._sums: NDArray[np.int64] | None = None
        self._found: dict[Window, list[int]] = {}
        # Windows on a grid leave nothing out: if they have as many pixels as the block, each is in one of them.
        self._tiled = (len(rows) - 1) * (len(cols) - 1) == len(inside) and area == label.size
        # Many small cells (windows at random) cost more than the overlap.
        if cells > 0 and area > 1.5 * label.size and label.size / cells >= _CELL:
            self._rows, self._cols = ({edge: i for i, edge in enumerate(edges)} for edges in (rows, cols))
            self._sums = self._summed(rows, cols)

    def of(self, window: Window) -> list[int]:
        """Return the pixels of each class in one of the block's windows."""
        inside = window if self._outer.contains(window) else window.intersection(self._outer)
        assert inside is not None
        if self._sums is None:
            found = count_classes(self._label[inside.within(self._outer)], self._classes)
            if self._tiled:
                self._found[inside] = found
            return found
        return self._from_cells(inside)

    def total(self, region: Window) -> list[int]:
        """Return the pixels of each class in a part of the block: from what was counted before, where that says it."""
        if region == self._outer and len(self._found) * self._tiled and self._area_found() == self._label.size:
            return np.sum(list(self._found.values()), axis=0).tolist()  # type: ignore[no-any-return]
        if self._sums is not None and self._is_of_cells(region):
            return self._from_cells(region)
        return count_classes(self._label[region.within(self._outer)], self._classes)

    def _area_found(self) -> int:
        return sum(window.height * window.width for window in self._found)

    def _is_of_cells(self, region: Window) -> bool:
        rows, cols = {region.row_off, region.row_stop}, {region.col_off, region.col_stop}
        return rows <= self._rows.keys() and cols <= self._cols.keys()

    def _from_cells(self, inside: Window) -> list[int]:
        assert self._sums is not None
        top, bottom = self._rows[inside.row_off], self._rows[inside.row_stop]
        left, right = self._cols[inside.col_off], self._cols[inside.col_stop]
        s = self._sums
        return (s[bottom, right] - s[top, right] - s[bottom, left] + s[top, left]).tolist()  # type: ignore[no-any-return]

    def _summed(self, rows: Sequence[int], cols: Sequence[int]) -> NDArray[np.int64]:
        sums = np.zeros((len(rows), len(cols), self._classes), np.int64)
        for i, (top, bottom) in enumerate(pairwise(rows)):
            for j, (left, right) in enumerate(pairwise(cols)):
                cell = Window(top, left, bottom - top, right - left).within(self._outer)
                sums[i + 1, j + 1] = count_classes(self._label[cell], self._classes)
        return sums.cumsum(axis=0).cumsum(axis=1)
