"""Which ground belongs to which split.

`csv`: each scene to the split of its row. `blocks`: scenes are cut into blocks, which are dealt out so that every split
has its share of every class. `polygons`: as a file of polygons says. `random`: window by window, if no two overlap.
Whatever the method, samples of different splits share no ground: blocks stand apart by a gap, and where scenes lie on
one another the blocks of the later one follow those of the earlier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.data.survey import SceneFacts
from geoseg.data.windows import Region, generator
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window

METHODS = ("csv", "blocks", "polygons", "random")
_METRES_PER_DEGREE = 111_320.0


@dataclass(frozen=True)
class Length:
    """A length on the ground ("m") or in pixels ("px")."""

    value: float
    unit: str


@dataclass(frozen=True)
class SplitOptions:
    """Where the split of a sample comes from.

    Attributes:
        method: One of METHODS.
        size: Side of a block, for blocks.
        buffer: Gap between blocks of different splits; None: a quarter of a sample's side.
        fractions: (split, share) pairs; shares add up to 1.
        file: Polygons, for polygons.
        attribute: The attribute of the polygons that holds trn, val or tst.
        shared_ground: What to do about samples of different splits that share ground: warn, error, or drop those of
            training.
        seed: Of what is random.
    """

    method: str = "csv"
    size: Length = Length(1024, "px")
    buffer: Length | None = None
    fractions: tuple[tuple[str, float], ...] = (("trn", 0.7), ("val", 0.15), ("tst", 0.15))
    file: Path | None = None
    attribute: str | None = None
    shared_ground: str = "warn"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A block of a scene that may become the ground of a split."""

    scene: int
    place: tuple[int, int]
    window: Window


def pixels_of(length: Length, facts: SceneFacts) -> tuple[int, int]:
    """Return a length in pixels down and across a scene, rounded up.

    Raises:
        DataError: It is in metres and the scene has no CRS.
    """
    if length.unit == "px":
        return math.ceil(length.value), math.ceil(length.value)
    info = facts.info
    if info.crs is None or not info.georeferenced:
        remedy = "give sample.split.size and sample.split.buffer in pixels, such as 1024 px"
        raise DataError(problem(facts.scene.image, "no CRS", "one, to measure metres", remedy))
    along_row, along_column = info.resolution
    if info.crs.is_geographic:
        _, latitude = info.transform * (info.width / 2, info.height / 2)
        across, down = _METRES_PER_DEGREE * max(0.01, math.cos(math.radians(latitude))), _METRES_PER_DEGREE
    else:
        across = down = float(info.crs.linear_units_factor[1])
    return math.ceil(length.value / (along_column * down)), math.ceil(length.value / (along_row * across))


