"""What is known of the ground under a raster: labels, area of interest, and the borders that nobody trusts.

Sampling and evaluation read the ground through this module, so a label means the same to both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.labelraster import LabelRaster
from geoseg.geo.raster import RasterInfo, is_gdal_name, is_raster, read_info
from geoseg.geo.vector import ClassMapping, LabelRules, LabelSet, burn, coverage, on_map, read_labels
from geoseg.geo.vector.reproject import move_into

_VECTOR_SUFFIXES = frozenset(
    (*(".gpkg", ".geojson", ".json", ".shp", ".fgb", ".parquet", ".geoparquet", ".gml", ".kml", ".kmz", ".gdb"),)
    + (".sqlite", ".csv", ".tab", ".mif", ".dxf", ".geojsonl", ".geojsons", ".topojson", ".xml")
)


@dataclass(frozen=True)
class GroundSource:
    """Files that say what is on the ground.

    Attributes:
        labels: A vector file, or a raster of values that stand for classes.
        attribute: The attribute of the polygons that holds the class (None: all are class 1), or the band of the
            raster, by number or name (None: its only one).
        layer: The layer of the vector file; None: its only one.
        aoi: A vector file with the area of interest; None: everywhere.
        image: Name of the image, for messages.
    """

    labels: str | os.PathLike[str]
    attribute: str | None = None
    layer: str | None = None
    aoi: str | os.PathLike[str] | None = None
    image: str | os.PathLike[str] = "the image"


@dataclass
class Ground:
    """Labels and area of interest in an image's CRS.

    Attributes:
        labels: Polygons with class ids, or a label raster.
        area: The area of interest; None: everywhere.
        ignore_value: Label of unknown pixels.
        rules: How labels become pixels.
        warnings: What the user should know, one line each.
    """

    labels: LabelSet | LabelRaster
    area: LabelSet | None = None
    ignore_value: int = 255
    rules: LabelRules = field(default_factory=LabelRules)
    warnings: list[str] = field(default_factory=list)

    @property
    def polygons(self) -> int:
        """Number of label polygons; 0 for a label raster."""
        return len(self.labels) if isinstance(self.labels, LabelSet) else 0

    def read(self, window: Window, grid: RasterInfo) -> NDArray[np.uint8]:
        """Return the label pixels (height, width) of a window of a raster; any tiling gives the same pixels.

        Args:
            window: May overhang the raster; what lies beyond it has no meaning.
            grid: The raster.

        Raises:
            DataError: A label raster cannot be read, or holds a value of no class.
        """
        width = self.rules.boundary_ignore
        if width == 0:
            return self._known(window, grid.transform)
        grown = Window(
            window.row_off - width, window.col_off - width, window.height + 2 * width, window.width + 2 * width
        )
        outer = grown.intersection(grid.window)
        inside = window.intersection(grid.window)
        label = np.full(window.shape, self.ignore_value, np.uint8)
        if outer is not None and inside is not None:
            known = without_borders(self._known(outer, grid.transform), width, self.ignore_value)
            label[inside.within(window)] = known[inside.within(outer)]
        return label

    def thinned(self, grid: RasterInfo, shape: tuple[int, int]) -> NDArray[np.uint8]:
        """Return the label of a whole raster thinned to (height, width) `shape`; no borders are taken away."""
        transform = grid.transform * Affine.scale(grid.width / shape[1], grid.height / shape[0])
        return self._known(Window(0, 0, *shape), transform)

    def inside(self, window: Window, grid: RasterInfo) -> NDArray[np.bool_] | None:
        """Return where a window (height, width) lies in the area of interest; None: everywhere."""
        return None if self.area is None else burn(self.area, grid.transform, window) == 1

    def check(self, source: GroundSource, grid: RasterInfo) -> list[str]:
        """Look for labels that would be lost; return warnings.

        Raises:
            DataError: Labels or area of interest do not lie on the raster, polygons burn nothing, or a label raster
                holds a value of no class.
        """
        if self.area is not None:
            _refuse_elsewhere(source.aoi, self.area, source.image, grid)
        if isinstance(self.labels, LabelSet):
            return _refuse_elsewhere(source.labels, self.labels, source.image, grid)
        if not self.labels.overlaps(grid.window, grid.transform):
            expected = f"labels on {source.image}"
            raise DataError(
                problem(self.labels.where, "a raster of other ground", expected, "check the CRS and the pairing")
            )
        return self.labels.check_values()

    def _known(self, window: Window, transform: Affine) -> NDArray[np.uint8]:
        if isinstance(self.labels, LabelSet):
            outside = self.ignore_value if self.rules.mask_outside else 0
            label = burn(self.labels, transform, window, outside)
        else:
            label = self.labels.read(window, transform)
        if self.area is not None:
            label[burn(self.area, transform, window) != 1] = self.ignore_value
        return label


def read_ground(source: GroundSource, grid: RasterInfo, mapping: ClassMapping, rules: LabelRules) -> Ground:
    """Read labels and area of interest and bring them into the CRS of a raster.

    Args:
        source: The files.
        grid: The raster they belong to.
        mapping: What the labels' values mean.
        rules: How they become pixels.

    Raises:
        DataError: One line per file that is not usable.
    """
    problems: list[str] = []
    labels: LabelSet | LabelRaster | None = None
    area = None
    try:
        labels = _read_labels(source, grid, mapping, rules)
    except DataError as error:
        problems += error.problems
    try:
        area = None if source.aoi is None else read_area(source.aoi, grid, source.image, rules.assume_crs)
    except DataError as error:
        problems += error.problems
    if problems or labels is None:
        raise DataError(problems)
    found = [] if area is None else [f"area of interest {line}" for line in area.warnings]
    if isinstance(labels, LabelSet):
        found = [*labels.warnings, *found]
    elif idle := _idle_rules(rules):
        found.append(f"{labels.where}: a label raster, to which {' and '.join(idle)} do not apply")
    return Ground(labels, area, mapping.ignore_value, rules, found)


def without_borders(label: NDArray[np.uint8], width: int, ignore_value: int) -> NDArray[np.uint8]:
    """Return a label with pixels unknown where another class lies within `width` rows and columns.

    Unknown pixels border nothing.

    Args:
        label: (height, width).
        width: Pixels, at least 1.
        ignore_value: Label of unknown pixels; above all class ids.
    """
    unknown = label == ignore_value
    kernel = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    highest = cv2.dilate(np.where(unknown, np.uint8(0), label), kernel)
    lowest = cv2.erode(np.where(unknown, np.uint8(255), label), kernel)
    return np.where(unknown | (highest != lowest), np.uint8(ignore_value), label)


def _idle_rules(rules: LabelRules) -> list[str]:
    """Return the rules that are for polygons alone and were asked for."""
    asked = {
        "sample.priority": rules.priority != LabelRules().priority,
        "sample.all_touched": rules.all_touched,
        "buffers of classes": any(rules.buffers),
    }
    return [name for name, is_asked in asked.items() if is_asked]


def _read_labels(
    source: GroundSource, grid: RasterInfo, mapping: ClassMapping, rules: LabelRules
) -> LabelSet | LabelRaster:
    if not _is_label_raster(source.labels):
        labels = read_labels(
            source.labels, source.attribute, grid.crs, mapping, layer=source.layer, rules=rules, image=source.image
        )
        return on_map(labels, grid.crs, grid.transform, grid.window.shape)
    info = read_info(source.labels, allow_palette=True)
    band = _label_band(info, source.attribute)
    aligned = not info.georeferenced and info.window == grid.window and (rules.assume_crs or not grid.georeferenced)
    if aligned:  # a picture without a place, of the image's size: pixel lies on pixel
        info = replace(info, transform=grid.transform, crs=grid.crs)
    move = move_into(info.path, info.crs, grid.crs, rules.assume_crs, os.fspath(source.image))
    return LabelRaster(info, band, mapping, move.transformer)


def _is_label_raster(name: str | os.PathLike[str]) -> bool:
    text = os.fspath(name)
    if Path(text).suffix.lower() in _VECTOR_SUFFIXES or not (is_gdal_name(text) or Path(text).is_file()):
        return False
    return is_raster(text)


def _label_band(info: RasterInfo, attribute: str | None) -> int:
    """Return the band that an attribute names, by number or description, or the only one."""
    if attribute is None:
        if len(info.image_bands) == 1:
            return info.image_bands[0]
        found = f"a label raster of {len(info.image_bands)} bands"
        remedy = "name one, by number or name, where the attribute is named"
        raise DataError(problem(info.path, found, "one band, or the choice of one", remedy))
    if attribute in info.band_names:
        return info.band_names.index(attribute) + 1
    if attribute.isdecimal() and 1 <= int(attribute) <= info.count:
        return int(attribute)
    if info.count == 1:
        return 1  # an attribute that was written for polygons
    named = ", ".join(name for name in info.band_names if name) or "none"
    found = f"bands 1 to {info.count}, named {named}"
    raise DataError(problem(info.path, found, f"a band {attribute!r}", "correct the attribute"))


def read_area(
    aoi: str | os.PathLike[str], grid: RasterInfo, image: str | os.PathLike[str] = "the image", assume_crs: bool = False
) -> LabelSet:
    """Return an area of interest in an image's CRS, to be burnt as class 1.

    Args:
        aoi: A vector file of polygons.
        grid: The image.
        image: Its name, for messages.
        assume_crs: Take a file without a CRS to be in that of the image.

    Raises:
        DataError: The file cannot be read, or has no CRS where the image has one.
    """
    mapping = ClassMapping(num_classes=2)
    area = read_labels(aoi, None, grid.crs, mapping, rules=LabelRules(assume_crs=assume_crs), image=image)
    return on_map(area, grid.crs, grid.transform, grid.window.shape)


def _refuse_elsewhere(
    name: str | os.PathLike[str] | None, labels: LabelSet, image: str | os.PathLike[str], grid: RasterInfo
) -> list[str]:
    """Refuse polygons that burn nothing; return a warning that counts those that are lost."""
    if len(labels) == 0:
        return []
    found = coverage(labels, grid.transform, grid.height, grid.width)
    if found.burnt:
        lost = f"{name}: {found.unburnt} polygons are thinner than a pixel of {image} and burn none of it"
        return [lost] if found.unburnt else []
    if found.unburnt:
        message = f"{found.unburnt} polygons that cover no pixel centre of {image}"
        remedy = "give them a buffer or set sample.all_touched, or use a finer image"
        raise DataError(problem(name, message, "at least one", remedy))
    message = f"{len(labels)} polygons, none of them on {image}"
    raise DataError(problem(name, message, "polygons that overlap the image", "check the CRS and the pairing"))
