"""The samples to expect: blocks are read, burnt and judged as sampling does it, and nothing is kept."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geoseg.data.counting import WindowCounts
from geoseg.data.planning import plan_store
from geoseg.data.sampling import (
    BlockTask,
    SampleOptions,
    judged_windows,
    plan_scene,
    read_block,
)
from geoseg.data.splitnames import SPLITS
from geoseg.data.statistics import Moments, band_moments, merge
from geoseg.data.survey import SceneFacts
from geoseg.errors import GeosegError
from geoseg.geo.raster import RasterInfo

#: Pixel values of all scenes together that are read at most, if not all are asked for; about half a minute's work.
BUDGET = 2 * 10**9
_WRITING = 1.6  # time of sampling by that of reading and judging alone, measured
_LABEL_SHARE = 0.05  # of a burnt label raster's pixels that remain as bytes after compression
_ROW_BYTES = 400  # of a sample in the index

RunTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class BlockCount:
    """What a block holds.

    Attributes:
        kept: Split -> windows that would be kept.
        dropped: Windows that would be left out, by reason.
        class_pixels: Split -> pixels per class in the windows that would be kept.
        scene_pixels: Pixels per class that the block owns.
        valid: Pixels with data that it owns.
        owned: Pixels that it owns.
        moments: Of each band over them.
        seconds: CPU time that it took.
    """

    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    class_pixels: Mapping[str, tuple[int, ...]]
    scene_pixels: tuple[int, ...]
    valid: int
    owned: int
    moments: tuple[Moments, ...]
    seconds: float


@dataclass(frozen=True)
class SampleCount:
    """What sampling a scene would yield; extrapolated where not all of its blocks were read.

    Attributes:
        blocks: Blocks of the scene.
        blocks_read: How many were read.
        kept: Split -> windows that would be kept.
        dropped: Windows that would be left out, by reason.
        class_pixels: Split -> pixels per class in the samples.
        scene_pixels: Pixels per class in the scene, each once.
        valid_fraction: Share of pixels with data, 0..1.
        lows: Least value of each band, None where no pixel holds data.
        highs: Greatest value of each band.
        seconds: CPU time that sampling is expected to take.
    """

    blocks: int
    blocks_read: int
    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    class_pixels: Mapping[str, tuple[int, ...]]
    scene_pixels: tuple[int, ...]
    valid_fraction: float
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    seconds: float

    @property
    def samples(self) -> int:
        """Windows of all splits that would be kept."""
        return sum(self.kept.values())

    def labelled(self, info: RasterInfo) -> float:
        """Return the share of the scene's pixels, 0..1, of which labels say something and the image too."""
        return sum(self.scene_pixels) / (info.height * info.width)

    @property
    def exact(self) -> bool:
        """Whether every block was read."""
        return self.blocks_read == self.blocks


@dataclass(frozen=True)
class CountPlan:
    """A scene, the number of its blocks, and those to read."""

    facts: SceneFacts
    blocks: int
    tasks: list[BlockTask]


