"""Classify a raster of any size window by window, in memory bounded by the window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Tile, Window
from geoseg.predict import plan as planning
from geoseg.predict.blend import StripBlender, axis_weights
from geoseg.predict.blocks import NODATA, ClassBlock
from geoseg.predict.layout import in_planes, shares
from geoseg.predict.plan import Plan, SlidingOptions, region_tiles, spans
from geoseg.predict.predictor import PixelSource, Predictor

Progress = Callable[[int], None]


@dataclass(frozen=True)
class ScoreBlock:
    """Scores of a part of the scene: (classes, height, width), None where no pixel is valid; valid (height, width).

    The scores are valid until the next block is asked for.
    """

    window: Window
    scores: Tensor | None
    valid: NDArray[np.bool_]


def plan_windows(predictor: Predictor, height: int, width: int, options: SlidingOptions, pixel_bytes: int = 4) -> Plan:
    """Return the windows of a scene for a predictor; `pixel_bytes` is what a pixel takes in the file, all bands."""
    cuda = predictor.device.type == "cuda"
    network = planning.Network(
        predictor.size_divisor, predictor.receptive_radius, predictor.num_classes, cuda, pixel_bytes
    )
    return planning.plan_windows(network, height, width, options)


def predict_blocks(
    predictor: Predictor,
    source: PixelSource,
    plan: Plan,
    region: Window | None = None,
    probabilities: bool = False,
    on_progress: Progress | None = None,
    thresholds: Sequence[float] | None = None,
) -> Iterator[ClassBlock]:
    """Classify a scene, or a part of it, and yield blocks that cover every pixel once.

    Args:
        predictor: The network.
        source: The scene's pixels.
        plan: From `plan_windows`.
        region: What to classify; None: all.
        probabilities: Whether to yield the probabilities too.
        on_progress: Called with the number of windows just done.
        thresholds: The least probability of each class; pixels below that of their class are given the id
            `num_classes`, which stands for uncertain.
    """
    for block in predict_scores(predictor, source, plan, region, on_progress):
        decided = _decide(block, predictor.num_classes, probabilities or thresholds is not None)
        yield decided if thresholds is None else _doubted(decided, thresholds, probabilities)


@torch.inference_mode()
def predict_scores(
    predictor: Predictor,
    source: PixelSource,
    plan: Plan,
    region: Window | None = None,
    on_progress: Progress | None = None,
) -> Iterator[ScoreBlock]:
    """Yield the scores of a scene, or of a region of it, block by block, every pixel once."""
    step = on_progress or (lambda _: None)
    region = region or Window(0, 0, plan.height, plan.width)
    windows = region_tiles(plan, region)
    if plan.blending == "none":
        for tile, valid, scores in _forward(predictor, source, windows, plan.batch_size, whole=False):
            rows, columns = tile.write.within(tile.read)
            yield ScoreBlock(tile.write, None if scores is None else scores[:, rows, columns], valid[rows, columns])
            step(1)
        return
    weights = axis_weights(plan.blending, plan.side + plan.overlap, plan.overlap)
    blender = StripBlender(
        predictor.num_classes, plan.side, weights, *spans(plan, region), predictor.device, predictor.dtype
    )
    for tile, valid, scores in _forward(predictor, source, windows, plan.batch_size, whole=True):
        mean = blender.add(tile, None if scores is None else in_planes(scores))
        part = tile.write.intersection(region)
        if mean is not None and part is not None:
            rows, columns = part.within(tile.read)
            yield ScoreBlock(part, mean[:, rows, columns], valid[rows, columns])
        step(1)


def _forward(
    predictor: Predictor, source: PixelSource, windows: Iterable[Tile], batch_size: int, whole: bool
) -> Iterator[tuple[Tile, NDArray[np.bool_], Tensor | None]]:
    """Yield each tile with its validity and scores, in order; scores are None where nothing valid would be kept."""
    remaining = iter(windows)
    while group := list(islice(remaining, batch_size)):
        valid: list[NDArray[np.bool_]] = []
        inputs: list[Tensor | None] = []
        wanted: dict[tuple[int, ...], list[int]] = {}
        for number, tile in enumerate(group):
            part = source.read(tile.read)
            kept = part.valid if whole else part.valid[tile.write.within(tile.read)]
            if kept.any():
                wanted.setdefault(part.image.shape, []).append(number)
                inputs.append(predictor.prepare(part))
            else:
                inputs.append(None)
            valid.append(part.valid)
        scores: dict[int, Tensor] = {}
        for numbers in wanted.values():
            batch = predictor([x for number in numbers if (x := inputs[number]) is not None])
            scores.update(zip(numbers, batch, strict=True))
        del inputs
        for number, tile in enumerate(group):
            yield tile, valid[number], scores.pop(number, None)


def _decide(block: ScoreBlock, num_classes: int, probabilities: bool) -> ClassBlock:
    shape = block.valid.shape
    if block.scores is None or not block.valid.any():
        likelihood = np.full((num_classes, *shape), np.nan, dtype=np.float32) if probabilities else None
        return ClassBlock(block.window, np.full(shape, NODATA, dtype=np.uint8), likelihood)
    classes = best_class(block.scores).cpu().numpy()
    likelihood = shares(block.scores, 0).float().cpu().numpy() if probabilities else None
    if not block.valid.all():
        np.copyto(classes, NODATA, where=~block.valid)
        if likelihood is not None:
            np.copyto(likelihood, np.nan, where=~block.valid)
    return ClassBlock(block.window, classes, likelihood)


def _doubted(block: ClassBlock, thresholds: Sequence[float], probabilities: bool) -> ClassBlock:
    assert block.probabilities is not None
    least = np.full(NODATA + 1, -np.inf, np.float32)
    least[: len(thresholds)] = thresholds
    with np.errstate(invalid="ignore"):
        doubtful = block.probabilities.max(axis=0) < least[block.classes]  # never where NaN
    np.copyto(block.classes, len(thresholds), where=doubtful)
    return block if probabilities else ClassBlock(block.window, block.classes, None)


def best_class(scores: Tensor) -> Tensor:
    """Return the class with the highest score, the lowest id among equals: (C, H, W) -> (H, W) uint8.

    Raises:
        DataError: If scores are not finite, which would make the class arbitrary.
    """
    if scores.is_cuda or scores.shape[0] > _PLANES:
        highest, found = scores.max(0)
        best = found.to(torch.uint8)
    else:
        # Plane after plane: max over the first axis takes four times as long, argmax thirty.
        planes = in_planes(scores)
        highest = planes[0].clone()
        best = torch.zeros(highest.shape, dtype=torch.uint8)
        higher = torch.empty(highest.shape, dtype=torch.bool)
        for number in range(1, len(planes)):
            torch.gt(planes[number], highest, out=higher)
            torch.maximum(best, higher.view(torch.uint8).mul_(number), out=best)
            torch.maximum(highest, planes[number], out=highest)
    if not all(torch.isfinite(extreme) for extreme in torch.aminmax(highest)):
        raise DataError(
            problem(
                "model",
                "scores that are not finite",
                "numbers for every valid pixel",
                "train again or classify with precision 32-true",
            )
        )
    return best


_PLANES = 64  # classes; with more, an index of 8 bytes a pixel is the smaller evil
