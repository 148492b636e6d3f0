"""Weights of the classes in the loss, from a list or from how many pixels each class has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.errors import ConfigError, problem

_KEY = "training.class_weights"
_Weigh = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


def class_weights(
    setting: bool | str | Sequence[float], pixels: Sequence[int], around: Sequence[int] | None = None
) -> Tensor | None:
    """Return the weight of each class in the loss, (C,) float32, or None for no weights.

    Weights from counts are scaled so that the mean weight of a known training pixel is 1; a class without pixels gets
    0.

    Args:
        setting: False for none; a list with one weight per class, in the order of the class ids; or a name in
            `CLASS_WEIGHTS`.
        pixels: Known training pixels of each class.
        around: Known pixels of the training samples that hold each class; `median` alone uses them, and takes all
            known pixels where they are not given.

    Raises:
        ConfigError: An unknown name; a list of the wrong length, or with negative or non-finite weights, or all 0.
    """
    if setting is False or setting is None:
        return None
    if isinstance(setting, (str, bool)):
        if setting not in CLASS_WEIGHTS:
            expected = f"false, a list, or one of {', '.join(CLASS_WEIGHTS)}"
            raise ConfigError(problem(_KEY, repr(setting), expected, "use one of these"))
        counts = np.asarray(pixels, dtype=np.float64)
        whole = np.full_like(counts, counts.sum()) if around is None else np.asarray(around, dtype=np.float64)
        return torch.tensor(_from_counts(CLASS_WEIGHTS[str(setting)], counts, whole), dtype=torch.float32)
    return torch.tensor(_checked([float(weight) for weight in setting], len(pixels)), dtype=torch.float32)


def _from_counts(weigh: _Weigh, counts: NDArray[np.float64], around: NDArray[np.float64]) -> NDArray[np.float64]:
    weights, present = np.zeros_like(counts), counts > 0
    if present.any():
        weights[present] = weigh(counts[present], around[present])
        weights *= counts.sum() / (weights * counts).sum()
    return weights


def _inverse_frequency(counts: NDArray[np.float64], around: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each class has the same share of the loss."""
    return 1 / counts


def _effective_number(counts: NDArray[np.float64], around: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cui et al. 2019, equation 2: (1 - beta) / (1 - beta ** n), with beta = 1 - 1 / N.

    The paper chooses N by hand; here it is the mean count of the classes. Classes much rarer than that are weighted
    alike the inverse frequency, classes more frequent alike one another.
    """
    beta = 1 - 1 / max(counts.mean(), 2.0)
    return (1 - beta) / -np.expm1(counts * np.log(beta))


def _median_frequency(counts: NDArray[np.float64], around: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eigen and Fergus 2015, section 6.3.2: median frequency / frequency, among the samples that hold the class."""
    frequency = counts / around
    return np.asarray(np.median(frequency) / frequency)


CLASS_WEIGHTS: dict[str, _Weigh] = {
    "auto": _inverse_frequency,
    "inverse_frequency": _inverse_frequency,
    "effective_number": _effective_number,
    "median": _median_frequency,
}


def _checked(weights: list[float], classes: int) -> list[float]:
    if len(weights) != classes:
        expected = f"{classes}, one per class in the order of the class ids"
        remedy = "give background (class 0) its own weight, first"
        raise ConfigError(problem(_KEY, f"{len(weights)} weights", expected, remedy))
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ConfigError(problem(_KEY, str(weights), "numbers >= 0, not all 0", "correct the list"))
    return weights
