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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.data.statistics import band_moments, subsample
from geoseg.data.survey import SceneFacts, SurveyOptions, scene_labels
from geoseg.geo.grid import Block, Window, sample_blocks
from geoseg.geo.raster import open_raster
from geoseg.geo.vector import burn

BLOCK_SIDE = 2048
SHARD_ARRAYS = ("images", "labels", "valid")
_BLOCK_BYTES = 48 * 2**20  # of image values; with its copies and labels a block stays near 150 MB
_COUNTED = 2**22  # pixels; OpenCV counts in float32, which is exact to 2**24


@dataclass(frozen=True)
class SampleOptions:
    """How scenes become samples.

    Attributes:
        survey: How images and labels are read.
        classes: One mapping per class id: id, name, value, colour.
        size: Side of a sample, pixels.
        stride: Step between samples, pixels, at most `size`.
        remove_background: Leave out samples whose known pixels are all background.
    """

    survey: SurveyOptions
    classes: tuple[Mapping[str, Any], ...]
    size: int = 256
    stride: int = 256
    remove_background: bool = True

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
    """

    facts: SceneFacts
    options: SampleOptions
    block: Block
    owned: Window
    step: int
    part: Path


def plan_scene(facts: SceneFacts, options: SampleOptions, step: int, folder: Path) -> list[BlockTask]:
    """Return the tasks of a scene, in canonical order.

    Args:
        facts: The scene.
        options: How to cut it.
        step: See `BlockTask`.
        folder: Where the scene's parts go.
    """
    info = facts.info
    side = block_side(len(facts.bands), np.dtype(info.dtype).itemsize)
    blocks = sample_blocks(info.height, info.width, options.size, options.stride, side)
    return [
        BlockTask(facts, options, block, owned, step, folder / f"{number:06d}")
        for number, (block, owned) in enumerate(zip(blocks, owned_windows(blocks), strict=True))
    ]


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
    with _committed(task.part) as folder:
        dropped = _write_samples(task, pixels, folder)
        _write_summary(task, pixels, dropped, folder)
    return task.part


@dataclass(frozen=True)
class BlockPixels:
    """Image (bands, h, w), valid (h, w) and label (h, w) of a block's window."""

    image: NDArray[Any]
    valid: NDArray[np.bool_]
    label: NDArray[np.uint8]


def read_block(task: BlockTask) -> BlockPixels:
    """Return a block's pixels with its labels burnt.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    scene, window = task.facts.scene, task.block.window
    with open_raster(scene.image, task.facts.bands) as raster:
        image, valid = raster.read(window)
    # The part's folder names this state of files and options, which makes it the key of the process's label cache.
    labels = scene_labels(scene, task.facts.info, task.options.survey, key=str(task.part.parent.parent))
    ignore = task.options.ignore_value
    outside = ignore if task.options.survey.mask_outside else 0
    label = burn(labels, task.facts.info.transform, window, outside)
    if not valid.all():
        label[~valid] = ignore
        # Nodata values are arbitrary; 0 keeps them out of any later arithmetic and makes shards compress.
        image[:, ~valid] = 0
    return BlockPixels(image, valid, label)


def _write_samples(task: BlockTask, pixels: BlockPixels, folder: Path) -> dict[str, int]:
    """Write images.bin, labels.bin, valid.bin and rows.npy; return how many windows were left out, by reason."""
    size = task.options.size
    dropped = {"unknown": 0, "background": 0}
    rows: list[list[int]] = []
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in SHARD_ARRAYS}
        for window, label, counts, reason in judged_windows(task, pixels):
            if reason:
                dropped[reason] += 1
                continue
            valid = _cut(pixels.valid, task.block.window, window, False)
            valid_pixels = int(np.count_nonzero(valid))
            _append(files["images"], _cut(pixels.image, task.block.window, window, 0))
            _append(files["labels"], label)
            if valid_pixels < size * size:
                _append(files["valid"], np.packbits(valid))
            rows.append([window.row_off, window.col_off, valid_pixels, *counts])
    np.save(folder / "rows.npy", np.array(rows, np.int64).reshape(len(rows), 3 + task.options.num_classes))
    return dropped


def judged_windows(
    task: BlockTask, pixels: BlockPixels
) -> Iterator[tuple[Window, NDArray[np.uint8], list[int], str | None]]:
    """Yield each window of a block: its label, its pixels per class, and why it is left out, or None."""
    for window in task.block.windows:
        label = _cut(pixels.label, task.block.window, window, task.options.ignore_value)
        counts = count_classes(label, task.options.num_classes)
        yield window, label, counts, _reason_to_drop(counts, task.options.remove_background)


def _write_summary(task: BlockTask, pixels: BlockPixels, dropped: Mapping[str, int], folder: Path) -> None:
    """Write label.npy and summary.json of the pixels the block owns, and subsample.npy of a training scene."""
    place = task.owned.within(task.block.window)
    label, image, valid = pixels.label[place], pixels.image[(slice(None), *place)], pixels.valid[place]
    np.save(folder / "label.npy", label)
    summary: dict[str, Any] = {"dropped": dropped, "class_pixels": count_classes(label, task.options.num_classes)}
    if task.step:
        summary["moments"] = [asdict(found) for found in band_moments(image, valid)]
        np.save(folder / "subsample.npy", subsample(image, valid, task.owned, task.step))
    # Infinity, the least value of no pixel, is written as such: Python reads it back.
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def count_classes(label: NDArray[np.uint8], num_classes: int) -> list[int]:
    """Return the number of pixels of each class id."""
    total = np.zeros(256, np.int64)
    rows = max(1, _COUNTED // max(1, label.shape[1]))
    for start in range(0, label.shape[0], rows):
        chunk = np.ascontiguousarray(label[start : start + rows])
        # Five times faster than bincount, which first makes 64-bit numbers of the bytes.
        total += cv2.calcHist([chunk], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    return total[:num_classes].tolist()  # type: ignore[no-any-return]


def _reason_to_drop(counts: Sequence[int], remove_background: bool) -> str | None:
    known = sum(counts)
    if known == 0:
        return "unknown"
    return "background" if remove_background and counts[0] == known else None


def _cut(array: NDArray[Any], outer: Window, window: Window, fill: int) -> NDArray[Any]:
    """Return the window of an array whose last two axes hold `outer`; what lies beyond is `fill`."""
    inside = window.intersection(outer)
    assert inside is not None
    part = array[(..., *inside.within(outer))]
    if inside == window:
        return part
    result = np.full((*array.shape[:-2], *window.shape), fill, array.dtype)
    result[(..., *inside.within(window))] = part
    return result


def _append(file: BinaryIO, array: NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(array).data)


@contextlib.contextmanager
def _committed(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which gets its name when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
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
