"""Objects found, missed and invented: connected areas of a class, matched one to one.

An object is a connected group (sides or corners touch) of known pixels of one class, in the reference as in the map.
Polygons that touch are therefore one object: a map of pixels cannot tell them apart either. Objects are put together
across blocks, so memory depends on a row of blocks and on the number of objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import ComparedBlock
from geoseg.assess.ratios import ratio
from geoseg.geo.grid import Window
from geoseg.geo.regions import joined

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ObjectScores:
    """Objects of each class; arrays of one entry per class.

    Attributes:
        reference: Objects in the reference.
        mapped: Objects in the map.
        matched: Pairs of the two.
        overlap: Sum of the pairs' IoU.
    """

    reference: Ids
    mapped: Ids
    matched: Ids
    overlap: NDArray[np.float64]

    def __add__(self, other: ObjectScores) -> ObjectScores:
        return ObjectScores(*(getattr(self, key) + getattr(other, key) for key in vars(self)))

    @property
    def precision(self) -> NDArray[np.float64]:
        """Share of the map's objects that are matched; NaN where it has none."""
        return ratio(self.matched, self.mapped)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Share of the reference's objects that are matched; NaN where it has none."""
        return ratio(self.matched, self.reference)

    @property
    def f1(self) -> NDArray[np.float64]:
        """Harmonic mean of the two; NaN where neither side has an object."""
        return ratio(2 * self.matched, self.mapped + self.reference)

    @property
    def mean_iou(self) -> NDArray[np.float64]:
        """Mean IoU of the pairs; NaN where there is none."""
        return ratio(self.overlap, self.matched)


