"""Polygons written batch by batch, as GeoPackage, GeoParquet or GeoJSON; memory holds a batch.

The same polygons give the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyogrio
import pyproj
import shapely
from numpy.typing import NDArray
from pyogrio.errors import DataLayerError, DataSourceError, FieldError

from geoseg.errors import DataError, problem
from geoseg.geo.vector.reproject import move_between

#: What a column may hold, by the name used here.
_ARROW = {"whole": pa.int32(), "number": pa.float64(), "text": pa.string()}
_NUMPY = {"whole": np.int32, "number": np.float64, "text": object}
# A GeoPackage says when it was changed last; the time of day would make every file differ.
_NO_DATE = "1970-01-01T00:00:00.000Z"
_DIGITS = 9  # of degrees: a tenth of a millimetre
_TAGS = "geoseg"
_BEGIN = ', "features": ['  # the end of a GeoJSON file's first line
_WGS84 = pyproj.CRS("EPSG:4326")


class PolygonWriter(Protocol):
    """Takes polygons, batch by batch."""

    def write(self, polygons: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        """Write shapely polygons (n,) and their attributes, each (n,)."""

    def close(self) -> None:
        """Finish the file."""


@contextlib.contextmanager
def create_polygons(
    path: Path, crs: pyproj.CRS | None, columns: Mapping[str, str], tags: Mapping[str, str] | None = None
) -> Iterator[PolygonWriter]:
    """Create a file of polygons; if the block raises, it is removed.

    Args:
        path: Name to write; its suffix, one of `FORMATS`, says as what. A file of that name is replaced.
        crs: Of the polygons. GeoJSON is written in WGS 84, and needs one.
        columns: Name of each attribute, and whether it is "whole" (numbers), "number" or "text".
        tags: What the file says about itself; `read_polygon_tags` returns it.

    Raises:
        DataError: If the file cannot be written, or is GeoJSON and there is no CRS.
    """
    path.unlink(missing_ok=True)
    try:
        with _as_data_error(path):
            writer = FORMATS[path.suffix](path, crs, columns, dict(tags or {}))
        try:
            yield _Guarded(writer, path)
        finally:
            with _as_data_error(path):
                writer.close()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, DataSourceError, DataLayerError, FieldError, pa.ArrowException) as error:
        remedy = "check that the folder exists, may be written and has room"
        raise DataError(problem(path, f"a failed write ({error})", "a writable place", remedy)) from error


class _Guarded:
    """A writer whose failures are those that a user can mend."""

    def __init__(self, writer: PolygonWriter, path: Path) -> None:
        self._writer, self._path = writer, path

    def write(self, polygons: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        with _as_data_error(self._path):
            self._writer.write(polygons, columns)

    def close(self) -> None:
        self._writer.close()


class _GeoPackage:
    def __init__(self, path: Path, crs: pyproj.CRS | None, columns: Mapping[str, str], tags: dict[str, str]) -> None:
        self._path, self._crs, self._columns = path, None if crs is None else crs.to_wkt(), columns
        self._tags: dict[str, str] | None = tags or None
        self.write(np.array([], object), {name: np.array([], _NUMPY[kind]) for name, kind in columns.items()})

    def write(self, polygons: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        with _dated(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
            pyogrio.raw.write(
                self._path,
                shapely.to_wkb(polygons),
                [np.asarray(columns[name], _NUMPY[kind]) for name, kind in self._columns.items()],
                list(self._columns),
                layer="classes",
                driver="GPKG",
                geometry_type="Polygon",
                crs=self._crs,
                append=self._path.exists(),
                layer_metadata=self._tags,
            )
        self._tags = None  # appending would write them again

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _dated() -> Iterator[None]:
    key = "OGR_CURRENT_DATE"
    before = pyogrio.get_gdal_config_option(key)
    pyogrio.set_gdal_config_options({key: _NO_DATE})
    try:
        yield
    finally:
        pyogrio.set_gdal_config_options({key: before})


class _GeoParquet:
    def __init__(self, path: Path, crs: pyproj.CRS | None, columns: Mapping[str, str], tags: dict[str, str]) -> None:
        column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["Polygon"], "orientation": "counterclockwise"}
        column["crs"] = None if crs is None else crs.to_json_dict()
        geo = {"version": "1.0.0", "primary_column": "geometry", "columns": {"geometry": column}}
        fields = [pa.field("geometry", pa.binary()), *(pa.field(name, _ARROW[kind]) for name, kind in columns.items())]
        self._schema = pa.schema(fields, {"geo": json.dumps(geo), _TAGS: json.dumps(tags, ensure_ascii=False)})
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, polygons: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        arrays = [shapely.to_wkb(polygons), *(columns[name] for name in self._schema.names[1:])]
        typed = [pa.array(array, field.type) for array, field in zip(arrays, self._schema, strict=True)]
        self._writer.write_batch(pa.record_batch(typed, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _GeoJson:
    """A collection after RFC 7946: longitude and latitude, a feature per line."""

    def __init__(self, path: Path, crs: pyproj.CRS | None, columns: Mapping[str, str], tags: dict[str, str]) -> None:
        if crs is None:
            remedy = "choose gpkg or parquet, or give the image a CRS"
            raise DataError(problem(path, "no CRS", "one, since GeoJSON is in longitude and latitude", remedy))
        self._move = move_between(crs, _WGS84, str(path)).transformer
        self._names = list(columns)
        self._file = path.open("w", encoding="utf-8")
        said = json.dumps({"type": "FeatureCollection", _TAGS: tags}, ensure_ascii=False)
        self._file.write(said[:-1] + _BEGIN)
        self._separator = "\n"

    def write(self, polygons: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        moved = shapely.transform(polygons, self._degrees)
        rows = zip(*(columns[name].tolist() for name in self._names), strict=True)
        for polygon, row in zip(shapely.orient_polygons(moved).tolist(), rows, strict=True):
            # JSON has no NaN.
            known = (None if isinstance(value, float) and math.isnan(value) else value for value in row)
            properties = dict(zip(self._names, known, strict=True))
            feature = {"type": "Feature", "properties": properties, "geometry": shapely.geometry.mapping(polygon)}
            self._file.write(self._separator + json.dumps(feature, ensure_ascii=False))
            self._separator = ",\n"

    def close(self) -> None:
        if not self._file.closed:
            self._file.write("\n]}\n")
            self._file.close()

    def _degrees(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._move is not None:
            places = np.stack(self._move.transform(places[:, 0], places[:, 1]), axis=1)
        return np.round(places, _DIGITS)


#: Suffix to writer.
FORMATS: dict[str, Callable[..., PolygonWriter]] = {".gpkg": _GeoPackage, ".parquet": _GeoParquet, ".geojson": _GeoJson}


def read_polygon_tags(path: Path) -> dict[str, str]:
    """Return what a file of `create_polygons` says about itself; nothing for another file, or none."""
    try:
        if path.suffix == ".gpkg":
            return dict(pyogrio.read_info(path).get("layer_metadata") or {})
        if path.suffix == ".parquet":
            return dict(json.loads((pq.read_schema(path).metadata or {}).get(_TAGS.encode(), b"{}")))
        with path.open(encoding="utf-8") as file:
            return dict(json.loads(file.readline().rstrip().removesuffix(_BEGIN) + "}").get(_TAGS, {}))
    except (OSError, ValueError, DataSourceError, DataLayerError, pa.ArrowException):
        return {}
