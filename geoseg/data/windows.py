"""Where the samples of a scene lie: the grid and its variants, inside the ground of each split.

Everything follows from the seed, the scene's identity and whole numbers, so any process comes to the same windows.
Variants serve training: samples of the other splits always lie on the plain grid, where each pixel is judged evenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Block, Window, bounding, sample_windows, tiles

WINDOWS = ("grid", "random", "classes", "objects")


@dataclass(frozen=True)
class WindowOptions:
    """How the windows of training samples are placed.

    Attributes:
        mode: grid; random (anywhere); classes (as many around pixels of each class, background included); objects
            (along whatever is not background, one per `stride` x `stride` pixels that hold some).
        count: Windows per scene, for all but grid; None: as many as the grid has (objects: all).
        jitter: Pixels by which grid windows are moved at random, up or down, left or right.
        seed: Of all that is random here.
    """

    mode: str = "grid"
    count: int | None = None
    jitter: int = 0
    seed: int = 0

    @property
    def plain(self) -> bool:
        """Whether the windows are the grid's, unmoved."""
        return self.mode == "grid" and not self.jitter

    @property
    def looks(self) -> bool:
        """Whether labels decide where windows lie."""
        return self.mode in ("classes", "objects")


@dataclass(frozen=True, slots=True)
class Region:
    """Ground of one split inside a scene: its samples lie wholly in it."""

    window: Window
    split: str


@dataclass(frozen=True)
class Places:
    """Pixels of a scene around which windows may lie.

    Attributes:
        points: (n, 3) row, column, class id; for each class, pixels drawn evenly from block after block.
        counts: (n,) how many pixels of its block a point stands for, as a weight.
    """

    points: NDArray[np.int64]
    counts: NDArray[np.float64]


NOWHERE = Places(np.zeros((0, 3), np.int64), np.zeros(0))


