"""A first look at labels, where they decide how scenes are cut: classes per block of ground, and pixels to aim at.

Only labels are burnt, the image is not read: pixels without data are taken as labelled here, and windows that turn out
to hold nothing known are dropped later like any other.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.data.blockpixels import burnt_label
from geoseg.data.counting import count_classes
from geoseg.data.sampling import SampleOptions, block_side
from geoseg.data.survey import SceneFacts
from geoseg.data.windows import Places, generator
from geoseg.geo.grid import Window, tiles

_POINTS = 4096  # pixels of one class that are kept per block


@dataclass(frozen=True)
class LookTask:
    """A part of a scene to look at.

    Attributes:
        facts: The scene.
        options: How to read labels, and what windows are wanted.
        window: Which part; the windows of a scene partition it.
        cells: Blocks of ground whose classes are counted.
        target: The file to make.
    """

    facts: SceneFacts
    options: SampleOptions
    window: Window
    cells: tuple[Window, ...]
    target: Path


def look_tasks(facts: SceneFacts, options: SampleOptions, cells: Sequence[Window], folder: Path) -> list[LookTask]:
    """Return the tasks of a scene, row-major; their sides are multiples of the stride."""
    side = block_side(len(facts.bands), 1)
    side = max(1, side // options.stride) * options.stride
    steps = tiles(facts.info.height, facts.info.width, side, 0)
    return [
        LookTask(
            facts,
            options,
            step.write,
            tuple(cells),
            folder / f"{facts.scene.scene_id}.{number:06d}.npz",
        )
        for number, step in enumerate(steps)
    ]


def look(task: LookTask) -> Path:
    """Look at a part of a scene, unless that was done, and return the file that says what was found."""
    if task.target.is_file():
        return task.target
    label = burnt_label(task.facts, task.options.survey, task.window)
    classes = task.options.num_classes
    counts = np.zeros((len(task.cells), classes), np.int64)
    for number, cell in enumerate(task.cells):
        inside = cell.intersection(task.window)
        if inside is not None:
            counts[number] = count_classes(label[inside.within(task.window)], classes)
    if task.options.windows.mode == "objects":
        points = _object_points(label, task)
        weights = np.ones(len(points))
    elif task.options.windows.mode == "classes":
        points, weights = _class_points(label, task)
    else:
        points, weights = np.zeros((0, 3), np.int64), np.zeros(0)
    temporary = task.target.with_name(f".{uuid.uuid4().hex}.npz")
    try:
        np.savez(temporary, counts=counts, points=points, weights=weights)
        temporary.replace(task.target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return task.target


def seen(tasks: Sequence[LookTask]) -> tuple[NDArray[np.int64], Places]:
    """Return pixels per cell and class (cells, classes), and the places, of a scene whose parts were looked at."""
    found = [np.load(task.target) for task in tasks]
    points = np.concatenate([one["points"] for one in found])
    return sum(one["counts"] for one in found), Places(points, np.concatenate([one["weights"] for one in found]))


def _class_points(label: NDArray[np.uint8], task: LookTask) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return pixels of each class, drawn evenly, and how many pixels each stands for."""
    rng = generator(task.options.windows.seed, task.facts.scene.scene_id, task.window)
    points, weights = [], []
    for index in range(task.options.num_classes):
        rows, cols = np.nonzero(label == index)
        if not len(rows):
            continue
        picks = rng.choice(len(rows), min(_POINTS, len(rows)), replace=False)
        ids = np.full(len(picks), index)
        points.append(np.stack([rows[picks] + task.window.row_off, cols[picks] + task.window.col_off, ids], 1))
        weights.append(np.full(len(picks), len(rows) / len(picks)))
    if not points:
        return np.zeros((0, 3), np.int64), np.zeros(0)
    return np.concatenate(points).astype(np.int64), np.concatenate(weights)


def _object_points(label: NDArray[np.uint8], task: LookTask) -> NDArray[np.int64]:
    """Return, of each `stride` x `stride` cell that holds an object's pixel, the middle of what it holds.

    A window as wide as the cell or wider, centred there, holds all of it: no pixel of an object is missed.
    """
    stride, window = task.options.stride, task.window
    there = (label != 0) & (label != task.options.ignore_value)
    points = []
    for top in range(0, window.height, stride):
        strip = there[top : top + stride]
        for left in range(0, window.width, stride):
            cell = strip[:, left : left + stride]
            rows, cols = np.flatnonzero(cell.any(axis=1)), np.flatnonzero(cell.any(axis=0))
            if len(rows):
                row = top + (rows[0] + rows[-1] + 1) // 2 + window.row_off
                col = left + (cols[0] + cols[-1] + 1) // 2 + window.col_off
                points.append((int(row), int(col), 1))
    return np.array(points, np.int64).reshape(-1, 3)
