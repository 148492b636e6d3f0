"""Maps of footprints: which scenes share one, and where samples lie on it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import shapely

from geoseg.report import footprints as module
from geoseg.report.footprints import Footprints, in_pixels, maps


def _footprints(*boxes: tuple[str, str, float, float, float], degrees: bool = True) -> Footprints:
    """Return squares given as (split, scene, left, bottom, side)."""
    shapes = np.array([shapely.box(x, y, x + side, y + side) for _, _, x, y, side in boxes], object)
    splits, scenes = (np.array([box[i] for box in boxes], object) for i in (0, 1))
    return Footprints(splits, scenes, shapes, degrees)


def test_neighbours_share_a_map_and_far_scenes_do_not() -> None:
    found = _footprints(("trn", "a", 10, 50, 1), ("val", "b", 11.2, 50, 1), ("trn", "c", 40, 50, 1))
    drawings, left_out = maps(found, {"a": "a.tif", "b": "b.tif", "c": "c.tif"})
    assert len(drawings) == 2
    assert left_out == 0
    assert "2 scenes" in drawings[0]
    assert "c.tif" in drawings[1]


def test_scenes_that_meet_through_a_third_share_a_map() -> None:
    found = _footprints(("trn", "a", 0, 0, 1), ("trn", "c", 3.6, 0, 1), ("trn", "b", 1.8, 0, 1))
    assert len(maps(found, {})[0]) == 1


def test_north_is_up_and_degrees_of_longitude_are_short() -> None:
    # At 60 degrees a degree of longitude is half a degree of latitude long.
    found = _footprints(("trn", "a", 0, 59.5, 1), ("val", "a", 0, 60.5, 0.5))
    (drawing,), _ = maps(found, {})
    trn = re.search(r'<path d="M([^"]+)Z" fill="#0072b2"', drawing)
    val = re.search(r'<path d="M([^"]+)Z" fill="#e69f00"', drawing)
    assert trn is not None
    assert val is not None
    corners = [np.array([p.split() for p in m[1].split("L")], float) for m in (trn, val)]
    across, down = np.ptp(corners[0], axis=0)
    assert across / down == pytest.approx(np.cos(np.radians(60.25)), abs=0.01)
    assert corners[1][:, 1].max() <= corners[0][:, 1].min() + 0.11


def test_rows_of_pixels_go_down() -> None:
    shapes = in_pixels([0, 64], [0, 0], 64)
    names = np.array(["a", "a"], object)
    (drawing,), _ = maps(Footprints(np.array(["trn", "val"], object), names, shapes, False), {})
    trn, val = (float(re.search(rf'd="M[\d.]+ ([\d.]+)[^"]*" fill="{c}"', drawing)[1]) for c in ("#0072b2", "#e69f00"))
    assert trn < val


def test_many_samples_are_drawn_as_ground_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _footprints(*[("trn", "a", 0.01 * i, 0, 0.01) for i in range(200)])
    assert 'fill="none"' in maps(found, {})[0][0]
    monkeypatch.setattr(module, "_MOST_FRAMES", 199)
    (drawing,) = maps(found, {})[0]
    assert 'fill="none"' not in drawing
    assert "200 trn samples" in drawing
    # A row of samples, side by side: one rectangle, as long as the map is wide.
    (ground,) = re.findall(r'<path d="([^"]+)" fill="#0072b2"', drawing)
    length = float(re.fullmatch(r"M\d+ \d+h(\d+)v3h-\d+Z", ground)[1])
    assert length == pytest.approx(340, abs=25)


def test_so_many_maps_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MAPS", 3)
    found = _footprints(*[("trn", f"s{i}", 10 * i, 0, 1) for i in range(5)])
    drawings, left_out = maps(found, {})
    assert (len(drawings), left_out) == (3, 2)
