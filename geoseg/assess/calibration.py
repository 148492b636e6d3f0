"""Whether a map's probabilities can be believed: of pixels with confidence 0.8, eight in ten should be right.

Source: Guo, Pleiss, Sun, Weinberger (2017), "On calibration of modern neural networks", ICML, section 2: bins of equal
width, expected and maximum calibration error of the class in the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import ComparedBlock
from geoseg.assess.ratios import ratio
from geoseg.geo.raster import Raster

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Pixels by confidence; arrays of one entry per bin, bins of equal width from 0 to 1.

    Attributes:
        pixels: Known pixels whose confidence lies in the bin.
        right: Those whose class in the map is the true one.
        confidence: Sum of their confidences.
    """

    pixels: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share that is right; NaN for an empty bin."""
        return ratio(self.right, self.pixels)

    @property
    def mean_confidence(self) -> NDArray[np.float64]:
        """Mean confidence; NaN for an empty bin."""
        return ratio(self.confidence, self.pixels)

    @property
    def expected_error(self) -> float:
        """Expected calibration error: mean distance of accuracy and confidence, weighted by pixels; NaN without any."""
        total = self.pixels.sum()
        return float(np.abs(self.right - self.confidence).sum() / total) if total else float("nan")

    @property
    def largest_error(self) -> float:
        """Largest distance of accuracy and mean confidence in any bin; NaN without any pixel."""
        found = np.abs(self.accuracy - self.mean_confidence)[self.pixels > 0]
        return float(found.max()) if found.size else float("nan")


class Calibration:
    """Collects confidence and correctness of one scene.

    Args:
        raster: Confidence of the class in the map, or a probability per class; on the map's grid.
        bins: Number of bins.
    """

    margin = 0

    def __init__(self, raster: Raster, bins: int = BINS) -> None:
        self._raster, self._bins = raster, bins
        self._sum = reliability_of(np.zeros(0), np.zeros(0, bool), bins)

    def add(self, block: ComparedBlock) -> None:
        """Take a block into account."""
        block = block.cropped()
        pixels = self._raster.read(block.window)
        used = block.known & block.classified & pixels.valid
        confidence, right = pixels.image.max(axis=0)[used], (block.label == block.predicted)[used]
        self._sum = whole_reliability([self._sum, reliability_of(confidence, right, self._bins)])

    def reliability(self) -> Reliability:
        """Return the counts."""
        return self._sum


def reliability_of(confidence: NDArray[np.floating], right: NDArray[np.bool_], bins: int = BINS) -> Reliability:
    """Count pixels by confidence; a value on the border of two bins belongs to the lower one.

    Args:
        confidence: (n,) of each pixel's class, 0..1.
        right: (n,) whether the class is the true one.
        bins: Number of bins.
    """
    values = np.clip(confidence.astype(np.float64), 0, 1)
    place = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
    pixels, rights = (np.bincount(chosen, minlength=bins) for chosen in (place, place[right]))
    return Reliability(pixels, rights, np.bincount(place, weights=values, minlength=bins))


def whole_reliability(parts: Sequence[Reliability]) -> Reliability:
    """Return the sum over scenes (at least one)."""
    return Reliability(*(np.sum([getattr(part, key) for part in parts], axis=0) for key in vars(parts[0])))
