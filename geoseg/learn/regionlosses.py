"""Losses of whole regions: Dice, Jaccard, Tversky, Lovász and boundary.

They compare the region of each class in the whole batch with the predicted one, so they are not a sum over pixels: the
loss of a batch is not the mean of the losses of its parts, and gradients accumulated over parts differ from those of
the whole. To be averaged like the others they come as (loss * weight, weight) all the same, weight being that of the
known pixels.

Only classes that the batch holds take part. What is unknown, and what has a class of weight 0, is outside: it is in no
region, and gets no gradient. Other class weights weigh the classes' terms.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from geoseg.learn.pixellosses import Sums, at_least_float32, known_pixels


def tversky(
    logits: Tensor,
    label: Tensor,
    ignore_value: int,
    weights: Tensor | None = None,
    alpha: float = 0.3,
    beta: float = 0.7,
) -> Sums:
    """Return the Tversky loss (Salehi et al. 2017): 1 - TP / (TP + alpha * FP + beta * FN), meaned over classes.

    TP, FP and FN are sums of probabilities (softmax) over the known pixels of the batch. Deviation from the paper:
    nothing is added to numerator and denominator, as classes that the batch lacks are left out.

    Args:
        logits: (N, C, H, W), any float type; sums are done in float32 at least.
        label: (N, H, W) int64 of class ids, `ignore_value` where unknown.
        ignore_value: Value of unknown pixels, which take no part.
        weights: (C,) weight of each class's term, or None for 1 each. Pixels of a class of weight 0 take no part.
        alpha: Cost of a pixel that is wrongly given to the class, at least 0.
        beta: Cost of a pixel of the class that is missed, above 0.

    Returns:
        Loss times weight, and the weight of the known pixels, both scalars; see the module about parts of batches.

    Raises:
        ValueError: Alpha or beta is out of range.
    """
    if alpha < 0 or beta <= 0:
        raise ValueError(f"alpha must be at least 0 and beta above 0, found {alpha} and {beta}")
    logits = at_least_float32(logits)
    index, mass = known_pixels(label, ignore_value, weights, logits.dtype)
    known = mass > 0
    right, predicted = _RegionSums.apply(logits, index, known)
    reference = _count(index, known, logits.shape[1])
    whole = right + alpha * (predicted - right) + beta * (reference - right)
    losses = 1 - right / torch.where(reference > 0, whole, torch.ones_like(whole))
    return _mean_of_present(losses, reference, weights, mass)


def dice(logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None) -> Sums:
    """Return the soft Dice loss: 1 - 2 TP / (predicted + reference); arguments as for `tversky`."""
    return tversky(logits, label, ignore_value, weights, 0.5, 0.5)


def jaccard(logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None) -> Sums:
    """Return the soft Jaccard loss: 1 - TP / (predicted + reference - TP); arguments as for `tversky`."""
    return tversky(logits, label, ignore_value, weights, 1.0, 1.0)


def lovasz(logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None) -> Sums:
    """Return the Lovász-softmax loss (Berman et al. 2018, section 3): the convex surrogate of 1 - IoU.

    Over the whole batch at once, meaned over the classes that it holds; arguments as for `tversky`.
    """
    logits = at_least_float32(logits)
    index, mass = known_pixels(label, ignore_value, weights, logits.dtype)
    known = mass > 0
    reference = _count(index, known, logits.shape[1])
    share = _class_shares(reference, weights)
    with torch.no_grad():
        slopes = torch.softmax(logits, dim=1)
        for number in range(logits.shape[1]):
            _to_lovasz_slopes(slopes[:, number], (index == number) & known, known, share[number])
        # Errors are p, or 1 - p inside the class: the ones make the constant part.
        constant = -slopes.gather(1, index[:, None]).squeeze(1).mul_(known).sum()
    loss = _SoftmaxSum.apply(logits, slopes) + constant
    return loss * mass.sum(), mass.sum()


def boundary(
    logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None, max_distance: float = 20.0
) -> Sums:
    """Return the boundary loss (Kervadec et al. 2019, equation 5): probabilities times distance to the class's border.

    The distance is negative inside; so the loss is lowest, and negative, where the prediction is the reference. It
    tells little where no border is near: use it in a sum with another loss. Deviations from the paper: all classes
    count, not the foreground alone; distances are from pixel centres to the border between pixels (the nearest centre
    beyond, less half a pixel), are cut at `max_distance`, and divided by it. A class without a border in a sample adds
    nothing there. Distances are computed on the CPU, which costs a copy of the labels to it in each step.

    Args:
        logits: As for `tversky`, like the three after it.
        label: As above.
        ignore_value: As above.
        weights: As above.
        max_distance: Pixels at which distances are cut.

    Raises:
        ValueError: The distance is not above 0.
    """
    if max_distance <= 0:
        raise ValueError(f"max_distance must be above 0, found {max_distance}")
    logits = at_least_float32(logits)
    index, mass = known_pixels(label, ignore_value, weights, logits.dtype)
    known, classes = mass > 0, logits.shape[1]
    share = _class_shares(_count(index, known, classes), weights)
    pixels = known.sum()
    scale = share / torch.where(pixels > 0, pixels, torch.ones_like(pixels))
    with torch.no_grad():
        slopes = signed_distance(index, known, classes, max_distance).to(logits.dtype)
        slopes *= scale.to(logits.dtype)[None, :, None, None]
    return _SoftmaxSum.apply(logits, slopes) * mass.sum(), mass.sum()


@torch.library.custom_op("geoseg::signed_distance", mutates_args=())
def signed_distance(index: Tensor, known: Tensor, classes: int, limit: float) -> Tensor:
    """Return (N, C, H, W) float32: distance to the border of each class, in units of `limit`, negative inside.

    0 where a pixel is unknown, and in all of a sample where the class has no border. An operator of its own, so that
    the memory of a step can be foreseen with tensors without values.
    """
    ids = torch.where(known, index, -1).to("cpu").numpy()
    out = np.zeros((len(ids), classes, *ids.shape[1:]), np.float32)
    for sample, planes in zip(ids, out, strict=True):
        for number in np.unique(sample[sample >= 0]).tolist():
            inside, others = sample == number, (sample >= 0) & (sample != number)
            if others.any():
                away = _distance_to(inside) - _distance_to(others)
                # One of the two is 0, the other at least 1.
                away -= 0.5 * np.sign(away)
                planes[number] = np.clip(away / limit, -1, 1) * (sample >= 0)
    return torch.from_numpy(out).to(index.device)


@signed_distance.register_fake
def _(index: Tensor, known: Tensor, classes: int, limit: float) -> Tensor:
    return torch.empty(len(index), classes, *index.shape[1:], dtype=torch.float32, device=index.device)


def _distance_to(places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(cv2.distanceTransform((~places).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE))


def _count(index: Tensor, known: Tensor, classes: int) -> Tensor:
    """Return (C,) known pixels of each class, float64."""
    return _sum_by_class(index, known.double(), classes)


def _sum_by_class(index: Tensor, values: Tensor, classes: int) -> Tensor:
    """Return (C,) float64 sums; float32 would stop growing at 16 million ones."""
    zeros = torch.zeros(classes, dtype=torch.float64, device=index.device)
    return zeros.index_add_(0, index.flatten(), values.flatten().double())


def _class_shares(reference: Tensor, weights: Tensor | None) -> Tensor:
    """Return (C,) float64: the share of each class in the mean over those that are present."""
    share = (reference > 0).double() * (1 if weights is None else weights.double())
    return share / torch.where(share.sum() > 0, share.sum(), torch.ones_like(share.sum()))


def _mean_of_present(losses: Tensor, reference: Tensor, weights: Tensor | None, mass: Tensor) -> Sums:
    weight = mass.sum()
    mean = (losses * _class_shares(reference, weights)).sum()
    return mean.to(mass.dtype) * weight, weight


def _to_lovasz_slopes(plane: Tensor, inside: Tensor, known: Tensor, share: Tensor) -> None:
    """Replace probabilities of a class (N, H, W) by the slope of the loss in each of them (Berman et al., algorithm 1).

    Positive outside the class, negative inside, 0 where unknown.
    """
    errors = torch.where(inside, 1 - plane, plane).masked_fill_(~known, -1)  # unknown ones are last in the order
    order = errors.flatten().sort(descending=True, stable=True)[1]
    within, counted = inside.flatten()[order], known.flatten()[order]
    missed = within.cumsum(0)
    # The differences of neighbours are a millionth of the values: float64.
    kept, union = (missed[-1] - missed).double(), (missed[-1] + (counted & ~within).cumsum(0)).double()
    jaccards = 1 - kept / union.clamp_(min=1)
    steps = torch.diff(jaccards, prepend=jaccards.new_zeros(1)).mul_(share).mul_(counted)
    steps = torch.where(within, -steps, steps).to(plane.dtype)
    plane.copy_(torch.empty_like(steps).scatter_(0, order, steps).reshape(plane.shape))


class _RegionSums(torch.autograd.Function):
    """(C,) sums of the probabilities over known pixels: those of the pixels' own class, and all; float64."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        shares = torch.softmax(logits, dim=1).mul_(known[:, None])
        ctx.save_for_backward(shares, index)
        own = shares.gather(1, index[:, None]).squeeze(1)
        right = _sum_by_class(index, own, logits.shape[1])
        return right, shares.sum(dim=(0, 2, 3), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        shares, index = ctx.saved_tensors
        own, all_ = (grad.to(shares.dtype) for grad in grads)
        place = index[:, None]
        extra = shares.gather(1, place) * own[index][:, None]
        mean = torch.einsum("nchw,c->nhw", shares, all_)[:, None] + extra
        out = all_[None, :, None, None] - mean
        out *= shares
        # Each place is written once: unlike adding, this is reproducible on a GPU.
        out.scatter_(1, place, out.gather(1, place) + extra)
        return out, None, None


class _SoftmaxSum(torch.autograd.Function):
    """The sum of probabilities times slopes (N, C, H, W), which it overwrites."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, slopes: Tensor) -> Tensor:
        shares = torch.softmax(logits, dim=1)
        mean = torch.zeros_like(shares[:, :1])
        for number in range(shares.shape[1]):  # class by class: no further map of the logits' size
            mean.addcmul_(shares[:, number, None], slopes[:, number, None])
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(slopes.sub_(mean).mul_(shares))
        return mean.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * grads[0], None
