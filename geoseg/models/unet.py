"""The U-Net, in two sizes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.models.blocks import ConvBlock, init_weights

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
        self.up = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in range(levels))
        self.decoder = nn.ModuleList(ConvBlock(2 * widths[i], widths[i], drop if i > 0 else 0.0) for i in range(levels))
        self.head = nn.Conv2d(widths[0], num_classes, 1)
        init_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of images (N, in_channels, H, W) of any size from 16 pixels up."""
        height, width = checked_size(images, self.in_channels)
        x = pad_to_multiple(images, self.size_divisor)
        skips = []
        for block in self.encoder:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.centre(x)
        for up, block in zip(reversed(self.up), reversed(self.decoder), strict=True):
            x = block(skips.pop(), up(x))
        return self.head(x)[..., :height, :width]


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
