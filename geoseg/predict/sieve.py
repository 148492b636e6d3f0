"""The minimum mapping unit: regions of a class map that are too small take the class around them.

The rule. A region is a set of pixels of one class that are connected by their sides. Round by round, every region with
fewer pixels than the unit takes the class that shares the longest border with it, of those of its neighbours that are
larger than it; of neighbours of the same size the one whose first pixel, row by row, comes earlier counts as larger,
and of classes with borders of the same length the one with the lowest value is taken. All regions of a round change at
once, and regions are formed anew then. It ends when no small region has a neighbour, that is, none is left but where
nodata and the edges of the raster enclose it. Nodata belongs to no region: it neither changes nor spreads.

Blocks are read twice: once to build the graph of regions, which spans blocks, once to write. So the result does not
depend on blocks, and memory depends on a row of blocks and on the number of regions, not on pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Window, tiles
from geoseg.geo.regions import joined, number_regions

SIDE = 1024  # of a block
Read = Callable[[Window], NDArray[Any]]
Ids = NDArray[np.int64]


@dataclass
class Graph:
    """Regions and which of them touch.

    Attributes:
        areas: Pixels of each region.
        firsts: Number, row by row, of its first pixel in the raster.
        kinds: Its value.
        borders: (3, n): two regions, the lower number first, and the sides of pixels that they share.
    """

    areas: Ids
    firsts: Ids
    kinds: Ids
    borders: Ids


def sieve(
    read: Read, shape: tuple[int, int], least: int, nodata: int, dtype: str, side: int = 0
) -> Iterator[tuple[Window, NDArray[Any]]]:
    """Yield a class map, block by block, without regions of fewer pixels than `least` (see above).

    Args:
        read: Returns the values (h, w), unsigned integers, of a window.
        shape: (height, width) of the map.
        least: The minimum mapping unit, in pixels.
        nodata: Value of pixels whose class is not known.
        dtype: Type of the values.
        side: Of a block; by default `SIDE`.
    """
    blocks = [tile.write for tile in tiles(*shape, side or SIDE, 0)]
    collector = _Collector(shape[1], least)
    for block in blocks:
        collector.add(*number_regions(read(block), nodata), block)
    lookup = collector.final_kinds(nodata).astype(dtype)
    start = 0
    for block in blocks:
        numbers, kinds = number_regions(read(block), nodata)
        # Blocks are numbered as they were the first time; the table's first entry is that of pixels without a region.
        table = np.concatenate([lookup[:1], lookup[1 + start : start + len(kinds)]])
        yield block, table[numbers]
        start += len(kinds) - 1


class _Collector:
    """Builds the graph of regions from blocks that come row by row."""

    def __init__(self, width: int, least: int) -> None:
        self._width, self._least, self._next = width, least, 1
        self._areas: list[Ids] = [np.zeros(1, np.int64)]
        self._firsts: list[Ids] = [np.zeros(1, np.int64)]
        self._kinds: list[NDArray[Any]] = [np.zeros(1, np.uint16)]
        self._links: list[Ids] = [np.zeros((2, 0), np.int64)]
        self._borders: list[Ids] = [np.zeros((3, 0), np.int64)]
        # Region and value of the last row above, of this row of blocks so far, and of the last column to the left.
        self._above, self._below = np.zeros((2, 2, width), np.int64)
        self._left = np.zeros((2, 0), np.int64)

    def add(self, numbers: NDArray[np.int32], kinds: NDArray[Any], window: Window) -> None:
        """Take the regions of a block into account."""
        count = len(kinds) - 1
        areas = np.bincount(numbers.ravel(), minlength=count + 1)
        self._areas.append(areas[1:])
        self._firsts.append(_first_pixels(numbers, count, window, self._width))
        self._kinds.append(kinds[1:].astype(np.uint16))
        borders = _borders(numbers, count)
        # Between regions that are large already nothing is to be decided.
        borders = borders[:, np.minimum(*areas[borders[:2]]) < self._least]
        self._borders.append(borders + np.array([[self._next - 1]] * 2 + [[0]]))
        self._join(numbers, kinds, window)
        self._next += count

    def final_kinds(self, nodata: int) -> NDArray[Any]:
        """Return the value that each numbered region has in the end; to be called when all blocks were added."""
        links, borders = np.concatenate(self._links, axis=1), np.concatenate(self._borders, axis=1)
        kinds = np.concatenate(self._kinds).astype(np.int64)
        graph = Graph(np.concatenate(self._areas), np.concatenate(self._firsts), kinds, borders)
        self._areas, self._firsts, self._borders, self._links = [], [], [], []
        place = settle(graph, links, self._least)
        result = graph.kinds[place]
        result[0] = nodata
        return result

    def _join(self, numbers: NDArray[np.int32], kinds: NDArray[Any], window: Window) -> None:
        """Note what touches across the block's upper and left edges."""
        if window.col_off == 0:
            self._above, self._below = self._below, np.zeros_like(self._below)
            self._left = np.zeros((2, window.height), np.int64)
        columns = slice(window.col_off, window.col_stop)
        lines = [_line(edge, kinds, self._next) for edge in (numbers[0], numbers[:, 0], numbers[-1], numbers[:, -1])]
        self._touch(lines[0], self._above[:, columns])
        self._touch(lines[1], self._left)
        self._below[:, columns], self._left = lines[2], lines[3]

    def _touch(self, line: Ids, other: Ids) -> None:
        there = (line[0] > 0) & (other[0] > 0)
        same = there & (line[1] == other[1])
        self._links.append(np.unique(np.stack([other[0, same], line[0, same]]), axis=1))
        differ = there & ~same
        pairs, counts = np.unique(np.stack([other[0, differ], line[0, differ]]), axis=1, return_counts=True)
        self._borders.append(np.concatenate([pairs, counts[None]]))


