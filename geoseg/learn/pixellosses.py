"""Losses that are a sum over pixels: cross entropy, focal, and the hardest pixels of either.

The logits are the finest map of a network, so the sums are worked out by a Function that keeps one map of their size
for the way back and makes one more there; autograd's own chain of operations would keep and make several.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Sums = tuple[Tensor, Tensor]


def cross_entropy(
    logits: Tensor,
    label: Tensor,
    ignore_value: int,
    weights: Tensor | None = None,
    smoothing: float = 0.0,
    hardest: float = 1.0,
) -> Sums:
    """Sum the cross entropy over the known pixels of a batch.

    With label smoothing (Szegedy et al. 2016, section 7) the target is 1 - smoothing for the class of the pixel plus
    smoothing / C for each class. The class weight belongs to the pixel: it multiplies all of its loss.

    Args:
        logits: (N, C, H, W), any float type; sums are done in float32 at least.
        label: (N, H, W) int64 of class ids, `ignore_value` where unknown.
        ignore_value: Value of unknown pixels, which take no part.
        weights: (C,) weight of each class, or None for 1 each. Pixels of a class of weight 0 take no part.
        smoothing: From 0 to below 1.
        hardest: Share of the known pixels that count, those with the greatest loss (see `keep_hardest`).

    Returns:
        The weighted sum of the losses and the sum of the weights, both scalars. `mean(total, weight)` divides them.
        Both add up over the parts of a batch, unless only the hardest pixels count.
    """
    return _pixel_sums(logits, label, ignore_value, weights, (0.0, smoothing, hardest))


def focal(
    logits: Tensor,
    label: Tensor,
    ignore_value: int,
    weights: Tensor | None = None,
    gamma: float = 2.0,
    hardest: float = 1.0,
) -> Sums:
    """Sum the focal loss (Lin et al. 2017, section 3.2) over the known pixels: cross entropy times (1 - p) ** gamma.

    p is the probability of the pixel's own class, among all classes (softmax; the paper's is one against the rest).
    The paper's alpha is the class weight.

    Args:
        logits: As for `cross_entropy`, like the other arguments.
        label: As above.
        ignore_value: As above.
        weights: As above.
        gamma: 0 for cross entropy, or 1 and more: in between the gradient is infinite at p = 1.
        hardest: As above.

    Raises:
        ValueError: Gamma is out of range.
    """
    if gamma < 0 or 0 < gamma < 1:
        raise ValueError(f"gamma must be 0 or at least 1, found {gamma}")
    return _pixel_sums(logits, label, ignore_value, weights, (gamma, 0.0, hardest))


def _pixel_sums(
    logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None, options: tuple[float, float, float]
) -> Sums:
    gamma, smoothing, hardest = options
    logits = at_least_float32(logits)
    index, mass = known_pixels(label, ignore_value, weights, logits.dtype)
    losses = _PixelLoss.apply(logits, index, gamma, smoothing)
    total, weight = (losses * mass).sum(), mass.sum()
    if hardest >= 1:
        return total, weight
    kept = mass * keep_hardest((losses * mass).detach(), mass > 0, hardest)
    share = weight / torch.where(kept.sum() > 0, kept.sum(), torch.ones_like(weight))
    return (losses * kept).sum() * share, weight


def at_least_float32(logits: Tensor) -> Tensor:
    """Return half precision as float32, and others as they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def known_pixels(label: Tensor, ignore_value: int, weights: Tensor | None, dtype: torch.dtype) -> Sums:
    """Return class ids that are safe to index with (0 where unknown), and the weight of each pixel (0 where unknown).

    No shape depends on values, so memory can be foreseen with tensors that hold none.
    """
    unknown = label == ignore_value
    index = label.masked_fill(unknown, 0)
    mass = torch.ones_like(index, dtype=dtype) if weights is None else weights.to(dtype)[index]
    return index, mass.masked_fill(unknown, 0)


def keep_hardest(losses: Tensor, known: Tensor, share: float) -> Tensor:
    """Return which pixels count: of the known ones the share with the greatest losses, rounded up (bool).

    Online hard example mining (Shrivastava et al. 2016) by pixel, over the whole batch. Of equal losses the earlier
    pixels count, so that the number is exact.
    """
    flat = losses.masked_fill(~known, -math.inf).flatten()
    count = torch.ceil(known.sum() * share)
    order = flat.sort(descending=True, stable=True)[1]
    first = torch.arange(flat.numel(), device=flat.device) < count
    return torch.zeros_like(first).scatter_(0, order, first).reshape(losses.shape)


class _PixelLoss(torch.autograd.Function):
    """(N, H, W) losses of the pixels: -((1 - s) * (1 - p) ** gamma * log p + s * mean of all log p)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, gamma: float, smoothing: float) -> Tensor:
        logs = torch.log_softmax(logits, dim=1)
        own = logs.gather(1, index[:, None]).squeeze(1)
        losses = -own if gamma == 0 else -own * _distrust(own).pow(gamma)
        if smoothing:
            losses.mul_(1 - smoothing).sub_(logs.mean(dim=1), alpha=smoothing)
        ctx.save_for_backward(logs, index)
        ctx.gamma, ctx.smoothing = gamma, smoothing
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logs, index = ctx.saved_tensors
        gamma, smoothing, grad = ctx.gamma, ctx.smoothing, grads[0][:, None]
        place = index[:, None]
        if gamma == 0:
            slope = torch.full_like(grad, smoothing - 1)
        else:
            own = logs.gather(1, place)
            rest = _distrust(own)
            slope = gamma * rest.pow(gamma - 1) * own.exp() * own - rest.pow(gamma)
        # A logit moves log p of its own class by 1 - p, and the others' by -p.
        slope = slope * grad
        out = logs.exp()
        out *= smoothing * grad - slope
        if smoothing:
            out -= (smoothing / logs.shape[1]) * grad
        # Each place is written once: unlike adding, this is reproducible on a GPU.
        out.scatter_(1, place, out.gather(1, place) + slope)
        return out, None, None, None


def _distrust(own: Tensor) -> Tensor:
    """Return 1 - p from log p, exact where p is near 1."""
    return -torch.expm1(own)
