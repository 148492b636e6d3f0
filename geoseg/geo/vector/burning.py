"""From polygons to label pixels.

A pixel belongs to a polygon if its centre lies inside (or, if asked for, if the polygon touches it); where polygons
overlap, the one later in the order of burning wins.

Polygons are brought to pixel coordinates once and rounded to 2**-20 of a pixel. Burning a window is then a shift by
whole pixels, which is exact on such numbers: any tiling gives the labels of the whole scene, and an edge that was drawn
on pixel borders lies on them, whatever 0.1 m pixels and large coordinates do to the digits. Rotated and south-up
rasters are no special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import rasterio.features
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoseg.geo.grid import Window, tiles

if TYPE_CHECKING:
    from geoseg.geo.vector.labelset import LabelSet

_GRAIN = 2.0**20
_CHECK_SIDE = 2048
_TOUCHED_SIDE = 512


class PixelLabels(NamedTuple):
    """Labels in pixel coordinates: geometries and a spatial index over their boxes."""

    geometries: NDArray[Any]
    tree: shapely.STRtree


class Coverage(NamedTuple):
    """What burning a scene's labels comes to, overlaps apart.

    Attributes:
        burnt: Polygons that cover at least one pixel centre of the scene.
        unburnt: Polygons that touch the scene but no pixel centre in it (thinner than a pixel).
        outside: Polygons that do not touch the scene.
    """

    burnt: int
    unburnt: int
    outside: int


def burn(
    labels: LabelSet, transform: Affine, window: Window | tuple[int, int], background: int = 0
) -> NDArray[np.uint8]:
    """Return the label pixels of a window.

    Args:
        labels: Polygons in the raster's CRS.
        transform: The raster's whole transform, not the window's.
        window: The window, or the (height, width) of the raster for all of it; may overhang.
        background: Value of pixels in no polygon.

    Returns:
        (height, width) uint8: ids of the polygons, later features over earlier ones.
    """
    if not isinstance(window, Window):
        window = Window(0, 0, *window)
    if not labels.all_touched:
        return _burn(labels, transform, window, background)
    # Which pixels a line touches depends, by its last digits, on where the drawing begins: always at the same places.
    label = np.full(window.shape, background, np.uint8)
    for tile in _fixed_tiles(window):
        inside = tile.intersection(window)
        if inside is not None:
            label[inside.within(window)] = _burn(labels, transform, tile, background)[inside.within(tile)]
    return label


def _burn(labels: LabelSet, transform: Affine, window: Window, background: int) -> NDArray[np.uint8]:
    label = np.full(window.shape, background, np.uint8)
    geometries, tree = in_pixels(labels, transform)
    box = shapely.box(window.col_off, window.row_off, window.col_stop, window.row_stop)
    # The index answers in its own order; sorting restores the file's.
    chosen = np.sort(tree.query(box))
    if len(chosen):
        _rasterize(geometries[chosen], labels.ids[chosen], label, window, labels.all_touched)
    return label


def _fixed_tiles(window: Window) -> Iterator[Window]:
    for row in range(window.row_off // _TOUCHED_SIDE, -(-window.row_stop // _TOUCHED_SIDE)):
        for col in range(window.col_off // _TOUCHED_SIDE, -(-window.col_stop // _TOUCHED_SIDE)):
            yield Window(row * _TOUCHED_SIDE, col * _TOUCHED_SIDE, _TOUCHED_SIDE, _TOUCHED_SIDE)


def coverage(labels: LabelSet, transform: Affine, height: int, width: int) -> Coverage:
    """Count the polygons that burn pixels of a scene, burn none, or lie outside it.

    Args:
        labels: Polygons in the raster's CRS.
        transform: The raster's transform.
        height: Rows of the scene.
        width: Columns of the scene.
    """
    geometries, _ = in_pixels(labels, transform)
    scene = shapely.box(0, 0, width, height)
    shapely.prepare(scene)
    touching = geometries[shapely.intersects(scene, geometries)]
    # Most polygons hold the pixel centre next to their middle; only the others need a burn of their own.
    left, top, right, bottom = shapely.bounds(touching).T.reshape(4, -1)
    x, y = np.floor((left + right) / 2) + 0.5, np.floor((top + bottom) / 2) + 0.5
    in_scene = (x > 0) & (x < width) & (y > 0) & (y < height)
    burnt = in_scene & shapely.contains_xy(touching, x, y)
    for index in np.flatnonzero(~burnt):
        burnt[index] = _burns(touching[index], Window(0, 0, height, width), labels.all_touched)
    count = int(burnt.sum())
    return Coverage(count, len(touching) - count, len(geometries) - len(touching))


def in_pixels(labels: LabelSet, transform: Affine) -> PixelLabels:
    """Return the labels in pixel coordinates (x = column, y = row); kept for the transform last asked for."""
    key = tuple(transform)[:6]
    if labels.cache.get("transform") != key:
        inverse = ~transform
        geometries = labels.geometries.copy()
        x, y = shapely.get_coordinates(geometries).T
        columns, rows = inverse.a * x + inverse.b * y + inverse.c, inverse.d * x + inverse.e * y + inverse.f
        snapped = np.round(np.column_stack([columns, rows]) * _GRAIN) / _GRAIN
        geometries = shapely.set_coordinates(geometries, snapped)
        labels.cache.update(transform=key, pixels=PixelLabels(geometries, shapely.STRtree(geometries)))
    pixels: PixelLabels = labels.cache["pixels"]
    return pixels


def _burns(geometry: Any, scene: Window, all_touched: bool) -> bool:
    left, top, right, bottom = shapely.bounds(geometry)
    row_off, col_off = int(np.floor(top)), int(np.floor(left))
    bounds = Window(row_off, col_off, int(np.ceil(bottom)) - row_off, int(np.ceil(right)) - col_off)
    window = bounds.intersection(scene)
    if window is None:
        return False
    for tile in tiles(window.height, window.width, _CHECK_SIDE, 0):
        part = tile.write.shifted(window.row_off, window.col_off)
        label = np.zeros(part.shape, np.uint8)
        _rasterize(np.array([geometry]), np.array([1], np.uint8), label, part, all_touched)
        if label.any():
            return True
    return False


def _rasterize(
    geometries: NDArray[Any], ids: NDArray[np.uint8], label: NDArray[np.uint8], window: Window, all_touched: bool
) -> None:
    shapes = zip(_as_geojson(geometries), ids.tolist(), strict=True)
    place = Affine.translation(window.col_off, window.row_off)
    rasterio.features.rasterize(shapes, out=label, transform=place, all_touched=all_touched)


def _as_geojson(geometries: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Yield what rasterio asks of each geometry; all coordinates are fetched in one call, which halves the time."""
    kind, coordinates, (ring_ends, *ends) = shapely.to_ragged_array(geometries)
    points = coordinates.tolist()
    parts: list[Any] = [points[start:stop] for start, stop in pairwise(ring_ends)]
    for level in ends:
        parts = [parts[start:stop] for start, stop in pairwise(level)]
    name = "Polygon" if kind == shapely.GeometryType.POLYGON else "MultiPolygon"
    return ({"type": name, "coordinates": part} for part in parts)
