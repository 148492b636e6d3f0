"""Polygons made wider or narrower by metres, and put in the order in which they are burnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyproj
import shapely
from numpy.typing import NDArray
from pyproj.crs import ProjectedCRS
from pyproj.crs.coordinate_operation import AzimuthalEquidistantConversion
from pyproj.exceptions import ProjError

from geoseg.errors import DataError, problem
from geoseg.geo.vector.reproject import reproject
from geoseg.geo.vector.rules import LabelRules

# A projection is used as it is where its metres are true to this share; else a local one is.
_TRUE_TO_SCALE = 0.01
# Degrees; within such a cell an azimuthal projection about its middle is true to better than 0.1 %.
_CELL = 5.0
_QUARTER_SEGMENTS = 16


def buffered(
    geometries: NDArray[Any], ids: NDArray[np.uint8], buffers: tuple[float, ...], crs: pyproj.CRS | None, where: str
) -> NDArray[Any]:
    """Return geometries grown by the metres of their class.

    A projected CRS is used as it is where a metre on the map is a metre on the ground to 1 %. Elsewhere (degrees, Web
    Mercator) each geometry is grown in an azimuthal equidistant projection about the middle of its cell of 5 degrees.

    Args:
        geometries: (features,) shapely geometries.
        ids: (features,) class ids; those beyond the end of `buffers` stay as they are.
        buffers: Metres by class id; negative shrinks.
        crs: Of the geometries.
        where: File and layer, for messages.

    Raises:
        DataError: There is no CRS, so nobody knows what a metre is.
    """
    table = np.zeros(256)
    table[: len(buffers)] = buffers
    distances = table[ids]
    chosen = np.flatnonzero(distances)
    if not len(chosen):
        return geometries
    if crs is None:
        remedy = "assign a CRS to image and labels, or remove the buffers of global.classes"
        raise DataError(problem(where, "no CRS, but buffers in metres", "a CRS that says how long a metre is", remedy))
    result = geometries.copy()
    if _is_true(crs, geometries[chosen]):
        result[chosen] = _grow(geometries[chosen], distances[chosen] / crs.axis_info[0].unit_conversion_factor)
        return result
    degrees = pyproj.Transformer.from_crs(crs, crs.geodetic_crs, always_xy=True)
    lon, lat = degrees.transform(*shapely.get_coordinates(shapely.centroid(geometries[chosen])).T)
    cells = np.floor(np.column_stack([lon, lat]) / _CELL)
    for cell in np.unique(cells, axis=0):
        inside = chosen[(cells == cell).all(axis=1)]
        middle = (cell + 0.5) * _CELL
        local = ProjectedCRS(AzimuthalEquidistantConversion(middle[1], middle[0]), geodetic_crs=crs.geodetic_crs)
        there = pyproj.Transformer.from_crs(crs, local, always_xy=True)
        back = pyproj.Transformer.from_crs(local, crs, always_xy=True)
        grown = _grow(reproject(geometries[inside], there, where, inside), distances[inside])
        result[inside] = reproject(grown, back, where, inside)
    return result


def burning_order(
    geometries: NDArray[Any], ids: NDArray[np.uint8], column: NDArray[Any] | None, rules: LabelRules, where: str
) -> NDArray[np.intp]:
    """Return the places of the features in the order in which they are burnt: the last one is on top.

    Args:
        geometries: (features,) in the order of the file.
        ids: (features,) class ids.
        column: (features,) values of the column that decides, if one does.
        rules: How they are ordered.
        where: File and layer, for messages.

    Raises:
        DataError: The column holds something that is no number.
    """
    if rules.priority == "class":
        return np.argsort(ids, kind="stable")
    if rules.priority == "area":
        return np.argsort(-shapely.area(geometries), kind="stable")
    if column is None:
        return np.arange(len(geometries))
    try:
        numbers = pd.to_numeric(pd.Series(column, dtype=object)).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        found = f"column {rules.priority} with a value that is no number ({error})"
        raise DataError(problem(where, found, "numbers", "correct sample.priority, or the column")) from error
    return np.argsort(np.where(np.isnan(numbers), -np.inf, numbers), kind="stable")


def _grow(geometries: NDArray[Any], distances: NDArray[np.float64]) -> NDArray[Any]:
    grown: NDArray[Any] = shapely.buffer(geometries, distances, quad_segs=_QUARTER_SEGMENTS)
    return grown


def _is_true(crs: pyproj.CRS, geometries: NDArray[Any]) -> bool:
    """Tell whether a unit of a CRS is as long on the ground as it says, in the middle of some geometries."""
    if not crs.is_projected:
        return crs.geodetic_crs is None  # a local grid of an engineer: nothing says otherwise
    left, bottom, right, top = shapely.total_bounds(geometries)
    degrees = pyproj.Transformer.from_crs(crs, crs.geodetic_crs, always_xy=True)
    lon, lat = degrees.transform((left + right) / 2, (bottom + top) / 2)
    try:
        factors = pyproj.Proj(crs).get_factors(lon, lat)
    except ProjError:
        return True
    scales = (factors.meridional_scale, factors.parallel_scale)
    return all(abs(scale - 1) <= _TRUE_TO_SCALE for scale in scales)
