"""The index of a sample store: GeoParquet, one row per sample, to lay over the images in QGIS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
from affine import Affine
from numpy.typing import NDArray

from geoseg.data.footprints import native_footprints, projected
from geoseg.data.sampling import COL, COUNTS, ROW, SPLIT, VALID
from geoseg.data.splits import SPLITS


def write_index(path: Path, records: Sequence[Mapping[str, Any]], rows: Sequence[NDArray[np.int64]], size: int) -> None:
    """Write `index.parquet`.

    Args:
        path: The file.
        records: The scenes' records, in order.
        rows: Per scene (n, COUNTS + classes), see `geoseg.data.sampling`.
        size: Side of a sample, pixels.
    """
    held = [(record, found) for record, found in zip(records, rows, strict=True) if len(found)]
    table = pd.concat([_scene_table(record, found, size) for record, found in held], ignore_index=True)
    footprints = [
        footprints_of(Affine(*r["transform"]), r["crs"], (r["height"], r["width"]), found[:, [ROW, COL]], size)
        for r, found in held
    ]
    frame = geopandas.GeoDataFrame(table, geometry=np.concatenate(footprints), crs="EPSG:4326")
    frame.to_parquet(path, index=False)


def footprints_of(
    transform: Affine, crs: Any, shape: tuple[int, int], offsets: NDArray[np.int64], size: int
) -> NDArray[Any]:
    """Return the ground of samples, clipped to their scene, as polygons in EPSG:4326 (longitude first).

    Args:
        transform: Of the scene's raster.
        crs: Its CRS, or None.
        shape: Its rows and columns.
        offsets: (n, 2) row and column of each sample's upper left pixel.
        size: Side of a sample, pixels.

    Returns:
        (n,) polygons; None where the scene has no CRS or no georeference, or its CRS has no place on the globe.
    """
    if crs is None or transform == Affine.identity():
        return np.full(len(offsets), None, dtype=object)
    sides = np.full((len(offsets), 2), size)
    return projected(native_footprints(transform, shape, np.hstack([offsets, sides])), crs, "EPSG:4326")


def _scene_table(record: Mapping[str, Any], rows: NDArray[np.int64], size: int) -> pd.DataFrame:
    count, scene_id = len(rows), record["id"]
    partly = rows[:, VALID] < size * size
    columns: dict[str, Any] = {
        "split": np.array(SPLITS, object)[rows[:, SPLIT]],
        "scene": [scene_id] * count,
        "row_off": rows[:, ROW],
        "col_off": rows[:, COL],
        "shard": [f"shards/{scene_id}.images.npy"] * count,
        "position": np.arange(count),
        "valid_position": np.where(partly, np.cumsum(partly) - 1, -1),
        "valid_fraction": rows[:, VALID] / (size * size),
    }
    columns |= {f"class_{index}": rows[:, COUNTS + index] for index in range(rows.shape[1] - COUNTS)}
    columns["crs"] = [record["crs"]] * count
    t = Affine(*record["transform"])
    top, left = rows[:, ROW].astype(float), rows[:, COL].astype(float)
    x, y = t.a * left + t.b * top + t.c, t.d * left + t.e * top + t.f
    sides = [np.full(count, side) for side in (t.a, t.b, t.d, t.e)]
    columns["transform"] = np.stack([*sides[:2], x, *sides[2:], y], 1).tolist()
    return pd.DataFrame(columns)