def settle(graph: Graph, links: Ids, least: int) -> Ids:
    """Change small regions, round by round, until none has a neighbour; the graph is that of the result then.

    Args:
        graph: Regions, changed in place.
        links: (2, n) pairs of regions that are one.
        least: Regions with fewer pixels are small.

    Returns:
        For each region that the graph had its number in the graph as it is now.
    """
    place = _merge(graph, links, least)
    while True:
        source, target = graph.borders[:2], graph.borders[1::-1]
        source, target = source.ravel(), target.ravel()
        length = np.tile(graph.borders[2], 2)
        areas, firsts = graph.areas, graph.firsts
        larger = (areas[target] > areas[source]) | (
            (areas[target] == areas[source]) & (firsts[target] < firsts[source])
        )
        chosen = (areas[source] < least) & larger
        if not chosen.any():
            return place
        regions, kinds = _longest(source[chosen], graph.kinds[target[chosen]], length[chosen])
        graph.kinds[regions] = kinds
        pairs = graph.borders[:2]
        place = _merge(graph, pairs[:, graph.kinds[pairs[0]] == graph.kinds[pairs[1]]], least)[place]


def _longest(regions: Ids, kinds: Ids, lengths: Ids) -> tuple[Ids, Ids]:
    """Return each region once with the value of the longest border, the lowest of those that are equally long."""
    base = int(kinds.max()) + 1
    pairs, where = np.unique(regions * base + kinds, return_inverse=True)
    total = np.bincount(where.ravel(), weights=lengths).astype(np.int64)
    order = np.lexsort((pairs % base, -total, pairs // base))
    found, first = np.unique(pairs[order] // base, return_index=True)
    return found, pairs[order][first] % base


def _merge(graph: Graph, links: Ids, least: int) -> Ids:
    """Make regions one that are linked; return the new number of each."""
    roots, place = np.unique(joined(len(graph.areas), links), return_inverse=True)
    place = place.ravel()
    firsts = np.full(len(roots), np.iinfo(np.int64).max)
    np.minimum.at(firsts, place, graph.firsts)
    areas = np.zeros(len(roots), np.int64)
    np.add.at(areas, place, graph.areas)
    pairs = np.sort(place[graph.borders[:2]], axis=0)
    open_ = (pairs[0] != pairs[1]) & (np.minimum(*areas[pairs]) < least)
    keys, where = np.unique(pairs[0, open_] * len(roots) + pairs[1, open_], return_inverse=True)
    lengths = np.bincount(where.ravel(), weights=graph.borders[2, open_], minlength=len(keys)).astype(np.int64)
    graph.borders = np.stack([keys // len(roots), keys % len(roots), lengths])
    graph.areas, graph.firsts, graph.kinds = areas, firsts, graph.kinds[roots]
    return place


def _line(edge: NDArray[np.int32], kinds: NDArray[Any], start: int) -> Ids:
    """Return (2, n) regions, numbered over all blocks, and values along an edge of a block."""
    return np.stack([np.where(edge > 0, edge.astype(np.int64) + start - 1, 0), kinds[edge].astype(np.int64)])


def _first_pixels(numbers: NDArray[np.int32], count: int, window: Window, width: int) -> Ids:
    """Return the number, row by row in the raster, of each region's first pixel."""
    flat = numbers.ravel()
    first = np.zeros(count + 1, np.int64)
    # Of several values for one place the last stays, which is that of the first pixel.
    first[flat[::-1]] = np.arange(len(flat) - 1, -1, -1)
    rows, cols = first[1:] // window.width, first[1:] % window.width
    result: Ids = (rows + window.row_off) * width + cols + window.col_off
    return result


def _borders(numbers: NDArray[np.int32], count: int) -> Ids:
    """Return (3, n): pairs of regions of a block, the lower number first, and the sides of pixels that they share."""
    base = count + 1
    keys = []
    for one, other in ((numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:])):
        differ = (one != other) & (one > 0) & (other > 0)
        first, second = one[differ].astype(np.int64), other[differ].astype(np.int64)
        keys.append(np.minimum(first, second) * base + np.maximum(first, second))
    pairs, lengths = np.unique(np.concatenate(keys), return_counts=True)
    return np.stack([pairs // base, pairs % base, lengths])
