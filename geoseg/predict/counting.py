"""What is counted while a map is made: pixels per class, and differences that tell whether windows leave seams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Window
from geoseg.predict.blocks import NODATA, ClassBlock


@dataclass
class MapCounts:
    """Sums over a map, or over a part of it.

    Attributes:
        classes: (num_classes,) pixels of each class.
        inside: Pairs of neighbouring known pixels within a window's square, and how many of them differ.
        border: The same, of pairs of pixels of two windows.
    """

    classes: NDArray[np.int64]
    inside: NDArray[np.int64]
    border: NDArray[np.int64]

    @classmethod
    def zero(cls, num_classes: int) -> MapCounts:
        """Return counts of nothing."""
        return cls(np.zeros(num_classes, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))

    def __iadd__(self, other: MapCounts) -> MapCounts:
        """Add the counts of another part."""
        self.classes += other.classes
        self.inside += other.inside
        self.border += other.border
        return self

    def taken(self) -> MapCounts:
        """Return the counts so far and begin anew."""
        before = MapCounts(self.classes.copy(), self.inside.copy(), self.border.copy())
        for sums in (self.classes, self.inside, self.border):
            sums[:] = 0
        return before

    @property
    def seam_index(self) -> float | None:
        """How much more often neighbours differ across window borders than inside; 1 without seams.

        None where there are too few borders, or no differences, to say.
        """
        if min(self.inside[0], self.border[0]) < _ENOUGH or self.inside[1] == 0:
            return None
        return float(self.border[1] / self.border[0] / (self.inside[1] / self.inside[0]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON."""
        return {name: getattr(self, name).tolist() for name in ("classes", "inside", "border")}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> MapCounts:
        """Build from `to_dict`."""
        return cls(*(np.array(plain[name], np.int64) for name in ("classes", "inside", "border")))


_ENOUGH = 1000  # pairs; fewer say nothing


class MapCounter:
    """Looks for seams in blocks as they come, row by row.

    Args:
        num_classes: Number of classes.
        region: The columns that will come.
    """

    def __init__(self, num_classes: int, region: Window) -> None:
        self.counts = MapCounts.zero(num_classes)
        self._left_edge = region.col_off
        self._above = np.full(region.width, NODATA, np.uint8)  # the last row of the blocks above
        self._left: tuple[Window, NDArray[np.uint8]] | None = None

    def add(self, block: ClassBlock) -> None:
        """Compare the pixels of a block with their neighbours."""
        classes, window = block.classes, block.window
        # Pairs within every 4th row and column are enough to compare with.
        self.counts.inside += _pairs(classes[::4, :-1], classes[::4, 1:])
        self.counts.inside += _pairs(classes[:-1, ::4], classes[1:, ::4])
        start = window.col_off - self._left_edge
        above = self._above[start : start + window.width]
        self.counts.border += _pairs(above, classes[0])
        if self._left is not None:
            beside, column = self._left
            if (beside.row_off, beside.col_stop, beside.height) == (window.row_off, window.col_off, window.height):
                self.counts.border += _pairs(column, classes[:, 0])
        above[:] = classes[-1]
        self._left = window, classes[:, -1].copy()


def _pairs(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many pairs of known pixels there are and how many of them differ."""
    differ = first != second
    known = (first != NODATA) & (second != NODATA)
    return np.array([np.count_nonzero(known), np.count_nonzero(differ & known)], np.int64)
