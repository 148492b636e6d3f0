"""A class map as polygons: one for each region, whatever blocks it spans.

A region is a set of pixels of one class that are connected by their sides. Blocks come row by row. What of a block's
regions touches none of its inner edges is complete; the rest waits for its other parts, and is joined with them as soon
as the row of blocks that is at hand holds nothing of it any more. So memory depends on a row of blocks and on the
regions that are open. All coordinates are whole pixels until the end, so that joining is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import rasterio.features
import shapely
from affine import Affine
from numpy.typing import NDArray
from shapely.geometry import shape as as_geometry

from geoseg.geo.grid import Window, tiles
from geoseg.geo.regions import number_regions

SIDE = 1024  # of a block
BATCH = 4096  # polygons
_BATCH_PLACES = 500_000  # and corners of theirs

Read = Callable[[Window], NDArray[Any]]


@dataclass(frozen=True)
class Sources:
    """What polygons are made of; each is asked for windows.

    Attributes:
        classes: Values of the class map (h, w), unsigned integers.
        ground: Ground of each pixel; (h, w), or what broadcasts to it.
        confidence: Of each pixel (h, w), NaN where it is not known; None where nobody knows it.
    """

    classes: Read
    ground: Read
    confidence: Read | None = None


@dataclass(frozen=True)
class Tracing:
    """How polygons are made.

    Attributes:
        left_out: Values that get no polygons: nodata, and background as a rule.
        min_area: Polygons of less than this are left out; see `metric`.
        fill_holes: Holes of less than this are filled; the same.
        metric: What these two are in: square pixels, or units of `Sources.ground`. By name of the attribute.
        tolerance: Of the simplification, in pixels; 0 for none.
        side: Of a block, in pixels; None: `SIDE`.
    """

    left_out: frozenset[int]
    min_area: float = 0.0
    fill_holes: float = 0.0
    metric: frozenset[str] = frozenset()
    tolerance: float = 0.0
    side: int | None = None


class Outline(NamedTuple):
    """A polygon of a class map.

    Attributes:
        polygon: In pixels of the map: x along a row, y down.
        value: Of its pixels.
        area: Ground inside.
        confidence: Mean over its pixels, NaN where nobody knows.
    """

    polygon: shapely.Polygon
    value: int
    area: float
    confidence: float


class _Sums(NamedTuple):
    """Sums over the pixels of a region: how many, their ground, their confidence."""

    pixels: float
    ground: float
    confidence: float


def outlines(sources: Sources, shape: tuple[int, int], tracing: Tracing) -> Iterator[Outline]:
    """Yield the polygons of a class map, in an order that depends on nothing but the map and the blocks.

    Without simplification, burning them gives the map again. With it borders that polygons share stay shared: neither
    gaps nor overlaps arise (filled holes aside). The lines along which blocks meet stay as they are then.

    Args:
        sources: The map, and what is known of its pixels.
        shape: (height, width).
        tracing: What is wanted.
    """
    height, width = shape
    joiner = _Joiner(width)
    # The largest polygons take most of the memory: nothing here keeps them while they are written.
    finished = partial(_finished, tracing=tracing)
    for tile in tiles(height, width, tracing.side or SIDE, 0):
        yield from filter(None, map(finished, joiner.add(_traced(sources, tile.write, tracing), tile.write, shape)))
        if tile.write.col_stop == width:
            yield from filter(None, map(finished, joiner.closed(last=tile.write.row_stop == height)))


class _Rings(NamedTuple):
    """Rings as whole numbers, half as large as what they become: places (n, 2), and how many each ring has."""

    places: NDArray[np.int32]
    lengths: NDArray[np.int32]

    def to_shapely(self) -> NDArray[Any]:
        """Return them as an array of shapely rings."""
        numbers = np.repeat(np.arange(len(self.lengths)), self.lengths)
        rings: NDArray[Any] = shapely.linearrings(self.places.astype(np.float64), indices=numbers)
        return rings


class _Region(NamedTuple):
    """A region as it is put together.

    Attributes:
        shells: Outer rings of its parts in blocks.
        holes: Holes of its parts. One that lies within a block touches none of its edges, so it has no say in how
            parts are joined.
        value: Of its pixels.
    """

    shells: list[_Rings]
    holes: list[_Rings]
    value: int


class _Traced(NamedTuple):
    """The regions of a block: number of each pixel's, 0 for none, and by number its value, polygon and sums."""

    numbers: NDArray[np.int32]
    kinds: NDArray[Any]
    polygons: dict[int, shapely.Polygon]
    sums: list[_Sums]


