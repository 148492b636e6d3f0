"""Which polygon is on top, how wide it is, what it touches: worked out by hand or by another way of computing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from conftest import TRANSFORM, UTM18, make_polygons, pixel_box
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import LineString, Point, Polygon

from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.vector import ClassMapping, LabelReport, LabelRules, LabelSet, burn, coverage, read_labels
from geoseg.geo.vector.shaping import buffered

FOUR = ClassMapping(num_classes=4, ignore_values=frozenset({9}))
X, Y = 500000.0, 5000000.0


def labelled(folder: Path, boxes, ids, rules: LabelRules, **columns) -> np.ndarray:
    """Burn boxes (row, col, height, width) of a 10 x 10 scene."""
    path = make_polygons(folder / "a.gpkg", [pixel_box(*box) for box in boxes], {"cls": ids, **columns})
    return burn(read_labels(path, "cls", UTM18, FOUR, rules=rules), TRANSFORM, (10, 10))


# Priority. A = rows and columns 0-5 (36 pixels), B = 4-9 (36 pixels), both hold 4-5 x 4-5 (4 pixels).
A, B = (0, 0, 6, 6), (4, 4, 6, 6)
SMALL = (4, 4, 2, 2)


@pytest.mark.parametrize(
    ("priority", "boxes", "ids", "on_top"),
    [
        ("file", (A, B), [2, 1], 1),
        ("class", (A, B), [2, 1], 2),
        ("class", (A, B), [9, 1], 255),  # unknown ground is above all
        ("area", (SMALL, B), [1, 2], 1),
        ("area", (B, SMALL), [1, 2], 2),
        ("area", (A, B), [2, 1], 1),  # a tie: in the order of the file
        ("rank", (A, B), [2, 1], 2),
    ],
)
def test_what_is_on_top(tmp_path: Path, priority: str, boxes, ids, on_top: int) -> None:
    label = labelled(tmp_path, boxes, ids, LabelRules(priority=priority), rank=[7, 3])
    assert (label[4:6, 4:6] == on_top).all()


def test_a_column_may_be_text_or_null(tmp_path: Path) -> None:
    label = labelled(tmp_path, (A, B), [2, 1], LabelRules(priority="rank"), rank=["10", "9"])
    assert (label[4:6, 4:6] == 2).all()
    label = labelled(tmp_path, (A, B), [2, 1], LabelRules(priority="rank"), rank=[-5.0, None])
    assert (label[4:6, 4:6] == 2).all()


def test_a_column_must_be_there_and_hold_numbers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no attribute 'Rank'.*did you mean 'rank'"):
        labelled(tmp_path, (A, B), [2, 1], LabelRules(priority="Rank"), rank=[1, 2])
    with pytest.raises(DataError, match="column rank with a value that is no number"):
        labelled(tmp_path, (A, B), [2, 1], LabelRules(priority="rank"), rank=["low", "high"])


# All touched


def test_all_touched_burns_what_the_centre_rule_loses(tmp_path: Path) -> None:
    strip = shapely.box(X + 2.6, Y - 7.9, X + 2.9, Y - 3.1)  # between two centres, rows 3-7 of column 2
    path = make_polygons(tmp_path / "a.gpkg", [strip], {"cls": [1]})
    thin = read_labels(path, "cls", UTM18, FOUR)
    assert burn(thin, TRANSFORM, (10, 10)).sum() == 0
    assert coverage(thin, TRANSFORM, 10, 10) == (0, 1, 0)
    touched = read_labels(path, "cls", UTM18, FOUR, rules=LabelRules(all_touched=True))
    expected = np.zeros((10, 10), np.uint8)
    expected[3:8, 2] = 1
    np.testing.assert_array_equal(burn(touched, TRANSFORM, (10, 10)), expected)
    assert coverage(touched, TRANSFORM, 10, 10) == (1, 0, 0)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_all_touched_is_what_intersects_and_the_same_in_any_tiling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    triangles = [Polygon(rng.uniform(-3, 23, (3, 2))) for _ in range(4)]
    flipped = [shapely.transform(t, lambda c: np.column_stack([X + c[:, 0], Y - c[:, 1]])) for t in triangles]
    labels = LabelSet(
        np.array(flipped, object), np.array([1, 2, 3, 1], np.uint8), "a", LabelReport(4), all_touched=True
    )
    whole = burn(labels, TRANSFORM, (20, 20))
    for row in range(20):
        for col in range(20):
            inner = shapely.box(col + 1e-4, row + 1e-4, col + 1 - 1e-4, row + 1 - 1e-4)
            sure = [n for n, triangle in enumerate(triangles) if triangle.intersects(inner)]
            # A line within a hundredth of a pixel may count as touching.
            near = [n for n, triangle in enumerate(triangles) if triangle.intersects(inner.buffer(0.011))]
            last = max(sure, default=-1)
            assert whole[row, col] in {labels.ids[n] for n in near if n >= last} | ({0} if not sure else set())
    labels.cache.clear()
    for window in (Window(3, 5, 7, 9), Window(0, 0, 20, 3), Window(11, 2, 9, 18)):
        rows, cols = window.within(Window(0, 0, 20, 20))
        np.testing.assert_array_equal(burn(labels, TRANSFORM, window), whole[rows, cols])


# Buffers


def area_of(folder: Path, geometry, buffers, crs=UTM18, target=UTM18) -> float:
    path = make_polygons(folder / "b.gpkg", [geometry], {"cls": [1]}, crs=crs)
    labels = read_labels(path, "cls", target, FOUR, rules=LabelRules(buffers=buffers))
    return float(shapely.area(labels.geometries).sum())


def test_a_buffer_grows_only_its_class(tmp_path: Path) -> None:
    boxes = [shapely.box(X, Y, X + 10, Y + 10), shapely.box(X + 50, Y, X + 60, Y + 10)]
    path = make_polygons(tmp_path / "a.gpkg", boxes, {"cls": [1, 2]})
    labels = read_labels(path, "cls", UTM18, FOUR, rules=LabelRules(buffers=(0.0, 2.0)))
    # A square of 10 with round corners of radius 2; the corners are 64-sided.
    assert shapely.area(labels.geometries) == pytest.approx([100 + 80 + np.pi * 4, 100], rel=1e-3)


def test_a_negative_buffer_shrinks_and_what_vanishes_is_counted(tmp_path: Path) -> None:
    boxes = [shapely.box(X, Y, X + 10, Y + 10), shapely.box(X + 50, Y, X + 52, Y + 10)]
    path = make_polygons(tmp_path / "a.gpkg", boxes, {"cls": [1, 1]})
    labels = read_labels(path, "cls", UTM18, FOUR, rules=LabelRules(buffers=(0.0, -1.5)))
    assert shapely.area(labels.geometries).tolist() == [49]
    assert labels.counts.vanished == 1
    assert any("1 polygons are narrower than the negative buffer" in line for line in labels.warnings)


def test_lines_and_points_become_areas(tmp_path: Path) -> None:
    shapes = [LineString([(X, Y), (X + 100, Y)]), Point(X, Y + 50), LineString([(X, Y + 80), (X + 9, Y + 80)])]
    path = make_polygons(tmp_path / "a.gpkg", shapes, {"cls": [1, 1, 2]})
    labels = read_labels(path, "cls", UTM18, FOUR, rules=LabelRules(buffers=(0.0, 3.0)))
    assert shapely.area(labels.geometries) == pytest.approx([600 + np.pi * 9, np.pi * 9], rel=2e-3)
    assert labels.counts.not_polygon == 1
    with pytest.raises(DataError, match=r"LineString, Point, expected polygons; give their classes a buffer"):
        read_labels(path, "cls", UTM18, FOUR)


@pytest.mark.parametrize("target", ["EPSG:4326", "EPSG:3857", "EPSG:32633", "EPSG:2263"])
def test_metres_are_metres_on_the_ground_in_any_crs(tmp_path: Path, target: str) -> None:
    # Measured on the ellipsoid, whatever the CRS: a point grown by 100 m.
    lon, lat = (-73.9, 40.7) if target == "EPSG:2263" else (14.0, 60.0)
    path = make_polygons(tmp_path / "p.gpkg", [Point(lon, lat)], {"cls": [1]}, crs="EPSG:4326")
    labels = read_labels(path, "cls", target, FOUR, rules=LabelRules(buffers=(0.0, 100.0)))
    x, y = shapely.get_coordinates(labels.geometries).T
    back = pyproj.Transformer.from_crs(target, "EPSG:4326", always_xy=True)
    lons, lats = back.transform(x, y)
    _, _, metres = pyproj.Geod(ellps="WGS84").inv(np.full(len(x), lon), np.full(len(x), lat), lons, lats)
    np.testing.assert_allclose(metres, 100, rtol=0.005)


def test_a_buffer_needs_a_crs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no CRS, but buffers in metres"):
        area_of(tmp_path, shapely.box(0, 0, 5, 5), (0.0, 1.0), crs=None, target=None)
    assert area_of(tmp_path, shapely.box(0, 0, 5, 5), (0.0, 0.0), crs=None, target=None) == 25


def test_far_apart_features_are_grown_each_in_its_place() -> None:
    crs = pyproj.CRS("EPSG:4326")
    points = np.array([Point(-120.2, 50), Point(11.3, -33), Point(179.9, 10)], object)
    grown = buffered(points, np.ones(3, np.uint8), (0.0, 500.0), crs, "points")
    for point, circle in zip(points, grown, strict=True):
        lons, lats = shapely.get_coordinates(circle).T
        _, _, metres = pyproj.Geod(ellps="WGS84").inv(
            np.full(len(lons), point.x), np.full(len(lons), point.y), lons, lats
        )
        np.testing.assert_allclose(metres, 500, rtol=0.005)


def test_buffers_come_before_the_order_by_area(tmp_path: Path) -> None:
    # The first is smaller in the file and larger once grown, so it lies beneath.
    boxes = [shapely.box(X + 4, Y - 6, X + 6, Y - 4), shapely.box(X + 3, Y - 6, X + 6, Y - 3)]
    path = make_polygons(tmp_path / "a.gpkg", boxes, {"cls": [1, 2]})
    rules = LabelRules(priority="area", buffers=(0.0, 2.0))
    label = burn(read_labels(path, "cls", UTM18, FOUR, rules=rules), Affine(1, 0, X, 0, -1, Y), (10, 10))
    assert label[5, 5] == 2
    assert label[7, 5] == 1
