"""Boundary IoU: how well outlines agree, whatever the size of what they surround."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


def count_boundaries(predicted: Tensor, label: Tensor, ignore_value: int, num_classes: int, distance: int) -> Tensor:
    """Return what a batch adds to the boundary IoU: (C, 3) int64 of pixels in both boundaries, in the reference's, in
    the prediction's.

    The boundary of a class are its pixels with a pixel of another class at most `distance` rows and columns away
    (Cheng et al. 2021, section 4). Deviations from the paper: the edge of a sample and unknown pixels make no
    boundary, because the class may go on there.

    Args:
        predicted: (N, H, W) class ids.
        label: (N, H, W) class ids.
        ignore_value: Label of unknown pixels: they count neither as boundary nor as another class.
        num_classes: Number of classes.
        distance: Width of a boundary in pixels, at least 1.
    """
    known = label != ignore_value
    wanted, found = _near_another(label, known, distance), _near_another(predicted, known, distance)
    both = wanted & found & (label == predicted)
    parts = ((label, both), (label, wanted), (predicted, found))
    counts = [torch.bincount(ids[chosen].long(), minlength=num_classes) for ids, chosen in parts]
    return torch.stack(counts, dim=1)


def boundary_iou(sums: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return (C,) boundary IoU from added-up counts; NaN for a class without a boundary in either."""
    both, wanted, found = np.asarray(sums, dtype=np.int64).T
    union = wanted + found - both
    return np.divide(both, union, out=np.full(len(union), np.nan), where=union > 0)


def _near_another(ids: Tensor, known: Tensor, distance: int) -> Tensor:
    """Return which known pixels have a known pixel of another class near."""
    values = ids.float()
    # Padding is -inf in both: beyond the edge there is nothing.
    highest = _pooled(values.masked_fill(~known, -torch.inf), distance)
    lowest = -_pooled((-values).masked_fill(~known, -torch.inf), distance)
    return known & ((highest != values) | (lowest != values))


def _pooled(values: Tensor, distance: int) -> Tensor:
    side = 2 * distance + 1
    rows = functional.max_pool2d(values[:, None], (side, 1), stride=1, padding=(distance, 0))
    return functional.max_pool2d(rows, (1, side), stride=1, padding=(0, distance))[:, 0]
