"""Boundary IoU: how well the outlines of a class fit, whatever the size of its areas.

Source: Cheng, Girshick, Dollár, Berg, Kirillov (2021), "Boundary IoU: Improving object-centric image segmentation
evaluation", CVPR, section 4. Two deviations: the width is given in pixels, because a scene has no meaningful diagonal;
and the edge of the scene and of unknown areas is no boundary, because nobody drew one there.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import ComparedBlock
from geoseg.assess.ratios import ratio


class BoundaryOverlap:
    """Counts, over all blocks of one scene, the pixels near the outlines of each class.

    Args:
        num_classes: Number of classes, background included.
        width: Pixels of a class this near to its outline, in rows and columns, are its boundary; at least 1.

    Attributes:
        common: (C,) pixels that are boundary of the class in reference and map alike.
        either: (C,) pixels that are boundary of the class in one of them at least.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        self.width = width
        self.common = np.zeros(num_classes, np.int64)
        self.either = np.zeros(num_classes, np.int64)
        self._kernel = np.ones((2 * width + 1, 2 * width + 1), np.uint8)

    @property
    def margin(self) -> int:
        """Pixels that must be known around a block."""
        return self.width

    def add(self, block: ComparedBlock) -> None:
        """Count a block; pixels that are unknown or without a class in the map are left out."""
        both = block.known & block.classified
        for number in range(len(self.common)):
            reference = self._boundary(both & (block.label == number), both)[block.inner]
            mapped = self._boundary(both & (block.predicted == number), both)[block.inner]
            self.common[number] += np.count_nonzero(reference & mapped)
            self.either[number] += np.count_nonzero(reference | mapped)

    def iou(self) -> NDArray[np.float64]:
        """Return the boundary IoU of each class, NaN where there is no boundary."""
        return boundary_iou(self.common, self.either)

    def _boundary(self, area: NDArray[np.bool_], both: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if not area.any():
            return area
        filled = (area | ~both).astype(np.uint8)
        inner = cv2.erode(filled, self._kernel).astype(bool)
        found: NDArray[np.bool_] = area & ~inner
        return found


def boundary_iou(common: NDArray[np.integer], either: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return common / either, NaN where either is 0."""
    return ratio(common, either)
