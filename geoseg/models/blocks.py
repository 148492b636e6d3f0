"""The parts that the U-Nets are made of."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.memory.normact import norm_act, norm_act_conv
from geoseg.memory.recompute import run_recomputed


class ConvBlock(nn.Module):
    """(3x3 convolution, batch norm, ReLU) twice, then dropout of whole channels if asked.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        dropout: Probability that a channel is dropped while training; 0 switches it off.

    Attributes:
        keep: Whether what is cheap to make again is saved for backward all the same.
        in_place: Where it is not, whether gradients are written over one another, for copies.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout2d(dropout)
        self.keep = True
        self.in_place = False

    def forward(self, image: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, out_channels, H, W)."""
        return self.finish(self.conv1(image))

    def finish(self, convolved: Tensor) -> Tensor:
        """Do what follows the first convolution."""
        convolved = norm_act_conv(convolved, self.norm1, self.conv2, self.keeps, self.in_place)
        return self.dropout(norm_act(convolved, self.norm2))

    def classify(self, convolved: Tensor, head: nn.Conv2d) -> Tensor:
        """Return head(finish(convolved)) without making the block's output, where there is no dropout before it."""
        if self.dropout.p > 0:
            return head(self.finish(convolved))
        convolved = norm_act_conv(convolved, self.norm1, self.conv2, self.keeps, self.in_place)
        return norm_act_conv(convolved, self.norm2, head, self.keeps, self.in_place)

    @property
    def keeps(self) -> bool:
        """Whether this call keeps everything; outside of training it does."""
        return self.keep or not self.training


class UpBlock(ConvBlock):
    """Doubles the size of the image from below, joins it with the skip, and does what a ConvBlock does.

    Args:
        below_channels: Channels of the image from below.
        out_channels: Channels of the skip, and of the output.
        dropout: As for ConvBlock.
    """

    def __init__(self, below_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__(2 * out_channels, out_channels, dropout)
        self.up = nn.ConvTranspose2d(below_channels, out_channels, 2, stride=2)

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:  # type: ignore[override]
        """Map (N, out_channels, H, W) and (N, below_channels, H/2, W/2) to (N, out_channels, H, W)."""
        return self.finish(self.join(skip, below))

    def join(self, skip: Tensor, below: Tensor) -> Tensor:
        """Convolve the skip and the doubled image as if they were concatenated, without concatenating them.

        The concatenation would be the largest tensor of a U-Net; a convolution is linear, so two with the halves of
        the weights, added, are the same. Nor is the doubled image kept, unless this block keeps everything.
        """
        channels = skip.shape[1]
        out = F.conv2d(skip, self.conv1.weight[:, :channels], padding=1)
        if self.keeps:
            return out.add_(self._from_below(below))
        return out.add_(run_recomputed(self._from_below, below, modules=(self.up, self.conv1)))

    def _from_below(self, below: Tensor) -> Tensor:
        doubled = self.up(below)
        return F.conv2d(doubled, self.conv1.weight[:, -doubled.shape[1] :], padding=1)
