"""Whole-set metrics, from one confusion matrix.

Everything is counted in whole pixels over the whole set before anything is divided, so the batch size and the number of
processes change nothing. A class that is neither in the reference nor predicted has no score: NaN here, "not present"
in tables, and outside every mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # takes seconds to import, and `evaluate` needs the scores without it
    import torch
    from torch import Tensor


class ConfusionMatrix:
    """Counts of known pixels by reference class (rows) and predicted class (columns).

    Plain `bincount` in int64: exact for any number of pixels, and free of the seconds that metric
    libraries take to import, which `classify` and `evaluate` would pay as well.

    Args:
        num_classes: Number of classes, background included.
        ignore_value: Label value of unknown pixels, which are not counted.
        device: Where the counts are kept.
    """

    def __init__(self, num_classes: int, ignore_value: int, device: torch.device | str = "cpu") -> None:
        import torch

        self.num_classes = num_classes
        self.ignore_value = ignore_value
        self.counts = torch.zeros(num_classes * num_classes, dtype=torch.int64, device=device)

    def update(self, predicted: Tensor, label: Tensor) -> None:
        """Count a batch: class ids `predicted` against `label`, both integer tensors of one shape."""
        known = label != self.ignore_value
        pairs = label[known].long() * self.num_classes + predicted[known].long()
        self.counts += pairs.bincount(minlength=self.counts.numel())

    def matrix(self) -> NDArray[np.int64]:
        """Return the counts, (num_classes, num_classes)."""
        return self.counts.reshape(self.num_classes, self.num_classes).cpu().numpy()


@dataclass(frozen=True)
class Scores:
    """Scores of one confusion matrix; arrays have one entry per class, NaN where undefined.

    Attributes:
        reference: Known pixels of each class in the reference.
        predicted: Known pixels predicted as each class.
        iou: Intersection over union; NaN for a class that is not present.
        precision: NaN for a class that was never predicted.
        recall: NaN for a class that is not in the reference.
        f1: NaN for a class that is not present.
        overall_accuracy: Share of known pixels that are right; NaN if none is known.
        mean_iou: Mean over the classes present in the reference or the prediction.
        mean_f1: The same of F1.
        mean_precision: The same of precision; a class that was never predicted counts as 0, as it does in F1.
        mean_recall: The same of recall; a class that was only predicted counts as 0.
        fw_iou: Mean of the IoU weighted by the frequency of the classes in the reference (Long et al. 2015).
        kappa: Cohen's kappa: agreement beyond that of chance; NaN where chance would agree everywhere.
    """

    reference: NDArray[np.int64]
    predicted: NDArray[np.int64]
    iou: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]
    overall_accuracy: float
    mean_iou: float
    mean_f1: float
    mean_precision: float
    mean_recall: float
    fw_iou: float
    kappa: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each class is in the reference or was predicted."""
        return (self.reference + self.predicted) > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers for JSON, None for undefined."""
        return {name: _plain(value) for name, value in vars(self).items()}


def scores(matrix: NDArray[np.integer]) -> Scores:
    """Score a confusion matrix.

    Args:
        matrix: (C, C) counts, rows reference, columns predicted, unknown pixels left out.
    """
    counts = np.asarray(matrix, dtype=np.int64)
    right = np.diagonal(counts)
    reference, predicted = counts.sum(axis=1), counts.sum(axis=0)
    iou = _ratio(right, reference + predicted - right)
    f1 = _ratio(2 * right, reference + predicted)
    precision, recall = _ratio(right, predicted), _ratio(right, reference)
    present = reference + predicted > 0
    return Scores(
        reference=reference,
        predicted=predicted,
        iou=iou,
        precision=precision,
        recall=recall,
        f1=f1,
        overall_accuracy=float(_ratio(right.sum(), counts.sum())),
        mean_iou=_mean(iou),
        mean_f1=_mean(f1),
        mean_precision=_mean(np.nan_to_num(precision)[present]),
        mean_recall=_mean(np.nan_to_num(recall)[present]),
        fw_iou=_ratio_of_sums(np.nan_to_num(iou) * reference, reference),
        kappa=kappa(counts),
    )


def kappa(matrix: NDArray[np.integer]) -> float:
    """Return Cohen's kappa (1960): agreement beyond what chance alone gives with the same numbers of each class.

    1 is perfect, 0 is chance; NaN where nothing is known, or both sides hold one and the same class alone.

    Args:
        matrix: (C, C) counts, rows reference, columns predicted.
    """
    counts = np.asarray(matrix, dtype=np.float64)
    total = counts.sum()
    if total == 0:
        return math.nan
    observed = np.trace(counts) / total
    chance = float(counts.sum(axis=1) @ counts.sum(axis=0)) / total**2
    return math.nan if chance == 1 else float((observed - chance) / (1 - chance))


def frequency_weighted_iou(matrix: NDArray[np.integer]) -> float:
    """Return the mean IoU, each class weighted by its pixels in the reference; NaN where nothing is known.

    Args:
        matrix: (C, C) counts, rows reference, columns predicted.
    """
    return scores(matrix).fw_iou


def _ratio(part: NDArray[np.integer] | np.integer, whole: NDArray[np.integer] | np.integer) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


def _ratio_of_sums(part: NDArray[np.float64], whole: NDArray[np.integer]) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else math.nan


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    return None if isinstance(value, float) and math.isnan(value) else value
