"""Connected regions by a plain flood fill, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Place = tuple[int, int]


def flood(values: NDArray[Any], unknown: int | None = None) -> list[list[Place]]:
    """Return the regions of a map, pixels of one value connected by their sides, as lists of (row, column).

    They come in the order of their first pixels, row by row, and each begins with that.

    Args:
        values: (h, w).
        unknown: Value of pixels that belong to none.
    """
    free = {place for place in np.ndindex(values.shape) if values[place] != unknown}
    regions = []
    for start in np.ndindex(values.shape):
        if start not in free:
            continue
        free.discard(start)
        region = [start]
        for row, col in region:
            for place in beside(row, col):
                if place in free and values[place] == values[start]:
                    free.discard(place)
                    region.append(place)
        regions.append(region)
    return regions


def beside(row: int, col: int) -> list[Place]:
    """Return the four neighbours of a pixel."""
    return [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]
