"""Labels that are a raster: laid on the image's grid by nearest neighbour, with their values mapped to class ids.

The value of an image pixel is that of the label pixel that holds its centre; nothing is interpolated, so no class
appears that is not in the file. CRS, resolution and orientation may be others than the image's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyproj
from affine import Affine
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window, tiles
from geoseg.geo.raster import Raster, RasterInfo
from geoseg.geo.vector.classes import ClassMapping, class_ids
from geoseg.geo.vector.reproject import as_pyproj
from geoseg.geo.vector.turns import turn_of

_POINTS = 2**20  # pixels aligned at once
_PIXELS = 2**24  # label pixels read at once
_BLOCK = 2048
# Of a label pixel: a centre that falls on the border of two, but for the last digits, always falls to the same side.
_GRAIN = 2.0**20
_ROUNDING = 1e-12  # of a turn of the globe


class _Places(NamedTuple):
    """Rows and columns of label pixels, broadcastable to the window's shape, and whether they are inside."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    inside: NDArray[np.bool_]


class LabelRaster:
    """A band of a raster as labels of an image.

    Attributes:
        info: The label raster.
        band: Its band, from 1.
        mapping: What its values mean; those of `ignore_value` are unknown unless a class claims them.
    """

    def __init__(self, info: RasterInfo, band: int, mapping: ClassMapping, to_image: pyproj.Transformer | None) -> None:
        self.info = info
        self.band = band
        self.mapping = _with_unknown(mapping)
        self._to_image = to_image
        self._turn = turn_of(as_pyproj(info.crs, info.path))
        t = info.transform
        self._left = t.c + min(0.0, t.a * info.width) + min(0.0, t.b * info.height)
        self._right = t.c + max(0.0, t.a * info.width) + max(0.0, t.b * info.height)
        self._raster = Raster(info, (band,))
        self._table: dict[Any, int] = {}

    @property
    def where(self) -> str:
        """The file and band, for messages."""
        return self.info.path if self.info.count == 1 else f"{self.info.path}, band {self.band}"

    def read(self, window: Window, transform: Affine) -> NDArray[np.uint8]:
        """Return the label pixels (height, width) of a window; unknown outside the raster and where it has no data.

        Args:
            window: The window of the image.
            transform: The image's whole transform.

        Raises:
            DataError: The raster cannot be read, or holds a value of no class.
        """
        label = np.empty(window.shape, np.uint8)
        self._fill(label, window, transform)
        return label

    def overlaps(self, window: Window, transform: Affine) -> bool:
        """Tell whether any of 64 x 64 pixels spread over a window lies on the raster."""
        step = Affine.scale(window.width / 64, window.height / 64)
        return bool(self._places(Window(0, 0, 64, 64), transform * step).inside.any())

    def check_values(self) -> list[str]:
        """Look at all values; return warnings.

        Raises:
            DataError: There is a value of no class, or nothing but background beside the value for unknown.
        """
        values: set[Any] = set()
        for tile in tiles(self.info.height, self.info.width, _BLOCK, 0):
            image, valid = self._raster.read(tile.write)
            values |= set(np.unique(image[0][valid]).tolist())
        found = {value: self._class_of(value) for value in values}
        ignore = self.mapping.ignore_value
        if ignore in values and found[ignore] == ignore and set(found.values()) <= {0, ignore}:
            text = f"the values {', '.join(map(str, sorted(values)))}, where {ignore} stands for unknown"
            remedy = f"give the class the value {ignore} in global.classes, if this is a mask of 0 and {ignore}"
            raise DataError(problem(self.where, text, "some class", remedy))
        nodata = self.info.nodata_values[self.band - 1]
        meant = None if nodata is None or np.isnan(nodata) else self._class_of(nodata, quiet=True)
        if meant is None or meant == ignore:
            return []
        return [f"{self.where}: nodata is {nodata:g}, the value of class {meant}; those pixels are unknown"]

    def _fill(self, label: NDArray[np.uint8], window: Window, transform: Affine) -> None:
        """Fill `label` with the pixels of a window, in pieces that are small here and in the raster."""
        height, width = window.shape
        if height * width <= _POINTS:
            places = self._places(window, transform)
            source = _bounds(places)
            if source is None:
                label[...] = self.mapping.ignore_value
                return
            if source.height * source.width <= _PIXELS or height * width == 1:
                label[...] = self._look_up(places, source)
                return
        if height >= width:
            cut = height // 2
            self._fill(label[:cut], Window(window.row_off, window.col_off, cut, width), transform)
            self._fill(label[cut:], Window(window.row_off + cut, window.col_off, height - cut, width), transform)
        else:
            cut = width // 2
            self._fill(label[:, :cut], Window(window.row_off, window.col_off, height, cut), transform)
            self._fill(label[:, cut:], Window(window.row_off, window.col_off + cut, height, width - cut), transform)

    def _places(self, window: Window, transform: Affine) -> _Places:
        """Return the label pixel that holds the centre of each pixel of a window."""
        cols = np.arange(window.col_off, window.col_stop, dtype=np.float64)[None] + 0.5
        rows = np.arange(window.row_off, window.row_stop, dtype=np.float64)[:, None] + 0.5
        inverse = ~self.info.transform
        if self._to_image is None and self._on_one_turn(window, transform):
            t = inverse * transform
            if t.b == 0 and t.d == 0:
                return self._whole(t.e * rows + t.f, t.a * cols + t.c)
            return self._whole(t.d * cols + t.e * rows + t.f, t.a * cols + t.b * rows + t.c)
        x = transform.a * cols + transform.b * rows + transform.c
        y = transform.d * cols + transform.e * rows + transform.f
        x, y = np.broadcast_arrays(x, y)
        if self._to_image is not None:
            x, y = self._to_image.transform(x, y, direction="INVERSE", errcheck=False)
        if self._turn is not None:
            x = x - self._turn.length * np.floor((x - self._left) / self._turn.length + _ROUNDING)
        with np.errstate(invalid="ignore"):
            return self._whole(inverse.d * x + inverse.e * y + inverse.f, inverse.a * x + inverse.b * y + inverse.c)

    def _on_one_turn(self, window: Window, transform: Affine) -> bool:
        """Tell whether no pixel of a window of an image in the same CRS is on the raster a turn of the globe away."""
        if self._turn is None:
            return True
        corners = [(col, row) for col in (window.col_off, window.col_stop) for row in (window.row_off, window.row_stop)]
        x = [(transform @ corner)[0] for corner in corners]
        return max(x) - self._turn.length <= self._left and min(x) + self._turn.length >= self._right

    def _whole(self, rows: NDArray[np.float64], cols: NDArray[np.float64]) -> _Places:
        with np.errstate(invalid="ignore"):
            rows, cols = (np.floor(np.round(axis * _GRAIN) / _GRAIN) for axis in (rows, cols))
            inside = (rows >= 0) & (rows < self.info.height) & (cols >= 0) & (cols < self.info.width)
        limits = ((rows, self.info.height - 1), (cols, self.info.width - 1))
        whole = [np.clip(np.nan_to_num(axis, posinf=0, neginf=0), 0, last).astype(np.int64) for axis, last in limits]
        return _Places(whole[0], whole[1], inside)

    def _look_up(self, places: _Places, source: Window) -> NDArray[np.uint8]:
        image, valid = self._raster.read(source)
        ids = self._ids(image[0], valid)
        # Places outside may be anywhere; they are overwritten below.
        rows = np.clip(places.rows - source.row_off, 0, source.height - 1)
        cols = np.clip(places.cols - source.col_off, 0, source.width - 1)
        return np.where(places.inside, ids[rows, cols], np.uint8(self.mapping.ignore_value))

    def _ids(self, values: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return class ids of label values, unknown where they are not valid."""
        uniques, places = np.unique(values[valid], return_inverse=True)
        ids = np.full(values.shape, self.mapping.ignore_value, np.uint8)
        if len(uniques):
            table = np.array([self._class_of(value) for value in uniques.tolist()], np.uint8)
            ids[valid] = table[places.reshape(-1)]
        return ids

    def _class_of(self, value: Any, quiet: bool = False) -> int:
        """Return the class id of a value; with `quiet`, unknown if there is none."""
        if value not in self._table:
            mapping = replace(self.mapping, unmapped="ignore") if quiet else self.mapping
            found = int(class_ids([value], mapping, self.where).ids[0])
            if quiet:
                return found
            self._table[value] = found
        return self._table[value]


def _with_unknown(mapping: ClassMapping) -> ClassMapping:
    """Return the mapping with its value for unknown as a value of the raster, unless a class claims that value."""
    claimed = {str(value) for value in mapping.by_value or ()}
    if str(mapping.ignore_value) in claimed:
        return mapping
    return replace(mapping, ignore_values=mapping.ignore_values | {mapping.ignore_value})


def _bounds(places: _Places) -> Window | None:
    """Return the window of the label raster that holds all places inside it."""
    rows = np.broadcast_to(places.rows, places.inside.shape)[places.inside]
    cols = np.broadcast_to(places.cols, places.inside.shape)[places.inside]
    if not rows.size:
        return None
    top, left = int(rows.min()), int(cols.min())
    return Window(top, left, int(rows.max()) - top + 1, int(cols.max()) - left + 1)