def _traced(sources: Sources, window: Window, tracing: Tracing) -> _Traced:
    values = sources.classes(window)
    numbers, kinds = number_regions(values)
    wanted = ~np.isin(kinds, list(tracing.left_out))
    wanted[0] = False
    if not wanted.any():
        return _Traced(np.zeros_like(numbers), kinds, {}, [])
    # What is left out bounds the others, and is therefore simplified together with them.
    polygons = _polygons(numbers, window, None if tracing.tolerance else wanted[numbers])
    if tracing.tolerance:
        polygons = _simplified(polygons, tracing.tolerance)
        polygons = {number: polygon for number, polygon in polygons.items() if wanted[number]}
    numbers = np.where(wanted[numbers], numbers, 0)
    flat, count = numbers.ravel(), len(kinds)
    pixels = np.bincount(flat, minlength=count)
    ground = np.bincount(flat, np.broadcast_to(sources.ground(window), values.shape).ravel(), count)
    known: NDArray[np.float64] = np.zeros(count)
    if sources.confidence is not None:
        known = np.bincount(flat, sources.confidence(window).ravel(), count)
    return _Traced(numbers, kinds, polygons, [_Sums(*s) for s in zip(pixels, ground, known, strict=True)])


def _polygons(numbers: NDArray[np.int32], window: Window, mask: NDArray[np.bool_] | None) -> dict[int, shapely.Polygon]:
    place = Affine.translation(window.col_off, window.row_off)
    traced = rasterio.features.shapes(numbers, mask, connectivity=4, transform=place)
    return {int(number): as_geometry(plain) for plain, number in traced}


def _simplified(polygons: dict[int, shapely.Polygon], tolerance: float) -> dict[int, shapely.Polygon]:
    """Return polygons that cover a block with their common borders simplified, and the block's edges as they were."""
    # Where three regions meet, all three must have a vertex; with one at every pixel they do.
    dense = np.rint(shapely.get_coordinates(every := shapely.segmentize(list(polygons.values()), 1.0)))
    every = shapely.set_coordinates(every, dense)
    simple = shapely.coverage_simplify(every, tolerance, simplify_boundary=False)
    return dict(zip(polygons, simple.tolist(), strict=True))


class _Joiner:
    """Puts the regions of blocks together that come row by row."""

    def __init__(self, width: int) -> None:
        self._next = 0
        self._parent: dict[int, int] = {}
        self._open: dict[int, tuple[_Region, _Sums]] = {}
        # Number over all blocks, or -1, and value along the last row above, of this row of blocks so far, and of the
        # last column to the left.
        self._above, self._below = np.full((2, 2, width), -1, np.int64)
        self._left = np.full((2, 0), -1, np.int64)

    def add(self, block: _Traced, window: Window, shape: tuple[int, int]) -> Iterator[tuple[_Region, _Sums]]:
        """Take a block; yield the regions that lie within it."""
        numbers, start = block.numbers, self._next
        edges = numbers[0], numbers[:, 0], numbers[-1], numbers[:, -1]
        at_rim = window.row_off == 0, window.col_off == 0, window.row_stop == shape[0], window.col_stop == shape[1]
        inner = [edge for edge, rim in zip(edges, at_rim, strict=True) if not rim]
        waiting = set(np.unique(np.concatenate([np.zeros(1, np.int32), *inner])).tolist())
        for number in sorted(block.polygons):
            polygon, value = block.polygons[number], int(block.kinds[number])
            if number in waiting:
                self._parent[start + number] = start + number
                self._open[start + number] = _as_region(polygon, value), block.sums[number]
            else:
                yield _as_region(polygon, value), block.sums[number]
        self._link([_line(edge, block.kinds, start) for edge in edges], window)
        self._next += len(block.kinds)

    def closed(self, last: bool) -> Iterator[tuple[_Region, _Sums]]:
        """Yield the regions that reach no further down than the row of blocks; all of them if it is the last."""
        lowest = self._below[0]
        alive = [] if last else np.unique(lowest[lowest >= 0]).tolist()
        roots = {number: self._root(number) for number in alive}
        still = set(roots.values())
        for number in [number for number in self._open if number not in still]:
            yield self._open.pop(number)
        self._parent = roots | {root: root for root in still}

    def _link(self, lines: list[NDArray[np.int64]], window: Window) -> None:
        if window.col_off == 0:
            self._above, self._below = self._below, np.full_like(self._below, -1)
            self._left = np.full((2, window.height), -1, np.int64)
        columns = slice(window.col_off, window.col_stop)
        for line, other in ((lines[0], self._above[:, columns]), (lines[1], self._left)):
            same = (line[0] >= 0) & (other[0] >= 0) & (line[1] == other[1])
            for one, two in np.unique(np.stack([other[0, same], line[0, same]]), axis=1).T.tolist():
                self._unite(one, two)
        self._below[:, columns], self._left = lines[2], lines[3]

    def _root(self, number: int) -> int:
        root = number
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[number] != root:
            self._parent[number], number = root, self._parent[number]
        return root

    def _unite(self, one: int, two: int) -> None:
        one, two = sorted((self._root(one), self._root(two)))
        if one == two:
            return
        (region, sums), (other, further) = self._open[one], self._open.pop(two)
        self._parent[two] = one
        # The lower number stays, which makes the order of regions that of their first parts; the longer list grows.
        long, short = sorted((region, other), key=lambda r: len(r.shells), reverse=True)
        long.shells.extend(short.shells)
        long.holes.extend(short.holes)
        self._open[one] = long, _Sums(*(a + b for a, b in zip(sums, further, strict=True)))


