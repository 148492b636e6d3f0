"""Burning: pixel centres, file order, any transform, the same labels by any tiling."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio.features
import shapely
from affine import Affine
from conftest import TRANSFORM, pixel_box
from hypothesis import given
from hypothesis import strategies as st

from geoseg.geo.grid import Window, sample_blocks, tiles
from geoseg.geo.vector import Coverage, LabelReport, LabelSet, burn, coverage

TRANSFORMS = {
    "plain": TRANSFORM,
    "decimetre": Affine(0.1, 0, 600000.3, 0, -0.1, 5000000.7),
    "south-up": Affine(1, 0, 500000, 0, 1, 4999000),
    "non-square": Affine(1 / 3, 0, 500000.1, 0, -0.7, 5000000.9),
    "rotated": Affine.translation(500000, 5000000) * Affine.rotation(30) * Affine.scale(2, -3),
    "degrees": Affine(5.36e-06, 0, 85.5178, 0, -5.09e-06, 27.6361),
}


def label_set(geometries, ids):
    return LabelSet(np.array(geometries, object), np.array(ids, np.uint8), "layer", LabelReport(len(ids)))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_square_of_pixels_is_burnt_exactly(transform):
    labels = label_set([pixel_box(3, 5, 11, 7, transform), pixel_box(300, 317, 1, 40, transform)], [2, 1])
    expected = np.zeros((400, 500), np.uint8)
    expected[3:14, 5:12] = 2
    expected[300, 317:357] = 1
    np.testing.assert_array_equal(burn(labels, transform, (400, 500)), expected)


def test_a_polygon_takes_the_pixels_whose_centres_it_holds(rng):
    points = rng.uniform(0, 60, (9, 2))
    polygon = shapely.convex_hull(shapely.MultiPoint(points))
    label = burn(label_set([shapely.transform(polygon, _to_ground)], [1]), TRANSFORM, (60, 60))
    columns, rows = np.meshgrid(np.arange(60) + 0.5, np.arange(60) + 0.5)
    np.testing.assert_array_equal(label.astype(bool), shapely.contains_xy(polygon, columns, rows))


def _to_ground(points):
    return np.column_stack(TRANSFORM @ (points[:, 0], points[:, 1]))


@pytest.mark.parametrize("multi", [False, True])
def test_holes_stay_open(multi):
    square = shapely.difference(pixel_box(0, 0, 10, 10), pixel_box(3, 3, 4, 4))
    label = burn(label_set([shapely.MultiPolygon([square]) if multi else square], [1]), TRANSFORM, (10, 10))
    assert np.bincount(label.ravel()).tolist() == [16, 84]
    assert (label[3:7, 3:7] == 0).all()


def test_background_and_unknown_are_written_as_told():
    labels = label_set([pixel_box(0, 0, 2, 2), pixel_box(0, 0, 1, 1)], [255, 0])
    label = burn(labels, TRANSFORM, (3, 3), background=7)
    assert label.tolist() == [[0, 255, 7], [255, 255, 7], [7, 7, 7]]


@pytest.mark.parametrize(("ids", "counts"), [((1, 2), [32, 36]), ((2, 1), [36, 32])])
def test_where_polygons_overlap_the_later_wins(ids, counts):
    labels = label_set([pixel_box(0, 0, 6, 6), pixel_box(4, 4, 6, 6)], ids)
    for side in (10, 3, 7):
        label = np.full((10, 10), 99, np.uint8)
        for tile in tiles(10, 10, side, 0):
            label[tile.write.within(Window(0, 0, 10, 10))] = burn(labels, TRANSFORM, tile.write)
        assert np.bincount(label.ravel(), minlength=3)[1:].tolist() == counts
        assert label[4, 4] == ids[1]


def test_order_holds_among_many(rng):
    corners = rng.integers(0, 80, (400, 2))
    labels = label_set([pixel_box(int(r), int(c), 20, 20) for r, c in corners], np.arange(400) % 250)
    expected = np.full((100, 100), 255, np.uint8)
    for (row, col), value in zip(corners, labels.ids, strict=True):
        expected[row : row + 20, col : col + 20] = value
    np.testing.assert_array_equal(burn(labels, TRANSFORM, (100, 100), 255), expected)


def blobs(rng, transform, count=150, height=300, width=400):
    """Star-shaped polygons in pixel space, some with vertices and edges on pixel centres, brought to the ground."""
    polygons = []
    for index in range(count):
        angles = np.sort(rng.uniform(0, 2 * np.pi, 8))
        radius = rng.uniform(2, 50, 8)
        centre = rng.uniform(-20, [width, height], 2)
        ring = centre + np.column_stack([np.cos(angles), np.sin(angles)]) * radius[:, None]
        if index % 2:
            ring = np.round(ring) + 0.5
        polygons.append(shapely.Polygon(np.column_stack(transform @ (ring[:, 0], ring[:, 1]))))
    return label_set(polygons, rng.integers(0, 5, count))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_any_tiling_gives_the_labels_of_the_whole(transform, rng):
    labels = blobs(rng, transform)
    whole = burn(labels, transform, (300, 400), 9)
    scene = Window(0, 0, 300, 400)
    for side in (37, 64, 256):
        for tile in tiles(300, 400, side, 0):
            np.testing.assert_array_equal(burn(labels, transform, tile.write, 9), whole[tile.write.within(scene)])
    for block in sample_blocks(300, 400, 64, 29, 128):
        np.testing.assert_array_equal(burn(labels, transform, block.window, 9), whole[block.window.within(scene)])


@pytest.mark.parametrize("name", ["plain", "south-up", "rotated", "non-square"])
def test_agrees_with_burning_in_ground_coordinates(name, rng):
    transform = TRANSFORMS[name]
    labels = blobs(rng, transform)
    keep = np.arange(len(labels)) % 2 == 0  # ties at pixel centres are a matter of rounding there
    labels = label_set(labels.geometries[keep], labels.ids[keep])
    pairs = zip(labels.geometries, labels.ids.tolist(), strict=True)
    expected = rasterio.features.rasterize(pairs, (300, 400), fill=9, transform=transform, dtype="uint8")
    np.testing.assert_array_equal(burn(labels, transform, (300, 400), 9), expected)


@given(st.integers(-30, 60), st.integers(-30, 60), st.integers(1, 50), st.integers(1, 50))
def test_windows_may_overhang(row, col, height, width):
    labels = label_set([pixel_box(5, 6, 20, 9), pixel_box(-10, -10, 12, 40)], [1, 2])
    canvas = np.zeros((200, 200), np.uint8)
    canvas[55:75, 56:65] = 1
    canvas[40:52, 40:80] = 2
    window = Window(row, col, height, width)
    np.testing.assert_array_equal(
        burn(labels, TRANSFORM, window), canvas[window.shifted(50, 50).within(Window(0, 0, 200, 200))]
    )


def test_labels_can_be_burnt_into_several_rasters_in_turn():
    labels = label_set([pixel_box(2, 2, 4, 4)], [1])
    coarse = TRANSFORM * Affine.scale(2)
    for _ in range(2):
        assert burn(labels, TRANSFORM, (10, 10)).sum() == 16
        assert burn(labels, coarse, (5, 5)).sum() == 4


def test_no_polygons_give_background():
    assert (burn(label_set([], []), TRANSFORM, (4, 5), 3) == 3).all()
    assert coverage(label_set([], []), TRANSFORM, 4, 5) == Coverage(0, 0, 0)


def test_polygons_thinner_than_a_pixel_burn_none_and_are_counted():
    # 0.4 pixels wide, between the centres of two columns.
    strip = shapely.Polygon([TRANSFORM @ p for p in [(3.8, 1), (4.2, 1), (4.2, 9), (3.8, 9)]])
    on_centres = shapely.Polygon([TRANSFORM @ p for p in [(6.3, 1), (6.7, 1), (6.7, 9), (6.3, 9)]])
    labels = label_set([strip, on_centres, pixel_box(20, 20, 3, 3)], [1, 2, 3])
    assert np.bincount(burn(labels, TRANSFORM, (10, 10)).ravel()).tolist() == [92, 0, 8]
    assert coverage(labels, TRANSFORM, 10, 10) == Coverage(burnt=1, unburnt=1, outside=1)


def test_coverage_counts_every_polygon_as_burning_alone_would(rng):
    labels = blobs(rng, TRANSFORM, 120, 100, 100)
    specks = [shapely.Point(TRANSFORM @ tuple(p)).buffer(0.45) for p in rng.uniform(0, 100, (60, 2))]
    # A ring about its own centroid, hidden under a later polygon too.
    ring = shapely.difference(pixel_box(10, 10, 30, 30), pixel_box(11, 11, 28, 28))
    every = [*labels.geometries, *specks, ring, pixel_box(0, 0, 50, 50)]
    labels = label_set(every, np.ones(len(every)))
    burnt = sum(bool(burn(label_set([g], [1]), TRANSFORM, (100, 100)).any()) for g in every)
    scene = pixel_box(0, 0, 100, 100)
    outside = sum(not g.intersects(scene) for g in every)
    found = coverage(labels, TRANSFORM, 100, 100)
    assert found == Coverage(burnt, len(every) - burnt - outside, outside)
    assert found.unburnt > 5


def test_a_polygon_that_ends_at_the_scenes_edge_burns_none_inside():
    labels = label_set([pixel_box(0, -5, 10, 5)], [1])
    assert burn(labels, TRANSFORM, (10, 10)).sum() == 0
    assert coverage(labels, TRANSFORM, 10, 10).burnt == 0
