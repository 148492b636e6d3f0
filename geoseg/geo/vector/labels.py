"""Reading of label polygons: any vector format, repaired, in the image's CRS, with class ids."""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pyarrow as pa
import pyogrio
import pyproj
import shapely
from numpy.typing import NDArray
from pyogrio.errors import DataLayerError, DataSourceError
from pyproj.exceptions import CRSError

from geoseg.errors import DataError, problem
from geoseg.geo.vector.classes import ClassIds, ClassMapping, class_ids
from geoseg.geo.vector.labelset import LabelReport, LabelSet
from geoseg.geo.vector.reproject import Move, as_pyproj, move_into, reproject
from geoseg.geo.vector.rules import LabelRules
from geoseg.geo.vector.shaping import buffered, burning_order
from geoseg.geo.vector.turns import Turn, turn_of, unrolled

_POLYGON, _MULTIPOLYGON, _COLLECTION = 3, 6, 7


@dataclass
class _Features:
    """Features on their way; the arrays are parallel."""

    geometries: NDArray[Any]
    values: NDArray[Any] | None
    fids: NDArray[Any]
    order: NDArray[Any] | None = None

    def keep(self, flags: NDArray[np.bool_]) -> _Features:
        values, order = (None if column is None else column[flags] for column in (self.values, self.order))
        return _Features(self.geometries[flags], values, self.fids[flags], order)


def read_labels(
    path: str | os.PathLike[str],
    attribute: str | None,
    crs: Any,
    mapping: ClassMapping,
    layer: str | None = None,
    rules: LabelRules | None = None,
    image: str | os.PathLike[str] = "the image",
) -> LabelSet:
    """Read polygons of classes and bring them into an image's CRS.

    Args:
        path: Any file pyogrio reads, or GeoParquet.
        attribute: Column that holds the class; None makes every polygon class 1 (of two).
        crs: The image's CRS (rasterio, pyproj, or anything pyproj reads), or None.
        mapping: What the attribute's values mean.
        layer: Layer name, needed where a file has several of polygons.
        rules: How labels become pixels.
        image: Name of the image, for messages.

    Returns:
        The polygons; none for an empty layer.

    Raises:
        DataError: If the file, layer, attribute, CRS, geometries or values are not usable.
    """
    rules = rules or LabelRules()
    name = os.fspath(path)
    frame, layer = _read(name, [attribute, rules.order_column], layer)
    where = f"{name}, layer {layer}"
    move = move_into(name, frame.crs, crs, rules.assume_crs, os.fspath(image))
    values, order = (
        None if column is None else _column(frame, column, where) for column in (attribute, rules.order_column)
    )
    features = _Features(np.asarray(frame.geometry.array, object), values, frame.index.to_numpy(), order)
    features, done = _usable(features, where, rules.widens, turn_of(as_pyproj(frame.crs, name)))
    if move.transformer is not None:
        features.geometries = reproject(features.geometries, move.transformer, where, features.fids)
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
    labels = LabelSet(features.geometries, found.ids, layer, counts, all_touched=rules.all_touched)
    labels = _shaped(labels, features, rules, as_pyproj(crs, os.fspath(image)), where)
    labels.warnings += _warnings(where, labels.counts, len(labels), move)
    return labels


def _shaped(labels: LabelSet, features: _Features, rules: LabelRules, crs: pyproj.CRS | None, where: str) -> LabelSet:
    """Apply the buffers and the order of burning, and leave out what is no area afterwards."""
    geometries = buffered(labels.geometries, labels.ids, rules.buffers, crs, where)
    gone = shapely.is_empty(geometries)
    flat = ~np.isin(shapely.get_type_id(geometries), (_POLYGON, _MULTIPOLYGON)) & ~gone
    if len(flat) and flat.all():
        raise DataError(_no_areas(geometries, where))
    left = np.flatnonzero(~gone & ~flat)
    column = None if features.order is None else features.order[left]
    order = left[burning_order(geometries[left], labels.ids[left], column, rules, where)]
    counts = replace(labels.counts, vanished=int(gone.sum()), not_polygon=labels.counts.not_polygon + int(flat.sum()))
    return replace(labels, geometries=geometries[order], ids=labels.ids[order], counts=counts)


def _read(name: str, wanted: Sequence[str | None], layer: str | None) -> tuple[geopandas.GeoDataFrame, str]:
    if ":" not in name and not name.startswith("/vsi") and not Path(name).exists():
        raise DataError(problem(name, "no such file", "a vector file", "check the path"))
    try:
        if Path(name).suffix.lower() in (".parquet", ".geoparquet"):
            return _read_parquet(name, wanted)
        layer = _layer(name, layer)
        info = pyogrio.read_info(name, layer=layer)
        columns = _columns(f"{name}, layer {layer}", wanted, list(info["fields"]), info["features"])
        frame = _read_frame(name, layer, columns)
        if not isinstance(frame, geopandas.GeoDataFrame):
            raise DataError(problem(name, f"no geometries in layer {layer}", "polygons", "name another layer"))
    except (DataSourceError, DataLayerError, CRSError, OSError, ValueError) as error:
        found = f"an unreadable vector file ({error})"
        raise DataError(problem(name, found, "GeoPackage, GeoJSON, Shapefile or the like", "check the file")) from error
    for column in wanted:
        if column is not None and _as_written(column, frame.columns) not in frame.columns:
            frame[column] = None
    return frame, layer