class ObjectMatcher:
    """Collects the objects of one scene, whose blocks come row by row.

    Args:
        num_classes: Number of classes, background included.
        width: Columns of the scene.
        threshold: IoU from which on two objects are a pair, 0.5 to 1 (an object then has one partner at most, but for
            halves of exactly 0.5).
    """

    margin = 0

    def __init__(self, num_classes: int, width: int, threshold: float = 0.5) -> None:
        if not 0.5 <= threshold <= 1:
            raise ValueError(f"a threshold from 0.5 to 1 is needed, not {threshold}")
        self._num_classes, self._threshold = num_classes, threshold
        self._reference, self._mapped = _Components(width), _Components(width)
        self._pairs: list[NDArray[np.int64]] = []

    def add(self, block: ComparedBlock) -> None:
        """Take a block into account; background has no objects."""
        block = block.cropped()
        reference = self._reference.add(np.where(block.known, block.label, 0), block.window)
        there = block.known & block.classified
        mapped = self._mapped.add(np.where(there, block.predicted, 0).astype(np.uint8), block.window)
        same = (reference > 0) & (mapped > 0) & (block.label == block.predicted)
        # One number per pair: numpy sorts numbers ten times faster than columns.
        base = self._mapped.count
        pairs, counts = np.unique(reference[same] * base + mapped[same], return_counts=True)
        self._pairs.append(np.stack([pairs // base, pairs % base, counts]))

    def scores(self) -> ObjectScores:
        """Return the scores; to be called when all blocks were added."""
        reference, mapped = self._reference.finish(), self._mapped.finish()
        first, second, common = np.concatenate([np.zeros((3, 0), np.int64), *self._pairs], axis=1)
        pairs, where = np.unique(np.stack([reference.root[first], mapped.root[second]]), axis=1, return_inverse=True)
        common = np.bincount(where.ravel(), weights=common, minlength=pairs.shape[1]).astype(np.int64)
        union = reference.area[pairs[0]] + mapped.area[pairs[1]] - common
        chosen, iou = _one_to_one(pairs, common / np.maximum(union, 1), self._threshold)
        classes = reference.kind[chosen[0]]
        return ObjectScores(
            reference=reference.count(self._num_classes),
            mapped=mapped.count(self._num_classes),
            matched=np.bincount(classes, minlength=self._num_classes).astype(np.int64),
            overlap=np.bincount(classes, weights=iou, minlength=self._num_classes).astype(np.float64),
        )


@dataclass(frozen=True)
class _Objects:
    """Numbered areas put together: the object of each, and of each object pixels and class (by its number)."""

    root: Ids
    area: Ids
    kind: Ids

    def count(self, num_classes: int) -> Ids:
        objects = np.unique(self.root[1:])
        return np.bincount(self.kind[objects], minlength=num_classes).astype(np.int64)


class _Components:
    """Numbers the connected areas of blocks that come row by row, and notes which of them touch."""

    def __init__(self, width: int) -> None:
        self._next = 1
        self._areas: list[Ids] = [np.zeros(1, np.int64)]
        self._kinds: list[Ids] = [np.zeros(1, np.int64)]
        self._links: list[NDArray[np.int64]] = []
        # Number and class of the last row above, and of this row of blocks so far; of the last column to the left.
        self._above, self._below = np.zeros((2, 2, width), np.int64)
        self._left = np.zeros((2, 0), np.int64)

    @property
    def count(self) -> int:
        """All numbers so far are below this."""
        return self._next

    def add(self, classes: NDArray[np.uint8], window: Window) -> Ids:
        """Return the number of each pixel's area, 0 for background."""
        numbers = np.zeros(window.shape, np.int64)
        for kind in np.flatnonzero(np.bincount(classes.ravel(), minlength=2)[1:]) + 1:
            there = classes == kind
            count, found, boxes, _ = cv2.connectedComponentsWithStats(there.view(np.uint8), connectivity=8)
            np.add(found, self._next - 1, out=numbers, where=there)
            self._areas.append(boxes[1:, cv2.CC_STAT_AREA].astype(np.int64))
            self._kinds.append(np.full(count - 1, kind, np.int64))
            self._next += count - 1
        self._link(numbers, classes, window)
        return numbers

    def finish(self) -> _Objects:
        areas, kinds = np.concatenate(self._areas), np.concatenate(self._kinds)
        links = np.concatenate([np.zeros((2, 0), np.int64), *self._links], axis=1)
        root = joined(len(areas), links)
        return _Objects(root, np.bincount(root, weights=areas, minlength=len(areas)).astype(np.int64), kinds)

    def _link(self, numbers: Ids, classes: NDArray[np.uint8], window: Window) -> None:
        if window.col_off == 0:
            self._above, self._below = self._below, np.zeros_like(self._below)
            self._left = np.zeros((2, window.height), np.int64)
        if window.row_off > 0:
            padded = np.pad(self._above, ((0, 0), (1, 1)))[:, window.col_off : window.col_stop + 2]
            self._touching(np.stack([numbers[0], classes[0]]), padded)
        self._touching(np.stack([numbers[:, 0], classes[:, 0]]), np.pad(self._left, ((0, 0), (1, 1))))
        self._below[:, window.col_off : window.col_stop] = numbers[-1], classes[-1]
        self._left = np.stack([numbers[:, -1], classes[:, -1]])

    def _touching(self, line: NDArray[np.int64], other: NDArray[np.int64]) -> None:
        """Note which areas of a line touch areas of the same class in the next one, which is longer by 1 each side."""
        length = line.shape[1]
        for shift in range(3):
            beside = other[:, shift : shift + length]
            same = (line[0] > 0) & (beside[0] > 0) & (line[1] == beside[1])
            if same.any():
                self._links.append(np.unique(np.stack([line[0, same], beside[0, same]]), axis=1))


def _one_to_one(
    pairs: NDArray[np.int64], iou: NDArray[np.float64], threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the pairs at or above the threshold, the best first, each partner once."""
    order = np.lexsort((pairs[1], pairs[0], -iou))
    order = order[iou[order] >= threshold]
    _, first = np.unique(pairs[0, order], return_index=True)
    order = order[np.sort(first)]
    _, first = np.unique(pairs[1, order], return_index=True)
    order = order[np.sort(first)]
    return pairs[:, order], iou[order]
