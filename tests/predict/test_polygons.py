"""Polygons of class maps: against a flood fill, and burnt again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import rasterio.features
import shapely
from affine import Affine
from flood_fill import flood
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from geoseg.geo.grid import Window
from geoseg.predict.polygons import Outline, Sources, Tracing, _Joiner, batches, outlines

NODATA = 255


def traced(values: NDArray[Any], side: int = 1024, **wanted: Any) -> list[Outline]:
    """Return the polygons of a map whose pixels have an area of 1 and a confidence of column / 100."""
    whole = Window(0, 0, *values.shape)
    sure = np.broadcast_to(np.arange(values.shape[1]) / 100, values.shape)
    sources = Sources(lambda w: values[w.within(whole)], lambda w: np.ones((1, 1)), lambda w: sure[w.within(whole)])
    wanted.setdefault("left_out", frozenset({NODATA}))
    return list(outlines(sources, values.shape, Tracing(side=side, **wanted)))


def burnt(found: list[Outline], shape: tuple[int, int]) -> NDArray[np.uint8]:
    pairs = [(outline.polygon, outline.value) for outline in found]
    if not pairs:
        return np.full(shape, NODATA, np.uint8)
    return rasterio.features.rasterize(pairs, shape, fill=NODATA, dtype=np.uint8)


def smooth(shape: tuple[int, int], seed: int = 0) -> NDArray[np.uint8]:
    """Return a map of three classes and nodata with winding borders and single pixels."""
    rng = np.random.default_rng(seed)
    rows, cols = np.mgrid[: shape[0], : shape[1]]
    height = np.sin(rows / 7) + np.cos(cols / 9) + np.sin((rows + 2 * cols) / 13) + rng.normal(0, 0.15, shape)
    return np.array([0, 1, 2, NODATA], np.uint8)[np.digitize(height, [-1, 0.2, 1.3])]


MAPS = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.sampled_from([0, 1, 2, NODATA])
)


@settings(max_examples=120)
@given(values=MAPS, side=st.integers(1, 13))
def test_a_polygon_for_each_region_which_burnt_gives_the_map_again(values: NDArray[np.uint8], side: int):
    found = traced(values, side)
    np.testing.assert_array_equal(burnt(found, values.shape), values)
    assert all(outline.polygon.is_valid and outline.polygon.geom_type == "Polygon" for outline in found)
    expected = sorted(
        (int(values[region[0]]), float(len(region)), round(sum(col for _, col in region) / 100 / len(region), 9))
        for region in flood(values, NODATA)
    )
    assert sorted((o.value, o.area, round(o.confidence, 9)) for o in found) == expected
    assert [o.polygon.area for o in found] == [o.area for o in found]


@settings(max_examples=50)
@given(values=MAPS, side=st.integers(1, 13))
def test_blocks_leave_no_trace(values: NDArray[np.uint8], side: int):
    def normal(found: list[Outline]) -> list[str]:
        return sorted(shapely.to_wkt(shapely.normalize(shapely.Polygon(o.polygon))) for o in found)

    assert normal(traced(values, side)) == normal(traced(values))


def test_classes_may_be_left_out():
    values = smooth((40, 50))
    found = traced(values, 16, left_out=frozenset({NODATA, 0}))
    np.testing.assert_array_equal(burnt(found, values.shape), np.where(values == 0, NODATA, values))


def ring_map() -> NDArray[np.uint8]:
    """A square of class 1, 10 x 10, with holes of 1 and 6 pixels, in class 0; a pixel of class 2 aside."""
    values = np.zeros((20, 24), np.uint8)
    values[4:14, 5:15] = 1
    values[6, 7] = 0
    values[9:11, 9:12] = 2
    values[17, 20] = 2
    return values


@pytest.mark.parametrize("side", [5, 64])
def test_small_polygons_are_left_out_and_small_holes_filled(side: int):
    def areas(**wanted: Any) -> list[tuple[int, float]]:
        return sorted((o.value, o.area) for o in traced(ring_map(), side, left_out=frozenset({0}), **wanted))

    assert areas() == [(1, 93.0), (2, 1.0), (2, 6.0)]
    assert areas(min_area=6) == [(1, 93.0), (2, 6.0)]
    assert areas(fill_holes=6) == [(1, 94.0), (2, 1.0), (2, 6.0)]
    assert areas(fill_holes=7, min_area=94) == [(1, 100.0)]


def test_sizes_may_be_of_ground():
    values = ring_map()
    whole = Window(0, 0, *values.shape)
    sources = Sources(lambda w: values[w.within(whole)], lambda w: np.full((1, 1), 0.25))
    tracing = Tracing(frozenset({0}), 1.5, 0.5, frozenset({"min_area", "fill_holes"}), side=8)
    found = sorted((o.value, o.area) for o in outlines(sources, values.shape, tracing))
    assert found == [(1, 23.5), (2, 1.5)]


@pytest.mark.parametrize("tolerance", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("side", [16, 37, 256])
def test_simplified_polygons_neither_gape_nor_overlap(tolerance: float, side: int):
    values = smooth((90, 120))
    found = traced(values, side, tolerance=tolerance, left_out=frozenset())
    polygons = [o.polygon for o in found]
    assert all(polygon.is_valid for polygon in polygons)
    assert len(found) == len(flood(values))
    whole = shapely.union_all(polygons)
    assert whole.area == sum(polygon.area for polygon in polygons) == 90 * 120
    assert whole.equals(shapely.box(0, 0, 120, 90))
    plain = [o.polygon for o in traced(values, side, left_out=frozenset())]
    assert shapely.get_num_coordinates(polygons).sum() < 0.7 * shapely.get_num_coordinates(plain).sum()


def test_what_is_left_out_is_bounded_by_simplified_lines_too():
    values = smooth((90, 120))
    some = {o.polygon.wkb for o in traced(values, 32, tolerance=2.0)}
    everything = {o.polygon.wkb for o in traced(values, 32, tolerance=2.0, left_out=frozenset()) if o.value != NODATA}
    assert some == everything


@pytest.mark.parametrize("transform", [
    Affine(0.5, 0, 400, 0, -0.5, 900), Affine(2, 0, 100, 0, 2, 50), Affine.rotation(30) * Affine.scale(3, -3),
])  # fmt: skip
def test_coordinates_are_those_of_the_map(transform: Affine):
    values = smooth((40, 50))
    ((polygons, fields),) = batches(iter(traced(values, 16)), transform)
    pairs = list(zip(polygons.tolist(), fields["value"].tolist(), strict=True))
    again = rasterio.features.rasterize(pairs, values.shape, fill=NODATA, transform=transform, dtype=np.uint8)
    np.testing.assert_array_equal(again, values)
    assert all(polygon.is_valid and polygon.exterior.is_ccw for polygon in polygons)
    ground = abs(transform.determinant)
    np.testing.assert_allclose(shapely.area(polygons), fields["area"] * ground, rtol=1e-9)


def test_batches_hold_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("geoseg.predict.polygons.BATCH", 7)
    found = traced(smooth((40, 50)), 16)
    sizes = [len(polygons) for polygons, _ in batches(iter(found), Affine.identity())]
    assert sum(sizes) == len(found)
    assert max(sizes) == 7
    assert len(sizes) == math.ceil(len(found) / 7)


def test_regions_wait_no_longer_than_a_row_of_blocks(monkeypatch: pytest.MonkeyPatch):
    values = np.zeros((640, 32), np.uint8)
    values[np.arange(640) % 8 < 5] = 1  # 80 bars of 5 rows; those across a line between rows of blocks wait
    waiting = []
    closed = _Joiner.closed

    def counted(joiner: _Joiner, last: bool) -> Any:
        yield from closed(joiner, last)
        waiting.append((len(joiner._open), len(joiner._parent)))

    monkeypatch.setattr(_Joiner, "closed", counted)
    found = traced(values, 20, left_out=frozenset({0}))
    assert len(found) == 80
    assert len(waiting) == 32
    assert max(opened for opened, _ in waiting) == 1
    assert max(links for _, links in waiting) <= 3  # its two parts on the line, and itself
    assert waiting[-1] == (0, 0)
