"""The U-Net, in two sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.memory.recompute import Replay, run_recomputed
from geoseg.models.blocks import ConvBlock, UpBlock

SMALLEST_SIDE = 16


class UNet(nn.Module):
    """An encoder that halves the image, a decoder that doubles it again, and skips between them.

    Args:
        in_channels: Bands of the images.
        num_classes: Channels of the logits.
        widths: Channels per level, finest first; the last one is the centre's.
        dropout: Whether every block but the last decoder's drops channels while training.
        probability: Probability that a channel is dropped.

    Attributes:
        size_divisor: An image shifted by a multiple of this many pixels has the same logits, shifted.
        receptive_radius: Pixels further away than this do not touch a pixel's logits.
        recomputing: Whether activations are recomputed when training; see `recompute_activations`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        dropout: bool = False,
        probability: float = 0.2,
    ) -> None:
        super().__init__()
        drop = probability if dropout else 0.0
        levels = len(widths) - 1
        self.in_channels, self.num_classes = in_channels, num_classes
        self.size_divisor = 2**levels
        # Two 3x3 convolutions a block, each reaching 2**level pixels; pooling adds the rest of its coarsest cell.
        self.receptive_radius = 4 * (2**levels - 1) + 2 * 2**levels + 2**levels - 1
        inputs = (in_channels, *widths)
        self.encoder = nn.ModuleList(ConvBlock(inputs[i], widths[i], drop) for i in range(levels))
        self.centre = ConvBlock(widths[-2], widths[-1], drop)
        self.decoder = nn.ModuleList(UpBlock(widths[i + 1], widths[i], drop if i > 0 else 0.0) for i in range(levels))
        self.head = nn.Conv2d(widths[0], num_classes, 1)
        self.recomputing = False

    def recompute_activations(self) -> UNet:
        """Keep no activations between forward and backward but those between the levels; returns self.

        Weights, keys and numbers stay as they are. The parts that are run again are chosen for the lowest peak: the
        finest level dominates it, so its skip is not kept either, and its decoder's activations are made again from
        the inputs of the norms.
        """
        self.recomputing = True
        for block in (self.encoder[0], self.centre, self.decoder[0]):
            block.keep = False
        self.decoder[0].in_place = True
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of images (N, in_channels, H, W) of any size from 16 pixels up."""
        height, width = checked_size(images, self.in_channels)
        images = pad_to_multiple(images, self.size_divisor)
        if self.recomputing and self.training and torch.is_grad_enabled():
            logits = self._forward_recomputing(images)
        else:
            logits = self._forward_keeping(images)
        return logits[..., :height, :width]

    def _forward_keeping(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.encoder:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.centre(x)
        for block in reversed(self.decoder[1:]):
            x = block(skips.pop(), x)
        return self._last(skips.pop, x)

    def _forward_recomputing(self, images: Tensor) -> Tensor:
        finest, *blocks = self.encoder
        replay = Replay(finest, images, modules=[finest])
        skip, x = run_recomputed(_block_then_pool, finest, images, modules=[finest])
        skips = []
        for block in blocks:
            part = functools.partial(_pool_then_block, block) if skips else block
            x = run_recomputed(part, x, modules=[block])
            skips.append(x)
        # The centre is not run again: its maps are small, its convolutions are not.
        if skips:  # with a single level, the finest block has pooled already
            x = run_recomputed(F.max_pool2d, x, 2, modules=[])
        x = self.centre(x)
        for block in reversed(self.decoder[1:]):
            x = run_recomputed(block, skips.pop(), x, modules=[block])
        with replay.holding(skip):
            return run_recomputed(self._last, replay.get, x, modules=[self.decoder[0], self.head])

    def _last(self, skip: Callable[[], Tensor], below: Tensor) -> Tensor:
        block = self.decoder[0]
        return block.classify(block.join(skip(), below), self.head)


def _block_then_pool(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    skip = block(x)
    return skip, F.max_pool2d(skip, 2)


def _pool_then_block(block: nn.Module, x: Tensor) -> Tensor:
    return block(F.max_pool2d(x, 2))


def checked_size(images: Tensor, in_channels: int) -> tuple[int, int]:
    """Return height and width of a batch of images.

    Raises:
        ValueError: Not (N, in_channels, H, W), or smaller than 16 pixels.
    """
    if images.ndim != 4 or images.shape[1] != in_channels:
        raise ValueError(f"expected images (N, {in_channels}, H, W), found {tuple(images.shape)}")
    height, width = images.shape[-2:]
    if min(height, width) < SMALLEST_SIDE:
        raise ValueError(f"images must be at least {SMALLEST_SIDE} pixels a side, found {height} x {width}: pad them")
    return height, width


def pad_to_multiple(images: Tensor, divisor: int) -> Tensor:
    """Pad below and to the right with zeros until both sides are multiples of `divisor`."""
    bottom, right = -images.shape[-2] % divisor, -images.shape[-1] % divisor
    return F.pad(images, (0, right, 0, bottom)) if bottom or right else images