def _line(edge: NDArray[np.int32], kinds: NDArray[Any], start: int) -> NDArray[np.int64]:
    return np.stack([np.where(edge > 0, edge.astype(np.int64) + start, -1), kinds[edge].astype(np.int64)])


def _as_region(polygon: shapely.Polygon, value: int) -> _Region:
    return _Region([_rings([polygon.exterior])], [_rings(polygon.interiors)] if polygon.interiors else [], value)


def _rings(rings: Sequence[shapely.LinearRing]) -> _Rings:
    every = list(rings)
    places, lengths = shapely.get_coordinates(every), shapely.get_num_coordinates(every)
    return _Rings(places.astype(np.int32), lengths.astype(np.int32))


def _finished(found: tuple[_Region, _Sums], tracing: Tracing) -> Outline | None:
    """Return the polygon of a complete region, unless it is too small."""
    region, sums = found
    per_pixel = sums.ground / sums.pixels
    least = tracing.fill_holes / (per_pixel if "fill_holes" in tracing.metric else 1)
    polygon = _joined(region, least)
    area = polygon.area * per_pixel
    if (area if "min_area" in tracing.metric else polygon.area) < tracing.min_area:
        return None
    return Outline(polygon, region.value, area, sums.confidence / sums.pixels)


def _joined(region: _Region, least: float) -> shapely.Polygon:
    """Return the polygon of a region, without holes of less than `least` pixels."""
    shells = np.concatenate([rings.to_shapely() for rings in region.shells])
    region.shells.clear()
    shell, rings = shells[0], []
    if len(shells) > 1:
        polygon = shapely.union_all(shapely.polygons(shells))
        del shells
        assert isinstance(polygon, shapely.Polygon), "parts of a region share sides of pixels"
        shell, *rings = [shapely.linearrings(_without_straight(r)) for r in (polygon.exterior, *polygon.interiors)]
        del polygon
    holes = np.concatenate([np.array(rings, object), *(rings.to_shapely() for rings in region.holes)])
    region.holes.clear()
    return shapely.polygons(shell, holes=holes[shapely.area(shapely.polygons(holes)) >= least])


def _without_straight(ring: shapely.LinearRing) -> NDArray[np.float64]:
    """Return the places of a ring but for those where it goes straight on: whole pixels, so this is exact."""
    places = shapely.get_coordinates(ring)[:-1]
    before, after = places - np.roll(places, 1, axis=0), np.roll(places, -1, axis=0) - places
    result: NDArray[np.float64] = places[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]]
    return result


def batches(found: Iterator[Outline], transform: Affine) -> Iterator[tuple[NDArray[Any], Mapping[str, NDArray[Any]]]]:
    """Yield polygons in the map's coordinates, counterclockwise, some thousand at a time, and their other fields."""
    waiting: list[Outline] = []
    places = 0
    for outline in found:
        waiting.append(outline)
        places += shapely.get_num_coordinates(outline.polygon)
        del outline
        if len(waiting) == BATCH or places > _BATCH_PLACES:
            yield _batch(waiting, transform)
            places = 0
    if waiting:
        yield _batch(waiting, transform)


def _batch(rows: list[Outline], transform: Affine) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
    """Return the polygons and fields of a batch, which is emptied."""

    def moved(places: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y, t = places[:, 0].copy(), places[:, 1].copy(), transform
        places[:, 0] = t.a * x + t.b * y + t.c
        places[:, 1] = t.d * x + t.e * y + t.f
        return places

    polygons = np.array([row.polygon for row in rows], object)
    fields = {name: np.array([getattr(row, name) for row in rows]) for name in ("value", "area", "confidence")}
    rows.clear()
    polygons = shapely.transform(polygons, moved)
    return shapely.orient_polygons(polygons), fields
