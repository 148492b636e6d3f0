"""The reversible U-Net: a stem, an invertible body of which only the output is kept, and a head.

The stem halves the image and gives it `width` channels. The body is a U-Net of invertible steps: couplings at each
level; on the way down half of the channels waits as the skip while the other half trades space for channels; on the
way up the reverse. The head turns the body's output into logits of the image's size. Saved for the way back are the
image, the body's output and what the head needs, whatever the number of couplings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geoseg.errors import ConfigError, problem
from geoseg.memory.normact import norm_act_conv
from geoseg.memory.recompute import run_recomputed
from geoseg.memory.reversible import (
    AdditiveCoupling,
    AffineCoupling,
    ChannelExchange,
    HaarDown,
    HaarUp,
    InvertibleStep,
    MergeSkip,
    PixelShuffleUp,
    PixelUnshuffleDown,
    ReversibleSequence,
    SplitSkip,
)
from geoseg.models.unet import checked_size, pad_to_multiple

GROUPS = 8
SEQUENCE_OPTIONS = ("exact", "stream", "bits", "monitor_every")


@dataclass(frozen=True)
class Shape:
    """What a preset decides.

    Attributes:
        width: Channels of the body at its finest level, at half of the image's resolution.
        levels: How often the body halves its resolution.
        depth: Couplings per level on each side, finest first, then those of the centre.
        hidden: Width inside the branches of each level, relative to half of that level's channels.
        branch: Kind of branch, a name in BRANCHES.
        norm: Normalisation in the branches and the head: batch or group.
        coupling: additive or affine.
        slices: Parts of the batch that go through a coupling in turn; with group norm alone.
        down: How space becomes channels: pixel (unshuffled) or haar (means and differences of 2 x 2 pixels).
        stem: Channels between the two convolutions of the stem; 0 for a stem of one.
        head: Channels between the two convolutions of the head; 0 for a head of one.
        keep: Save what is cheap to make again inside the branch that is at work: quicker, and more memory.
    """

    width: int = 64
    levels: int = 2
    depth: tuple[int, ...] = (1, 2, 1)
    hidden: tuple[float, ...] = (1.0, 1.0, 1.0)
    branch: str = "preact"
    norm: str = "batch"
    coupling: str = "additive"
    slices: int = 1
    down: str = "haar"
    stem: int = 64
    head: int = 64
    keep: bool = True


PRESETS: dict[str, Shape] = {
    "small": Shape(),
    "balanced": Shape(width=80, hidden=(1.0, 1.0, 0.75)),
    "accurate": Shape(width=96, hidden=(1.0, 0.75, 0.5)),
}


class Preact(nn.Module):
    """(norm, ReLU, 3x3 convolution) twice: what comes out is free to be of either sign, so that a stream can shrink.

    Args:
        inputs: Channels of the input.
        hidden: Channels between the convolutions.
        outputs: Channels of the output.
        shape: Says which norm, and whether to keep what is cheap to make again.
    """

    convolutions = 2

    def __init__(self, inputs: int, hidden: int, outputs: int, shape: Shape) -> None:
        super().__init__()
        self.norm1 = _norm(shape.norm, inputs)
        self.conv1 = _conv(inputs, hidden)
        self.norm2 = _norm(shape.norm, hidden)
        self.conv2 = _conv(hidden, outputs)
        self.keep = shape.keep

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H, W)."""
        return norm_act_conv(norm_act_conv(x, self.norm1, self.conv1, self.keep), self.norm2, self.conv2, self.keep)


class PreactSingle(nn.Module):
    """Norm, ReLU, 3x3 convolution; takes what Preact takes."""

    convolutions = 1

    def __init__(self, inputs: int, hidden: int, outputs: int, shape: Shape) -> None:
        super().__init__()
        self.norm = _norm(shape.norm, inputs)
        self.conv = _conv(inputs, outputs)
        self.keep = shape.keep

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H, W)."""
        return norm_act_conv(x, self.norm, self.conv, self.keep)


class Postact(nn.Module):
    """3x3 convolution, norm, ReLU, 3x3 convolution, norm; takes what Preact takes."""

    convolutions = 2

    def __init__(self, inputs: int, hidden: int, outputs: int, shape: Shape) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, hidden)
        self.norm1 = _norm(shape.norm, hidden)
        self.conv2 = _conv(hidden, outputs)
        self.norm2 = _norm(shape.norm, outputs)
        self.keep = shape.keep

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H, W)."""
        return self.norm2(norm_act_conv(self.conv1(x), self.norm1, self.conv2, self.keep))


BRANCHES = {"preact": Preact, "preact_single": PreactSingle, "postact": Postact}


