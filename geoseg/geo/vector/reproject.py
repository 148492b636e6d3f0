"""From the CRS of the labels to the CRS of the image."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pyproj
import rasterio.crs
import shapely
from numpy.typing import NDArray
from pyproj.exceptions import CRSError, ProjError
from pyproj.transformer import TransformerGroup
from rasterio.enums import WktVersion

from geoseg.errors import DataError, problem
from geoseg.geo.vector.turns import followed, torn, turn_of


class Move(NamedTuple):
    """How label coordinates become image coordinates.

    Attributes:
        transformer: None where they are the same.
        datum_shift: Whether the two are tied to the earth differently.
        warning: What the user should know about it.
    """

    transformer: pyproj.Transformer | None
    datum_shift: bool = False
    warning: str | None = None


def as_pyproj(crs: Any, where: str) -> pyproj.CRS | None:
    """Return the horizontal part of a CRS, or None for none or an undefined one.

    Args:
        crs: A rasterio or pyproj CRS, anything else pyproj reads, or None.
        where: The file it is of, for messages.

    Raises:
        DataError: If it is not a CRS that PROJ knows.
    """
    if crs is None or crs == "":
        return None
    if isinstance(crs, rasterio.crs.CRS):
        if not crs:
            return None
        crs = crs.to_wkt(version=WktVersion.WKT2_2019)
    try:
        result = pyproj.CRS.from_user_input(crs)
    except CRSError as error:
        raise DataError(
            problem(where, f"the CRS {crs} ({error})", "a CRS that PROJ knows", "assign it again")
        ) from error
    if result.name.lower().startswith("undefined"):
        # What GeoPackage writes where its author gave no CRS.
        return None
    return horizontal(result)


def horizontal(crs: pyproj.CRS) -> pyproj.CRS:
    """Return the CRS without heights: polygons are flat, so 32618+5773 is 32618."""
    if crs.is_compound:
        return horizontal(crs.sub_crs_list[0])
    return crs.to_2d() if len(crs.axis_info) == 3 and (crs.is_geographic or crs.is_projected) else crs


def move_into(name: str, labels_crs: Any, image_crs: Any, assume: bool, image: str) -> Move:
    """Return how the coordinates of a label file become those of its image.

    Args:
        name: The label file, for messages.
        labels_crs: Its CRS, or None.
        image_crs: The image's CRS, or None.
        assume: Where one of the two has no CRS, take the coordinates to be of the same one.
        image: The image, for messages.

    Raises:
        DataError: One of the two has no CRS and nothing is assumed, or PROJ knows no way between them.
    """
    source, target = as_pyproj(labels_crs, name), as_pyproj(image_crs, image)
    if source is not None and target is not None:
        return move_between(source, target, name)
    if assume or (source is None and target is None):
        return Move(None)
    remedy = "write the CRS into the file, or set sample.assume_crs: true if the coordinates are of the same CRS"
    if source is None:
        raise DataError(problem(name, "no CRS", f"one, since {image} has {target.name if target else ''}", remedy))
    raise DataError(problem(image, "no CRS", f"one, since its labels {name} have {source.name}", remedy))


def move_between(source: pyproj.CRS, target: pyproj.CRS, where: str) -> Move:
    """Return how coordinates (x, y: east first, whatever the CRS says) of source become those of target.

    Raises:
        DataError: If PROJ knows no way from one to the other.
    """
    if source.equals(target, ignore_axis_order=True):
        return Move(None)
    try:
        transformer = pyproj.Transformer.from_crs(source, target, always_xy=True)
    except ProjError as error:
        found = f"the CRS {source.name}, which does not lead to the image's {target.name}"
        raise DataError(problem(where, found, "a CRS on the earth", "assign the right one to both files")) from error
    shift = _datum(source) != _datum(target)
    warning = None
    if shift and not _best_is_at_hand(source, target):
        warning = (
            f"the shift from {source.name} to {target.name} is approximate (metres): "
            "the grid for the accurate one is not installed"
        )
    return Move(transformer, shift, warning)


def reproject(
    geometries: NDArray[Any], transformer: pyproj.Transformer, where: str, fids: NDArray[Any]
) -> NDArray[Any]:
    """Return geometries with every vertex moved.

    Args:
        geometries: (features,) shapely geometries, two-dimensional.
        transformer: How to move them.
        where: File and layer, for messages.
        fids: (features,) what the file calls each feature.

    Returns:
        The same geometries elsewhere. On a map that repeats itself those that cross its end are whole, on one turn.

    Raises:
        DataError: If a vertex lies outside what the target CRS can express, or a geometry lies across the edge of a map
            that ends there; names the features.
    """
    coordinates, owner = shapely.get_coordinates(geometries, return_index=True)
    if len(coordinates) == 0:
        return geometries.copy()
    try:
        x, y = transformer.transform(coordinates[:, 0], coordinates[:, 1], errcheck=False)
    except ProjError as error:
        found = f"coordinates that cannot be reprojected ({error})"
        raise DataError(
            problem(where, found, "coordinates of the file's CRS", "check the CRS of both files")
        ) from error
    moved = np.column_stack([x, y])
    lost = ~np.isfinite(moved).all(axis=1)
    if lost.any():
        first = coordinates[lost][0]
        names = ", ".join(str(fid) for fid in fids[np.unique(owner[lost])[:10]])
        found = f"feature {names} with a vertex at ({first[0]:g}, {first[1]:g}), which has no place in the image's CRS"
        remedy = "mend or remove these features, or check the CRS of both files"
        raise DataError(problem(where, found, "vertices inside the domain of the CRS", remedy))
    result: NDArray[Any] = shapely.set_coordinates(geometries.copy(), moved)
    turn = turn_of(transformer.target_crs)
    if turn is not None:
        return followed(geometries, result, transformer, turn)
    across = torn(geometries, (coordinates, moved, owner), transformer)
    if len(across):
        names = ", ".join(str(fid) for fid in fids[across[:10]])
        found = f"feature {names} across the edge of the map in the image's CRS"
        remedy = "cut these features there or remove them, or bring the image into another CRS"
        raise DataError(problem(where, found, "polygons that are whole on it", remedy))
    return result


def _best_is_at_hand(source: pyproj.CRS, target: pyproj.CRS) -> bool:
    with warnings.catch_warnings():
        # pyproj warns of the missing grid by itself; ours says what it means and is counted.
        warnings.simplefilter("ignore", UserWarning)
        return bool(TransformerGroup(source, target, always_xy=True).best_available)


def _datum(crs: pyproj.CRS) -> str:
    geodetic = crs.geodetic_crs
    if geodetic is None or geodetic.datum is None:
        return crs.name
    # One datum has two names: as an ensemble of its realisations (WGS 84 by its code) and by itself (in many texts).
    return str(geodetic.datum.name).removesuffix(" ensemble")
