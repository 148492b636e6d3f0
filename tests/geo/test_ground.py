"""What is known of the ground: label rasters, areas of interest, borders; compared with other ways of computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.errors import DataError
from geoseg.geo.grid import Window, tiles
from geoseg.geo.ground import GroundSource, read_ground, without_borders
from geoseg.geo.labelraster import LabelRaster
from geoseg.geo.raster import RasterInfo, read_info
from geoseg.geo.vector import ClassMapping, LabelRules

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
THREE = ClassMapping(num_classes=3)


def image(folder: Path, height: int = 10, width: int = 12, **options: Any) -> RasterInfo:
    return read_info(make_raster(folder / "image.tif", np.ones((1, height, width), np.uint8), **options))


def label_of(
    labels: Path,
    info: RasterInfo,
    mapping: ClassMapping = THREE,
    attribute: str | None = None,
    aoi: Path | None = None,
    **rules: Any,
) -> np.ndarray:
    source = GroundSource(labels, attribute, aoi=aoi, image=info.path)
    ground = read_ground(source, info, mapping, LabelRules(**rules))
    ground.check(source, info)
    whole = ground.read(info.window, info)
    for tile in tiles(info.height, info.width, 4, 0):
        rows, cols = tile.write.within(info.window)
        np.testing.assert_array_equal(ground.read(tile.write, info), whole[rows, cols])
    return whole


# Label rasters


def test_a_label_raster_on_the_same_grid_is_taken_pixel_by_pixel(tmp_path: Path, rng) -> None:
    values = rng.integers(0, 3, (10, 12)).astype(np.uint8)
    info = image(tmp_path)
    np.testing.assert_array_equal(label_of(make_raster(tmp_path / "l.tif", values), info), values)


def test_nodata_of_the_labels_and_what_lies_beyond_them_are_unknown(tmp_path: Path) -> None:
    values = np.array([[1, 2], [7, 0]], np.uint8)
    place = TRANSFORM * Affine.translation(3, 2)
    label = label_of(make_raster(tmp_path / "l.tif", values, transform=place, nodata=7), image(tmp_path))
    expected = np.full((10, 12), 255)
    expected[2:4, 3:5] = [[1, 2], [255, 0]]
    np.testing.assert_array_equal(label, expected)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 3.0])
def test_another_resolution_gives_the_nearest_value_and_no_new_one(tmp_path: Path, rng, factor: float) -> None:
    # Labels of {0, 4} with pixels `factor` times as long as the image's.
    shape = (int(12 / factor), int(12 / factor))
    values = (4 * rng.integers(0, 2, shape)).astype(np.uint8)
    path = make_raster(tmp_path / "l.tif", values, transform=TRANSFORM * Affine.scale(factor))
    label = label_of(path, image(tmp_path, 12, 12), ClassMapping(num_classes=5))
    centres = np.floor((np.arange(12) + 0.5) / factor).astype(int)
    np.testing.assert_array_equal(label, values[np.ix_(centres, centres)])
    assert set(np.unique(label)) <= {0, 4}


def test_tenths_of_metres_do_not_shift_anything(tmp_path: Path, rng) -> None:
    # Half the resolution: every centre falls on the middle of a label pixel's border quarter, digits or not.
    fine = Affine(0.1, 0, 600000.3, 0, -0.1, 5000000.7)
    values = rng.integers(0, 3, (40, 40)).astype(np.uint8)
    info = image(tmp_path, 40, 40, transform=fine)
    path = make_raster(tmp_path / "l.tif", values, transform=fine)
    np.testing.assert_array_equal(label_of(path, info), values)
    shifted = make_raster(tmp_path / "s.tif", values, transform=fine * Affine.translation(-5, 3))
    np.testing.assert_array_equal(label_of(shifted, info)[3:, :35], values[:37, 5:])


@pytest.mark.parametrize("turn", [0, 30])
def test_another_crs_is_aligned_pixel_by_pixel(tmp_path: Path, rng, turn: float) -> None:
    info = image(tmp_path, transform=TRANSFORM * Affine.rotation(turn))
    there = pyproj.Transformer.from_crs(UTM18, "EPSG:4326", always_xy=True)
    west, north = there.transform(500000, 5000000)
    place = Affine(3e-6, 0, west - 1e-4, 0, -3e-6, north + 1e-4)
    values = rng.integers(0, 3, (90, 130)).astype(np.uint8)
    path = make_raster(tmp_path / "l.tif", values, transform=place, crs="EPSG:4326")
    label = label_of(path, info)
    for row in range(info.height):
        for col in range(info.width):
            lon, lat = there.transform(*(info.transform @ (col + 0.5, row + 0.5)))
            x, y = ~place @ (lon, lat)
            inside = 0 <= x < 130 and 0 <= y < 90
            assert label[row, col] == (values[int(y), int(x)] if inside else 255), (row, col)


def test_a_much_finer_label_raster_is_read_in_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("geoseg.geo.labelraster._PIXELS", 64)
    monkeypatch.setattr("geoseg.geo.labelraster._POINTS", 16)
    values = np.kron(np.arange(120, dtype=np.uint8).reshape(10, 12) % 3, np.ones((10, 10), np.uint8))
    path = make_raster(tmp_path / "l.tif", values, transform=TRANSFORM * Affine.scale(0.1))
    np.testing.assert_array_equal(label_of(path, image(tmp_path)), np.arange(120).reshape(10, 12) % 3)


def test_values_go_through_the_class_mapping(tmp_path: Path) -> None:
    values = np.array([[10, 20, 30, 40]], np.uint16)
    path = make_raster(tmp_path / "l.tif", values)
    info = image(tmp_path, 1, 4)
    mapping = ClassMapping(num_classes=3, by_value={10: 1, 20: 2, 30: 0}, ignore_values=frozenset({40}))
    assert label_of(path, info, mapping).tolist() == [[1, 2, 0, 255]]
    strict = ClassMapping(num_classes=3, by_value={10: 1, 20: 2})
    with pytest.raises(DataError, match=r"l\.tif: found values 30, 40 of no class|l\.tif: found values (30|40) of"):
        label_of(path, info, strict)


def test_fractions_are_no_classes(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[1.0, 1.5]], np.float32))
    with pytest.raises(DataError, match="whole numbers"):
        label_of(path, image(tmp_path, 1, 2))


def test_a_mask_of_0_and_255_is_refused_unless_255_is_mapped(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 255]], np.uint8))
    info = image(tmp_path, 1, 2)
    two = ClassMapping(num_classes=2)
    with pytest.raises(DataError, match=r"the values 0, 255, where 255 stands for unknown.*give the class the value"):
        label_of(path, info, two)
    # Mapped, it needs another label for unknown, or none that clashes: here the class id is 1.
    assert label_of(path, info, ClassMapping(num_classes=2, by_value={0: 0, 255: 1})).tolist() == [[0, 1]]


def test_255_beside_classes_is_unknown(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 1, 255]], np.uint8))
    assert label_of(path, image(tmp_path, 1, 3), ClassMapping(num_classes=2)).tolist() == [[0, 1, 255]]


def test_a_class_map_with_a_palette_is_a_label_raster(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 1, 2]], np.uint8), photometric="PALETTE")
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {0: (0, 0, 0, 255), 1: (255, 0, 0, 255)})
    assert label_of(path, image(tmp_path, 1, 3)).tolist() == [[0, 1, 2]]


def test_rules_for_polygons_alone_are_named(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 1]], np.uint8))
    ground = read_ground(GroundSource(path), image(tmp_path, 1, 2), THREE, LabelRules(buffers=(0.0, 2.0)))
    assert ground.warnings == [f"{path}: a label raster, to which buffers of classes do not apply"]


def test_a_nodata_value_that_is_a_class_is_warned_of(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 1]], np.uint8), nodata=0)
    info = image(tmp_path, 1, 2)
    source = GroundSource(path)
    ground = read_ground(source, info, THREE, LabelRules())
    assert ground.read(info.window, info).tolist() == [[255, 1]]
    assert ground.check(source, info) == [f"{path}: nodata is 0, the value of class 0; those pixels are unknown"]


def test_which_band_holds_the_labels(tmp_path: Path) -> None:
    values = np.array([[[0, 1]], [[2, 1]]], np.uint8)
    path = make_raster(tmp_path / "l.tif", values, band_names=["roof", "land"])
    info = image(tmp_path, 1, 2)
    assert label_of(path, info, attribute="2").tolist() == [[2, 1]]
    assert label_of(path, info, attribute="roof").tolist() == [[0, 1]]
    with pytest.raises(DataError, match="a label raster of 2 bands"):
        label_of(path, info)
    with pytest.raises(DataError, match="bands 1 to 2, named roof, land, expected a band 'Roof'"):
        label_of(path, info, attribute="Roof")


def test_a_label_raster_needs_a_place(tmp_path: Path) -> None:
    path = make_raster(tmp_path / "l.tif", np.array([[0, 1]], np.uint8), transform=None, crs=None)
    with pytest.raises(DataError, match=r"l\.tif: found no CRS"):
        label_of(path, image(tmp_path, 1, 2))
    assert label_of(path, image(tmp_path, 1, 2), assume_crs=True).tolist() == [[0, 1]]
    plain = image(tmp_path, 1, 2, transform=None, crs=None)
    assert label_of(path, plain).tolist() == [[0, 1]]


def test_a_label_raster_of_other_ground_is_refused(tmp_path: Path) -> None:
    far = make_raster(tmp_path / "l.tif", np.ones((9, 9), np.uint8), transform=TRANSFORM * Affine.translation(99, 0))
    with pytest.raises(DataError, match="a raster of other ground"):
        label_of(far, image(tmp_path))


def test_the_edge_of_a_projection_is_unknown_ground() -> None:
    # Orthographic labels see half of the earth; a pixel of the other half has no place in them.
    crs = pyproj.CRS("+proj=ortho +lat_0=0 +lon_0=0")
    move = pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    info = RasterInfo("x", 4, 4, 1, "uint8", None, Affine(1e6, 0, -2e6, 0, -1e6, 2e6), None, (None,), (None,), None)
    labels = LabelRaster(info, 1, THREE, move)
    places = labels._places(Window(0, 0, 1, 2), Affine(170, 0, -80, 0, -1, 0.5))
    assert places.inside.tolist() == [[True, False]]


# Area of interest


def test_outside_the_area_of_interest_everything_is_unknown(tmp_path: Path) -> None:
    labels = make_polygons(tmp_path / "l.gpkg", [pixel_box(0, 0, 5, 5)], {"cls": [1]})
    aoi = make_polygons(tmp_path / "aoi.geojson", [pixel_box(2, 2, 4, 4)], crs=UTM18)
    label = label_of(labels, image(tmp_path), attribute="cls", aoi=aoi)
    expected = np.full((10, 12), 255)
    expected[2:6, 2:6] = 0
    expected[2:5, 2:5] = 1
    np.testing.assert_array_equal(label, expected)


def test_an_area_of_interest_elsewhere_or_missing_is_refused_with_the_labels_trouble(tmp_path: Path) -> None:
    labels = make_polygons(tmp_path / "l.gpkg", [pixel_box(0, 0, 5, 5)], {"cls": [1]})
    far = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(500, 500, 4, 4)])
    with pytest.raises(DataError, match=r"aoi\.gpkg: found 1 polygons, none of them on"):
        label_of(labels, image(tmp_path), attribute="cls", aoi=far)
    with pytest.raises(DataError) as caught:
        label_of(tmp_path / "no.gpkg", image(tmp_path), attribute="cls", aoi=tmp_path / "none.gpkg")
    assert [line.partition(": ")[0] for line in caught.value.problems] == [
        str(tmp_path / "no.gpkg"),
        str(tmp_path / "none.gpkg"),
    ]


# Borders


def brute_borders(label: np.ndarray, width: int) -> np.ndarray:
    result = label.copy()
    for row, col in np.ndindex(label.shape):
        near = label[max(0, row - width) : row + width + 1, max(0, col - width) : col + width + 1]
        if len(set(near[near != 255].tolist())) > 1:
            result[row, col] = 255
    return result


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_borders_are_where_another_class_is_near(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    coarse = rng.choice([0, 1, 2, 254, 255], (4, 5))
    label = np.kron(coarse, np.ones((5, 4))).astype(np.uint8)[:17, :19]
    np.testing.assert_array_equal(without_borders(label, width, 255), brute_borders(label, width))


def test_borders_agree_between_tilings_and_end_at_the_scene(tmp_path: Path) -> None:
    labels = make_polygons(tmp_path / "l.gpkg", [pixel_box(-5, 3, 20, 4), pixel_box(6, 8, 9, 9)], {"cls": [1, 2]})
    info = image(tmp_path)
    label = label_of(labels, info, attribute="cls", boundary_ignore=1)  # reads tiles of 4 too
    plain = label_of(labels, info, attribute="cls")
    np.testing.assert_array_equal(label, brute_borders(plain, 1))
    assert (label[:, 4:6] == 1).all()
    assert (label[:6, 2:4] == 255).all()


def test_unknown_ground_borders_nothing(tmp_path: Path) -> None:
    labels = make_polygons(tmp_path / "l.gpkg", [pixel_box(2, 2, 4, 4)], {"cls": [1]})
    label = label_of(labels, image(tmp_path), attribute="cls", mask_outside=True, boundary_ignore=3)
    assert (label == 1).sum() == 16


def test_a_thinned_label_keeps_its_place(tmp_path: Path) -> None:
    labels = make_polygons(tmp_path / "l.gpkg", [pixel_box(0, 0, 10, 6)], {"cls": [1]})
    info = image(tmp_path)
    ground = read_ground(GroundSource(labels, "cls"), info, THREE, LabelRules())
    assert ground.thinned(info, (5, 4)).tolist() == [[1, 1, 0, 0]] * 5