class Stem(nn.Module):
    """From an image to `width` channels at half its resolution."""

    def __init__(self, in_channels: int, shape: Shape) -> None:
        super().__init__()
        # Six pixels wide and two apart: a 3x3 convolution of the image with its pixels folded into channels.
        self.conv1 = nn.Conv2d(in_channels, shape.stem or shape.width, 6, stride=2, padding=2, bias=False)
        self.norm = _norm(shape.norm, shape.stem) if shape.stem else None
        self.conv2 = _conv(shape.stem, shape.width) if shape.stem else None

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, width, H / 2, W / 2)."""
        if self.conv2 is None:
            return self._run(images)
        # The image is there anyway: from it the stem's inside is made again.
        return run_recomputed(self._run, images, modules=(self,))

    def _run(self, images: Tensor) -> Tensor:
        x = self.conv1(images)
        return x if self.norm is None or self.conv2 is None else norm_act_conv(x, self.norm, self.conv2, keep=False)


class Head(nn.Module):
    """From the body's output to four logits per class, one for each pixel of the image in a pixel of the body."""

    def __init__(self, num_classes: int, shape: Shape) -> None:
        super().__init__()
        last = shape.head or shape.width
        self.norm1 = _norm(shape.norm, shape.width) if shape.head else None
        self.conv1 = _conv(shape.width, shape.head) if shape.head else None
        self.norm2 = _norm(shape.norm, last)
        self.conv2 = nn.Conv2d(last, 4 * num_classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, width, h, w) to (N, 4 num_classes, h, w)."""
        if self.norm1 is not None and self.conv1 is not None:
            x = norm_act_conv(x, self.norm1, self.conv1, keep=False)
        return norm_act_conv(x, self.norm2, self.conv2, keep=False)


class ReversibleUNet(nn.Module):
    """A U-Net whose memory does not grow with its depth.

    Args:
        in_channels: Bands of the images.
        num_classes: Channels of the logits.
        preset: Where options left as None come from: small, balanced or accurate.
        save_memory: False keeps every activation: the same network, to compare with.
        options: Fields of Shape, and what ReversibleSequence takes: `exact`, `stream`, `bits` and `monitor_every`.

    Attributes:
        size_divisor: An image shifted by a multiple of this many pixels has the same logits, shifted.
        receptive_radius: Pixels further away than this do not touch a pixel's logits; None with group norm.
        encoder_parts: Names of the modules before the centre.

    Raises:
        ConfigError: Options that do not fit together.
    """

    def __init__(
        self, in_channels: int, num_classes: int, preset: str = "small", save_memory: bool = True, **options: Any
    ) -> None:
        super().__init__()
        how = {name: options.pop(name) for name in SEQUENCE_OPTIONS if name in options}
        integers = how.get("stream") == "int16"
        if integers:
            # Means of integers are no integers; and who takes 16 bits is after the smallest peak.
            fallback = {"down": "pixel", "keep": False}
            options |= {key: value for key, value in fallback.items() if options.get(key) is None}
        shape = make_shape(preset, options)
        if integers and shape.down == "haar":
            raise ConfigError(_problem("down", "haar with an int16 stream", "pixel", "leave down out, or stream"))
        self.in_channels, self.num_classes, self.shape = in_channels, num_classes, shape
        self.size_divisor = 2 ** (shape.levels + 1)
        self.receptive_radius = None if shape.norm == "group" else _radius(shape)
        self.stem = Stem(in_channels, shape)
        self.body = ReversibleSequence(body_steps(shape), save_memory=save_memory, channels=shape.width, **how)
        self.head = Head(num_classes, shape)
        down = sum(2 * depth + 2 for depth in shape.depth[: shape.levels])  # see `body_steps`
        self.encoder_parts = ("stem", *(f"body.steps.{number}" for number in range(down)))
        _start_small(self.body)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of images (N, in_channels, H, W) of any size from 16 pixels up."""
        height, width = checked_size(images, self.in_channels)
        x = self.stem(pad_to_multiple(images, self.size_divisor))
        return F.pixel_shuffle(self.head(self.body(x)), 2)[..., :height, :width]


def _start_small(body: nn.Module) -> None:
    """Scale the last convolution of every branch, so that the stream is about as large at the end as at the start.

    A stream that grows is rebuilt less exactly: what was added last drowns what was there first.
    """
    branches = [module for module in body.modules() if isinstance(module, tuple(BRANCHES.values()))]
    with torch.no_grad():
        for branch in branches:
            last = [module for module in branch.modules() if isinstance(module, nn.Conv2d)][-1]
            last.weight.mul_(len(branches) ** -0.5)


