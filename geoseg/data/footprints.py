"""Footprints on the ground: which samples share some, and how far splits are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import geopandas
import numpy as np
import shapely
import shapely.affinity
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError

from geoseg.geo.grid import Window
from geoseg.geo.vector.turns import followed, turn_of

SHARED = 1e-6  # of a sample's area: less is rounding
_ORDER = {"trn": 0, "val": 1, "tst": 2}


def native_footprints(
    transform: Affine, shape: tuple[int, int], windows: NDArray[np.int64], clip: bool = True
) -> NDArray[Any]:
    """Return the ground of windows (n, 4: row, col, height, width) in the raster's CRS, clipped to the raster."""
    top, left = windows[:, 0], windows[:, 1]
    bottom, right = top + windows[:, 2], left + windows[:, 3]
    if clip:
        bottom, right = np.minimum(bottom, shape[0]), np.minimum(right, shape[1])
    ring = np.stack([np.stack([left, right, right, left], 1), np.stack([top, top, bottom, bottom], 1)], 2)
    columns, lines = ring[..., 0].astype(np.float64), ring[..., 1].astype(np.float64)
    t = transform
    x, y = t.a * columns + t.b * lines + t.c, t.d * columns + t.e * lines + t.f
    footprints: NDArray[Any] = shapely.polygons(np.stack([x, y], 2))
    return footprints


def projected(footprints: NDArray[Any], crs: Any, target: Any) -> NDArray[Any]:
    """Return footprints in another CRS, whole where a map in degrees ends; None for those that have no place there."""
    nowhere = np.full(len(footprints), None, dtype=object)
    try:
        result = np.asarray(geopandas.GeoSeries(footprints, crs=crs).to_crs(target).array, object)
        placed = np.isfinite(shapely.bounds(result)).all(axis=1)
        turn = turn_of(CRS.from_user_input(target))
        if turn is not None:
            transformer = Transformer.from_crs(crs, target, always_xy=True)
            result[placed] = followed(footprints[placed], result[placed], transformer, turn)
    except (CRSError, ProjError):
        return nowhere
    result[~placed] = None
    return result


def as_rows(windows: Sequence[Window]) -> NDArray[np.int64]:
    """Return windows as (n, 4) numbers: row, col, height, width."""
    return np.array([(w.row_off, w.col_off, w.height, w.width) for w in windows], np.int64).reshape(-1, 4)


class Frame:
    """A common plane for the footprints of scenes.

    The scenes' own CRS if they share a projected one, else the UTM zone in their middle; scenes without a place on
    the globe each have a plane of their own, in pixels.
    """

    def __init__(self, places: Sequence[tuple[Affine, str | None, tuple[int, int]]]) -> None:
        self._places = places
        known = {crs for transform, crs, _ in places if crs and transform != Affine.identity()}
        self.crs: Any = None
        if len(known) == 1 and not _geographic(next(iter(known))):
            self.crs = next(iter(known))
        elif known:
            corners = [
                projected(native_footprints(t, s, np.array([[0, 0, *s]])), crs, "EPSG:4326")
                for t, crs, s in places
                if crs and t != Affine.identity()
            ]
            self.crs = _zone(np.concatenate(corners))

    def placed(self, scene: int) -> bool:
        """Tell whether a scene has a place on the globe."""
        transform, crs, _ = self._places[scene]
        return bool(crs) and transform != Affine.identity()

    def footprints(self, scene: int, windows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the ground of windows of a scene in the plane; pixels for a scene without a place."""
        transform, crs, shape = self._places[scene]
        if not self.placed(scene):
            return native_footprints(Affine.identity(), shape, windows)
        native = native_footprints(transform, shape, windows)
        return native if crs == self.crs else projected(native, crs, self.crs)

    def factor(self) -> float:
        """Return metres per unit of the plane."""
        return float(CRS.from_user_input(self.crs).axis_info[0].unit_conversion_factor) if self.crs else 1.0


def _zone(footprints: NDArray[Any]) -> Any:
    """Return the UTM zone in the middle of footprints in degrees, on whichever turn of the globe each of them is."""
    placed = footprints[[f is not None for f in footprints]]
    if not len(placed):
        return "EPSG:6933"
    left, _, right, _ = shapely.bounds(placed).T
    middle = (left + right) / 2
    shifts = 360 * np.round((middle[0] - middle) / 360)
    middle = ((left + shifts).min() + (right + shifts).max()) / 2
    shifts -= 360 * np.round(middle / 360)
    series = geopandas.GeoSeries(placed, crs="EPSG:4326")
    if shifts.any():
        moved = [shapely.affinity.translate(f, shift) for f, shift in zip(placed, shifts, strict=True)]
        series = geopandas.GeoSeries(moved, crs="EPSG:4326")
    try:
        return series.estimate_utm_crs()
    except (RuntimeError, ValueError, CRSError):
        return "EPSG:6933"


def _geographic(crs: str) -> bool:
    return bool(CRS.from_user_input(crs).is_geographic)


def sharing(footprints: NDArray[Any], splits: NDArray[Any]) -> list[tuple[int, int]]:
    """Return pairs of samples of different splits that share ground; trn before val before tst in each pair."""
    present = np.flatnonzero([f is not None for f in footprints])
    if len(present) < 2:
        return []
    polygons, names = footprints[present], splits[present]
    first, second = shapely.STRtree(polygons).query(polygons, predicate="intersects")
    ranks = np.array([_ORDER[name] for name in names])
    apart = ranks[first] < ranks[second]
    first, second = first[apart], second[apart]
    if not len(first):
        return []
    common = shapely.area(shapely.intersection(polygons[first], polygons[second]))
    real = common > SHARED * np.minimum(shapely.area(polygons[first]), shapely.area(polygons[second]))
    return list(zip(present[first[real]].tolist(), present[second[real]].tolist(), strict=True))


def distances(footprints: NDArray[Any], splits: NDArray[Any]) -> dict[str, float]:
    """Return the smallest distance between the samples of each two splits, as {"trn-val": 12.0}."""
    present = np.array([f is not None for f in footprints], bool)
    result = {}
    for one, other in combinations(_ORDER, 2):
        first, second = footprints[present & (splits == one)], footprints[present & (splits == other)]
        if len(first) and len(second):
            _, found = shapely.STRtree(first).query_nearest(second, return_distance=True, all_matches=False)
            result[f"{one}-{other}"] = float(found.min())
    return result


def smallest(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the least of each distance."""
    names = sorted({name for one in found for name in one})
    return {name: min(one[name] for one in found if name in one) for name in names}
