"""How far the probabilities of a network can be believed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 15
_UNIT = 1 << 24  # confidences are added up as whole numbers: the sum does not depend on the order


def count_confidence(logits: Tensor, label: Tensor, ignore_value: int) -> Tensor:
    """Return what a batch adds to the calibration: (BINS, 3) int64 of pixels, right pixels, summed confidence.

    The confidence of a pixel is the probability of its likeliest class; bins are equally wide, and a value on the
    border of two belongs to the lower one. The confidences are summed in units of 2 ** -24.

    Args:
        logits: (N, C, H, W).
        label: (N, H, W) class ids.
        ignore_value: Label of unknown pixels, which do not count.
    """
    highest, predicted = logits.float().max(dim=1)
    confidence = (highest - torch.logsumexp(logits.float(), dim=1)).exp_()
    known = (label != ignore_value).flatten()
    place = (confidence * BINS).ceil_().long().sub_(1).clamp_(0, BINS - 1).flatten()
    values = torch.stack(
        [
            torch.ones_like(place),
            (predicted == label).flatten().long(),
            confidence.flatten().double().mul_(_UNIT).round_().long(),
        ],
        dim=1,
    )
    zeros = torch.zeros(BINS, 3, dtype=torch.int64, device=logits.device)
    return zeros.index_add_(0, place, values * known[:, None])


def calibration_error(sums: NDArray[np.integer]) -> float:
    """Return the expected calibration error (Guo et al. 2017, equation 3) of added-up counts; NaN for no pixel."""
    pixels, right, confidence = np.asarray(sums, dtype=np.float64).T
    if not pixels.sum():
        return math.nan
    return float(np.abs(right - confidence / _UNIT).sum() / pixels.sum())


def calibration_table(sums: NDArray[np.integer]) -> list[dict[str, Any]]:
    """Return one mapping per bin: from, to, pixels, accuracy and mean confidence (None for a bin without pixels)."""
    return [
        {
            "from": number / BINS,
            "to": (number + 1) / BINS,
            "pixels": pixels,
            "accuracy": right / pixels if pixels else None,
            "confidence": confidence / _UNIT / pixels if pixels else None,
        }
        for number, (pixels, right, confidence) in enumerate(np.asarray(sums).tolist())
    ]