def generator(seed: int, *names: object) -> np.random.Generator:
    """Return random numbers that belong to a seed and some names, whatever else is drawn anywhere."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def grid_in(region: Window, size: int, stride: int) -> list[Window]:
    """Return the windows of the grid that covers a region; they overhang a region smaller than a sample."""
    windows = sample_windows(region.height, region.width, size, stride)
    return [window.shifted(region.row_off, region.col_off) for window in windows]


def choose_windows(
    regions: Sequence[Region],
    size: int,
    stride: int,
    options: WindowOptions,
    name: str,
    places: Places = NOWHERE,
) -> dict[Window, str]:
    """Return the windows of a scene and the split of each, row-major.

    Args:
        regions: Ground of the splits; disjoint.
        size: Side of a sample.
        stride: Step of the grid.
        options: How training windows are placed.
        name: The scene's identity; scenes differ in what is drawn.
        places: For modes that look at labels.
    """
    chosen: dict[Window, str] = {}
    training = [region.window for region in regions if region.split == "trn"]
    for region in regions:
        if region.split != "trn" or options.mode == "grid":
            moved = options.jitter if region.split == "trn" else 0
            rng = generator(options.seed, name, region.window)
            for window in grid_in(region.window, size, stride):
                chosen[_moved(window, moved, rng, region.window)] = region.split
    if training and options.mode != "grid":
        rng = generator(options.seed, name, options.mode)
        for window in _drawn(training, size, stride, options, places, rng):
            chosen[window] = "trn"
    return dict(sorted(chosen.items()))


def fitted(window: Window, region: Window) -> Window:
    """Return the window moved into a region; along a side that is too short it starts where the region starts."""
    row = max(region.row_off, min(window.row_off, region.row_stop - window.height))
    col = max(region.col_off, min(window.col_off, region.col_stop - window.width))
    return Window(row, col, window.height, window.width)


def _moved(window: Window, jitter: int, rng: np.random.Generator, region: Window) -> Window:
    if not jitter:
        return window
    rows, cols = rng.integers(-jitter, jitter + 1, 2).tolist()
    return fitted(window.shifted(rows, cols), region)


def _drawn(
    regions: Sequence[Window], size: int, stride: int, options: WindowOptions, places: Places, rng: np.random.Generator
) -> list[Window]:
    grid = sum(len(grid_in(region, size, stride)) for region in regions)
    count = options.count or grid
    if options.mode == "random":
        return _anywhere(regions, size, count, rng)
    inside = [(point, weight, home) for point, weight, home in _homes(regions, places) if home is not None]
    if options.mode == "objects":
        centres = [(point, home) for point, _, home in inside]
        if options.count is not None and options.count < len(centres):
            kept = np.sort(rng.choice(len(centres), options.count, replace=False))
            centres = [centres[index] for index in kept]
        half = size // 2
        return [fitted(Window(p[0] - half, p[1] - half, size, size), home) for p, home in centres]
    return _by_class(inside, size, count, rng)


def _homes(regions: Sequence[Window], places: Places) -> list[tuple[list[int], float, Window | None]]:
    result = []
    for point, weight in zip(places.points.tolist(), places.counts.tolist(), strict=True):
        pixel = Window(point[0], point[1], 1, 1)
        result.append((point, weight, next((region for region in regions if region.contains(pixel)), None)))
    return result


def _anywhere(regions: Sequence[Window], size: int, count: int, rng: np.random.Generator) -> list[Window]:
    """Return windows whose corners are spread evenly over all corners that are possible."""
    ways = np.array([max(1, r.height - size + 1) * max(1, r.width - size + 1) for r in regions], float)
    windows = []
    for index in rng.choice(len(regions), count, p=ways / ways.sum()):
        region = regions[index]
        row = region.row_off + int(rng.integers(max(1, region.height - size + 1)))
        col = region.col_off + int(rng.integers(max(1, region.width - size + 1)))
        windows.append(Window(row, col, size, size))
    return windows


def _by_class(
    inside: Sequence[tuple[list[int], float, Window | None]], size: int, count: int, rng: np.random.Generator
) -> list[Window]:
    """Return equally many windows per class that is there: rare classes are seen far more often than they cover."""
    by_class: dict[int, list[int]] = {}
    for index, (point, _, _) in enumerate(inside):
        by_class.setdefault(point[2], []).append(index)
    windows = []
    for number, (_, members) in enumerate(sorted(by_class.items())):
        share = count // len(by_class) + (number < count % len(by_class))
        weights = np.array([inside[index][1] for index in members])
        for pick in rng.choice(len(members), share, p=weights / weights.sum()):
            (row, col, _), _, home = inside[members[pick]]
            assert home is not None
            up, left = rng.integers(0, size, 2).tolist()
            windows.append(fitted(Window(row - up, col - left, size, size), home))
    return windows


def blocks_of(windows: Sequence[Window], height: int, width: int, size: int, side: int) -> list[tuple[Block, Window]]:
    """Return blocks that hold any windows, each with the pixels it owns, which partition the scene, row-major.

    A window belongs to the block that owns its upper left pixel; a block is read as far as its windows reach.
    """
    step = max(size, side - size)
    scene = Window(0, 0, height, width)
    members: dict[tuple[int, int], list[Window]] = {}
    for window in windows:
        members.setdefault((window.row_off // step, window.col_off // step), []).append(window)
    result = []
    for tile in tiles(height, width, step, 0):
        owned = tile.write
        held = members.get((owned.row_off // step, owned.col_off // step), [])
        clipped = bounding([owned, *held]).intersection(scene)
        assert clipped is not None
        result.append((Block(clipped, tuple(held)), owned))
    return result


def any_overlap(windows: Mapping[Window, str]) -> bool:
    """Tell whether two windows of a scene share a pixel."""
    from shapely import STRtree, box

    boxes = [box(w.col_off, w.row_off, w.col_stop, w.row_stop) for w in windows]
    first, second = STRtree(boxes).query(boxes, predicate="overlaps")
    return bool((first != second).any())
