"""From one block of a scene to one part of its shard.

A scene is cut into blocks of bounded height and width. A block is read once, its labels are burnt once, and its
samples are cut from memory. What it yields is a part: a folder that appears by rename, complete or not at all. Parts
depend on their task alone, so it does not matter which process makes them, or when.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from geoseg.data.blockpixels import BlockPixels, read_pixels
from geoseg.data.counting import WindowCounts
from geoseg.data.rawfiles import RawPlace, raw_places
from geoseg.data.splitnames import SPLITS
from geoseg.data.splits import SplitOptions
from geoseg.data.statistics import band_moments, subsample
from geoseg.data.survey import SceneFacts, SurveyOptions
from geoseg.data.windows import WindowOptions, blocks_of
from geoseg.geo.grid import Block, Window, sample_blocks

BLOCK_SIDE = 2048
SHARD_ARRAYS = ("images", "labels", "valid")
_BLOCK_BYTES = 48 * 2**20  # of image values
# Why a window is no sample: no known pixel, background alone, too little of it valid, too little of it annotated.
REASONS = ("unknown", "background", "invalid", "unannotated")
# Columns of a sample's row; the pixels per class follow. Checksums are CRC-32 of the stored bytes.
ROW, COL, SPLIT, VALID, CRC_IMAGE, CRC_LABEL, CRC_VALID, COUNTS = range(8)


@dataclass(frozen=True)
class SampleOptions:
    """How scenes become samples.

    Attributes:
        survey: How images and labels are read.
        classes: One mapping per class id: id, name, value, colour.
        size: Side of a sample, pixels.
        stride: Step between samples, pixels, at most `size`.
        remove_background: Leave out samples whose known pixels are all background.
        min_annotated: Least share of a sample's valid pixels that are annotated, per cent.
        min_valid: Least share of a sample's pixels that are valid, per cent.
        windows: How the windows of training samples are placed.
        splits: Where the split of a sample comes from.
    """

    survey: SurveyOptions
    classes: tuple[Mapping[str, Any], ...]
    size: int = 256
    stride: int = 256
    remove_background: bool = True
    min_annotated: float = 0.0
    min_valid: float = 0.0
    windows: WindowOptions = field(default_factory=WindowOptions)
    splits: SplitOptions = field(default_factory=SplitOptions)

    @property
    def plain(self) -> bool:
        """Whether scenes are cut by the unmoved grid and each belongs to one split."""
        return self.windows.plain and self.splits.method == "csv" and self.splits.shared_ground != "drop"

    @property
    def num_classes(self) -> int:
        """Classes, background included."""
        return self.survey.mapping.num_classes

    @property
    def ignore_value(self) -> int:
        """Label of unknown pixels."""
        return self.survey.mapping.ignore_value

    def to_dict(self) -> dict[str, Any]:
        """Return everything that decides the samples, fit for JSON."""
        plain = asdict(self)
        del plain["survey"]["needs_training"], plain["survey"]["store"]  # what is asked of scenes changes no sample
        mapping = plain["survey"]["mapping"]
        mapping["ignore_values"] = sorted(mapping["ignore_values"], key=repr)
        if mapping["by_value"] is not None:
            mapping["by_value"] = sorted(mapping["by_value"].items(), key=repr)
        return plain


@dataclass(frozen=True)
class BlockTask:
    """One block, with all that is needed to make its part in any process.

    Attributes:
        facts: The scene.
        options: How to cut it.
        block: What to read and the samples to cut from it.
        owned: The pixels of the block that no block before it holds; they partition the scene.
        step: Grid of the percentiles' subsample, pixels; 0 for a scene that has no part in the statistics.
        part: The folder to make.
        splits: Split of each of the block's windows, as its place in SPLITS.
        training: Windows whose pixels enter the statistics; None: all that the block owns.
        raw: Where images and labels go if they are written in place.
        in_place: Whether they are.
    """

    facts: SceneFacts
    options: SampleOptions
    block: Block
    owned: Window
    step: int
    part: Path
    splits: tuple[int, ...]
    training: tuple[Window, ...] | None = None
    raw: tuple[RawPlace, ...] = ()
    in_place: bool = False


@dataclass(frozen=True)
class ScenePlan:
    """What was decided about a scene before any of its pixels is read.

    Attributes:
        windows: Its windows and their splits.
        training: Disjoint or overlapping windows that cover the ground of its training samples; None: all of it.
        ground: Regions (row, col, height, width, split) of its splits; empty where each window was judged alone.
        apart: Windows that were left out since they lie on the ground of two splits or none.
    """

    windows: Mapping[Window, str]
    training: tuple[Window, ...] | None = None
    ground: tuple[tuple[int, int, int, int, str], ...] = ()
    apart: int = 0


def plan_scene(
    facts: SceneFacts, options: SampleOptions, step: int, folder: Path, plan: ScenePlan | None = None
) -> list[BlockTask]:
    """Return the tasks of a scene, in canonical order.

    Args:
        facts: The scene.
        options: How to cut it.
        step: See `BlockTask`.
        folder: Where the scene's parts go.
        plan: Its windows; None: the plain grid, all in the scene's split.
    """
    info = facts.info
    side = block_side(len(facts.bands), np.dtype(info.dtype).itemsize)
    if plan is None:
        blocks = sample_blocks(info.height, info.width, options.size, options.stride, side)
        pairs = list(zip(blocks, owned_windows(blocks), strict=True))
    else:
        pairs = blocks_of(list(plan.windows), info.height, info.width, options.size, side)
    counts, size = [len(block.windows) for block, _ in pairs], options.size
    images = raw_places(folder, "images", counts, (len(facts.bands), size, size), info.dtype)
    labels = raw_places(folder, "labels", counts, (size, size), "uint8")
    tasks = []
    for number, (block, owned) in enumerate(pairs):
        names = [plan.windows[window] if plan else facts.scene.split for window in block.windows]
        splits = tuple(SPLITS.index(name) for name in names)
        near = None
        if plan is not None and plan.training is not None:
            near = tuple(window for window in plan.training if window.intersection(owned))
        raw = images[number], labels[number]
        tasks.append(BlockTask(facts, options, block, owned, step, folder / f"{number:06d}", splits, near, raw))
    return tasks


def block_side(bands: int, itemsize: int) -> int:
    """Return how long a block's side may be, so that blocks of any number of bands take much the same memory."""
    return max(1, min(BLOCK_SIDE, math.isqrt(_BLOCK_BYTES // (bands * itemsize))))


def owned_windows(blocks: Sequence[Block]) -> list[Window]:
    """Return the part of each block that is its own: together they partition the scene.

    Blocks form a grid and overlap where samples do; a pixel belongs to the first row and column of blocks that holds
    it.
    """
    rows = _starts({(b.window.row_off, b.window.row_stop) for b in blocks})
    cols = _starts({(b.window.col_off, b.window.col_stop) for b in blocks})
    owned = []
    for block in blocks:
        row, col = rows[block.window.row_off], cols[block.window.col_off]
        owned.append(Window(row, col, block.window.row_stop - row, block.window.col_stop - col))
    return owned


def _starts(spans: set[tuple[int, int]]) -> dict[int, int]:
    """Return for each span's begin where its own pixels begin: at the end of the span before it."""
    result, stop = {}, 0
    for begin, end in sorted(spans):
        result[begin] = max(begin, stop)
        stop = end
    return result


def run_block(task: BlockTask) -> Path:
    """Make the part of a block, unless it is there, and return its folder.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    if task.part.is_dir():
        return task.part
    pixels = read_block(task)
    counted = WindowCounts(pixels.label, task.block, task.options.num_classes)
    try:
        with _committed(task.part) as folder:
            dropped = _write_samples(task, pixels, counted, folder)
            _write_summary(task, pixels, counted.total(task.owned), dropped, folder)
    except FileNotFoundError:
        if not task.part.is_dir():  # otherwise somebody else made the part, and has gone on to finish the scene
            raise
    return task.part


def read_block(task: BlockTask) -> BlockPixels:
    """Return a block's pixels with its labels burnt.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    overlapping = task.options.stride < task.options.size
    return read_pixels(task.facts, task.options.survey, task.block.window, again=overlapping)


def _write_samples(
    task: BlockTask, pixels: BlockPixels, counted: WindowCounts, folder: Path
) -> dict[str, dict[str, int]]:
    """Write images.bin, labels.bin, valid.bin and rows.npy; return per split the windows left out, by reason."""
    size, outer = task.options.size, task.block.window
    dropped = {split: dict.fromkeys(REASONS, 0) for split in SPLITS}
    rows: list[list[int]] = []
    # Windows overhang only where the scene is narrower than they are.
    whole = bool(pixels.valid.all()) and min(outer.shape) >= size
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(_opened(task, name, folder)) for name in SHARD_ARRAYS}
        for split, (window, label, counts, reason) in zip(
            task.splits, judged_windows(task, pixels, counted), strict=True
        ):
            if reason:
                dropped[SPLITS[split]][reason] += 1
                continue
            row = [window.row_off, window.col_off, split, size * size]
            row.append(_append(files["images"], _cut(pixels.image, outer, window, 0)))
            row += [_append(files["labels"], label), 0]
            if not whole:
                valid = _cut(pixels.valid, outer, window, False)
                row[VALID] = int(np.count_nonzero(valid))
                if row[VALID] < size * size:
                    row[CRC_VALID] = _append(files["valid"], np.packbits(valid))
            rows.append([*row, *counts])
    np.save(folder / "rows.npy", np.array(rows, np.int64).reshape(len(rows), COUNTS + task.options.num_classes))
    return dropped


def _opened(task: BlockTask, name: str, folder: Path) -> BinaryIO:
    places = {place.path.stem: place for place in task.raw} if task.in_place else {}
    if name not in places:
        return (folder / f"{name}.bin").open("wb")
    file = places[name].path.open("r+b")
    file.seek(places[name].offset)
    return file


def judged_windows(
    task: BlockTask, pixels: BlockPixels, counted: WindowCounts
) -> Iterator[tuple[Window, NDArray[np.uint8], list[int], str | None]]:
    """Yield each window of a block: its label, its pixels per class, and why it is left out, or None."""
    options = task.options
    judged = options.min_annotated > 0 or options.min_valid > 0
    for window in task.block.windows:
        label = np.ascontiguousarray(_cut(pixels.label, task.block.window, window, options.ignore_value))
        counts = counted.of(window)
        valid = int(np.count_nonzero(_cut(pixels.valid, task.block.window, window, False))) if judged else 0
        yield window, label, counts, reason_to_drop(counts, valid, options)


def reason_to_drop(counts: Sequence[int], valid: int, options: SampleOptions) -> str | None:
    """Return why a window is no sample, or None.

    Args:
        counts: Pixels per class.
        valid: Valid pixels; looked at only where the options ask for a least share.
        options: What is asked for.
    """
    known = sum(counts)
    if known == 0:
        return "unknown"
    if options.remove_background and counts[0] == known:
        return "background"
    if valid * 100 < options.min_valid * options.size**2:
        return "invalid"
    # Where the ground outside polygons is unknown, background that is known was annotated as such.
    annotated = known if options.survey.mask_outside else known - counts[0]
    return "unannotated" if annotated * 100 < options.min_annotated * valid else None


def _write_summary(
    task: BlockTask,
    pixels: BlockPixels,
    class_pixels: list[int],
    dropped: Mapping[str, Mapping[str, int]],
    folder: Path,
) -> None:
    """Write label.npy and summary.json of the pixels the block owns, and subsample.npy of a training scene."""
    place = task.owned.within(task.block.window)
    label, image, valid = pixels.label[place], pixels.image[(slice(None), *place)], pixels.valid[place]
    np.save(folder / "label.npy", np.ascontiguousarray(label))  # a view would be written pixel by pixel
    summary: dict[str, Any] = {"dropped": dropped, "class_pixels": class_pixels}
    if task.step:
        if pixels.area is not None:
            valid = valid & pixels.area[place]
        if task.training is not None:
            valid = valid & _covered(task.owned, task.training)
        summary["moments"] = [asdict(found) for found in band_moments(image, valid)]
        np.save(folder / "subsample.npy", np.ascontiguousarray(subsample(image, valid, task.owned, task.step)))
    # Infinity, the least value of no pixel, is written as such: Python reads it back.
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def _covered(outer: Window, windows: Sequence[Window]) -> NDArray[np.bool_]:
    """Return (h, w) of `outer`: True where one of the windows lies."""
    result = np.zeros(outer.shape, bool)
    for window in windows:
        inside = window.intersection(outer)
        if inside is not None:
            result[inside.within(outer)] = True
    return result


def _cut(array: NDArray[Any], outer: Window, window: Window, fill: int) -> NDArray[Any]:
    """Return the window of an array whose last two axes hold `outer`; what lies beyond is `fill`."""
    top, left = window.row_off - outer.row_off, window.col_off - outer.col_off
    bottom, right = top + window.height, left + window.width
    if top >= 0 and left >= 0 and bottom <= outer.height and right <= outer.width:
        return array[..., top:bottom, left:right]
    inside = window.intersection(outer)
    assert inside is not None
    result = np.full((*array.shape[:-2], *window.shape), fill, array.dtype)
    result[(..., *inside.within(window))] = array[(..., *inside.within(outer))]
    return result


def _append(file: BinaryIO, array: NDArray[Any]) -> int:
    """Write an array's bytes; return their CRC-32, which costs little while they are in the processor's cache."""
    data = np.ascontiguousarray(array).data.cast("B")
    file.write(data)
    return zlib.crc32(data)


@contextlib.contextmanager
def _committed(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which gets its name when it is complete."""
    folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    try:
        yield folder
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            # Somebody else made the same part meanwhile; theirs holds the same bytes.
    finally:
        shutil.rmtree(folder, ignore_errors=True)
