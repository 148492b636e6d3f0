"""TernausNet: a U-Net whose encoder is that of VGG11."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.memory.recompute import run_recomputed
from geoseg.models.unet import checked_size, pad_to_multiple

# Channels of VGG11's convolutions, a tuple per level (Simonyan and Zisserman 2015, table 1, configuration A).
LEVELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
FILTERS = 32  # of the decoder's last level; the others have multiples
# Where the convolutions stand in the usual files: among ReLUs and pools, or among batch norms as well.
_PLAIN = (0, 3, 6, 8, 11, 13, 16, 18)
_NORMED = (0, 4, 8, 11, 15, 18, 22, 25)
_NORM_PARTS = ("weight", "bias", "running_mean", "running_var")
_NORM_EPS = 1e-5
# Other names that published files give to tensors which they hold as encoder.N already.
_ALIAS = re.compile(r"conv\d+s?\.")


class TernausNet(nn.Module):
    """VGG11's convolutions, a decoder of transposed convolutions, and skips between them.

    After Iglovikov and Shvets 2018, "TernausNet: U-Net with VGG11 encoder pre-trained on ImageNet for image
    segmentation", figure 1, and the weights published with it, whose names these are. Deviations: any number of bands
    and classes; any size of the image, which is padded inside; nothing is concatenated, see `_conv_both`; weights that
    are not loaded are drawn for ReLUs (He et al. 2015, equation 10), as a network without norms needs.

    Args:
        in_channels: Bands of the images.
        num_classes: Channels of the logits.
        recompute: Keep no activations between forward and backward but those between the levels. Weights, keys and
            numbers stay as they are.
        divide: Have so many times fewer channels everywhere; 1 is the published network.

    Attributes:
        size_divisor: An image shifted by a multiple of this many pixels has the same logits, shifted.
        receptive_radius: Pixels further away than this do not touch a pixel's logits.
        may_be_fresh: Parts that files of VGG11 lack.
    """

    may_be_fresh = ("center", "dec5", "dec4", "dec3", "dec2", "dec1", "final")
    size_divisor = 2 ** len(LEVELS)
    # The decoder reaches 1 + 2 + 4 + 8 + 16 + 32 by 3x3 convolutions and 1 + 2 + 4 + 8 + 16 by the transposed ones, the
    # encoder 1 + 2 + 2 * (4 + 8 + 16); pooling adds the rest of its coarsest cell.
    receptive_radius = 63 + 31 + 59 + 31

    def __init__(self, in_channels: int, num_classes: int, recompute: bool = False, divide: int = 1) -> None:
        super().__init__()
        self.in_channels, self.num_classes, self.recompute = in_channels, num_classes, recompute
        base, deep = FILTERS // divide, 512 // divide
        self.encoder = _vgg11(in_channels, divide)
        self.center = _DecoderBlock(deep, 16 * base, 8 * base)
        self.dec5 = _DecoderBlock(8 * base + deep, 16 * base, 8 * base)
        self.dec4 = _DecoderBlock(8 * base + deep, 16 * base, 4 * base)
        self.dec3 = _DecoderBlock(4 * base + deep // 2, 8 * base, 2 * base)
        self.dec2 = _DecoderBlock(2 * base + deep // 4, 4 * base, base)
        self.dec1 = _ConvRelu(base + deep // 8, base)
        self.final = nn.Conv2d(base, num_classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and module is not self.final:
                _init(module)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of images (N, in_channels, H, W) of any size from 16 pixels up."""
        height, width = checked_size(images, self.in_channels)
        x = pad_to_multiple(images, self.size_divisor)
        skips: list[Tensor] = []
        for layers in self._levels():
            x = self._run(functools.partial(_in_turn, layers), x, modules=layers)
            skips.append(x)
        x = self._run(F.max_pool2d, x, 2, modules=())
        x = self._run(self.center, x, modules=(self.center,))
        for block in (self.dec5, self.dec4, self.dec3, self.dec2, self.dec1):
            x = self._run(block, x, skips.pop(), modules=(block,))
        logits: Tensor = self.final(x)
        return logits[..., :height, :width]

    def _levels(self) -> list[list[nn.Module]]:
        """Return the encoder's layers by level, each but the first with the pool before it."""
        layers = list(self.encoder)
        pools = [place for place, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
        return [layers[start:end] for start, end in zip([0, *pools], pools, strict=False)]

    def _run(self, part: Callable[..., Tensor], *inputs: Any, modules: Sequence[nn.Module]) -> Tensor:
        result: Tensor = run_recomputed(part, *inputs, modules=modules) if self.recompute else part(*inputs)
        return result

    def own_names(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the weights of a file under this network's names, and the names of those it has no place for.

        Args:
            weights: Of a VGG11 as the usual files name them (features.N.weight), with or without batch norm, of a
                TernausNet, or of this network. Batch norms are folded into the convolutions before them: the result
                computes what they compute in evaluation.
        """
        unused = [name for name in weights if name.startswith("classifier.") or _ALIAS.match(name)]
        used = {name: value for name, value in weights.items() if name not in unused}
        if "features.1.running_mean" in used:
            return _without_norms(used), unused
        return {re.sub("^features", "encoder", name): value for name, value in used.items()}, unused


def _without_norms(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the convolutions of a VGG11 with batch norms under the names of one without, the norms folded in.

    What is not of a VGG11 keeps its name, for the caller to refuse.
    """
    rest = dict(weights)
    folded: dict[str, Tensor] = {}
    for normed, plain in zip(_NORMED, _PLAIN, strict=True):
        conv = [rest.pop(f"features.{normed}.{part}", None) for part in ("weight", "bias")]
        norm = [rest.pop(f"features.{normed + 1}.{part}", None) for part in _NORM_PARTS]
        rest.pop(f"features.{normed + 1}.num_batches_tracked", None)
        found = [tensor for tensor in (*conv, *norm) if tensor is not None]
        if len(found) == 2 + len(_NORM_PARTS) and len({len(tensor) for tensor in found}) == 1:
            folded |= dict(zip((f"encoder.{plain}.weight", f"encoder.{plain}.bias"), _folded(*found), strict=True))
    return folded | rest


def _in_turn(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _folded(
    weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution that does what it and the batch norm after it do in evaluation."""
    factor = scale / torch.sqrt(var + _NORM_EPS)
    return weight * factor[:, None, None, None], (bias - mean) * factor + shift


class _ConvRelu(nn.Module):
    """3x3 convolution and ReLU of one image, or of two as if they were concatenated."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)

    def forward(self, below: Tensor, skip: Tensor | None = None) -> Tensor:
        """Map (N, C, H, W), and (N, in_channels - C, H, W) if there is a skip, to (N, out_channels, H, W)."""
        out = self.conv(below) if skip is None else _conv_both(self.conv, below, skip)
        return torch.relu_(out)


class _DecoderBlock(nn.Module):
    """3x3 convolution, then a transposed one that doubles the size, each with a ReLU."""

    def __init__(self, in_channels: int, middle_channels: int, out_channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            _ConvRelu(in_channels, middle_channels),
            nn.ConvTranspose2d(middle_channels, out_channels, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(inplace=True),
        )

    def forward(self, below: Tensor, skip: Tensor | None = None) -> Tensor:
        """Map (N, C, H, W), and (N, in_channels - C, H, W) if there is a skip, to (N, out_channels, 2 H, 2 W)."""
        first, up, act = self.block
        result: Tensor = act(up(first(below, skip)))
        return result


def _conv_both(conv: nn.Conv2d, below: Tensor, skip: Tensor) -> Tensor:
    """Convolve two images as if they were concatenated: that would be the largest tensor of the level."""
    channels = below.shape[1]
    out = F.conv2d(below, conv.weight[:, :channels], conv.bias, padding=1)
    return out.add_(F.conv2d(skip, conv.weight[:, channels:], padding=1))


def _vgg11(in_channels: int, divide: int) -> nn.Sequential:
    """Return the convolutions, ReLUs and pools of VGG11 in their usual order; the last pool belongs to the centre."""
    layers: list[nn.Module] = []
    for widths in LEVELS:
        for width in widths:
            layers += [nn.Conv2d(in_channels, width // divide, 3, padding=1), nn.ReLU(inplace=True)]
            in_channels = width // divide
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _init(conv: nn.Conv2d | nn.ConvTranspose2d) -> None:
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
