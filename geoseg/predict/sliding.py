"""Classify a raster of any size window by window, in memory bounded by the window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Tile, Window, tiles
from geoseg.geo.raster import Pixels
from geoseg.predict.blend import Strip, StripBlender, hann_tiles, strips, window_count

NODATA = 255  # of a class map: the pixel's class is unknown
BLENDINGS = ("none", "hann")
_CPU = torch.device("cpu")
_SMALLEST_SIDE = 16  # networks take no less
_LARGEST_CONTEXT = 256
_CONTEXT_OF_GLOBAL_NETS = 64  # no context is enough for them; this hides the seams


class PixelSource(Protocol):
    """What a raster must offer to be classified (`geoseg.geo.raster.Raster` does)."""

    def read(self, window: Window) -> Pixels:
        """Return the pixels of a window; outside the scene they are invalid."""
        ...


class Preparation(Protocol):
    """What turns source pixels into network input (`geoseg.data.normalise.Normalisation` does)."""

    def apply(self, image: NDArray[np.generic], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return float32 (bands, H, W), 0 where invalid."""
        ...


@dataclass(frozen=True)
class Predictor:
    """A network and all that must be known to feed it.

    Attributes:
        network: (N, bands, H, W) -> (N, classes, H, W) scores (logits).
        num_classes: Number of classes, at most 255.
        normalisation: Applied to every window; None takes the pixels as they are, invalid ones as 0.
        size_divisor: Windows begin at multiples of this and their sides are multiples of it.
        receptive_radius: How far a pixel's score looks; None if over the whole window.
        device: Where the network is.
        dtype: Type of its input.
        autocast: Lower precision to compute in, or None.
        channels_last: Memory layout of its input.
    """

    network: Callable[[Tensor], Tensor]
    num_classes: int
    normalisation: Preparation | None = None
    size_divisor: int = 1
    receptive_radius: int | None = 0
    device: torch.device = _CPU
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    channels_last: bool = False

    def prepare(self, pixels: Pixels) -> Tensor:
        """Return the network's input for one window: (bands, H, W)."""
        if self.normalisation is not None:
            return torch.from_numpy(self.normalisation.apply(pixels.image, pixels.valid))
        return torch.from_numpy(np.where(pixels.valid, pixels.image, 0).astype(np.float64)).to(self.dtype)

    def __call__(self, windows: list[Tensor]) -> Tensor:
        """Return the scores (N, classes, H, W) of windows (bands, H, W) of one size, at least in float32."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        stacked = torch.stack(windows) if len(windows) > 1 else windows[0].unsqueeze(0)  # one is not copied
        batch = stacked.to(self.device, self.dtype).contiguous(memory_format=layout)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            scores = self.network(batch)
        if scores.shape[1] != self.num_classes:
            raise ValueError(f"the network gives {scores.shape[1]} scores a pixel, not {self.num_classes}")
        return scores if scores.dtype == torch.float64 else scores.float()


@dataclass(frozen=True)
class SlidingOptions:
    """How windows slide over a raster.

    Attributes:
        window: Side of the square that is written at once, in pixels; None chooses 512 on a CPU, 1024 on a GPU.
        overlap: Pixels that a window sees beyond that square; None takes the network's receptive radius. With blending
            "none" on each side; with "hann" neighbouring windows share twice as many, which are averaged.
        blending: "none" keeps the centre of every window, "hann" averages overlapping windows smoothly.
        batch_size: Windows computed at once; None chooses 1 on a CPU (larger ones are slower), 8 on a GPU.
        probabilities: Whether blocks carry the probability of every class.
    """

    window: int | None = None
    overlap: int | None = None
    blending: str = "none"
    batch_size: int | None = None
    probabilities: bool = False

    def __post_init__(self) -> None:
        if self.blending not in BLENDINGS:
            raise ValueError(f"blending is {self.blending!r}, expected one of {', '.join(BLENDINGS)}")
        least = {"window": (self.window, 1), "overlap": (self.overlap, 0), "batch_size": (self.batch_size, 1)}
        if any(value is not None and value < minimum for value, minimum in least.values()):
            raise ValueError("window and batch_size must be at least 1, overlap at least 0")


@dataclass(frozen=True)
class Plan:
    """The windows of one scene, all lengths in pixels and multiples of the network's size divisor."""

    height: int
    width: int
    side: int
    context: int
    divisor: int
    batch_size: int
    blending: str


@dataclass(frozen=True)
class ScoreBlock:
    """Scores of a part of the scene: (classes, height, width), None where no pixel is valid; valid (height, width)."""

    window: Window
    scores: Tensor | None
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class ClassBlock:
    """Classes of a part of the scene.

    Attributes:
        window: Where it lies; the blocks of a scene cover it without overlap.
        classes: (height, width) uint8, NODATA where the image is invalid.
        probabilities: (classes, height, width) float32, NaN where invalid; None if not asked for.
    """

    window: Window
    classes: NDArray[np.uint8]
    probabilities: NDArray[np.float32] | None


