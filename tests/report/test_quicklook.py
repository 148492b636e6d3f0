"""Quicklooks: the right pixels in the right colours, side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import UTM18, make_polygons, make_raster, pixel_box
from PIL import Image

from geoseg.assess.confusion import Reference
from geoseg.geo.ground import Ground
from geoseg.geo.raster import Pixels, read_info
from geoseg.geo.vector import ClassMapping, read_labels
from geoseg.report.quicklook import (
    Legend,
    checkerboard,
    coloured,
    draw_quicklook,
    shown_bands,
    stretched,
)

LEGEND = Legend(("background", "field", "water"), ("#000000", "#00ff00", "#0000ff"))
BLACK, GREEN, BLUE = (0, 0, 0), (0, 255, 0), (0, 0, 255)


def test_stretch_is_between_percentiles_of_valid_pixels():
    band = np.arange(101, dtype=np.float32).reshape(1, 1, 101)
    valid = np.ones((1, 101), dtype=bool)
    picture = stretched(Pixels(band, valid))[0, :, 0]
    assert picture[:3].tolist() == [0, 0, 0]  # the 2nd percentile is 2
    assert picture[98:].tolist() == [255, 255, 255]
    assert picture[50] == 128
    outlier = band.copy()
    outlier[0, 0, 0] = -9999
    valid[0, 0] = False
    again = stretched(Pixels(outlier, valid))[0, :, 0]
    assert again[0] == checkerboard((1, 101))[0, 0, 0]
    assert abs(int(again[50]) - 128) <= 3  # without the care it would be 255


@pytest.mark.parametrize(
    ("names", "bands", "shown"),
    [
        ([None], None, (1,)),
        ([None] * 2, None, (1,)),
        ([None] * 6, None, (1, 2, 3)),
        ([None] * 6, (5, 4, 2, 1), (5, 4, 2)),
        (["blue", "green", "Red", "nir"], None, (3, 2, 1)),
        (["blue", "green", "red", "nir"], (2, 3, 4), (2, 3, 4)),
    ],
)
def test_which_bands_are_shown(tmp_path: Path, names, bands, shown):
    path = make_raster(tmp_path / "a.tif", np.zeros((len(names), 4, 4), np.uint8), band_names=[n or "" for n in names])
    assert shown_bands(read_info(path), bands) == shown


@pytest.mark.parametrize(("bands", "same"), [(1, True), (3, False)])
def test_one_or_two_bands_are_grey_three_are_colour(bands: int, same: bool):
    image = np.random.default_rng(0).integers(0, 9999, size=(bands, 20, 20)).astype(np.uint16)
    picture = stretched(Pixels(image, np.ones((20, 20), dtype=bool)))
    assert (picture[..., 0] == picture[..., 1]).all() == same


def test_a_constant_or_empty_image_is_no_error():
    constant = np.full((3, 4, 4), 7, dtype=np.uint8)
    assert (stretched(Pixels(constant, np.ones((4, 4), dtype=bool))) == 128).all()
    assert (stretched(Pixels(constant, np.zeros((4, 4), dtype=bool))) == checkerboard((4, 4))).all()


def test_classes_take_their_colours():
    picture = coloured(np.array([[0, 1, 2, 255]]), np.array([[True, True, True, False]]), LEGEND.colours)
    assert [tuple(pixel) for pixel in picture[0, :3]] == [BLACK, GREEN, BLUE]
    assert (picture[0, 3] == checkerboard((1, 4))[0, 3]).all()


def draw(folder: Path, height: int, width: int, with_reference: bool = True) -> np.ndarray:
    """Draw a scene whose left half is field in the labels and whose lower half is water in the map."""
    mapped = np.zeros((height, width), dtype=np.uint8)
    mapped[height // 2 :] = 2
    class_map = make_raster(folder / "map.tif", mapped, nodata=255)
    image = make_raster(folder / "image.tif", np.random.default_rng(0).integers(0, 255, (3, height, width), np.uint8))
    polygons = make_polygons(folder / "ref.gpkg", [pixel_box(0, 0, height, width // 2)], {"c": [1]})
    labels = read_labels(polygons, "c", UTM18, ClassMapping(num_classes=3))
    reference = Reference(Ground(labels), image) if with_reference else None
    draw_quicklook(folder / "q.png", image if with_reference else None, class_map, LEGEND, reference)
    return np.asarray(Image.open(folder / "q.png"))


def test_three_panels_side_by_side(tmp_path: Path):
    sheet = draw(tmp_path, 400, 400)
    assert sheet.shape[1] == 16 + 3 * 416
    labels, mapped = sheet[24:424, 16 + 416 :][:, :400], sheet[24:424, 16 + 832 :][:, :400]
    assert (labels[:, :200] == GREEN).all()
    assert (labels[:, 200:] == BLACK).all()
    assert (mapped[:200] == BLACK).all()
    assert (mapped[200:] == BLUE).all()


def test_wide_scenes_are_stacked_and_large_ones_thinned(tmp_path: Path):
    sheet = draw(tmp_path, 400, 1600)
    assert sheet.shape[1] == 16 + 800 + 16
    assert sheet.shape[0] > 3 * 200
    labels = sheet[24 + 240 : 24 + 240 + 200, 16:816]
    assert (labels[:, :400] == GREEN).all()
    assert (labels[:, 400:] == BLACK).all()


def test_small_scenes_are_enlarged_and_parts_left_out(tmp_path: Path):
    sheet = draw(tmp_path, 20, 20, with_reference=False)
    assert (sheet[24 : 24 + 160, 16 : 16 + 320] == BLACK).all()
    assert (sheet[24 + 160 : 24 + 320, 16 : 16 + 320] == BLUE).all()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
