"""Points with attributes, and a table beside them, in one GeoPackage."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pyogrio
import shapely
from numpy.typing import NDArray
from pyogrio.errors import DataLayerError, DataSourceError

from geoseg.errors import DataError, problem
from geoseg.geo.vector.reproject import as_pyproj, move_into

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]


def write_points(
    path: Path, places: NDArray[np.float64], crs: Any, columns: Columns, tables: Mapping[str, Columns]
) -> None:
    """Write a GeoPackage with a layer "points" and tables without geometry; it appears whole or not at all.

    Args:
        path: The file, replaced if it exists.
        places: (n, 2) x and y, in the CRS.
        crs: A rasterio or pyproj CRS, or None.
        columns: Attributes by name; a column of None alone becomes an empty text column.
        tables: Columns by name of the table.

    Raises:
        DataError: The file cannot be written.
    """
    frame = geopandas.GeoDataFrame(_frame(columns), geometry=shapely.points(places), crs=as_pyproj(crs, "the points"))
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.gpkg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pyogrio.write_dataframe(frame, temporary, layer="points", driver="GPKG")
        for name, content in tables.items():
            pyogrio.write_dataframe(_frame(content), temporary, layer=name, driver="GPKG", append=True)
        temporary.replace(path)
    except (DataSourceError, DataLayerError, OSError) as error:
        found = f"a GeoPackage that cannot be written ({error})"
        raise DataError(problem(path, found, "a writable place", "choose another one")) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_table(path: Path, layer: str, needed: Sequence[str]) -> pd.DataFrame:
    """Read the attributes of a layer or table, in the order of the file.

    Args:
        path: The file.
        layer: Name of the layer or table.
        needed: Columns that must be there.

    Raises:
        DataError: No such file, layer or column.
    """
    expected = f"a layer {layer!r} with {', '.join(needed)}"
    remedy = "give the GeoPackage that `evaluate --design` wrote, with all its layers"
    if not path.is_file():
        raise DataError(problem(path, "no such file", expected, remedy))
    try:
        frame = pyogrio.read_dataframe(path, layer=layer, read_geometry=False)
    except (DataSourceError, DataLayerError, ValueError) as error:
        found = f"a file without that layer, or unreadable ({error})"
        raise DataError(problem(path, found, expected, remedy)) from error
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise DataError(problem(f"{path}, layer {layer}", f"no column {', '.join(missing)}", expected, remedy))
    return frame


def moved_points(places: NDArray[np.float64], source: Any, target: Any, where: str) -> NDArray[np.float64]:
    """Return (n, 2) places of one CRS in another.

    Raises:
        DataError: One of the two is missing, or PROJ knows no way.
    """
    transformer = move_into(where, source, target, False, "the first map").transformer
    if transformer is None or len(places) == 0:
        return places
    return np.column_stack(transformer.transform(places[:, 0], places[:, 1]))


def _frame(columns: Columns) -> pd.DataFrame:
    made = {
        name: pd.array(list(values), dtype="string") if all(value is None for value in values) else list(values)
        for name, values in columns.items()
    }
    return pd.DataFrame(made)