def plan_counts(
    facts: Sequence[SceneFacts],
    options: SampleOptions,
    key: str,
    budget: int | None = BUDGET,
    run_tasks: RunTasks | None = None,
) -> tuple[list[CountPlan], list[str]]:
    """Return the blocks to read of each scene, evenly spread, at least one; and warnings about the splits.

    Args:
        facts: The scenes.
        options: How they would be cut.
        key: Names this state of files and options, for the cache of labels.
        budget: Pixel values to read of all scenes together, about; None: all.
        run_tasks: Where labels are looked at, if they decide where windows lie; None: here.

    Raises:
        DataError: Splits would share ground, or cannot be made.
    """
    # What a look at the labels finds is passed on in files; they are gone before anybody could see them.
    with tempfile.TemporaryDirectory(prefix="geoseg-") as scratch:
        windows, warnings = plan_store(facts, options, Path(scratch) / "looks", run_tasks or _run_here)
    values = sum(f.info.height * f.info.width * len(f.bands) for f in facts)
    step = 1 if budget is None else max(1, math.ceil(values / max(1, budget)))
    plans = []
    for fact, chosen in zip(facts, windows, strict=True):
        tasks = plan_scene(fact, options, 0, Path(key) / fact.scene.scene_id, chosen)
        plans.append(CountPlan(fact, len(tasks), tasks[min(step // 2, len(tasks) // 2) :: step]))
    return plans, warnings


def count_block(task: BlockTask) -> BlockCount:
    """Return what a block holds; nothing is written.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    started = time.process_time()
    classes = task.options.num_classes
    pixels = read_block(task)
    counted = WindowCounts(pixels.label, task.block, classes)
    kept = dict.fromkeys(SPLITS, 0)
    totals = {split: np.zeros(classes, np.int64) for split in SPLITS}
    dropped: dict[str, int] = {}
    for number, (_, _, counts, reason) in zip(task.splits, judged_windows(task, pixels, counted), strict=True):
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            kept[SPLITS[number]] += 1
            totals[SPLITS[number]] += counts
    place = task.owned.within(task.block.window)
    valid = pixels.valid[place]
    moments = band_moments(pixels.image[(slice(None), *place)], valid)
    return BlockCount(
        kept=kept,
        dropped=dropped,
        class_pixels={split: tuple(total.tolist()) for split, total in totals.items()},
        scene_pixels=tuple(counted.total(task.owned)),
        valid=int(np.count_nonzero(valid)),
        owned=valid.size,
        moments=tuple(moments),
        seconds=time.process_time() - started,
    )


def count_samples(
    plans: Sequence[CountPlan],
    run_tasks: RunTasks | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, SampleCount | list[str]]:
    """Return for each planned scene, by id, what it would yield, or its problems.

    Args:
        plans: From `plan_counts`.
        run_tasks: Where blocks are counted (see `geoseg.execution.map_tasks`); None: one after another, here.
        on_progress: Called with the number of blocks that were counted.
    """
    found: dict[str, list[BlockCount]] = {}
    problems: dict[str, list[str]] = {}
    for task, result in (run_tasks or _run_here)(count_block, [task for plan in plans for task in plan.tasks]):
        scene = task.facts.scene.scene_id
        if isinstance(result, GeosegError):
            problems.setdefault(scene, []).extend(result.problems)
        elif isinstance(result, Exception):
            raise result
        else:
            found.setdefault(scene, []).append(result)
        if on_progress:
            on_progress(1)
    counts: dict[str, SampleCount | list[str]] = {}
    for plan in plans:
        scene = plan.facts.scene.scene_id
        counts[scene] = problems[scene] if scene in problems else _summed(plan, found[scene])
    return counts


def _run_here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for task in tasks:
        try:
            yield task, function(task)
        except GeosegError as error:
            yield task, error


def _summed(plan: CountPlan, read: Sequence[BlockCount]) -> SampleCount:
    info = plan.facts.info
    owned = sum(block.owned for block in read)
    # Blocks tell of as many others as they are of the scene's ground.
    factor = 1.0 if len(read) == plan.blocks else info.height * info.width / owned
    reasons = sorted({reason for block in read for reason in block.dropped})
    moments = [merge(band) for band in zip(*(block.moments for block in read), strict=True)]
    return SampleCount(
        blocks=plan.blocks,
        blocks_read=len(read),
        kept={split: round(sum(block.kept[split] for block in read) * factor) for split in SPLITS},
        dropped={reason: round(sum(block.dropped.get(reason, 0) for block in read) * factor) for reason in reasons},
        class_pixels={split: _scaled([block.class_pixels[split] for block in read], factor) for split in SPLITS},
        scene_pixels=_scaled([block.scene_pixels for block in read], factor),
        valid_fraction=sum(block.valid for block in read) / owned,
        lows=tuple(band.low if band.count else None for band in moments),
        highs=tuple(band.high if band.count else None for band in moments),
        seconds=sum(block.seconds for block in read) * factor * _WRITING,
    )


def _scaled(counts: Sequence[tuple[int, ...]], factor: float) -> tuple[int, ...]:
    return tuple(round(int(total) * factor) for total in np.sum(counts, axis=0))


def store_bytes(info: RasterInfo, bands: int, size: int, samples: int) -> int:
    """Return about how many bytes the samples of a scene take in the store, with its label raster.

    Args:
        info: The scene's raster.
        bands: Bands of a sample.
        size: Its side, pixels.
        samples: How many there are.
    """
    one = size**2 * (bands * np.dtype(info.dtype).itemsize + 1) + _ROW_BYTES
    return samples * one + round(info.height * info.width * _LABEL_SHARE)
