"""Areas of pixels against the geodesic areas of their corners, and against plain geometry."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from conftest import make_raster
from pyproj import Geod, Proj

from geoseg.geo.grid import Window
from geoseg.geo.pixelarea import PixelAreas
from geoseg.geo.raster import read_info


def areas(folder: Path, transform: Affine | None, crs: str | None, window: Window, shape=(200, 150)):
    path = make_raster(folder / "a.tif", np.zeros(shape, np.uint8), transform, crs)
    made = PixelAreas(read_info(path))
    return np.broadcast_to(made.of(window), window.shape), made.unit


def geodesic(corners, crs: str = "EPSG:4326") -> float:
    """Return the area of a polygon whose sides follow the lines of the CRS: its sides are cut into short geodesics."""
    corners = [*corners, corners[0]]
    points = [
        np.asarray(a) + (np.asarray(b) - np.asarray(a)) * t
        for a, b in pairwise(corners)
        for t in np.linspace(0, 1, 50, endpoint=False)
    ]
    x, y = np.array(points).T
    lon, lat = (x, y) if crs == "EPSG:4326" else Proj(crs)(x, y, inverse=True)
    return abs(Geod(ellps="WGS84").polygon_area_perimeter(lon, lat)[0])


def corners_of(transform: Affine, row: int, col: int, height: int = 1, width: int = 1):
    places = [(col, row), (col + width, row), (col + width, row + height), (col, row + height)]
    return [transform @ place for place in places]


def test_projected_pixels_are_their_sides(tmp_path: Path):
    window = Window(3, 5, 20, 30)
    made, unit = areas(tmp_path, Affine(0.5, 0, 500000, 0, -2, 5e6), "EPSG:32618", window)
    assert unit == "m2"
    np.testing.assert_array_equal(made, np.full((20, 30), 1.0))
    turned = Affine(0.5, 0, 500000, 0, -2, 5e6) @ Affine.rotation(30)
    np.testing.assert_allclose(areas(tmp_path, turned, "EPSG:32618", window)[0], 1.0, rtol=1e-12)


def test_feet_become_metres(tmp_path: Path):
    made, _ = areas(tmp_path, Affine(10, 0, 2e6, 0, -10, 7e5), "EPSG:2263", Window(0, 0, 1, 1))
    assert made[0, 0] == pytest.approx((10 * 1200 / 3937) ** 2, rel=1e-9)  # US survey feet


def test_pixels_without_a_crs_count_one(tmp_path: Path):
    made, unit = areas(tmp_path, Affine(0.5, 0, 0, 0, -0.5, 0), None, Window(0, 0, 2, 2))
    assert (made.sum(), unit) == (4, "px")


def test_geographic_rows(tmp_path: Path):
    transform = Affine(0.25, 0, -10, 0, -0.4, 79)  # rows from 79 degrees north to 1 south
    made, _ = areas(tmp_path, transform, "EPSG:4326", Window(0, 0, 200, 2))
    for row in (0, 77, 150, 197, 199):
        assert made[row, 1] == pytest.approx(geodesic(corners_of(transform, row, 1)), rel=1e-5)


def test_the_whole_earth(tmp_path: Path):
    made, _ = areas(tmp_path, Affine(1, 0, -180, 0, -1, 90), "EPSG:4326", Window(0, 0, 180, 360), (180, 360))
    assert made.sum() == pytest.approx(510_065_621_724_088, rel=1e-12)  # WGS 84


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:3857", Affine(3000, 0, 1.4e6, 0, -3000, 7.9e6)),  # 58 to 53 degrees north: a third of the projected area
        ("EPSG:3995", Affine(20000, 0, 2.5e6, 0, -20000, -1.5e6)),  # polar stereographic, far from its centre
        ("EPSG:4326", Affine(0.02, 0, 10, 0, -0.02, 60) @ Affine.rotation(25)),
    ],
)
def test_enlarging_projections_and_turned_degrees(tmp_path: Path, crs: str, transform: Affine):
    window = Window(10, 20, 170, 110)
    made, unit = areas(tmp_path, transform, crs, window)
    assert unit == "m2"
    for row, col in ((0, 0), (169, 109), (83, 40)):
        expected = geodesic(corners_of(transform, row + 10, col + 20), crs)
        assert made[row, col] == pytest.approx(expected, rel=2e-4)
    whole = geodesic(corners_of(transform, 10, 20, 170, 110), crs)
    assert made.sum() == pytest.approx(whole, rel=2e-4)


def test_any_window_gives_the_same_areas(tmp_path: Path):
    transform = Affine(0.25, 0, -10, 0, -0.4, 79)
    whole, _ = areas(tmp_path, transform, "EPSG:4326", Window(0, 0, 200, 150))
    part, _ = areas(tmp_path, transform, "EPSG:4326", Window(37, 11, 90, 70))
    np.testing.assert_array_equal(part, whole[37:127, 11:81])