def _column(frame: geopandas.GeoDataFrame, column: str, where: str) -> NDArray[Any]:
    try:
        return frame[_as_written(column, frame.columns)].to_numpy(object)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        # A shapefile without a .cpg file does not say how its text is encoded.
        found = f"text in {column} that is not UTF-8 ({error})"
        remedy = "write the file's encoding into a .cpg file beside it, or save it as a GeoPackage"
        raise DataError(problem(where, found, "UTF-8, or a stated encoding", remedy)) from error


def _read_frame(name: str, layer: str, columns: list[str]) -> geopandas.GeoDataFrame:
    # Never by bounding box: that returns features in the order of the spatial index, and the order decides overlaps.
    arguments: dict[str, Any] = {"layer": layer, "columns": columns, "fid_as_index": True}
    try:
        return pyogrio.read_dataframe(name, use_arrow=True, **arguments)
    except Exception:
        # Arrow batches cannot carry everything GDAL can (curves, mixed types); the slower way can.
        return pyogrio.read_dataframe(name, use_arrow=False, **arguments)


def _read_parquet(name: str, wanted: Sequence[str | None]) -> tuple[geopandas.GeoDataFrame, str]:
    frame = geopandas.read_parquet(name).reset_index(drop=True)
    fields = [column for column in frame.columns if column != frame.geometry.name]
    _columns(name, wanted, fields, len(frame))
    return frame, Path(name).stem


def _layer(name: str, layer: str | None) -> str:
    layers = pyogrio.list_layers(name)
    every = [str(row[0]) for row in layers]
    if layer is not None:
        layer = _as_written(layer, every)
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


def _columns(where: str, wanted: Sequence[str | None], fields: list[str], features: int) -> list[str]:
    columns = list(dict.fromkeys(_as_written(column, fields) for column in wanted if column is not None))
    missing = [column for column in columns if column not in fields]
    if features == 0:
        # GeoJSON has no fields where it has no features.
        return [column for column in columns if column in fields]
    if not missing:
        return columns
    name = missing[0]
    near = [f for f in fields if f.lower() == name.lower()] or difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
    raise DataError(problem(where, f"no attribute {name!r}", f"one of {', '.join(fields) or 'none'}", hint))


def _as_written(name: str, names: Iterable[str]) -> str:
    """Return a name as a file writes it: accents may be composed in one and not in the other."""
    known = list(names)
    composed = [unicodedata.normalize("NFC", one) for one in known]
    sought = unicodedata.normalize("NFC", name)
    return name if name in known or sought not in composed else known[composed.index(sought)]


def _usable(features: _Features, where: str, widens: bool, turn: Turn | None) -> tuple[_Features, dict[str, int]]:
    """Leave out what cannot be burnt, drop heights and repair the rest; lines and points stay if buffers may widen."""
    null = np.array([geometry is None for geometry in features.geometries], bool)
    features = features.keep(~null)
    empty = shapely.is_empty(features.geometries)
    features = features.keep(~empty)
    kinds = shapely.get_type_id(features.geometries)
    collections = kinds == _COLLECTION
    features.geometries[collections] = [_polygons_of(geometry) for geometry in features.geometries[collections]]
    polygons = np.isin(shapely.get_type_id(features.geometries), (_POLYGON, _MULTIPOLYGON))
    polygons &= ~shapely.is_empty(features.geometries)
    if len(polygons) and not (widens or polygons.any()):
        raise DataError(_no_areas(features.geometries, where))
    if widens:
        polygons |= ~shapely.is_empty(features.geometries)
    features = features.keep(polygons)
    flat, around = unrolled(shapely.force_2d(features.geometries), turn)
    features.geometries, repaired = _repair(flat)
    left = ~shapely.is_empty(features.geometries)
    features = features.keep(left)
    return features, {
        "null_geometry": int(null.sum()),
        "empty": int(empty.sum() + (~left).sum()),
        "not_polygon": int((~polygons).sum()),
        "repaired": repaired,
        "around": around,
    }


def _no_areas(geometries: NDArray[Any], where: str) -> str:
    found = ", ".join(sorted({geometry.geom_type for geometry in geometries}))
    remedy = "give their classes a buffer in metres (global.classes), or make areas of them first"
    return problem(where, found, "polygons", remedy)


def _repair(geometries: NDArray[Any]) -> tuple[NDArray[Any], int]:
    geometries = geometries.copy()
    invalid = ~shapely.is_valid(geometries) & np.isin(shapely.get_type_id(geometries), (_POLYGON, _MULTIPOLYGON))
    # Unlike a buffer of zero, this keeps every lobe of a self-crossing ring.
    mended = shapely.make_valid(geometries[invalid], method="structure", keep_collapsed=False)
    geometries[invalid] = [_polygons_of(geometry) for geometry in mended]
    return geometries, int((invalid & ~shapely.is_empty(geometries)).sum())


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


def _warnings(where: str, counts: LabelReport, left: int, move: Move) -> list[str]:
    notes = {
        "features without a geometry were left out": counts.null_geometry,
        "features with an empty geometry were left out": counts.empty,
        "points or lines were left out": counts.not_polygon,
        "polygons are narrower than the negative buffer of their class and were left out": counts.vanished,
        "invalid polygons were repaired": counts.repaired,
        "polygons without a value are unknown ground": counts.null_value,
        "polygons have a value of no class": counts.unmapped,
        "polygons have edges of more than half the globe; those that jump from near one end of the map to near the "
        "other are taken to cross it, others as they are drawn": counts.around,
    }
    lines = [f"{where}: {count} {text}" for text, count in notes.items() if count]
    if left == 0:
        what = "no polygon is left" if counts.read else "no features"
        lines.append(f"{where}: {what}; all of the image is background")
    if move.warning:
        lines.append(f"{where}: {move.warning}")
    return lines
