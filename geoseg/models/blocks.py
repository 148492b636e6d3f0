"""The parts that the U-Nets are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvBlock(nn.Module):
    """(3x3 convolution, batch norm, ReLU) twice, then dropout of whole channels if asked.

    Args:
        in_channels: Channels of the input, or of both inputs together.
        out_channels: Channels of the output.
        dropout: Probability that a channel is dropped while training; 0 switches it off.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, image: Tensor, below: Tensor | None = None) -> Tensor:
        """Map (N, C, H, W) to (N, out_channels, H, W); `below` counts as further channels of the image."""
        x = torch.relu(self.norm1(joint_conv(self.conv1, image, below)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.dropout(x)


def joint_conv(conv: nn.Conv2d, first: Tensor, second: Tensor | None) -> Tensor:
    """Convolve the channels of `first` and `second` as if they were concatenated, without concatenating them.

    The concatenation would be the largest tensor of a U-Net; a convolution is linear, so two with the halves of the
    weights, added, are the same.
    """
    if second is None:
        return conv(first)
    weight, channels = conv.weight, first.shape[1]
    out = F.conv2d(first, weight[:, :channels], None, conv.stride, conv.padding)
    return out + F.conv2d(second, weight[:, channels:], conv.bias, conv.stride, conv.padding)


def init_weights(net: nn.Module) -> None:
    """Draw convolution weights for ReLU (Kaiming, fan out), zero their biases; norms start as the identity."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
