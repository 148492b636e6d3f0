"""What a training step will keep in memory, found without doing it: the same count over fake tensors.

A fake tensor has a shape, a type and a storage of a known size, but no bytes. Running the step on a fake copy of the
model makes every tensor that the real step would make, so the count is the same, for any model, batch and image size,
on any machine, in seconds.
"""

from __future__ import annotations

import copy
from typing import TypedDict, Unpack

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from geoseg.memory.measure import Loss, MakeOptimizer, StepMemory, StepOptions, count_step


class Options(TypedDict, total=False):
    """The named arguments of `estimate_step` that say what a step does: those of StepOptions."""

    loss: Loss
    precision: str
    optimizer: MakeOptimizer | None
    accumulation: int
    processes: int


def estimate_step(
    model: nn.Module,
    batch_size: int,
    size: int | tuple[int, int],
    in_channels: int | None = None,
    num_classes: int | None = None,
    **options: Unpack[Options],
) -> StepMemory:
    """Return what one training step of a segmentation network keeps in memory, without running it.

    Args:
        model: The network; it is not touched. The step runs in train mode.
        batch_size: Images per process.
        size: Side of the images in pixels, or (height, width).
        in_channels: Bands of the images; None takes the model's `in_channels`, or its first convolution's.
        num_classes: Classes in the labels; they do not change the figures, only the loss may want them to be right.
        options: Of the step: `loss` maps (logits, labels (N, H, W) of int64) to a scalar, cross entropy if left out;
            `precision` is "32-true", "bf16-mixed" or "16-mixed"; `optimizer` makes the optimiser from a list of
            parameters, such as `torch.optim.Adam`; `accumulation`, `processes`: see StepOptions.

    Raises:
        ValueError: The number of bands cannot be found, or a number or the precision is out of range.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, found {batch_size}")
    step = StepOptions(**options)
    height, width = (size, size) if isinstance(size, int) else size
    channels = in_channels or _input_channels(model)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        fake = copy.deepcopy(model).train()
    # Dropout draws no numbers here, but moves the generator as if it did.
    with mode, torch.random.fork_rng(devices=[]):
        images = torch.zeros(batch_size, channels, height, width, device=device)
        labels = torch.full((batch_size, height, width), (num_classes or 1) - 1, dtype=torch.int64, device=device)
        return count_step(fake, images, labels, step)


def _input_channels(model: nn.Module) -> int:
    known = getattr(model, "in_channels", None)
    if isinstance(known, int):
        return known
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    raise ValueError("the model does not tell its number of bands: give in_channels")
