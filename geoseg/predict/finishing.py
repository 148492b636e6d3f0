"""What is done to a class map between its parts and its file: small regions removed, polygons made.

All of it reads the parts of the map, in blocks, so that the file of the class map still comes last of all.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.pixelarea import PixelAreas
from geoseg.geo.raster import Level, RasterInfo, TileFile, create_tiles, stem
from geoseg.geo.raster.cog import Mosaic
from geoseg.geo.raster.info import gdal_session
from geoseg.geo.raster.writing import as_data_error
from geoseg.geo.vector.reproject import as_pyproj
from geoseg.geo.vector.writing import create_polygons
from geoseg.predict.outputs import MapOutput
from geoseg.predict.partstore import PartStore
from geoseg.predict.polygons import Read, Sources, Tracing, batches, outlines
from geoseg.predict.sieve import sieve

Size = float | str
BACKGROUND = 0  # its id


@dataclass(frozen=True)
class FinishOptions:
    """What is done to class maps. Sizes are numbers of pixels, or text such as "100 m2" ("2 m" for lengths).

    Attributes:
        unit: The minimum mapping unit, see `geoseg.predict.sieve`; None: every pixel stays.
        polygons: "gpkg", "parquet" or "geojson"; None: no polygons.
        min_area: Polygons smaller than this are left out.
        fill_holes: Holes smaller than this are filled.
        simplify: Tolerance of the simplification, a length.
        background: Whether background has polygons too.
    """

    unit: Size | None = None
    polygons: str | None = None
    min_area: Size = 0.0
    fill_holes: Size = 0.0
    simplify: Size = 0.0
    background: bool = False


class ClassNames(NamedTuple):
    """The values of a class map and the names of the classes, both in the order of the ids."""

    values: Sequence[int]
    names: Sequence[str]


class Finished(NamedTuple):
    """A class map whose parts have been finished.

    Attributes:
        levels: Its tiles, see `geoseg.geo.raster.cog`.
        class_pixels: Pixels of each class, where they have changed.
    """

    levels: list[Level]
    class_pixels: NDArray[np.int64] | None


def polygons_path(folder: Path, image: str | os.PathLike[str], kind: str) -> Path:
    """Return where the polygons of an image lie: <folder>/<stem of the image>_classes.<kind>."""
    return folder / f"{stem(image)}_classes.{kind}"


def check_finish(info: RasterInfo, options: FinishOptions) -> None:
    """Refuse what cannot be done for want of a CRS.

    Raises:
        DataError: Sizes in metres, or GeoJSON, for an image without a CRS.
    """
    if as_pyproj(info.crs, info.path) is not None:
        return
    sizes = (options.unit, options.min_area, options.fill_holes, options.simplify)
    problems = []
    if any(isinstance(size, str) for size in sizes):
        problems.append(problem(info.path, "no CRS", "one, for sizes in metres", "give sizes in pixels: plain numbers"))
    if options.polygons == "geojson":
        expected = "one, since GeoJSON is in longitude and latitude"
        problems.append(problem(info.path, "no CRS", expected, "set classification.polygons: gpkg, or parquet"))
    if problems:
        raise DataError(problems)


def finish_classes(
    store: PartStore,
    parts: Sequence[Window],
    like: RasterInfo,
    classes: ClassNames,
    options: FinishOptions,
    tags: Mapping[str, str],
) -> Finished | None:
    """Remove small regions from a class map and write its polygons; None where there is nothing to do.

    The polygons appear beside the maps, complete or not at all. What was removed lies in the store's folder.

    Args:
        store: The parts of the maps, all complete.
        parts: Their windows.
        like: The image.
        classes: The classes of the map.
        options: What is to be done.
        tags: What the polygons say about themselves.

    Raises:
        DataError: A file cannot be written.
    """
    if options.unit is None and options.polygons is None:
        return None
    outputs = {output.name: output for output in store.outputs}
    levels, counts = store.map_levels(outputs["classes"], parts), None
    if options.unit is not None:
        levels, counts = _sieved(store.folder / ".sieved.tif", levels, like, classes, (outputs["classes"], options))
    if options.polygons is not None:
        path = polygons_path(store.home.parent, like.path, options.polygons)
        sure = outputs.get("confidence")
        confidence = None if sure is None else (store.map_levels(sure, parts)[0], sure)
        hidden = store.folder / f".polygons.{options.polygons}"
        _write_polygons(hidden, (levels[0], outputs["classes"]), confidence, like, (classes, options, tags))
        with as_data_error(path):
            hidden.replace(path)
    return Finished(levels, counts)


def _sieved(
    path: Path, levels: list[Level], like: RasterInfo, classes: ClassNames, how: tuple[MapOutput, FinishOptions]
) -> tuple[list[Level], NDArray[np.int64]]:
    """Write a class map without small regions; return its one level, and the pixels of each class."""
    output, options = how
    assert options.unit is not None
    value, metric = _parsed(options.unit)
    least = math.ceil(value / _ground(PixelAreas(like), like) - 1e-9) if metric else math.ceil(value)
    shape, nodata = like.window.shape, int(output.nodata)
    pixels = np.zeros(nodata + 1, np.int64)
    with _reading(levels[0]) as read, create_tiles(path, *shape, output.profile) as writer:
        for window, block in sieve(read, shape, least, nodata, output.dtype):
            writer.write(block, window)
            pixels += np.bincount(block.ravel(), minlength=len(pixels))
    return [Level(*shape, [TileFile(path)])], pixels[list(classes.values)]


def _write_polygons(
    path: Path,
    source: tuple[Level, MapOutput],
    confidence: tuple[Level, MapOutput] | None,
    like: RasterInfo,
    how: tuple[ClassNames, FinishOptions, Mapping[str, str]],
) -> None:
    (level, output), (classes, options, tags) = source, how
    areas = PixelAreas(like)
    area = f"area_{areas.unit}"
    columns = {"class": "whole", "name": "text", area: "number"}
    if confidence is not None:
        columns["confidence"] = "number"
    names = dict(zip(classes.values, classes.names, strict=True))
    crs = as_pyproj(like.crs, like.path)
    with contextlib.ExitStack() as stack:
        read = stack.enter_context(_reading(level))
        sure = None if confidence is None else _decoded(stack.enter_context(_reading(confidence[0])), confidence[1])
        tracing = _tracing(options, classes, int(output.nodata), _ground(areas, like))
        said = {name: text for name, text in tags.items() if name != "CONFIG"}
        writer = stack.enter_context(create_polygons(path, crs, columns, said))
        found = outlines(Sources(read, areas.of, sure), like.window.shape, tracing)
        for polygons, fields in batches(found, like.transform):
            named = np.array([names[value] for value in fields["value"].tolist()], object)
            given = {"class": fields["value"], "name": named, area: fields["area"]}
            writer.write(polygons, given | {"confidence": fields["confidence"]})


def _tracing(options: FinishOptions, classes: ClassNames, nodata: int, ground: float) -> Tracing:
    left_out = {nodata} if options.background else {nodata, classes.values[BACKGROUND]}
    sizes = {"min_area": _parsed(options.min_area), "fill_holes": _parsed(options.fill_holes)}
    tolerance, metric = _parsed(options.simplify)
    return Tracing(
        left_out=frozenset(left_out),
        min_area=sizes["min_area"][0],
        fill_holes=sizes["fill_holes"][0],
        metric=frozenset(name for name, (_, metric) in sizes.items() if metric),
        tolerance=tolerance / math.sqrt(ground) if metric else tolerance,
    )


def _parsed(size: Size) -> tuple[float, bool]:
    """Return a size and whether it is in metres or square metres rather than in pixels."""
    return (float(size.split()[0]), True) if isinstance(size, str) else (float(size), False)


def _ground(areas: PixelAreas, like: RasterInfo) -> float:
    """Return the ground of the pixel in the raster's middle."""
    return float(areas.of(Window(like.height // 2, like.width // 2, 1, 1)).ravel()[0])


@contextlib.contextmanager
def _reading(level: Level) -> Iterator[Read]:
    mosaic = Mosaic(level)

    def read(window: Window) -> NDArray[Any]:
        with as_data_error(level.files[0].path), gdal_session():
            values: NDArray[Any] = mosaic.read(window)[0]
            return values

    try:
        yield read
    finally:
        mosaic.close()


def _decoded(read: Read, output: MapOutput) -> Read:
    """Return what reads fractions as they are meant, NaN where they are not known."""

    def decoded(window: Window) -> NDArray[Any]:
        stored = read(window)
        if output.scale == 1:
            return stored
        return np.where(stored == output.nodata, np.nan, stored * output.scale)

    return decoded
