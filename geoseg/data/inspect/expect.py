"""The samples to expect: blocks are read, burnt and judged as sampling does it, and nothing is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geoseg.data.sampling import BlockTask, SampleOptions, count_classes, judged_windows, plan_scene, read_block
from geoseg.data.statistics import Moments, band_moments, merge
from geoseg.data.survey import SceneFacts
from geoseg.errors import GeosegError
from geoseg.geo.raster import RasterInfo

#: Pixel values of all scenes together that are read at most, if not all are asked for; about half a minute's work.
BUDGET = 2 * 10**9
_WRITING = 1.6  # time of sampling by that of reading and judging alone, measured
_LABEL_SHARE = 0.05  # of a burnt label raster's pixels that remain as bytes after compression
_FOOTPRINT_BYTES = 400  # of a row of the index

RunTasks = Callable[
    [Callable[[BlockTask], "BlockCount"], Iterable[BlockTask]], Iterator[tuple[BlockTask, "BlockCount | Exception"]]
]


@dataclass(frozen=True)
class BlockCount:
    """What a block holds.

    Attributes:
        windows: Windows of the block.
        dropped: Windows that would be left out, by reason.
        class_pixels: Pixels per class in the windows that would be kept.
        scene_pixels: Pixels per class that the block owns.
        valid: Pixels with data that it owns.
        owned: Pixels that it owns.
        moments: Of each band over them.
        seconds: CPU time that it took.
    """

    windows: int
    dropped: Mapping[str, int]
    class_pixels: tuple[int, ...]
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
        samples: Windows that would be kept.
        dropped: Windows that would be left out, by reason.
        class_pixels: Pixels per class in the samples.
        scene_pixels: Pixels per class in the scene, each once.
        valid_fraction: Share of pixels with data, 0..1.
        lows: Least value of each band, None where no pixel holds data.
        highs: Greatest value of each band.
        seconds: CPU time that sampling is expected to take.
    """

    blocks: int
    blocks_read: int
    samples: int
    dropped: Mapping[str, int]
    class_pixels: tuple[int, ...]
    scene_pixels: tuple[int, ...]
    valid_fraction: float
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    seconds: float

    @property
    def exact(self) -> bool:
        """Whether every block was read."""
        return self.blocks_read == self.blocks


def plan_counts(
    facts: Sequence[SceneFacts], options: SampleOptions, key: str, budget: int | None = BUDGET
) -> list[tuple[SceneFacts, int, list[BlockTask]]]:
    """Return each scene, the number of its blocks, and those to read: evenly spread, at least one.

    Args:
        facts: The scenes.
        options: How they would be cut.
        key: Names this state of files and options, for the cache of labels.
        budget: Pixel values to read of all scenes together, about; None: all.
    """
    values = sum(f.info.height * f.info.width * len(f.bands) for f in facts)
    step = 1 if budget is None else max(1, math.ceil(values / max(1, budget)))
    plans = []
    for fact in facts:
        tasks = plan_scene(fact, options, 0, Path(key) / fact.scene.scene_id)
        chosen = tasks[min(step // 2, len(tasks) // 2) :: step]
        plans.append((fact, len(tasks), chosen))
    return plans


def count_block(task: BlockTask) -> BlockCount:
    """Return what a block holds; nothing is written.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    started = time.process_time()
    classes = task.options.num_classes
    pixels = read_block(task)
    dropped: dict[str, int] = {}
    total = np.zeros(classes, np.int64)
    windows = 0
    for _, _, counts, reason in judged_windows(task, pixels):
        windows += 1
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            total += counts
    place = task.owned.within(task.block.window)
    valid = pixels.valid[place]
    moments = band_moments(pixels.image[(slice(None), *place)], valid)
    return BlockCount(
        windows=windows,
        dropped=dropped,
        class_pixels=tuple(total.tolist()),
        scene_pixels=tuple(count_classes(pixels.label[place], classes)),
        valid=int(np.count_nonzero(valid)),
        owned=valid.size,
        moments=tuple(moments),
        seconds=time.process_time() - started,
    )


def count_samples(
    plans: Sequence[tuple[SceneFacts, int, list[BlockTask]]],
    run_tasks: RunTasks | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[SampleCount | list[str]]:
    """Return for each planned scene what it would yield, or its problems.

    Args:
        plans: From `plan_counts`.
        run_tasks: Where blocks are counted (see `geoseg.execution.map_tasks`); None: one after another, here.
        on_progress: Called with the number of blocks that were counted.
    """
    found: dict[str, list[BlockCount]] = {}
    problems: dict[str, list[str]] = {}
    tasks = [task for _, _, chosen in plans for task in chosen]
    for task, result in (run_tasks or _run_here)(count_block, tasks):
        scene = task.facts.scene.scene_id
        if isinstance(result, GeosegError):
            problems.setdefault(scene, []).extend(result.problems)
        elif isinstance(result, Exception):
            raise result
        else:
            found.setdefault(scene, []).append(result)
        if on_progress:
            on_progress(1)
    counts: list[SampleCount | list[str]] = []
    for fact, blocks, _ in plans:
        scene = fact.scene.scene_id
        counts.append(problems[scene] if scene in problems else _summed(fact, blocks, found[scene]))
    return counts


def _run_here(function: Any, tasks: Iterable[BlockTask]) -> Iterator[tuple[BlockTask, Any]]:
    for task in tasks:
        try:
            yield task, function(task)
        except GeosegError as error:
            yield task, error


def _summed(facts: SceneFacts, blocks: int, read: Sequence[BlockCount]) -> SampleCount:
    pixels = facts.info.height * facts.info.width
    owned = sum(block.owned for block in read)
    factor = 1.0 if len(read) == blocks else pixels / owned
    reasons = sorted({reason for block in read for reason in block.dropped})
    dropped = {reason: sum(block.dropped.get(reason, 0) for block in read) for reason in reasons}
    kept = sum(block.windows for block in read) - sum(dropped.values())
    moments = [merge(band) for band in zip(*(block.moments for block in read), strict=True)]
    return SampleCount(
        blocks=blocks,
        blocks_read=len(read),
        samples=round(kept * factor),
        dropped={reason: round(count * factor) for reason, count in dropped.items()},
        class_pixels=_scaled([block.class_pixels for block in read], factor),
        scene_pixels=_scaled([block.scene_pixels for block in read], factor),
        valid_fraction=sum(block.valid for block in read) / owned,
        lows=tuple(band.low if band.count else None for band in moments),
        highs=tuple(band.high if band.count else None for band in moments),
        seconds=sum(block.seconds for block in read) * factor * _WRITING,
    )


def _scaled(counts: Sequence[tuple[int, ...]], factor: float) -> tuple[int, ...]:
    return tuple(round(int(total) * factor) for total in np.sum(counts, axis=0))


def disk_bytes(info: RasterInfo, bands: int, options: SampleOptions, samples: int) -> int:
    """Return about how many bytes the samples of a scene take in the store, with its label raster."""
    pixels = options.size**2
    one = pixels * (bands * np.dtype(info.dtype).itemsize + 1) + _FOOTPRINT_BYTES
    return samples * one + round(info.height * info.width * _LABEL_SHARE)
