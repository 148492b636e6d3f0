"""Areas and accuracies from a stratified random sample of points, with their uncertainty.

Counting a map's pixels gives a biased area: commission and omission errors do not cancel. A random sample of points
whose true class was looked up corrects it, and says how sure the result is.

Source: Olofsson, Foody, Herold, Stehman, Woodcock, Wulder (2014), "Good practices for estimating area and assessing
accuracy of land change", Remote Sensing of Environment 148, sections 4 and 5. The strata are the classes of the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Standard errors on either side of an estimate that hold the truth in 95 of 100 samples.
Z95 = 1.959963984540054
ALLOCATIONS = ("proportional", "equal", "variance")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimates:
    """What a sample says about the ground; arrays have one entry per class, NaN where the sample says nothing.

    Attributes:
        counts: (C, C) points by class in the map (rows) and true class (columns).
        mapped: Area of each class in the map.
        proportions: (C, C) estimated shares of the whole area, by class in the map and true class.
        area: Estimated true area of each class, in the unit of `mapped`.
        area_error: Its standard error.
        users: User's accuracy (precision): what is right of what the map calls the class.
        users_error: Its standard error.
        producers: Producer's accuracy (recall): what the map has of what is the class.
        producers_error: Its standard error.
        overall: Share of the area that is right.
        overall_error: Its standard error.
    """

    counts: NDArray[np.int64]
    mapped: Floats
    proportions: Floats
    area: Floats
    area_error: Floats
    users: Floats
    users_error: Floats
    producers: Floats
    producers_error: Floats
    overall: float
    overall_error: float

    @property
    def half_width(self) -> Floats:
        """Half the width of the 95 % interval of the areas."""
        return Z95 * self.area_error

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers for JSON, None for undefined."""
        return {name: _plain(np.asarray(value).tolist()) for name, value in vars(self).items()}


def estimate(counts: NDArray[np.int64] | Sequence[Sequence[int]], mapped: Floats | Sequence[float]) -> Estimates:
    """Estimate areas and accuracies from the points of a stratified random sample (equations 1 to 12).

    Args:
        counts: (C, C) points by class in the map (rows) and true class (columns).
        mapped: (C,) area of each class in the map, in any unit; at least one is above zero.

    Returns:
        The estimates. A class of the map with area but without points makes everything that it could change NaN; one
        with a single point has an estimate, and a NaN standard error.

    Raises:
        ValueError: Shapes do not fit, numbers are negative, or points lie where the map has no area.
    """
    counts = np.asarray(counts).astype(np.int64)
    mapped = np.asarray(mapped, np.float64)
    if counts.ndim != 2 or counts.shape != (len(mapped), len(mapped)) or counts.min() < 0 or mapped.min() < 0:
        raise ValueError(
            f"counts {counts.shape} and areas {mapped.shape} of the same classes are needed, none negative"
        )
    if mapped.sum() <= 0 or (counts.sum(axis=1)[mapped == 0] > 0).any():
        raise ValueError("points lie in classes without area")
    weights = mapped / mapped.sum()
    share = _shares(counts, mapped)
    proportions = weights[:, None] * share
    true = proportions.sum(axis=0)
    right = np.diagonal(proportions)
    users = _where(mapped > 0, np.diagonal(share))
    spread = share * (1 - share) / _degrees(counts, mapped)[:, None]
    true_variance = (weights[:, None] ** 2 * spread).sum(axis=0)
    return Estimates(
        counts=counts,
        mapped=mapped,
        proportions=proportions,
        area=mapped.sum() * true,
        area_error=mapped.sum() * np.sqrt(true_variance),
        users=users,
        users_error=_where(mapped > 0, np.sqrt(np.diagonal(spread))),
        producers=_divide(right, true),
        producers_error=_producers_error(mapped, share, spread),
        overall=float(right.sum()),
        overall_error=float(np.sqrt((weights**2 * np.diagonal(spread)).sum())),
    )