def make_shape(preset: str, options: dict[str, Any]) -> Shape:
    """Return a preset's shape with the options that are not None put in.

    Raises:
        ConfigError: An unknown preset or branch, or numbers that do not fit together.
    """
    if preset not in PRESETS:
        raise ConfigError(_problem("preset", repr(preset), f"one of {', '.join(PRESETS)}", "choose one of these"))
    given = {name: value for name, value in options.items() if value is not None}
    shape = replace(PRESETS[preset], **given)
    depth = _per_level(shape.depth, shape.levels, "levels" in given and "depth" not in given)
    hidden = _per_level(shape.hidden, shape.levels, "levels" in given and "hidden" not in given)
    shape = replace(shape, depth=depth, hidden=hidden)
    problems = list(_problems(shape))
    if problems:
        raise ConfigError(problems)
    return shape


def body_steps(shape: Shape) -> list[InvertibleStep]:
    """Return the invertible program of a shape, down and up again."""
    down: list[InvertibleStep] = []
    up: list[InvertibleStep] = []
    for level in range(shape.levels):
        haar = shape.down == "haar"
        down += [*_couplings(shape, level), SplitSkip(), HaarDown() if haar else PixelUnshuffleDown()]
        up = [HaarUp() if haar else PixelShuffleUp(), MergeSkip(), *_couplings(shape, level), *up]
    return [*down, *_couplings(shape, shape.levels), *up]


def _couplings(shape: Shape, level: int) -> list[InvertibleStep]:
    half = shape.width * 2**level // 2
    hidden = max(1, round(half * shape.hidden[level]))
    steps: list[InvertibleStep] = []
    for _ in range(shape.depth[level]):
        if shape.coupling == "affine":
            steps.append(AffineCoupling(*(_branch(shape, half, hidden, 2 * half) for _ in range(2))))
        else:
            branches = [_branch(shape, half, hidden, half) for _ in range(2)]
            steps.append(AdditiveCoupling(*branches, slices=shape.slices))
        steps.append(ChannelExchange())
    return steps


def _branch(shape: Shape, inputs: int, hidden: int, outputs: int) -> nn.Module:
    return BRANCHES[shape.branch](inputs, hidden, outputs, shape)


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    groups = next(g for g in range(min(GROUPS, channels), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


def _radius(shape: Shape) -> int:
    """Reach of the longest chain of convolutions: each adds its level's pixel, and the coarsest cell is whole."""
    reach = 2 * (2 + (shape.stem > 0) + (shape.head > 0))  # at half resolution
    for level, depth in enumerate(shape.depth):
        # On the way up a level's first branch looks at the skip, which knows nothing of the levels below.
        branches = 2 * depth if level == shape.levels else 4 * depth - (depth > 0)
        reach += branches * BRANCHES[shape.branch].convolutions * 2 ** (level + 1)
    return reach + 2 ** (shape.levels + 1) - 1


def _per_level(values: Any, levels: int, stretch: bool) -> tuple[Any, ...]:
    """Return one value per level and one for the centre; `stretch` makes a preset's values fit another depth."""
    if isinstance(values, int | float):
        return (values,) * (levels + 1)
    values = tuple(values)
    if stretch and len(values) != levels + 1:
        inner = (*values[:-1], *[values[-2]] * levels)[:levels]
        return (*inner, values[-1])
    return values


def _problems(shape: Shape) -> Sequence[str]:
    found: list[str] = []
    if shape.width % 4:
        expected = "a multiple of 4, because channels are halved and halved again for the skips"
        found.append(
            _problem("width", f"{shape.width} channels after the stem", expected, f"take {-(-shape.width // 4) * 4}")
        )
    for name, values in (("depth", shape.depth), ("hidden", shape.hidden)):
        if len(values) != shape.levels + 1:
            expected = f"{shape.levels + 1}: one per level and one for the centre"
            found.append(_problem(name, f"{len(values)} numbers", expected, "correct the list or levels"))
        elif min(values) < 0 or (name == "hidden" and min(values) == 0):
            found.append(_problem(name, f"{list(values)}", "numbers above zero", "correct the list"))
    if shape.slices > 1 and (shape.norm == "batch" or shape.coupling == "affine"):
        remedy = "set norm: group and coupling: additive, or leave slices out"
        found.append(_problem("slices", f"{shape.slices} with {shape.norm} norm", "1", remedy))
    if shape.branch not in BRANCHES:
        found.append(_problem("branch", repr(shape.branch), f"one of {', '.join(BRANCHES)}", "choose one of these"))
    return found


def _problem(key: str, found: str, expected: str, remedy: str) -> str:
    return problem(f"models.reversible_unet.{key}", found, expected, remedy)
