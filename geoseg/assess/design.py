"""A stratified random sample of points from class maps: where somebody has to look what is really there.

The strata are the classes of the map. Within a class every piece of ground has the same chance, so that a pixel's
chance is proportional to its area; points lie in the middle of pixels, and no pixel is drawn twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.classmap import open_class_map
from geoseg.assess.pairs import UNCERTAIN
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window, tiles
from geoseg.geo.pixelarea import PixelAreas
from geoseg.geo.raster import RasterInfo, read_info
from geoseg.geo.vector import LabelSet, burn
from geoseg.geo.vector.points import moved_points, read_table, write_points

_BLOCK = 1024
POINT_COLUMNS = ("stratum", "reference")
STRATUM_COLUMNS = ("class_id", "name", "pixels", "area", "unit")
_NOT_ANSWERED = ("", "unknown", UNCERTAIN, "none", "nan", "null")


@dataclass(frozen=True)
class DesignMap:
    """A class map to draw points from; `area` is the area of interest in its CRS, None: everywhere."""

    path: Path
    area: LabelSet | None = None


@dataclass(frozen=True)
class Strata:
    """The classes of some maps: names, pixels and area of each, in square metres ("m2") or pixels ("px"); colours."""

    names: tuple[str, ...]
    pixels: NDArray[np.int64]
    area: NDArray[np.float64]
    unit: str
    colours: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points:
    """Drawn points; arrays of one entry per point: number of the map, row, column, class in the map."""

    map: NDArray[np.int64]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    stratum: NDArray[np.int64]


def survey(maps: Sequence[DesignMap], names: Sequence[str], on_progress: Callable[[int], None] | None = None) -> Strata:
    """Return pixels and area of each class of some maps, block by block.

    Args:
        maps: Maps of the same classes that do not overlap.
        names: Names of the classes.
        on_progress: Called with the number of blocks just done.

    Raises:
        DataError: A map cannot be read, holds other classes, or has another unit of area than the first.
    """
    pixels, area = np.zeros(len(names), np.int64), np.zeros(len(names))
    units: dict[str, Path] = {}
    for entry in maps:
        areas = PixelAreas(read_info(entry.path, allow_palette=True))
        units.setdefault(areas.unit, entry.path)
        for window, classes in _blocks(entry, len(names)):
            size = np.broadcast_to(areas.of(window), window.shape)
            known = classes < len(names)
            pixels += np.bincount(classes[known], minlength=len(names))
            area += np.bincount(classes[known], weights=size[known], minlength=len(names))
            if on_progress:
                on_progress(1)
    if len(units) > 1:
        expected = f"a CRS, as {units['m2']} has"
        raise DataError(
            problem(units["px"], "no CRS", expected, "draw points for maps with and without one separately")
        )
    if pixels.sum() == 0:
        raise DataError(problem(maps[0].path, "no classified pixel", "at least one", "check map and area of interest"))
    return Strata(tuple(names), pixels, area, next(iter(units)))


def draw(
    maps: Sequence[DesignMap],
    wanted: NDArray[np.integer],
    seed: int,
    on_progress: Callable[[int], None] | None = None,
) -> Points:
    """Draw points, in random order.

    Args:
        maps: As for `survey`.
        wanted: Points of each class, no more than it has pixels.
        seed: The same seed draws the same points, whatever was drawn before.
        on_progress: Called with the number of blocks just done.

    Exponential keys divided by the pixel's area, of which the smallest are kept, are a sample without replacement whose
    chances are proportional to area (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").
    """
    best = [_Reservoir(int(count)) for count in wanted]
    for number, entry in enumerate(maps):
        areas = PixelAreas(read_info(entry.path, allow_palette=True))
        for block, (window, classes) in enumerate(_blocks(entry, len(wanted))):
            keys = np.random.default_rng([seed, number, block]).standard_exponential(window.shape) / areas.of(window)
            for kind, reservoir in enumerate(best):
                rows, cols = np.nonzero((classes == kind) & (keys < reservoir.limit))
                places = np.column_stack([np.full(len(rows), number), rows + window.row_off, cols + window.col_off])
                reservoir.add(keys[rows, cols], places)
            if on_progress:
                on_progress(1)
    places = np.concatenate([reservoir.places for reservoir in best])
    stratum = np.repeat(np.arange(len(best)), [len(reservoir.places) for reservoir in best])
    order = np.random.default_rng([seed, len(maps)]).permutation(len(stratum))
    return Points(places[order, 0], places[order, 1], places[order, 2], stratum[order])


def write_design(path: Path, maps: Sequence[DesignMap], strata: Strata, points: Points) -> None:
    """Write drawn points into a GeoPackage, for somebody to fill in the column `reference`.

    Beside the layer "points" it has a table "strata" with what the estimates need to know of the maps.

    Raises:
        DataError: Maps whose CRS do not lead to one another, or a file that cannot be written.
    """
    infos = [read_info(entry.path, allow_palette=True) for entry in maps]
    places = np.zeros((len(points.row), 2))
    for index, info in enumerate(infos):
        own = points.map == index
        places[own] = moved_points(_centres(info, points.row[own], points.col[own]), info.crs, infos[0].crs, info.path)
    count = len(points.row)
    columns: dict[str, Any] = {
        "id": np.arange(1, count + 1),
        "reference": [None] * count,
        "remark": [None] * count,
        "stratum": points.stratum,
        "mapped": [strata.names[number] for number in points.stratum],
        "map": [maps[number].path.name for number in points.map],
        "row": points.row,
        "col": points.col,
    }
    table: dict[str, Any] = {
        "class_id": np.arange(len(strata.names)),
        "name": strata.names,
        "pixels": strata.pixels,
        "area": strata.area,
        "unit": [strata.unit] * len(strata.names),
        "colour": strata.colours or [None] * len(strata.names),
        "points": np.bincount(points.stratum, minlength=len(strata.names)),
    }
    write_points(path, places, infos[0].crs, columns, {"strata": table})


def read_answers(path: Path) -> tuple[Strata, NDArray[np.int64], int]:
    """Read a GeoPackage that was written by `write_design` and filled in.

    The column `reference` holds names or ids of classes. Points where it is empty or "unknown" are left out.

    Returns:
        The strata, (C, C) points by class in the map and true class, and the number of points left out.

    Raises:
        DataError: Layers or columns are missing, or a value is no class.
    """
    table = read_table(path, "strata", STRATUM_COLUMNS).sort_values("class_id")
    strata = Strata(
        names=tuple(map(str, table["name"])),
        pixels=table["pixels"].to_numpy(np.int64),
        area=table["area"].to_numpy(np.float64),
        unit=str(table["unit"].iloc[0]) if len(table) else "m2",
        colours=tuple(colour for colour in table.get("colour", ()) if isinstance(colour, str)),
    )
    frame = read_table(path, "points", POINT_COLUMNS)
    ids = _ids(strata.names)
    counts = np.zeros((len(strata.names),) * 2, np.int64)
    wrong: dict[str, int] = {}
    missing = 0
    for stratum, value in zip(frame["stratum"], frame["reference"], strict=True):
        text = _text(value)
        if text.casefold() in ids and 0 <= stratum < len(strata.names):
            counts[int(stratum), ids[text.casefold()]] += 1
        elif text.casefold() in _NOT_ANSWERED:
            missing += 1
        else:
            wrong[text] = wrong.get(text, 0) + 1
    if wrong:
        found = ", ".join(f"{text!r} ({count} points)" for text, count in list(wrong.items())[:5])
        expected = f"a class by name or id: {', '.join(f'{i} {name}' for i, name in enumerate(strata.names))}"
        raise DataError(problem(f"{path}, column reference", found, expected, "correct them, or leave them empty"))
    return strata, counts, missing


def _ids(names: Sequence[str]) -> Mapping[str, int]:
    """Return class ids by name, and by id where that is not also a name; to leave open is no answer."""
    known = names[:-1] if names[-1] == UNCERTAIN else names
    return {**{str(i): i for i in range(len(known))}, **{name.casefold(): i for i, name in enumerate(known)}}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:g}"
    return str(value).strip()


def _centres(info: RasterInfo, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> NDArray[np.float64]:
    t, x, y = info.transform, cols + 0.5, rows + 0.5
    return np.column_stack([t.a * x + t.b * y + t.c, t.d * x + t.e * y + t.f])


def overlapping(maps: Sequence[DesignMap]) -> list[tuple[Path, Path]]:
    """Return pairs of maps in one CRS that share ground, whose pixels would count twice: by their bounding boxes."""
    infos = [read_info(entry.path, allow_palette=True) for entry in maps]
    boxes = [_bounds(info) for info in infos if info.georeferenced]
    placed = [info for info in infos if info.georeferenced]
    return [
        (Path(placed[i].path), Path(placed[j].path))
        for i in range(len(placed))
        for j in range(i + 1, len(placed))
        if placed[i].crs == placed[j].crs and _share_ground(boxes[i], boxes[j], min(placed[i].resolution) / 2)
    ]


def _bounds(info: RasterInfo) -> NDArray[np.float64]:
    """Return ((left, bottom), (right, top))."""
    corners = [info.transform @ (x, y) for x in (0, info.width) for y in (0, info.height)]
    return np.array([np.min(corners, axis=0), np.max(corners, axis=0)])


def _share_ground(a: NDArray[np.float64], b: NDArray[np.float64], least: float) -> bool:
    return bool((np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]) > least).all())


def count_blocks(maps: Sequence[DesignMap]) -> int:
    """Return how many blocks a pass over some maps has."""
    infos = [read_info(entry.path, allow_palette=True) for entry in maps]
    return sum(len(tiles(info.height, info.width, _BLOCK, 0)) for info in infos)


def _blocks(entry: DesignMap, num_classes: int) -> Iterator[tuple[Window, NDArray[np.int64]]]:
    """Yield windows with their classes; `num_classes` stands for pixels that are no part of it."""
    with open_class_map(entry.path) as raster:
        info = raster.info
        for tile in tiles(info.height, info.width, _BLOCK, 0):
            pixels = raster.read(tile.write)
            used = pixels.valid
            if entry.area is not None:
                used = used & (burn(entry.area, info.transform, tile.write) == 1)
            classes = np.where(used, pixels.image[0], num_classes).astype(np.int64)
            if classes.max() > num_classes or classes.min() < 0 or (used & (classes == num_classes)).any():
                found = f"class id {int(classes[used].max())}"
                expected = f"ids 0 to {num_classes - 1}"
                raise DataError(problem(entry.path, found, expected, "name the classes of this map in the config"))
            yield tile.write, classes


class _Reservoir:
    """Keeps the places with the smallest keys."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys = np.zeros(0)
        self.places = np.zeros((0, 3), np.int64)

    @property
    def limit(self) -> float:
        """Keys from here on are of no use."""
        if self.size == 0:
            return 0.0
        return float(self.keys.max()) if len(self.keys) == self.size else np.inf

    def add(self, keys: NDArray[np.float64], places: NDArray[np.int64]) -> None:
        keys, places = np.concatenate([self.keys, keys]), np.concatenate([self.places, places])
        if len(keys) > self.size:
            chosen = np.argpartition(keys, self.size - 1)[: self.size] if self.size else slice(0)
            keys, places = keys[chosen], places[chosen]
        # In the order of the ground, so that the same points come in the same order.
        order = np.lexsort(places.T[::-1])
        self.keys, self.places = keys[order], places[order]
