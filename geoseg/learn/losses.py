"""Losses over known pixels, by name and in weighted sums.

A loss is returned as a pair of sums, not as a mean, so that a batch, an epoch and several processes are all
averaged in the same way: by pixels. The mean of the batches' means would let a batch with three known
pixels count as much as one with three million, and a batch with none would turn everything into NaN.

The second sum, the weight, is the same for every loss: that of the known pixels. Pixel losses (cross entropy, focal)
add up over the parts of a batch; losses of regions do not, see `regionlosses`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from geoseg.learn.pixellosses import Sums, cross_entropy, focal
from geoseg.learn.regionlosses import boundary, dice, jaccard, lovasz, tversky

Loss = Callable[[Tensor, Tensor, int, Tensor | None], Sums]
# A name, or names with weights, or with weight and options: {"cross_entropy": 1, "focal": {"weight": 0.5, "gamma": 1}}.
LossSetting = str | Mapping[str, float | Mapping[str, float]]

LOSSES: dict[str, Callable[..., Sums]] = {
    "cross_entropy": cross_entropy,
    "focal": focal,
    "dice": dice,
    "jaccard": jaccard,
    "tversky": tversky,
    "lovasz": lovasz,
    "boundary": boundary,
}
# Losses that are a sum over pixels: of these the hardest pixels can be kept.
PIXEL_LOSSES = ("cross_entropy", "focal")


def mean(total: Tensor, weight: Tensor) -> Tensor:
    """Divide a loss by its weight; nothing known gives 0 with gradients of 0, where plain division gives NaN."""
    return total / torch.where(weight > 0, weight, torch.ones_like(weight))


def build_loss(
    setting: LossSetting = "cross_entropy", label_smoothing: float = 0.0, hard_examples: float = 1.0
) -> Loss:
    """Return a loss, or the weighted sum of several, as a function (logits, label, ignore_value, weights) -> sums.

    Args:
        setting: A name in LOSSES, or a mapping of names to weights; in place of a weight a mapping with the options of
            that loss and its `weight` (1 if left out).
        label_smoothing: Of cross entropy, from 0 to below 1.
        hard_examples: Share of the known pixels of a batch that count in cross entropy and focal loss: the hardest.

    Raises:
        ValueError: An unknown loss or option, or one out of range.
    """
    mapping = {setting: 1.0} if isinstance(setting, str) else setting
    terms = [_term(name, value, label_smoothing, hard_examples) for name, value in mapping.items()]
    if not terms:
        raise ValueError("no loss is named")
    if len(terms) == 1 and terms[0][0] == 1:
        return terms[0][1]
    return functools.partial(_sum_of, terms)


def _term(name: str, value: float | Mapping[str, float], smoothing: float, hardest: float) -> tuple[float, Loss]:
    if name not in LOSSES:
        raise ValueError(f"no loss {name!r}; choose from {', '.join(LOSSES)}")
    options = dict(value) if isinstance(value, Mapping) else {"weight": value}
    weight = options.pop("weight", 1.0)
    if name == "cross_entropy":
        options["smoothing"] = smoothing
    if name in PIXEL_LOSSES:
        options["hardest"] = hardest
    return weight, functools.partial(LOSSES[name], **options)


def _sum_of(
    terms: list[tuple[float, Loss]], logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None
) -> Sums:
    pairs = [(factor, *loss(logits, label, ignore_value, weights)) for factor, loss in terms]
    total = torch.stack([factor * total for factor, total, _ in pairs]).sum()
    return total, pairs[0][2]