def sample_size(mapped: Floats | Sequence[float], expected: Floats | Sequence[float], standard_error: float) -> int:
    """Return how many points make the overall accuracy's standard error what is wanted (equation 13).

    Args:
        mapped: Area of each class in the map.
        expected: User's accuracy that is expected of each class, 0 to 1.
        standard_error: Wanted standard error of the overall accuracy, above 0.
    """
    weights = np.asarray(mapped, np.float64) / np.sum(mapped)
    return max(1, round(float((weights * _deviation(expected)).sum() / standard_error) ** 2))


def allocate(
    total: int,
    mapped: Floats | Sequence[float],
    pixels: NDArray[np.integer] | Sequence[int],
    expected: Floats | Sequence[float],
    method: str = "variance",
    least: int = 50,
) -> NDArray[np.int64]:
    """Share points out among the classes of a map.

    Args:
        total: Points in all.
        mapped: Area of each class in the map.
        pixels: Pixels of each class: no class has more points than pixels.
        expected: User's accuracy that is expected of each class, 0 to 1.
        method: "proportional" to area, "equal", or "variance": proportional to area times expected standard deviation
            (Neyman), which makes the overall accuracy most certain.
        least: Every class that is in the map gets as many, as far as `total` divided equally reaches; rare classes
            would else have too few for an accuracy of their own (the paper advises 50 to 100).

    Returns:
        Points per class; they sum to `total`, or to all pixels if there are fewer.
    """
    if method not in ALLOCATIONS:
        raise ValueError(f"unknown allocation {method!r}, expected one of {', '.join(ALLOCATIONS)}")
    mapped, room = np.asarray(mapped, np.float64), np.asarray(pixels, np.int64)
    present = room > 0
    wish = {
        "proportional": mapped,
        "equal": present.astype(np.float64),
        "variance": mapped * _deviation(expected),
    }[method]
    wish = np.where(present, np.maximum(wish, 1e-12 * max(mapped.max(), 1e-300)), 0.0)
    total = min(total, int(room.sum()))
    floor = np.minimum(min(least, total // max(1, int(present.sum()))), room)
    return _spread_out(total, wish, floor, room)


def _spread_out(total: int, wish: Floats, floor: NDArray[np.int64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whole numbers between floor and room that sum to total and are as near to proportional as that allows."""
    low, high = 0.0, float(np.max((room + 1.0) / np.where(wish > 0, wish, np.inf), initial=1.0))
    for _ in range(200):  # the factor at which the clipped shares sum to total
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * wish, floor, room).sum() < total else (low, middle)
    exact = np.clip(high * wish, floor, room)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    for number in np.argsort(whole - exact, kind="stable"):  # largest remainders first
        if whole.sum() >= total:
            break
        whole[number] += int(whole[number] < room[number])
    return whole


def _shares(counts: NDArray[np.int64], mapped: Floats) -> Floats:
    """Return each row's shares; zeros for a class that the map lacks, NaN for one that the sample lacks."""
    sums = counts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(mapped[:, None] > 0, counts / sums, 0.0)


def _degrees(counts: NDArray[np.int64], mapped: Floats) -> Floats:
    """Return n - 1 of each class, NaN where that is not positive and matters."""
    sums = counts.sum(axis=1)
    return np.where(mapped > 0, np.where(sums > 1, sums - 1.0, np.nan), 1.0)


def _producers_error(mapped: Floats, share: Floats, spread: Floats) -> Floats:
    """Return the standard errors of the producer's accuracies (equation 7, in areas)."""
    right = mapped * np.diagonal(share)
    true = (mapped[:, None] * share).sum(axis=0)
    producers = _divide(right, true)
    own = mapped**2 * (1 - producers) ** 2 * np.diagonal(spread)
    others = mapped[:, None] ** 2 * spread
    others = others.sum(axis=0) - np.diagonal(others)
    return _divide(np.sqrt(own + producers**2 * np.maximum(others, 0)), true)


def _deviation(expected: Floats | Sequence[float]) -> Floats:
    accuracy = np.asarray(expected, np.float64)
    return np.sqrt(accuracy * (1 - accuracy))


def _divide(part: Floats, whole: Floats) -> Floats:
    result: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=~(np.asarray(whole) == 0))
    return result


def _where(condition: NDArray[np.bool_], values: Floats) -> Floats:
    return np.where(condition, values, np.nan)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
