"""Maps of where samples lie, by split: drawings of their footprints, neighbours on one map."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from geoseg.report.svg import INK, QUIET, drawing, line, path, polygon_path, rect, round_step, text

#: Colours of the splits, told apart with any colour vision.
SPLIT_COLOURS = {"trn": "#0072b2", "val": "#e69f00", "tst": "#009e73"}
_SIDE = 340  # of a map, pixels
_MARGIN = 14
_MOST_MAPS = 12
_MOST_FRAMES = 1500  # single samples that are drawn on one map; more would be a slow, grey page
_CELL = 3  # side of a cell of the map in place of samples, pixels
_NEAR = 1.0  # scenes closer than this many of their own sides share a map
_METRES = 111_320.0  # per degree of latitude
_DECODED = 4096  # polygons at once

# From coordinates of the ground to those of a drawing, both (n, 2).
Place = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Footprints:
    """Samples on the ground.

    Attributes:
        splits: (n,) split of each.
        scenes: (n,) scene of each.
        shapes: (n,) polygons, or the bytes (WKB) of polygons, which take a quarter of the memory.
        degrees: Whether coordinates are longitude and latitude; else pixels, rows downwards.
        boxes: (n, 4) left, bottom, right and top of each; worked out if not given.
    """

    splits: NDArray[Any]
    scenes: NDArray[Any]
    shapes: NDArray[Any]
    degrees: bool
    boxes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))

    def __post_init__(self) -> None:
        if len(self.boxes) != len(self.shapes):
            starts = range(0, len(self.shapes), _DECODED)
            boxes = [shapely.bounds(_polygons(self.shapes[start : start + _DECODED])) for start in starts]
            object.__setattr__(self, "boxes", np.concatenate(boxes))

    def part(self, chosen: NDArray[Any]) -> Footprints:
        """Return some of them."""
        columns = (self.splits[chosen], self.scenes[chosen], self.shapes[chosen])
        return Footprints(*columns, self.degrees, self.boxes[chosen])

    def polygons(self) -> NDArray[Any]:
        """Return all polygons."""
        return _polygons(self.shapes)


def _polygons(shapes: NDArray[Any]) -> NDArray[Any]:
    return shapely.from_wkb(shapes) if len(shapes) and isinstance(shapes[0], bytes) else shapes


def _whole(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the box around boxes."""
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def maps(footprints: Footprints, names: Mapping[str, str]) -> tuple[list[str], int]:
    """Return drawings, one for each group of scenes that lie near one another, and how many groups were left out.

    Args:
        footprints: Of all samples.
        names: Scene id to the name to show.
    """
    groups = _groups(footprints)
    groups.sort(key=lambda chosen: (-len(chosen), chosen[0]))
    shown = groups[:_MOST_MAPS]
    return [_map(footprints.part(chosen), names) for chosen in shown], len(groups) - len(shown)


def _groups(footprints: Footprints) -> list[NDArray[np.intp]]:
    """Return places of samples whose scenes are neighbours; in pixels, each scene is alone."""
    ids, owner = np.unique(footprints.scenes.astype(str), return_inverse=True)
    boxes = [_whole(footprints.boxes[owner == scene]) for scene in range(len(ids))]
    group = list(range(len(ids)))
    if footprints.degrees:
        near = [_grown(box) for box in boxes]
        for one in range(len(ids)):
            for other in range(one):
                if near[one].intersects(near[other]):
                    old, new = group[one], group[other]
                    group = [new if label == old else label for label in group]
    labels = np.array(group)[owner]
    return [np.flatnonzero(labels == label) for label in sorted(set(group))]


def _grown(box: NDArray[np.float64]) -> Any:
    left, bottom, right, top = box
    reach = _NEAR * max(right - left, top - bottom) / 2
    return shapely.box(left - reach, bottom - reach, right + reach, top + reach)


