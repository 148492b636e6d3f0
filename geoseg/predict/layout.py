"""Channels next to each other in memory, or in planes: OpenCV moves them in a third to two thirds of torch's time."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHANNELS = 512  # that OpenCV takes


def channels_together(image: NDArray[np.float32]) -> Tensor:
    """Return planes (C, H, W) as a tensor of the same shape whose channels lie next to each other."""
    if not 1 < len(image) <= _CHANNELS:
        return torch.from_numpy(image)
    return torch.from_numpy(cv2.merge(list(image))).permute(2, 0, 1)


def in_planes(scores: Tensor) -> Tensor:
    """Return a tensor (C, H, W) of the same values whose rows are contiguous; itself, if they are."""
    if scores.stride(-1) == 1:
        return scores
    apart = scores.stride(0) == 1 and scores.stride(2) == scores.shape[0] and 1 < scores.shape[0] <= _CHANNELS
    if not apart or scores.is_cuda or scores.dtype not in (torch.float32, torch.float64):
        return scores.contiguous()
    planes = torch.empty(scores.shape, dtype=scores.dtype)
    cv2.split(scores.permute(1, 2, 0).numpy(), list(planes.numpy()))
    return planes


def shares(scores: Tensor, dim: int) -> Tensor:
    """Return the softmax of scores along a dimension, to the last bit the same whatever the other lengths are.

    torch's own takes another exponential for what is left over when it has filled its vectors, so that a pixel's
    probabilities would depend on where the windows lie.
    """
    result = (scores - scores.amax(dim, keepdim=True)).exp_()
    first, *others = result.unbind(dim)
    total = first.clone()
    for other in others:
        total += other
    return result.div_(total.unsqueeze(dim))
