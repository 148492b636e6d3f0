"""Statistics of the bands: exact moments that merge in any grouping, and percentiles of a regular subsample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Window

PERCENTILES = (1, 2, 50, 98, 99)
_SUBSAMPLE = 2**18  # pixels; a percentile of so many is right to about a fifth of a percent of the ranks
_TOGETHER = 2**22  # pixels of one band that are sorted together
_CHUNK = 2**15  # pixels whose float64 copies stay in a core's cache


@dataclass(frozen=True)
class Moments:
    """Count, mean, sum of squared deviations, least and greatest value of some pixels of one band."""

    count: int
    mean: float
    squares: float
    low: float
    high: float

    @property
    def std(self) -> float:
        """Standard deviation of the pixels themselves (divided by count); 0 where there are none."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


EMPTY = Moments(0, 0.0, 0.0, math.inf, -math.inf)


def merge(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all pixels together.

    The sums are exactly rounded (`math.fsum`), so the order of the parts does not matter; squared deviations are
    shifted to the common mean, never raw squares subtracted, so large means do not cancel.
    """
    parts = [part for part in parts if part.count]
    if not parts:
        return EMPTY
    count = sum(part.count for part in parts)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    squares = math.fsum(term for p in parts for term in (p.squares, p.count * (p.mean - mean) ** 2))
    return Moments(count, mean, squares, min(p.low for p in parts), max(p.high for p in parts))


def band_moments(image: NDArray[Any], valid: NDArray[np.bool_]) -> list[Moments]:
    """Return the moments of each band over the valid pixels.

    Args:
        image: (bands, H, W), finite where valid.
        valid: (H, W).
    """
    if image.dtype == np.uint8:
        return [_byte_moments(band, valid) for band in image]
    rows = max(1, _CHUNK // max(1, image.shape[2]))
    parts: list[list[Moments]] = [[] for _ in image]
    for start in range(0, image.shape[1], rows):
        where = valid[start : start + rows]
        whole = bool(where.all())
        for band, found in zip(image, parts, strict=True):
            chunk = band[start : start + rows]
            found.append(_moments(chunk if whole else chunk[where]))
    return [merge(found) for found in parts]


def _byte_moments(band: NDArray[np.uint8], valid: NDArray[np.bool_]) -> Moments:
    """Ten times faster for bytes, and exact: OpenCV's mean and deviation come from whole sums, which are restored."""
    count = int(np.count_nonzero(valid))
    if not count:
        return EMPTY
    mask = None if count == valid.size else np.ascontiguousarray(valid).view(np.uint8)
    band = np.ascontiguousarray(band)
    (mean,), (std,) = (found.ravel().tolist() for found in cv2.meanStdDev(band, mask=mask))
    total, squared = round(mean * count), round((std * std + mean * mean) * count)
    squares = (count * squared - total * total) / count
    low, high, _, _ = cv2.minMaxLoc(band, mask=mask)
    return Moments(count, total / count, squares, float(low), float(high))


def _moments(values: NDArray[Any]) -> Moments:
    if values.size == 0:
        return EMPTY
    numbers = values.astype(np.float64)
    mean = float(numbers.sum()) / numbers.size
    numbers -= mean
    # Not a BLAS product: its rounding changes with the number of threads.
    np.multiply(numbers, numbers, out=numbers)
    return Moments(numbers.size, mean, float(numbers.sum()), float(values.min()), float(values.max()))


def subsample_step(pixels: int) -> int:
    """Return k such that every k-th pixel of every k-th row of `pixels` pixels makes a subsample of bounded size."""
    return max(1, math.ceil(math.sqrt(pixels / _SUBSAMPLE)))


def subsample(image: NDArray[Any], valid: NDArray[np.bool_], window: Window, step: int) -> NDArray[Any]:
    """Return (bands, n): the valid pixels whose scene row and column are multiples of `step`.

    Args:
        image: (bands, h, w), the pixels of `window`.
        valid: (h, w).
        window: Where they lie in the scene; decides the grid, so that every cut of a scene yields the same pixels.
        step: From `subsample_step`.
    """
    rows, cols = slice(-window.row_off % step, None, step), slice(-window.col_off % step, None, step)
    return image[:, rows, cols][:, valid[rows, cols]]


def percentiles(files: Sequence[Path], steps: Sequence[int], band: int) -> dict[str, float]:
    """Return p1, p2, ... of one band (index from 0) over the subsamples of scenes.

    A scene stands for as many pixels as it has, however finely it was sampled. One band is in memory at a time. All 0
    where there is no file.

    Args:
        files: Subsamples, (bands, n) with n > 0 each.
        steps: The step each was made with.
        band: Which band.
    """
    if not files:
        return {f"p{rank}": 0.0 for rank in PERCENTILES}
    maps = [np.load(path, mmap_mode="r") for path in files]
    thin = max(1, math.ceil(sum(one.shape[1] for one in maps) / _TOGETHER))
    values = [one[band, ::thin].astype(np.float64) for one in maps]
    joined = np.concatenate(values)
    if len(set(steps)) == 1:
        found = np.percentile(joined, PERCENTILES)
    else:
        weights = np.concatenate([np.full(len(v), step**2, float) for v, step in zip(values, steps, strict=True)])
        found = _weighted(joined, weights)
    return {f"p{rank}": float(value) for rank, value in zip(PERCENTILES, found, strict=True)}


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middles = np.cumsum(weights) - weights / 2
    return np.interp(np.array(PERCENTILES) / 100 * weights.sum(), middles, values)


def describe(moments: Sequence[Moments], files: Sequence[Path], steps: Sequence[int]) -> Iterator[Mapping[str, float]]:
    """Yield the statistics of each band for `StoreInfo.statistics`."""
    for band, found in enumerate(moments):
        low, high = (found.low, found.high) if found.count else (0.0, 0.0)
        yield {
            "count": found.count,
            "mean": found.mean,
            "std": found.std,
            "min": low,
            "max": high,
            **percentiles(files, steps, band),
        }