def _map(part: Footprints, names: Mapping[str, str]) -> str:
    left, low, right, high = _whole(part.boxes)
    squeeze = math.cos(math.radians((low + high) / 2)) if part.degrees else 1.0
    squeeze = max(squeeze, 0.05)
    across, up = max((right - left) * squeeze, 1e-12), max(high - low, 1e-12)
    scale = _SIDE / max(across, up)
    width, height = max(across * scale, 120) + 2 * _MARGIN, up * scale + 2 * _MARGIN

    def place(points: NDArray[np.float64]) -> NDArray[np.float64]:
        x = (points[:, 0] - left) * squeeze * scale + _MARGIN
        y = (high - points[:, 1]) if part.degrees else (points[:, 1] - low)
        return np.column_stack([x, y * scale + _MARGIN])

    pieces = [rect(0, 0, width, height + 34, "#f6f6f4", rx="4"), *_areas(part, place, names)]
    if len(part.shapes) <= _MOST_FRAMES:
        shapes = shapely.transform(part.polygons(), place)
        frames = [list(zip(*shape.exterior.coords.xy, strict=True)) for shape in shapes]
        pieces.append(path(polygon_path(frames), "none", stroke=INK, stroke_opacity="0.35", stroke_width="0.5"))
    pieces += _legend(part, names, height, across / squeeze if not part.degrees else across, scale)
    return drawing(width, height + 34, pieces, "footprints of samples by split")


def _areas(part: Footprints, place: Place, names: Mapping[str, str]) -> list[str]:
    """Return the ground of each scene and split as one shape."""
    pieces = []
    for split, colour in SPLIT_COLOURS.items():
        for scene in sorted({str(name) for name in part.scenes[part.splits == split]}):
            own = part.part((part.splits == split) & (part.scenes == scene))
            hint = f"{names.get(scene, scene)}: {len(own.shapes):,} {split} samples"
            many = len(own.shapes) > _MOST_FRAMES
            ground = _cells(own.boxes, place) if many else _union(shapely.transform(own.polygons(), place))
            pieces.append(path(ground, colour, hint, fill_opacity="0.55", fill_rule="evenodd"))
    return pieces


def _union(shapes: NDArray[Any]) -> str:
    # Snapped to tenths of a pixel, so that neighbours join and the path stays short.
    whole = shapely.union_all(shapely.set_precision(shapes, 0.1))
    return polygon_path([ring for ground in shapely.get_parts(whole) for ring in _rings(ground)])


def _cells(boxes: NDArray[np.float64], place: Place) -> str:
    """Return the cells of a grid that samples cover, by their boxes: quick, and fine enough for so many."""
    one, other = place(boxes[:, :2]), place(boxes[:, 2:])
    sides = *np.minimum(one, other).T, *np.maximum(one, other).T
    left, top, right, bottom = (np.floor(side / _CELL + 1e-6).astype(int) for side in sides)
    found = [np.column_stack([top, left])]
    for down in range(int((bottom - top).max())):
        for across in range(int((right - left).max())):
            inside = (top + down < bottom) & (left + across < right)
            found.append(np.column_stack([top + down, left + across])[inside])
    spots = np.unique(np.concatenate(found), axis=0)
    # Runs of neighbours in a row are one rectangle.
    starts = np.flatnonzero(np.any(np.diff(spots, axis=0, prepend=-9) != [0, 1], axis=1))
    parts = []
    for start, stop in zip(starts, [*starts[1:], len(spots)], strict=True):
        row, col = (spots[start] * _CELL).tolist()
        length = int(stop - start) * _CELL
        parts.append(f"M{col} {row}h{length}v{_CELL}h-{length}Z")
    return "".join(parts)


def _rings(ground: Any) -> list[list[tuple[float, float]]]:
    if ground.geom_type != "Polygon":
        return []
    return [list(zip(*ring.coords.xy, strict=True)) for ring in (ground.exterior, *ground.interiors)]


def _legend(part: Footprints, names: Mapping[str, str], top: float, across: float, scale: float) -> list[str]:
    scenes = sorted({str(name) for name in part.scenes})
    caption = names.get(scenes[0], scenes[0]) if len(scenes) == 1 else f"{len(scenes)} scenes"
    if len(caption) > 34:
        caption = caption[:33] + "…"
    unit = _METRES if part.degrees else 1.0
    step = round_step(across * unit / 3)
    length = step / unit * scale
    y = top + 16
    label = f"{step / 1000:g} km" if step >= 1000 else f"{step:g} m"
    return [
        text(_MARGIN, top + 8, caption, fill=QUIET),
        line(_MARGIN, y, _MARGIN + length, y, INK, stroke_width="2"),
        text(_MARGIN + length + 6, y + 5, label if part.degrees else f"{step:g} pixels", fill=QUIET),
    ]


def in_pixels(rows: Sequence[int], cols: Sequence[int], size: int) -> NDArray[Any]:
    """Return squares in pixel coordinates (x = column, y = row), for scenes without a place on the globe."""
    left, top = np.asarray(cols, float), np.asarray(rows, float)
    boxes: NDArray[Any] = shapely.box(left, top, left + size, top + size)
    return boxes