def plan_windows(predictor: Predictor, height: int, width: int, options: SlidingOptions) -> Plan:
    """Fill in what the options leave open and round to what the network needs."""
    divisor = predictor.size_divisor
    cuda = predictor.device.type == "cuda"
    context = options.overlap
    if context is None:
        radius = predictor.receptive_radius
        context = min(_CONTEXT_OF_GLOBAL_NETS if radius is None else radius, _LARGEST_CONTEXT)
    side = options.window or (1024 if cuda else 512)
    side = max(min(side, max(height, width)), _SMALLEST_SIDE)  # a small scene needs no large window
    return Plan(
        height=height,
        width=width,
        side=_round_up(side, divisor),
        context=_round_up(context, divisor),
        divisor=divisor,
        batch_size=options.batch_size or (8 if cuda else 1),
        blending=options.blending,
    )


def count_windows(plan: Plan, num_classes: int) -> int:
    """Return how many windows `predict_blocks` will compute, those computed twice at strip borders included."""
    if plan.blending == "none":
        return len(tiles(plan.height, plan.width, plan.side, plan.context, plan.divisor))
    rows = window_count(plan.height, plan.side, 2 * plan.context)
    return rows * sum(strip.stop - strip.lead for strip in _strips(plan, num_classes))


def predict_blocks(
    predictor: Predictor,
    source: PixelSource,
    plan: Plan,
    probabilities: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[ClassBlock]:
    """Classify a scene and yield its blocks, which cover every pixel once.

    Args:
        predictor: The network.
        source: The scene's pixels.
        plan: From `plan_windows`.
        probabilities: Whether to yield the probabilities too.
        on_progress: Called with the number of windows just done.
    """
    softmax = probabilities or plan.blending == "hann"
    for block in predict_scores(predictor, source, plan, softmax, on_progress):
        yield _decide(block, predictor.num_classes, probabilities)


@torch.inference_mode()
def predict_scores(
    predictor: Predictor,
    source: PixelSource,
    plan: Plan,
    softmax: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[ScoreBlock]:
    """Yield the scores (or with ``softmax`` the probabilities) of a scene, block by block, every pixel once."""
    step = on_progress or (lambda _: None)
    if plan.blending == "none":
        windows = tiles(plan.height, plan.width, plan.side, plan.context, plan.divisor)
        for tile, valid, scores in _forward(predictor, source, windows, plan.batch_size, softmax, whole=False):
            rows, columns = tile.write.within(tile.read)
            yield ScoreBlock(tile.write, None if scores is None else scores[:, rows, columns], valid[rows, columns])
            step(1)
        return
    for strip in _strips(plan, predictor.num_classes):
        overlapping = hann_tiles(plan.height, plan.width, plan.side, 2 * plan.context, strip)
        blender = StripBlender(
            predictor.num_classes, plan.side, 2 * plan.context, strip, predictor.device, predictor.dtype
        )
        for tile, valid, scores in _forward(predictor, source, overlapping, plan.batch_size, softmax, whole=True):
            mean = blender.add(tile, scores)
            if mean is not None:
                yield ScoreBlock(tile.write, mean, valid[: tile.write.height, : tile.write.width])
            step(1)


def _forward(
    predictor: Predictor, source: PixelSource, windows: Iterable[Tile], batch_size: int, softmax: bool, whole: bool
) -> Iterator[tuple[Tile, NDArray[np.bool_], Tensor | None]]:
    """Yield each tile with its validity and scores, in order; scores are None where nothing valid would be kept."""
    remaining = iter(windows)
    while group := list(islice(remaining, batch_size)):
        pixels = [source.read(tile.read) for tile in group]
        wanted: dict[tuple[int, ...], list[int]] = {}
        for number, (tile, part) in enumerate(zip(group, pixels, strict=True)):
            kept = part.valid if whole else part.valid[tile.write.within(tile.read)]
            if kept.any():
                wanted.setdefault(part.image.shape, []).append(number)
        scores: dict[int, Tensor] = {}
        for numbers in wanted.values():
            batch = predictor([predictor.prepare(pixels[number]) for number in numbers])
            scores.update(zip(numbers, batch.softmax(1) if softmax else batch, strict=True))
        for number, tile in enumerate(group):
            yield tile, pixels[number].valid, scores.pop(number, None)


def _decide(block: ScoreBlock, num_classes: int, probabilities: bool) -> ClassBlock:
    shape = block.valid.shape
    classes = np.full(shape, NODATA, dtype=np.uint8)
    likelihood = np.full((num_classes, *shape), np.nan, dtype=np.float32) if probabilities else None
    if block.scores is not None and block.valid.any():
        best = best_class(block.scores).to("cpu", torch.uint8).numpy()
        classes[block.valid] = best[block.valid]
        if likelihood is not None:
            likelihood[:, block.valid] = block.scores.float().cpu().numpy()[:, block.valid]
    return ClassBlock(block.window, classes, likelihood)


def best_class(scores: Tensor) -> Tensor:
    """Return the class with the highest score, the lowest id among equals: (C, H, W) -> (H, W).

    Raises:
        DataError: If scores are not finite, which would make the class arbitrary.
    """
    highest, best = scores.unsqueeze(0).max(1)  # argmax over the same axis is ten times slower
    if not all(torch.isfinite(extreme) for extreme in torch.aminmax(highest)):
        raise DataError(
            problem(
                "model",
                "scores that are not finite",
                "numbers for every valid pixel",
                "train again or classify with precision 32-true",
            )
        )
    return best[0]


def _strips(plan: Plan, num_classes: int) -> list[Strip]:
    columns = window_count(plan.width, plan.side, 2 * plan.context)
    return strips(columns, plan.side, 2 * plan.context, num_classes)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
