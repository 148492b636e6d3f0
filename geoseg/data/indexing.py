"""The index of a sample store: GeoParquet, one row per sample, to lay over the images in QGIS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import shapely
from affine import Affine
from numpy.typing import NDArray
from pyproj.exceptions import CRSError, ProjError

from geoseg.data.survey import SceneFacts
from geoseg.geo.raster import RasterInfo


def write_index(path: Path, facts: Sequence[SceneFacts], rows: Sequence[NDArray[np.int64]], size: int) -> None:
    """Write `index.parquet`.

    Args:
        path: The file.
        facts: The scenes, in order.
        rows: Per scene (n, 3 + classes): row_off, col_off, valid pixels, pixels per class.
        size: Side of a sample, pixels.
    """
    tables = [_scene_table(f, r, size) for f, r in zip(facts, rows, strict=True) if len(r)]
    table = pd.concat(tables, ignore_index=True)
    footprints = [footprints_of(f.info, r[:, :2], size) for f, r in zip(facts, rows, strict=True) if len(r)]
    frame = geopandas.GeoDataFrame(table, geometry=np.concatenate(footprints), crs="EPSG:4326")
    frame.to_parquet(path, index=False)


def footprints_of(info: RasterInfo, offsets: NDArray[np.int64], size: int) -> NDArray[Any]:
    """Return the ground of samples, clipped to their scene, as polygons in EPSG:4326 (longitude first).

    Args:
        info: The scene's raster.
        offsets: (n, 2) row and column of each sample's upper left pixel.
        size: Side of a sample, pixels.

    Returns:
        (n,) polygons; None where the scene has no CRS or no georeference, or its CRS has no place on the globe.
    """
    nowhere = np.full(len(offsets), None, dtype=object)
    if info.crs is None or not info.georeferenced:
        return nowhere
    top, left = offsets[:, 0], offsets[:, 1]
    bottom, right = np.minimum(top + size, info.height), np.minimum(left + size, info.width)
    ring = np.stack([np.stack([left, right, right, left], 1), np.stack([top, top, bottom, bottom], 1)], 2)
    t = info.transform
    columns, lines = ring[..., 0].astype(np.float64), ring[..., 1].astype(np.float64)
    x, y = t.a * columns + t.b * lines + t.c, t.d * columns + t.e * lines + t.f
    native = geopandas.GeoSeries(shapely.polygons(np.stack([x, y], 2)), crs=info.crs.to_wkt())
    try:
        geographic = np.asarray(native.to_crs("EPSG:4326").array, object)
    except (CRSError, ProjError):
        return nowhere
    geographic[~np.isfinite(shapely.bounds(geographic)).all(axis=1)] = None
    return geographic


def _scene_table(facts: SceneFacts, rows: NDArray[np.int64], size: int) -> pd.DataFrame:
    count, scene_id, info = len(rows), facts.scene.scene_id, facts.info
    partly = rows[:, 2] < size * size
    columns: dict[str, Any] = {
        "split": [facts.scene.split] * count,
        "scene": [scene_id] * count,
        "row_off": rows[:, 0],
        "col_off": rows[:, 1],
        "shard": [f"shards/{scene_id}.images.npy"] * count,
        "position": np.arange(count),
        "valid_position": np.where(partly, np.cumsum(partly) - 1, -1),
        "valid_fraction": rows[:, 2] / (size * size),
    }
    columns |= {f"class_{index}": rows[:, 3 + index] for index in range(rows.shape[1] - 3)}
    columns["crs"] = [info.crs.to_string() if info.crs else None] * count
    columns["transform"] = [
        list(info.transform * Affine.translation(int(col), int(row)))[:6] for row, col in rows[:, :2]
    ]
    return pd.DataFrame(columns)