def cells_of(scene: int, facts: SceneFacts, options: SplitOptions, size: int) -> list[Cell]:
    """Return the blocks of a scene: near the size wanted, each with room for a sample beside the gap, row-major."""
    info = facts.info
    sides, gaps = pixels_of(options.size, facts), gap_of(options, facts, size)
    edges = []
    for length, side, gap in zip((info.height, info.width), sides, gaps, strict=True):
        count = max(1, min(round(length / side), length // (size + gap)))
        edges.append([length * number // count for number in range(count + 1)])
    return [
        Cell(scene, (row, col), Window(top, left, bottom - top, right - left))
        for (row, (top, bottom)), (col, (left, right)) in product(
            enumerate(pairwise(edges[0])), enumerate(pairwise(edges[1]))
        )
    ]


def gap_of(options: SplitOptions, facts: SceneFacts, size: int) -> tuple[int, int]:
    """Return the gap between blocks of different splits in pixels, down and across; even, so that each gives half."""
    rows, cols = (size // 4, size // 4) if options.buffer is None else pixels_of(options.buffer, facts)
    return rows + rows % 2, cols + cols % 2


def regions_of(cells: Sequence[Cell], splits: Sequence[str], gap: tuple[int, int]) -> list[Region]:
    """Return the ground of each cell of one scene, drawn back by half the gap where another split lies beyond."""
    split_at = {cell.place: split for cell, split in zip(cells, splits, strict=True)}
    regions = []
    for cell, split in zip(cells, splits, strict=True):
        row, col = cell.place

        def other(*places: tuple[int, int], own: str = split) -> bool:
            return any(split_at.get(place, own) != own for place in places)

        around = (-1, 0, 1)
        top = gap[0] // 2 * other(*((row - 1, col + d) for d in around))
        bottom = gap[0] // 2 * other(*((row + 1, col + d) for d in around))
        left = gap[1] // 2 * other(*((row + d, col - 1) for d in around))
        right = gap[1] // 2 * other(*((row + d, col + 1) for d in around))
        w = cell.window
        inner = Window(w.row_off + top, w.col_off + left, w.height - top - bottom, w.width - left - right)
        regions.append(Region(inner, split))
    return regions


def deal(
    counts: NDArray[np.float64],
    fractions: Mapping[str, float],
    seed: int,
    had: Mapping[str, NDArray[np.float64]] | None = None,
) -> list[str]:
    """Return a split for each block, so that every split has its share of every class.

    Rare classes are dealt first, to the split that lacks most of them; every split gets a block if there are enough.

    Args:
        counts: (blocks, classes) pixels.
        fractions: Split -> share.
        seed: Decides between equals.
        had: Split -> (classes,) pixels that it has already.

    Raises:
        DataError: There are fewer blocks than splits.
    """
    wanted = {split: share for split, share in fractions.items() if share > 0}
    if len(counts) < len(wanted) and not had:
        found = f"{len(counts)} blocks for {len(wanted)} splits"
        raise DataError(problem("sample.split.size", found, "more blocks than splits", "lower it"))
    shares = np.array(list(wanted.values())) / sum(wanted.values())
    held = np.array([(had or {}).get(split, np.zeros(counts.shape[1])) for split in wanted], float)
    totals = counts.sum(axis=0) + held.sum(axis=0)
    order = generator(seed, "deal").permutation(len(counts))
    dealt = np.full(len(counts), -1)
    for kind in np.argsort(totals, kind="stable"):
        holders = [index for index in order if dealt[index] < 0 and counts[index, kind] > 0]
        for index in sorted(holders, key=lambda i: -counts[i, kind]):
            lacking = shares * totals[kind] - held[:, kind]
            dealt[index] = _most(lacking, shares, held)
            held[dealt[index]] += counts[index]
    for index in order[dealt[order] < 0]:  # no known pixel
        numbers = np.array([(dealt == split).sum() for split in range(len(wanted))])
        dealt[index] = int(np.argmax(shares * (dealt >= 0).sum() - numbers + shares))
    if not had:
        _fill_empty(dealt, counts, len(wanted))
    names = list(wanted)
    return [names[split] for split in dealt]


def _most(lacking: NDArray[np.float64], shares: NDArray[np.float64], held: NDArray[np.float64]) -> int:
    best = np.flatnonzero(np.isclose(lacking, lacking.max(), rtol=1e-12))
    total = shares * held.sum() - held.sum(axis=1)
    return int(best[np.argmax(total[best])])


def _fill_empty(dealt: NDArray[np.int64], counts: NDArray[np.float64], splits: int) -> None:
    """Give a split without a block the smallest one of the split that has most."""
    for split in range(splits):
        if not (dealt == split).any():
            richest = np.bincount(dealt, minlength=splits).argmax()
            own = np.flatnonzero(dealt == richest)
            dealt[own[counts[own].sum(axis=1).argmin()]] = split


def deal_at_random(count: int, fractions: Mapping[str, float], rng: np.random.Generator) -> list[str]:
    """Return a split for each of `count` windows, in exact proportion up to rounding, in random order."""
    wanted = [(split, share) for split, share in fractions.items() if share > 0]
    edges = np.round(np.cumsum([share for _, share in wanted]) / sum(s for _, s in wanted) * count).astype(int)
    names = [split for (split, _), number in zip(wanted, np.diff([0, *edges]), strict=True) for _ in range(number)]
    return [names[index] for index in rng.permutation(count)]
