"""Do the labels lie where the image shows edges, or some pixels beside?

Edges of the burnt label are correlated with the gradient of the image by phase correlation: the shift at which the two
fit best stands out of the noise if there is one. Where it does not, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

REACH = 32  # pixels: farther shifts are not looked for
_LEAST_EDGES = 200  # pixels of label edges; fewer fit by chance
_LEAST_SCORE = 7.0
_LEAST_SHIFT = 2.5
_LEAST_GAIN = 1.2  # how much better than no shift at all it must be


@dataclass(frozen=True)
class Offset:
    """How far the labels lie beside what the image shows.

    Attributes:
        columns: To the right, pixels.
        rows: Downwards, pixels.
        score: Height of the correlation's peak above its noise, in standard deviations.
        gain: The peak by the correlation at no shift at all.
    """

    columns: int
    rows: int
    score: float
    gain: float

    @property
    def clear(self) -> bool:
        """Whether the peak stands out; if not, the other numbers mean nothing."""
        inside = max(abs(self.columns), abs(self.rows)) < REACH
        return inside and self.score >= _LEAST_SCORE

    @property
    def shifted(self) -> bool:
        """Whether the labels clearly lie beside what the image shows."""
        return self.clear and self.gain >= _LEAST_GAIN and math.hypot(self.columns, self.rows) >= _LEAST_SHIFT


def label_offset(patches: Sequence[tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]]) -> Offset | None:
    """Return how far labels are shifted against the image; None where there are too few edges to say anything.

    Args:
        patches: (image (bands, H, W), valid (H, W), label (H, W)) of parts of a scene, all of one size.
    """
    surface, edges = np.zeros((2 * REACH + 1, 2 * REACH + 1)), 0
    for image, valid, label in patches:
        borders = label_edges(label)
        if borders.any() and valid.any():
            edges += int(borders.sum())
            surface += _correlation(_gradient(image, valid), borders.astype(np.float64))
    return _peak(surface) if edges >= _LEAST_EDGES and surface.any() else None


def label_edges(label: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which pixels differ from the one below or to the right."""
    edges = np.zeros(label.shape, bool)
    edges[:-1] |= label[:-1] != label[1:]
    edges[:, :-1] |= label[:, :-1] != label[:, 1:]
    return edges


def _gradient(image: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the strength of the image's edges, bands alike, without those of missing data."""
    total = np.zeros(valid.shape)
    for band in image[:8]:
        values = band.astype(np.float32)
        values[~valid] = np.median(values[valid])
        values = cv2.GaussianBlur(values, (0, 0), 1.0)
        # Forward differences: they lie between the pixels where the label's edges are looked for too.
        strength = np.hypot(np.diff(values, axis=0, append=values[-1:]), np.diff(values, axis=1, append=values[:, -1:]))
        top = float(np.percentile(strength, 95))
        if top > 0:
            total += np.minimum(strength / top, 1.0)
    inside = cv2.erode(valid.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(bool)
    if inside.any():
        total -= total[inside].mean()
    total[~inside] = 0
    return total


def _correlation(strength: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the phase correlation for shifts of the edges by -REACH..REACH rows and columns (down, right)."""
    shape = [size + 2 * REACH for size in edges.shape]
    cross = np.fft.rfft2(edges - edges.mean(), shape) * np.conj(np.fft.rfft2(strength, shape))
    # Whitened in part: entirely, the noise of the finest scales would drown edges drawn by hand.
    cross /= np.sqrt(np.abs(cross)) + 1e-9
    reach = np.arange(-REACH, REACH + 1)
    shifts: NDArray[np.float64] = np.fft.irfft2(cross, shape)[np.ix_(reach, reach)]
    return shifts


def _peak(surface: NDArray[np.float64]) -> Offset:
    smooth = cv2.GaussianBlur(surface, (0, 0), 1.0)
    row, col = (int(i) for i in np.unravel_index(int(smooth.argmax()), smooth.shape))
    away = np.ones(smooth.shape, bool)
    away[max(0, row - 5) : row + 6, max(0, col - 5) : col + 6] = False
    level = float(np.median(smooth[away]))
    noise = 1.4826 * float(np.median(np.abs(smooth[away] - level))) + 1e-12
    height = float(smooth[row, col]) - level
    unmoved = float(smooth[REACH - 1 : REACH + 2, REACH - 1 : REACH + 2].max()) - level
    return Offset(col - REACH, row - REACH, height / noise, min(height / max(unmoved, 1e-12), 1e6))
