"""Rasters read in another pixel size: means of what is covered, lines between neighbours, in any window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import TRANSFORM, make_raster
from numpy.testing import assert_allclose, assert_array_equal

from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels, Resampled, open_raster, resampling


def read(path: Path, height: int, width: int, window: Window | None = None) -> Pixels:
    with open_raster(path) as raster:
        return Resampled(raster, height, width).read(window or Window(0, 0, height, width))


def noise(*shape: int, dtype="float32") -> np.ndarray:
    return (np.random.default_rng(3).random(shape) * 200).astype(dtype)


def test_larger_pixels_are_means_of_what_they_cover(tmp_path: Path):
    image = noise(2, 12, 8)
    pixels = read(make_raster(tmp_path / "a.tif", image), 4, 4)  # 3 rows and 2 columns of the image in each
    assert_allclose(pixels.image, image.reshape(2, 4, 3, 4, 2).mean(axis=(2, 4)), rtol=1e-6)
    assert pixels.valid.all()


def test_pixels_that_are_covered_in_part_count_in_part(tmp_path: Path):
    """3 pixels become 2: by halves, the first is (a + a + b) / 3."""
    image = noise(1, 1, 3)
    a, b, c = image[0, 0]
    pixels = read(make_raster(tmp_path / "a.tif", image), 1, 2)
    assert_allclose(pixels.image[0, 0], [(2 * a + b) / 3, (b + 2 * c) / 3], rtol=1e-6)
    wide = noise(1, 6, 35)
    pixels = read(make_raster(tmp_path / "b.tif", wide), 4, 10)
    by_parts = wide.repeat(2, axis=1).repeat(2, axis=2).reshape(1, 4, 3, 10, 7).mean(axis=(2, 4))
    assert_allclose(pixels.image, by_parts, rtol=1e-6)


def test_smaller_pixels_lie_on_the_line_between_neighbours(tmp_path: Path):
    rows, columns = np.indices((10, 6), dtype=np.float32) + 0.5
    path = make_raster(tmp_path / "a.tif", (3 * rows + 7 * columns)[None])
    pixels = read(path, 40, 15)  # 4 times as tall, 2.5 times as wide
    fine = 3 * (np.arange(40) + 0.5)[:, None] / 4 + 7 * (np.arange(15) + 0.5)[None] / 2.5
    assert_allclose(pixels.image[0, 2:-2, 1:-1], fine[2:-2, 1:-1], rtol=1e-6)
    # Beyond the centres of the outermost pixels there is nothing to draw a line to.
    assert_allclose(pixels.image[0, 0, 0], 3 * 0.5 + 7 * 0.5)
    assert pixels.valid.all()


def test_whole_numbers_are_rounded(tmp_path: Path):
    image = np.array([[[1, 2, 250, 255], [1, 2, 255, 255]]], np.uint8)
    pixels = read(make_raster(tmp_path / "a.tif", image), 1, 2)
    assert pixels.image.dtype == np.uint8
    assert pixels.image[0, 0].tolist() == [2, 254]  # of 1.5, to the even, and of 253.75


def test_invalid_pixels_have_no_part_and_half_is_enough(tmp_path: Path):
    image = np.array([[[0, 8, 0, 0, 4, 6], [0, 0, 10, 0, 0, 20]]], np.uint8)
    pixels = read(make_raster(tmp_path / "a.tif", image, nodata=0), 1, 3)
    assert pixels.valid.tolist() == [[False, False, True]]
    assert pixels.image[0, 0].tolist() == [0, 0, 10]
    mixed = np.array([[[np.nan, 8.0], [2.0, np.inf]]], np.float32)
    pixels = read(make_raster(tmp_path / "b.tif", mixed), 1, 1)
    assert pixels.valid.all()
    assert pixels.image.tolist() == [[[5.0]]]


@pytest.mark.parametrize("shape", [(20, 31), (200, 90), (61, 61), (100, 100)])
def test_a_pixel_does_not_depend_on_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]):
    image = noise(2, 97, 61)
    image[0, 30:40, 10:30] = np.nan
    path = make_raster(tmp_path / "a.tif", image)
    whole = read(path, *shape)
    monkeypatch.setattr(resampling, "_CHUNK_BYTES", 20_000)  # so that windows are read in several strips
    for window in (Window(0, 0, *shape), Window(3, 5, 11, 17), Window(shape[0] - 7, shape[1] - 9, 7, 9)):
        rows, columns = window.within(Window(0, 0, *shape))
        part = read(path, *shape, window)
        assert_array_equal(part.image, whole.image[:, rows, columns])
        assert_array_equal(part.valid, whole.valid[rows, columns])
    over = read(path, *shape, Window(-2, -3, 8, 8))
    assert not over.valid[:2].any()
    assert not over.valid[:, :3].any()
    assert_array_equal(over.image[:, 2:, 3:], whole.image[:, :6, :5])


def test_the_ground_stays_the_same(tmp_path: Path):
    path = make_raster(tmp_path / "a.tif", noise(1, 97, 61))
    with open_raster(path) as raster:
        other = Resampled(raster, 20, 200)
        assert other.info.window.shape == (20, 200)
        for corner, there in (((0, 0), (0, 0)), ((200, 0), (61, 0)), ((0, 20), (0, 97)), ((200, 20), (61, 97))):
            assert other.info.transform * corner == pytest.approx(TRANSFORM * there)
        assert other.thumbnail(100).valid.shape == (10, 100)
