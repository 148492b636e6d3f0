"""Connected areas of equal pixels: numbered block by block, and put together across blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray


class Numbered(NamedTuple):
    """The regions of a block.

    Attributes:
        numbers: (h, w) int32; each pixel's region, from 1, or 0 where it has none.
        kinds: (regions + 1,) the value of each region's pixels; the first entry stands for no region.
    """

    numbers: NDArray[np.int32]
    kinds: NDArray[Any]


def number_regions(values: NDArray[Any], unknown: int | None = None) -> Numbered:
    """Number the regions of a block: pixels of one value that are connected by their sides.

    Args:
        values: (h, w) of an unsigned integer type.
        unknown: Value of pixels that belong to no region; None: all do.
    """
    numbers = np.zeros(values.shape, np.int32)
    kinds = [np.zeros(1, values.dtype)]
    count = 0
    for kind in np.flatnonzero(np.bincount(values.ravel())).tolist():
        if kind == unknown:
            continue
        there = values == kind
        last, found = cv2.connectedComponents(there.view(np.uint8), connectivity=4)
        np.add(found, count, out=numbers, where=there)
        kinds.append(np.full(last - 1, kind, values.dtype))
        count += last - 1
    return Numbered(numbers, np.concatenate(kinds))


def joined(count: int, links: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each of `count` things, the smallest thing that it is linked to, directly or through others.

    Args:
        count: Number of things.
        links: (2, n) pairs.
    """
    root = np.arange(count)
    while True:
        before = root
        root = root.copy()
        lower = np.minimum(before[links[0]], before[links[1]])
        np.minimum.at(root, before[links[0]], lower)
        np.minimum.at(root, before[links[1]], lower)
        root = root[root]
        if np.array_equal(root, before) and (root[links[0]] == root[links[1]]).all():
            return root
