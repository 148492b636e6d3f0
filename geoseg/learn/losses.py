"""Losses over known pixels.

A loss is returned as a pair of sums, not as a mean, so that a batch, an epoch and several processes are all
averaged in the same way: by pixels. The mean of the batches' means would let a batch with three known
pixels count as much as one with three million, and a batch with none would turn everything into NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from geoseg.errors import ConfigError, problem

Loss = Callable[[Tensor, Tensor, int, Tensor | None], tuple[Tensor, Tensor]]


def cross_entropy(
    logits: Tensor, label: Tensor, ignore_value: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum the cross entropy over the known pixels of a batch.

    Args:
        logits: (N, C, H, W), any float type; the sum is done in float32.
        label: (N, H, W) int64 of class ids, `ignore_value` where unknown.
        ignore_value: Value of unknown pixels, which take no part.
        weights: (C,) weight of each class, or None for 1 each.

    Returns:
        The weighted sum of the losses and the sum of the weights, both scalars. `mean(total, weight)` divides them.
    """
    total = functional.cross_entropy(logits.float(), label, weight=weights, ignore_index=ignore_value, reduction="sum")
    known = label != ignore_value
    weight = known.sum() if weights is None else weights[label[known]].sum()
    return total, weight.to(total.dtype)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy}


def mean(total: Tensor, weight: Tensor) -> Tensor:
    """Divide a loss by its weight; nothing known gives 0 with gradients of 0, where plain division gives NaN."""
    return total / torch.where(weight > 0, weight, torch.ones_like(weight))


def class_weights(setting: bool | str | Sequence[float], pixels: Sequence[int]) -> Tensor | None:
    """Return the weight of each class in the loss.

    Args:
        setting: False for none; a list with one weight per class, in the order of the class ids; or "auto":
            known / (present * pixels[c]), where `known` is the number of known training pixels and `present` the
            number of classes among them. Each present class then carries the same share of the loss and the mean
            weight of a pixel is 1. An absent class gets 0.
        pixels: Known training pixels of each class.

    Raises:
        ConfigError: A list of the wrong length, or with negative or non-finite weights, or all 0.
    """
    if setting is False or setting is None:
        return None
    if setting == "auto":
        present = sum(count > 0 for count in pixels)
        known = sum(pixels)
        return torch.tensor([known / (present * count) if count else 0.0 for count in pixels], dtype=torch.float32)
    if isinstance(setting, (str, bool)):
        raise ConfigError(problem("training.class_weights", repr(setting), "False, a list or auto", "use one of these"))
    weights = [float(weight) for weight in setting]
    if len(weights) != len(pixels):
        raise ConfigError(
            problem(
                "training.class_weights",
                f"{len(weights)} weights",
                f"{len(pixels)}, one per class in the order of the class ids",
                "give background (class 0) its own weight, first",
            )
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ConfigError(
            problem("training.class_weights", str(weights), "numbers >= 0, not all 0", "correct the list")
        )
    return torch.tensor(weights, dtype=torch.float32)
