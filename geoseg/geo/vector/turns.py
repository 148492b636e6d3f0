"""Polygons on maps that repeat themselves: kept whole where the map ends, and moved to the turn that an image shows.

On a map in degrees, or a cylindrical one, x and x plus a whole turn are the same ground. Files break polygons there in
many ways: longitudes of 0 to 360, vertices that jump from 179 to -179, parts at both ends of the map; and PROJ breaks
them again, since it returns the nearest turn for each vertex by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray
from pyproj.exceptions import ProjError

Points = NDArray[np.float64]
# Moves the points (n, 2) of one ring or line.
MovePoints = Callable[[Points], Points]

_TURN = 1e-9  # of a turn: rounding
_WHOLE = 0.999  # of a turn: an edge so long is meant to run around the globe
_JUMP = 340 / 360  # of a turn: so long, from within 10 degrees of the end to within 10 degrees, it is meant to cross it
_AROUND = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_STEPS = np.linspace(0, 1, 65)[:, None]
_LONG = 1e6  # metres: an edge that a tear may have made
_TORN = 0.4  # of an edge's length: so far beside it lies its middle if the map was torn there


class Turn(NamedTuple):
    """How a map repeats itself.

    Attributes:
        length: Along x: 360 in degrees.
        pole: |y| of the poles, or of something beyond the map's end near them.
    """

    length: float
    pole: float


class Unrolled(NamedTuple):
    """Geometries without jumps, and how many have, or had, edges of more than half a turn and less than a whole one."""

    geometries: NDArray[Any]
    count: int


def turn_of(crs: pyproj.CRS | None) -> Turn | None:
    """Return how a map repeats itself along x; None where it does not, or nobody knows."""
    if crs is None:
        return None
    if crs.is_geographic:
        full = round(2 * math.pi / crs.axis_info[0].unit_conversion_factor, 9)
        return Turn(full, full / 4)
    if not crs.is_projected or crs.geodetic_crs is None:
        return None
    try:
        project = pyproj.Transformer.from_crs(crs.geodetic_crs, crs, always_xy=True)
    except ProjError:
        return None
    full = (turn_of(crs.geodetic_crs) or Turn(360.0, 90.0)).length
    for start in (0.0, 0.25):  # one of the two is clear of the map's end
        grid = [((start + part) * full, lat * full) for part in (0, 0.1, 0.2) for lat in (0, 0.1)]
        x = [project.transform(*point)[0] for point in grid]
        if not np.isfinite(x).all():
            return None
        turn = (x[4] - x[0]) * 5
        even = abs(x[4] - 2 * x[2] + x[0]) < _TURN * abs(turn)
        upright = all(abs(x[i] - x[i + 1]) < _TURN * abs(turn) for i in (0, 2, 4))
        if turn and even and upright:
            return Turn(abs(float(turn)), abs(float(turn)))
    return None


def unrolled(geometries: NDArray[Any], turn: Turn | None) -> Unrolled:
    """Return geometries whose edges from near one end of the map to near the other go the shorter way, across the end.

    Other long edges are left as they are drawn, around half the globe or all of it.

    Args:
        geometries: (features,) two-dimensional.
        turn: Of their CRS, from `turn_of`.
    """
    if turn is None:
        return Unrolled(geometries, 0)
    wide = _wide(geometries, turn)
    result = geometries.copy()
    for index in wide:
        result[index] = _rebuilt(geometries[index], partial(_short, turn=turn.length), turn)
    long = [any(_is_long(points, turn.length).any() for points in _sequences(geometries[index])) for index in wide]
    return Unrolled(result, sum(long))


def followed(
    geometries: NDArray[Any], moved: NDArray[Any], transformer: pyproj.Transformer, turn: Turn | None
) -> NDArray[Any]:
    """Return moved geometries joined again where their vertices came to lie on different turns.

    Args:
        geometries: (features,) before they were moved, without jumps.
        moved: The same, every vertex for itself.
        transformer: What moved them.
        turn: Of the CRS they were moved to.
    """
    if turn is None:
        return moved
    source = turn_of(transformer.source_crs)
    result = moved.copy()
    for index in _wide(moved, turn):
        sources = iter(_sequences(geometries[index]))
        turns = None if source is None else source.length, turn.length
        follow = partial(_follow, sources=sources, transformer=transformer, turns=turns)
        result[index] = _rebuilt(moved[index], follow, turn)
    return result


def torn(
    geometries: NDArray[Any], vertices: tuple[Points, Points, NDArray[np.intp]], transformer: pyproj.Transformer
) -> NDArray[np.intp]:
    """Return the places of geometries that lie across the edge of a map which does not repeat itself.

    Args:
        geometries: (features,) before they were moved.
        vertices: Theirs, (n, 2), before and after, and (n,) the feature that each belongs to.
        transformer: What moved them.
    """
    before, after, owner = vertices
    factor = transformer.target_crs.axis_info[0].unit_conversion_factor if transformer.target_crs else 1.0
    if np.ptp(after, axis=0).max() * factor < _LONG:
        return np.zeros(0, np.intp)
    length = np.hypot(*np.diff(after, axis=0).T)
    long = np.flatnonzero((length * factor > _LONG) & (owner[1:] == owner[:-1]))
    if not len(long):
        return long
    x, y = transformer.transform(*((before[long] + before[long + 1]) / 2).T, errcheck=False)
    middle = (after[long] + after[long + 1]) / 2
    beside = np.hypot(x - middle[:, 0], y - middle[:, 1]) > _TORN * length[long]
    # Where two rings of one geometry meet in the list of vertices there is no edge.
    ends = np.concatenate([[0], np.cumsum([len(s) for g in geometries for s in _sequences(g)])]) if beside.any() else []
    edges = long[beside]
    return np.unique(owner[edges[~np.isin(edges + 1, ends)]])


def laid(geometries: NDArray[Any], turn: Turn, left: float, right: float) -> NDArray[Any]:
    """Return geometries on the turns that a map of x from `left` to `right` shows: on several, or as they are on none.

    Args:
        geometries: (features,) without jumps.
        turn: Of their CRS.
        left: Least x of the map.
        right: Greatest x.
    """
    low, _, high, _ = shapely.bounds(geometries).T.reshape(4, -1)
    first, last = _turns(low, high, turn.length, left, right)
    result = geometries.copy()
    for index in np.flatnonzero((first <= last) & ((first != 0) | (last != 0))):
        result[index] = _copied(geometries[index], turn.length, left, right)
    return result


def _turns(low: Any, high: Any, turn: float, left: float, right: float) -> tuple[Any, Any]:
    """Return the first and last whole turn by which x from low to high comes to lie on a map; first > last for none."""
    first = np.floor((left - high) / turn + _TURN) + 1
    last = np.ceil((right - low) / turn - _TURN) - 1
    return first, last


def _copied(geometry: Any, turn: float, left: float, right: float) -> Any:
    parts = []
    for part in shapely.get_parts(geometry):
        low, _, high, _ = shapely.bounds(part)
        first, last = _turns(low, high, turn, left, right)
        shifts = np.arange(first, last + 1) * turn if first <= last else [0.0]
        parts += [shapely.transform(part, partial(np.add, [shift, 0.0])) if shift else part for shift in shifts]
    if len(parts) == 1:
        return parts[0]
    return shapely.union_all(parts)


def _wide(geometries: NDArray[Any], turn: Turn) -> NDArray[np.intp]:
    """Return the places of geometries so wide that an edge may be longer than half a turn."""
    low, _, high, _ = shapely.bounds(geometries).T.reshape(4, -1)
    return np.flatnonzero(high - low > turn.length / 2)


def _short(points: Points, turn: float) -> Points:
    """Return a ring or line whose edges from one end of the map to the other go across it."""
    steps = np.diff(points[:, 0]) / turn
    jumps = _is_long(points, turn) & (np.abs(steps) > _JUMP)
    return _shifted(points, np.where(jumps, -np.round(steps), 0), turn)


def _is_long(points: Points, turn: float) -> NDArray[np.bool_]:
    """Tell of each edge of a ring or line whether it is longer than half a turn, and no whole one."""
    steps = np.abs(np.diff(points[:, 0])) / turn
    return (steps > 0.5) & (steps < _WHOLE)


def _follow(points: Points, sources: Any, transformer: pyproj.Transformer, turns: tuple[float | None, float]) -> Points:
    """Return a moved ring or line shifted by whole turns so that each edge is as long as where it came from."""
    before: Points = next(sources)
    source, turn = turns
    steps = np.diff(points[:, 0]) / turn
    wraps = np.zeros(len(steps))
    for edge in np.flatnonzero(np.abs(steps) > 0.5):
        if source is not None:
            expected = (before[edge + 1, 0] - before[edge, 0]) / source
        else:
            between = before[edge] + (before[edge + 1] - before[edge]) * _STEPS
            x, _ = transformer.transform(*between.T, errcheck=False)
            small = np.diff(x) / turn
            expected = float((small - np.round(small)).sum())
        wraps[edge] = np.round(expected - steps[edge])
    return _shifted(points, wraps, turn)


def _shifted(points: Points, wraps: NDArray[np.float64], turn: float) -> Points:
    """Return points shifted from each edge on by the whole turns given for it; the same object if there are none."""
    if not wraps.any():
        return points
    return points + np.column_stack([np.concatenate([[0.0], np.cumsum(wraps)]) * turn, np.zeros(len(points))])


def _sequences(geometry: Any) -> list[Points]:
    """Return the points of each ring and line of a geometry, in order."""
    found = []
    for part in shapely.get_parts(geometry):
        rings = shapely.get_rings(part) if part.geom_type == "Polygon" else [part]
        found += [shapely.get_coordinates(ring) for ring in rings]
    return found


def _rebuilt(geometry: Any, move: MovePoints, turn: Turn) -> Any:
    """Return a geometry with its rings and lines moved; the same object if nothing moved."""
    sequences = _sequences(geometry)
    moved = [move(points) for points in sequences]
    if all(new is old for new, old in zip(moved, sequences, strict=True)):
        return geometry
    rings = iter(moved)
    parts = []
    for part in shapely.get_parts(geometry):
        if part.geom_type == "Polygon":
            parts.append(_polygon([next(rings) for _ in range(1 + len(part.interiors))], turn))
        else:
            parts.append(shapely.set_coordinates(shapely.force_2d(part), next(rings)))
    valid = [shapely.make_valid(p, method="structure", keep_collapsed=False) if not p.is_valid else p for p in parts]
    return valid[0] if len(valid) == 1 else shapely.union_all(valid)


def _polygon(rings: list[Points], turn: Turn) -> Any:
    """Return the polygon of an outer ring and its holes; one that goes around a pole runs on to it and back."""
    outer, *holes = rings
    if _ends(outer, turn):
        return shapely.Polygon(outer, [_near(hole, outer, turn.length) for hole in holes])
    whole = shapely.make_valid(shapely.Polygon(_closed(outer, turn)), method="structure", keep_collapsed=False)
    cut = [shapely.Polygon(_closed(hole + [shift, 0.0], turn)) for hole in holes for shift in turn.length * _AROUND]
    return whole.difference(shapely.union_all(shapely.make_valid(cut, method="structure", keep_collapsed=False)))


def _ends(ring: Points, turn: Turn) -> bool:
    """Tell whether a ring ends on the turn on which it began; around a pole it does not."""
    return bool(abs(ring[-1, 0] - ring[0, 0]) < turn.length / 2)


def _closed(ring: Points, turn: Turn) -> Points:
    if _ends(ring, turn):
        return ring
    pole = math.copysign(turn.pole, ring[:, 1].mean())
    return np.concatenate([ring, [[ring[-1, 0], pole], [ring[0, 0], pole], ring[0]]])


def _near(hole: Points, outer: Points, turn: float) -> Points:
    """Return a hole on the turn of its polygon."""
    shift = np.round((outer[:, 0].min() + outer[:, 0].max() - hole[:, 0].min() - hole[:, 0].max()) / 2 / turn)
    return hole + [shift * turn, 0.0] if shift else hole
