"""An area of interest: windows without a pixel of it are not computed, pixels outside it are unknown in the maps."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.ground import read_area
from geoseg.geo.raster import Pixels, Raster, RasterInfo
from geoseg.geo.vector.burning import burn
from geoseg.predict.blocks import NODATA, ClassBlock


class Area:
    """What is to be classified of a raster.

    The network sees what lies around the area, so that the map inside is the same as without it.

    Args:
        info: The raster.
        aoi: A vector file of polygons; None: everywhere.
        bounds: (left, bottom, right, top) in the raster's CRS, or in pixels (columns and rows) where it has none; None:
            everywhere. Pixels count by their centres.

    Raises:
        DataError: The file cannot be read, or nothing of the area lies on the raster.
    """

    def __init__(
        self, info: RasterInfo, aoi: str | os.PathLike[str] | None = None, bounds: Sequence[float] | None = None
    ) -> None:
        self._info = info
        self._polygons = None if aoi is None else read_area(aoi, info, info.path)
        self._box = None if bounds is None else shapely.box(*bounds)
        corners = [info.transform * corner for corner in ((0, 0), (info.width, 0), (info.width, info.height))]
        corners.append(info.transform * (0, info.height))
        ground = shapely.Polygon(corners)
        shapes = [] if self._polygons is None else [shapely.union_all(self._polygons.geometries)]
        for shape in [*shapes, *([] if self._box is None else [self._box])]:
            ground = ground.intersection(shape)
        if ground.area == 0:
            found = "an area of interest that is not on the image"
            raise DataError(problem(info.path, found, "ground to classify", "correct the aoi or the bounds"))

    def inside(self, window: Window) -> NDArray[np.bool_]:
        """Return which pixels (h, w) of a window are in the area."""
        found = np.ones(window.shape, dtype=bool)
        if self._polygons is not None:
            found &= burn(self._polygons, self._info.transform, window) == 1
        if self._box is not None:
            rows = np.arange(window.row_off, window.row_stop)[:, None] + 0.5
            columns = np.arange(window.col_off, window.col_stop)[None, :] + 0.5
            t = self._info.transform
            x, y = t.a * columns + t.b * rows + t.c, t.d * columns + t.e * rows + t.f
            left, bottom, right, top = self._box.bounds
            found &= (left <= x) & (x < right) & (bottom < y) & (y <= top)
        return found

    def cut(self, block: ClassBlock) -> ClassBlock:
        """Return a block that is unknown outside the area."""
        outside = ~self.inside(block.window)
        np.copyto(block.classes, NODATA, where=outside)
        if block.probabilities is not None:
            np.copyto(block.probabilities, np.nan, where=outside)
        return block


class AreaSource:
    """A raster whose windows beyond an area are not even read."""

    def __init__(self, raster: Raster, area: Area) -> None:
        self._raster, self._area = raster, area

    def read(self, window: Window) -> Pixels:
        """Return the pixels of a window; all are invalid where it holds nothing of the area."""
        if self._area.inside(window).any():
            return self._raster.read(window)
        shape = (len(self._raster.bands), *window.shape)
        return Pixels(np.zeros(shape, self._raster.info.dtype), np.zeros(window.shape, bool))
