"""Reading of label polygons: any vector format, repaired, in the image's CRS, with class ids."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pyogrio
import shapely
from numpy.typing import NDArray
from pyogrio.errors import DataLayerError, DataSourceError
from pyproj.exceptions import CRSError

from geoseg.errors import DataError, problem
from geoseg.geo.vector.classes import ClassIds, ClassMapping, class_ids
from geoseg.geo.vector.reproject import Move, as_pyproj, move_between, reproject

_POLYGON, _MULTIPOLYGON, _COLLECTION = 3, 6, 7


@dataclass(frozen=True)
class LabelReport:
    """What was done to the features of a label file.

    Attributes:
        read: Features in the layer.
        null_geometry: Features without a geometry (left out).
        empty: Features with an empty geometry, or none left after repair (left out).
        not_polygon: Points and lines (left out).
        repaired: Self-crossing or otherwise invalid polygons that were repaired.
        null_value: Polygons without an attribute value (unknown ground).
        ignored: Polygons with a value to ignore (unknown ground).
        unmapped: Polygons whose value stands for no class.
        reprojected: Whether they were in another CRS than the image.
        datum_shift: Whether that CRS is tied to the earth differently.
    """

    read: int
    null_geometry: int = 0
    empty: int = 0
    not_polygon: int = 0
    repaired: int = 0
    null_value: int = 0
    ignored: int = 0
    unmapped: int = 0
    reprojected: bool = False
    datum_shift: bool = False


@dataclass
class LabelSet:
    """Polygons with class ids, in the image's CRS.

    Attributes:
        geometries: (features,) shapely polygons and multipolygons in the order of the file.
        ids: (features,) uint8 class ids or the ignore value.
        layer: Name of the layer they came from.
        counts: What was done to them.
        warnings: What the user should know, one line each.
        cache: Pixel coordinates for burning; not carried to other processes.
    """

    geometries: NDArray[Any]
    ids: NDArray[np.uint8]
    layer: str
    counts: LabelReport
    warnings: list[str] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.geometries)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}


@dataclass
class _Features:
    """Features on their way; the arrays are parallel."""

    geometries: NDArray[Any]
    values: NDArray[Any] | None
    fids: NDArray[Any]

    def keep(self, flags: NDArray[np.bool_]) -> _Features:
        values = None if self.values is None else self.values[flags]
        return _Features(self.geometries[flags], values, self.fids[flags])


def read_labels(
    path: str | os.PathLike[str],
    attribute: str | None,
    crs: Any,
    mapping: ClassMapping,
    layer: str | None = None,
    assume_crs: bool = False,
    image: str | os.PathLike[str] = "the image",
) -> LabelSet:
    """Read polygons of classes and bring them into an image's CRS.

    Args:
        path: Any file pyogrio reads, or GeoParquet.
        attribute: Column that holds the class; None makes every polygon class 1 (of two).
        crs: The image's CRS (rasterio, pyproj, or anything pyproj reads), or None.
        mapping: What the attribute's values mean.
        layer: Layer name, needed where a file has several of polygons.
        assume_crs: Where one of the two has no CRS, take their coordinates to be of the same one.
        image: Name of the image, for messages.

    Returns:
        The polygons; none for an empty layer.

    Raises:
        DataError: If the file, layer, attribute, CRS, geometries or values are not usable.
    """
    name = os.fspath(path)
    frame, layer = _read(name, attribute, layer)
    where = f"{name}, layer {layer}"
    move = _move(name, frame.crs, crs, assume_crs, os.fspath(image))
    values = None if attribute is None else frame[attribute].to_numpy(object)
    features = _Features(np.asarray(frame.geometry.array, object), values, frame.index.to_numpy())
    features, done = _usable(features, where)
    if move.transformer is not None:
        moved = reproject(features.geometries, move.transformer, where, features.fids)
        features = _Features(moved, features.values, features.fids)
    found = _ids(features, attribute, mapping, where)
    counts = LabelReport(
        read=len(frame),
        null_value=found.null,
        ignored=found.ignored,
        unmapped=found.unmapped,
        reprojected=move.transformer is not None,
        datum_shift=move.datum_shift,
        **done,
    )
    return LabelSet(features.geometries, found.ids, layer, counts, _warnings(where, counts, move))


def _read(name: str, attribute: str | None, layer: str | None) -> tuple[geopandas.GeoDataFrame, str]:
    if ":" not in name and not name.startswith("/vsi") and not Path(name).exists():
        raise DataError(problem(name, "no such file", "a vector file", "check the path"))
    try:
        if Path(name).suffix.lower() in (".parquet", ".geoparquet"):
            return _read_parquet(name, attribute)
        layer = _layer(name, layer)
        info = pyogrio.read_info(name, layer=layer)
        columns = _columns(f"{name}, layer {layer}", attribute, list(info["fields"]), info["features"])
        frame = _read_frame(name, layer, columns)
        if not isinstance(frame, geopandas.GeoDataFrame):
            raise DataError(problem(name, f"no geometries in layer {layer}", "polygons", "name another layer"))
    except (DataSourceError, DataLayerError, CRSError, OSError, ValueError) as error:
        found = f"an unreadable vector file ({error})"
        raise DataError(problem(name, found, "GeoPackage, GeoJSON, Shapefile or the like", "check the file")) from error
    if attribute is not None and attribute not in frame.columns:
        frame[attribute] = None
    return frame, layer


def _read_frame(name: str, layer: str, columns: list[str]) -> geopandas.GeoDataFrame:
    # Never by bounding box: that returns features in the order of the spatial index, and the order decides overlaps.
    arguments: dict[str, Any] = {"layer": layer, "columns": columns, "fid_as_index": True}
    try:
        return pyogrio.read_dataframe(name, use_arrow=True, **arguments)
    except Exception:
        # Arrow batches cannot carry everything GDAL can (curves, mixed types); the slower way can.
        return pyogrio.read_dataframe(name, use_arrow=False, **arguments)


def _read_parquet(name: str, attribute: str | None) -> tuple[geopandas.GeoDataFrame, str]:
    frame = geopandas.read_parquet(name).reset_index(drop=True)
    fields = [column for column in frame.columns if column != frame.geometry.name]
    _columns(name, attribute, fields, len(frame))
    return frame, Path(name).stem


def _layer(name: str, layer: str | None) -> str:
    layers = pyogrio.list_layers(name)
    every = [str(row[0]) for row in layers]
    if layer is not None:
        if layer not in every:
            raise DataError(problem(name, f"no layer {layer!r}", f"one of {', '.join(every)}", "correct the layer"))
        return layer
    # A table without geometry is None here; a layer of mixed kinds is Unknown and may hold polygons.
    candidates = [str(row[0]) for row in layers if row[1] is not None]
    if len(candidates) > 1:
        polygons = [str(row[0]) for row in layers if "Polygon" in str(row[1])]
        candidates = polygons if len(polygons) == 1 else candidates
    if len(candidates) != 1:
        found = f"{len(candidates)} layers ({', '.join(candidates)})" if candidates else "no layer with geometries"
        raise DataError(problem(name, found, "one layer of polygons", "save the wanted layer as a file of its own"))
    return candidates[0]


def _columns(where: str, attribute: str | None, fields: list[str], features: int) -> list[str]:
    if attribute is None:
        return []
    if attribute in fields:
        return [attribute]
    if features == 0:
        # GeoJSON has no fields where it has no features.
        return []
    near = [f for f in fields if f.lower() == attribute.lower()] or difflib.get_close_matches(attribute, fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
    raise DataError(problem(where, f"no attribute {attribute!r}", f"one of {', '.join(fields) or 'none'}", hint))


def _move(name: str, labels_crs: Any, image_crs: Any, assume: bool, image: str) -> Move:
    source, target = as_pyproj(labels_crs, name), as_pyproj(image_crs, image)
    if source is not None and target is not None:
        return move_between(source, target, name)
    if assume or (source is None and target is None):
        return Move(None)
    remedy = "write the CRS into the file, or set sample.assume_crs: true if the coordinates are of the same CRS"
    if source is None:
        raise DataError(problem(name, "no CRS", f"one, since {image} has {target.name if target else ''}", remedy))
    raise DataError(problem(image, "no CRS", f"one, since its labels {name} have {source.name}", remedy))


def _usable(features: _Features, where: str) -> tuple[_Features, dict[str, int]]:
    """Leave out what cannot be burnt, drop heights and repair the rest."""
    null = np.array([geometry is None for geometry in features.geometries], bool)
    features = features.keep(~null)
    empty = shapely.is_empty(features.geometries)
    features = features.keep(~empty)
    kinds = shapely.get_type_id(features.geometries)
    collections = kinds == _COLLECTION
    features.geometries[collections] = [_polygons_of(geometry) for geometry in features.geometries[collections]]
    polygons = np.isin(shapely.get_type_id(features.geometries), (_POLYGON, _MULTIPOLYGON))
    polygons &= ~shapely.is_empty(features.geometries)
    if len(polygons) and not polygons.any():
        found = sorted({geometry.geom_type for geometry in features.geometries})
        raise DataError(problem(where, ", ".join(found), "polygons", "buffer lines and points into areas first"))
    features = features.keep(polygons)
    geometries, repaired = _repair(shapely.force_2d(features.geometries))
    left = ~shapely.is_empty(geometries)
    features = _Features(geometries, features.values, features.fids).keep(left)
    return features, {
        "null_geometry": int(null.sum()),
        "empty": int(empty.sum() + (~left).sum()),
        "not_polygon": int((~polygons).sum()),
        "repaired": repaired,
    }


def _repair(geometries: NDArray[Any]) -> tuple[NDArray[Any], int]:
    geometries = geometries.copy()
    invalid = ~shapely.is_valid(geometries)
    # Unlike a buffer of zero, this keeps every lobe of a self-crossing ring.
    mended = shapely.make_valid(geometries[invalid], method="structure", keep_collapsed=False)
    geometries[invalid] = [_polygons_of(geometry) for geometry in mended]
    return geometries, int(invalid.sum())


def _polygons_of(geometry: Any) -> Any:
    if geometry.geom_type in ("Polygon", "MultiPolygon"):
        return geometry
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.union_all(parts[shapely.get_type_id(parts) == _POLYGON])


def _ids(features: _Features, attribute: str | None, mapping: ClassMapping, where: str) -> ClassIds:
    if attribute is not None:
        assert features.values is not None
        return class_ids(features.values, mapping, f"{where}, attribute {attribute}")
    if mapping.num_classes != 2:
        found = f"no attribute for {mapping.num_classes} classes"
        raise DataError(problem(where, found, "the name of the column that holds the class", "add it to the CSV"))
    return ClassIds(np.ones(len(features.geometries), np.uint8), 0, 0, 0)


def _warnings(where: str, counts: LabelReport, move: Move) -> list[str]:
    notes = {
        "features without a geometry were left out": counts.null_geometry,
        "features with an empty geometry were left out": counts.empty,
        "points or lines were left out": counts.not_polygon,
        "invalid polygons were repaired": counts.repaired,
        "polygons without a value are unknown ground": counts.null_value,
        "polygons have a value of no class": counts.unmapped,
    }
    lines = [f"{where}: {count} {text}" for text, count in notes.items() if count]
    if counts.read == 0:
        lines.append(f"{where}: no features; all of the image is background")
    if move.warning:
        lines.append(f"{where}: {move.warning}")
    return lines
