"""How much ground the pixels of a raster cover, in square metres."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyproj
from numpy.typing import NDArray

from geoseg.geo.grid import Window
from geoseg.geo.raster import RasterInfo
from geoseg.geo.vector.reproject import as_pyproj

_TRUE_TO_AREA = 0.01  # share by which a projection's areas may be wrong before they are measured on the ellipsoid
_NODES = 8  # pixels between two places where the area is worked out, where it changes along rows too
_STEP_METRES = 50.0  # for the derivative of a projection: rounding and curvature are both below 1e-7 of it


class PixelAreas:
    """The ground that each pixel of a raster covers.

    In a projected CRS whose areas are true to 1 % at the raster's middle (UTM, national grids, equal-area ones) a pixel
    covers the product of its sides. In a geographic CRS, and in projections that enlarge (Web Mercator), its area is
    that on the ellipsoid. Without a CRS the areas are in pixels of the raster.

    Attributes:
        unit: "m2", or "px" where the raster has no CRS.
    """

    def __init__(self, info: RasterInfo) -> None:
        t = info.transform
        self._info = info
        self._flat = abs(t.a * t.e - t.b * t.d)
        self._to_degrees: pyproj.Proj | None = None
        self._ellipsoid: tuple[float, float] | None = None
        self._unit = 1.0
        crs = as_pyproj(info.crs, info.path)
        self.unit = "px" if crs is None else "m2"
        if crs is None:
            self._flat = 1.0
        elif crs.is_geographic or not self._is_true(crs):
            assert crs.ellipsoid is not None
            self._ellipsoid = (crs.ellipsoid.semi_major_metre, crs.ellipsoid.semi_minor_metre)
            self._unit = crs.axis_info[0].unit_conversion_factor
            if not crs.is_geographic:
                self._to_degrees = pyproj.Proj(crs)
        else:
            self._flat *= crs.axis_info[0].unit_conversion_factor * crs.axis_info[1].unit_conversion_factor

    def of(self, window: Window) -> NDArray[np.float64]:
        """Return the areas of a window's pixels: (height, width), or a shape that broadcasts to it."""
        if self._ellipsoid is None:
            return np.full((1, 1), self._flat)
        t = self._info.transform
        if self._to_degrees is None and t.b == 0 and t.d == 0:
            return self._row_areas(window)
        return self._sampled(window)

    def _is_true(self, crs: pyproj.CRS) -> bool:
        """Tell whether the projection's areas in the raster's middle are those on the ground."""
        if not crs.is_projected or crs.geodetic_crs is None:
            return True
        x, y = self._info.transform @ (self._info.width / 2, self._info.height / 2)
        assert crs.ellipsoid is not None
        ellipsoid = (crs.ellipsoid.semi_major_metre, crs.ellipsoid.semi_minor_metre)
        unit = crs.axis_info[0].unit_conversion_factor
        scale = (
            _ground_per_unit(pyproj.Proj(crs), ellipsoid, np.array([x]), np.array([y]), _STEP_METRES / unit) / unit**2
        )
        return bool(abs(scale[0] - 1) <= _TRUE_TO_AREA) or not np.isfinite(scale[0])

    def _row_areas(self, window: Window) -> NDArray[np.float64]:
        """Return (height, 1): in a geographic CRS without rotation all pixels of a row are equal."""
        assert self._ellipsoid is not None
        t = self._info.transform
        edges = (t.f + t.e * np.arange(window.row_off, window.row_stop + 1)) * self._unit
        above = _area_to_equator(np.clip(edges, -math.pi / 2, math.pi / 2), self._ellipsoid)
        return np.abs(np.diff(above) * t.a * self._unit)[:, None]

    def _sampled(self, window: Window) -> NDArray[np.float64]:
        """Return (height, width): worked out at some pixels, linear in between."""
        rows, cols = (_nodes(n) for n in window.shape)
        at_cols, at_rows = np.meshgrid(cols + window.col_off + 0.5, rows + window.row_off + 0.5)
        t = self._info.transform
        x, y = t.a * at_cols + t.b * at_rows + t.c, t.d * at_cols + t.e * at_rows + t.f
        assert self._ellipsoid is not None
        if self._to_degrees is None:
            area = _radii_product(y * self._unit, self._ellipsoid) * self._unit**2
        else:
            step = _STEP_METRES / self._unit
            area = _ground_per_unit(self._to_degrees, self._ellipsoid, x, y, step)
        area = area * self._flat
        along = np.stack([np.interp(np.arange(window.width), cols, line) for line in area])
        return np.stack([np.interp(np.arange(window.height), rows, line) for line in along.T], axis=1)


def _nodes(length: int) -> NDArray[np.float64]:
    return np.linspace(0, length - 1, max(2, -(-length // _NODES) + 1)) if length > 1 else np.zeros(1)


def _ground_per_unit(
    to_degrees: pyproj.Proj, ellipsoid: tuple[float, float], x: Any, y: Any, step: float
) -> NDArray[np.float64]:
    """Return square metres on the ellipsoid per square unit of a projection, by central differences."""
    lon_x, lat_x = _difference(to_degrees, (x + step, y), (x - step, y))
    lon_y, lat_y = _difference(to_degrees, (x, y + step), (x, y - step))
    determinant = np.abs(lon_x * lat_y - lon_y * lat_x) / (2 * step) ** 2
    latitude = np.radians(np.asarray(to_degrees(x, y, inverse=True)[1]))
    result: NDArray[np.float64] = determinant * _radii_product(latitude, ellipsoid)
    return result


def _difference(to_degrees: pyproj.Proj, first: Any, second: Any) -> tuple[Any, Any]:
    (lon_a, lat_a), (lon_b, lat_b) = to_degrees(*first, inverse=True), to_degrees(*second, inverse=True)
    longitude = (np.asarray(lon_a) - np.asarray(lon_b) + 180) % 360 - 180  # across the date line too
    return np.radians(longitude), np.radians(np.asarray(lat_a) - np.asarray(lat_b))


def _radii_product(latitude: Any, ellipsoid: tuple[float, float]) -> Any:
    """Return square metres per square radian of longitude and latitude: both radii of curvature and the cosine."""
    major, minor = ellipsoid
    squared = 1 - (minor / major) ** 2
    # M N cos(phi) with M = a(1-e2)/w^3 and N = a/w, w^2 = 1 - e2 sin^2(phi).
    return minor**2 * np.cos(latitude) / (1 - squared * np.sin(latitude) ** 2) ** 2


def _area_to_equator(latitude: NDArray[np.float64], ellipsoid: tuple[float, float]) -> NDArray[np.float64]:
    """Return square metres per radian of longitude between the equator and latitudes (radians), signed.

    The integral of M N cos(phi): Snyder, Map Projections (USGS 1395), equation 3-12 times b^2 / (2 (1 - e^2)).
    """
    major, minor = ellipsoid
    eccentricity = math.sqrt(max(0.0, 1 - (minor / major) ** 2))
    sine = np.sin(latitude)
    if eccentricity < 1e-9:
        sphere: NDArray[np.float64] = minor**2 * sine
        return sphere
    return minor**2 / 2 * (sine / (1 - (eccentricity * sine) ** 2) + np.arctanh(eccentricity * sine) / eccentricity)
