"""The index of a sample store: GeoParquet, one row per sample, to lay over the images in QGIS."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS

from geoseg.data.footprints import native_footprints, projected
from geoseg.data.sampling import COL, COUNTS, ROW, SPLIT, VALID
from geoseg.data.splitnames import SPLITS

_ROWS = 4096  # that are held, and make a row group of the file


def write_index(path: Path, records: Sequence[Mapping[str, Any]], rows: Sequence[NDArray[np.int64]], size: int) -> None:
    """Write `index.parquet`, some thousand rows at a time: memory does not grow with the number of samples.

    Args:
        path: The file.
        records: The scenes' records, in order.
        rows: Per scene (n, COUNTS + classes), see `geoseg.data.sampling`.
        size: Side of a sample, pixels.
    """
    import pyarrow as pa  # heavy, and worker processes never come here
    import pyarrow.parquet as pq

    held: list[Any] = []
    with pq.ParquetWriter(path, _schema(rows[0].shape[1] - COUNTS)) as writer:
        for record, found in zip(records, rows, strict=True):
            partly = 0
            for start in range(0, len(found), _ROWS):
                chunk = found[start : start + _ROWS]
                held.append(_chunk_table(record, chunk, size, start, partly))
                partly += int(np.count_nonzero(chunk[:, VALID] < size * size))
                if sum(table.num_rows for table in held) >= _ROWS:
                    writer.write_table(pa.concat_tables(held))
                    held = []
        if held:
            writer.write_table(pa.concat_tables(held))


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


def _schema(classes: int) -> Any:
    import pyarrow as pa

    whole = ("row_off", "col_off", "position", "valid_position")
    types = {name: pa.int64() for name in (*whole, *(f"class_{index}" for index in range(classes)))}
    types |= {name: pa.string() for name in ("split", "scene", "shard", "crs")}
    types |= {"valid_fraction": pa.float64(), "transform": pa.list_(pa.float64()), "geometry": pa.binary()}
    order = ["split", "scene", "row_off", "col_off", "shard", "position", "valid_position", "valid_fraction"]
    order += [*(f"class_{index}" for index in range(classes)), "crs", "transform", "geometry"]
    crs = CRS.from_epsg(4326).to_json_dict()
    column = {"encoding": "WKB", "geometry_types": ["Polygon"], "crs": crs}
    geo = {"version": "1.0.0", "primary_column": "geometry", "columns": {"geometry": column}}
    return pa.schema([(name, types[name]) for name in order], metadata={"geo": json.dumps(geo)})


def _chunk_table(record: Mapping[str, Any], rows: NDArray[np.int64], size: int, start: int, partly_before: int) -> Any:
    """Return some rows of a scene as a table; `start` and `partly_before` count those that come before."""
    import pyarrow as pa

    count, scene_id = len(rows), record["id"]
    partly = rows[:, VALID] < size * size
    transform, shape = Affine(*record["transform"]), (record["height"], record["width"])
    columns: dict[str, Any] = {
        "split": pa.array(np.array(SPLITS, object)[rows[:, SPLIT]]),
        "scene": pa.repeat(scene_id, count),
        "row_off": rows[:, ROW],
        "col_off": rows[:, COL],
        "shard": pa.repeat(f"shards/{scene_id}.images.npy", count),
        "position": start + np.arange(count),
        "valid_position": np.where(partly, partly_before + np.cumsum(partly) - 1, -1),
        "valid_fraction": rows[:, VALID] / (size * size),
    }
    columns |= {f"class_{index}": rows[:, COUNTS + index] for index in range(rows.shape[1] - COUNTS)}
    columns["crs"] = pa.nulls(count, pa.string()) if record["crs"] is None else pa.repeat(record["crs"], count)
    offsets = pa.array(np.arange(0, 6 * count + 1, 6), pa.int32())
    columns["transform"] = pa.ListArray.from_arrays(offsets, pa.array(_transforms(transform, rows).ravel()))
    footprints = footprints_of(transform, record["crs"], shape, rows[:, [ROW, COL]], size)
    columns["geometry"] = pa.array(shapely.to_wkb(footprints), pa.binary())
    return pa.table(columns, schema=_schema(rows.shape[1] - COUNTS))


def _transforms(t: Affine, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (n, 6) transforms of samples: that of their scene, moved to their corner."""
    top, left = rows[:, ROW].astype(float), rows[:, COL].astype(float)
    x, y = t.a * left + t.b * top + t.c, t.d * left + t.e * top + t.f
    sides = [np.full(len(rows), side) for side in (t.a, t.b, t.d, t.e)]
    return np.stack([*sides[:2], x, *sides[2:], y], 1)
