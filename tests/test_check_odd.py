"""Odd rasters and labels, file by file, through `check`: the right verdict, or the clear error."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box, shared_data
from rasterio.enums import ColorInterp

from geoseg.check import main
from geoseg.errors import DataError
from geoseg.geo.raster import read_info

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

NO_VAL = "no scene has the split val"
# A polygon as large as a roof's corner, in the label file of all derived rasters.
THIN = "thinner than a pixel"
# File: how it lies on the ground, its CRS, the share of its pixels that hold data, and warnings.
GOOD: dict[str, tuple[str, str | None, float, tuple[str, ...]]] = {
    "bgra_uint16_alpha.tif": ("north-up", "EPSG:32612", 0.489, ("bands without any difference",)),
    "cog_6_overviews_jpeg_mask.tif": ("north-up", "EPSG:3857", 1.0, ()),
    "derived_1band.tif": ("north-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_257x513.tif": ("north-up", "EPSG:3857", 1.0, ("only 27.9 %",)),
    "derived_cog.tif": ("north-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_epsg4326.tif": ("north-up, pixels not square", "EPSG:4326", 1.0, (THIN,)),
    "derived_exact_256.tif": ("north-up", "EPSG:3857", 1.0, (THIN, "only 13.3 %")),
    "derived_float32_nan.tif": ("north-up", "EPSG:3857", 0.948, (THIN,)),
    "derived_int16_negative.tif": ("north-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_internal_mask.tif": ("north-up", "EPSG:3857", 0.812, (THIN,)),
    "derived_nonsquare_pixels.tif": ("north-up, pixels not square", "EPSG:3857", 1.0, (THIN,)),
    "derived_reference.tif": ("north-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_rgba.tif": ("north-up", "EPSG:3857", 0.812, (THIN,)),
    "derived_rotated30.tif": ("rotated by 30.0 degrees", "EPSG:3857", 0.868, ()),
    "derived_small_200x180.tif": ("north-up", "EPSG:3857", 1.0, ("only 9.1 %",)),
    "derived_south_up.tif": ("south-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_uint16_12bit.tif": ("north-up", "EPSG:3857", 1.0, (THIN,)),
    "derived_utm45n_0.5m.tif": ("north-up", "EPSG:32645", 0.978, ()),
    "esri_wkt_2x2.tif": ("north-up", "USA_Contiguous_Albers_Equal_Area_Conic_USGS_version", 1.0, ()),
    "float32_nodata_minus3.4e38.tif": ("north-up", "unknown", 0.628, ()),
    "gcps_no_geotransform.vrt": ("4 ground control points, no transform", None, 0.673, ()),
    "geostationary_projection.tif": ("north-up", "unnamed", 0.783, ()),
    "gray_nodata255.tif": ("north-up", "EPSG:3857", 0.119, ("bands without any difference",)),
    "rgb_external_msk.tif": ("north-up", "UTM Zone 18, Northern Hemisphere", 0.674, ()),
    "rgb_nodata0_uint8.tif": ("north-up", "EPSG:32618", 0.673, ()),
    "rgba_uint8_alpha.tif": ("north-up", "EPSG:32618", 0.675, ()),
    "rpcs_no_geotransform.vrt": ("rational polynomial coefficients, no transform", None, 0.673, ()),
    "tiny_20x20.tif": ("north-up", "EPSG:26711", 1.0, ()),
    "tiny_2x3_float_nan.tif": ("south-up", None, 0.833, ()),
    "tiny_rotated_geotransform.tif": ("rotated by 30.0 degrees, pixels not square", None, 1.0, ()),
    "world_lonlat_256x512.tif": ("north-up", "EPSG:4326", 1.0, ("more than half the globe",)),
}
BAD = {
    "all_nodata.tif": "no trn sample to expect",
    "corrupt_blocks.tif": "damaged data in rows 0-1023, .*expected readable pixels",
    "derived_no_crs.tif": r"derived_no_crs\.tif: found no CRS, expected one, .*assume_crs: true",
    "derived_no_georef.tif": r"derived_no_georef\.tif: found no CRS, expected one, .*assume_crs: true",
    "netcdf_3_subdatasets.nc": "no bands, .*name one of its parts instead: netcdf:.*:Band1",
}


def _labels(image: Path, folder: Path) -> tuple[Path, str]:
    """Return the label file of a raster and its attribute: a box over its middle where there is none."""
    if image.name.startswith("derived_"):
        return image.parent / "derived_banepa_labels.gpkg", "class"
    path = folder / "labels.gpkg"
    corners = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
    try:
        info = read_info(image)
    except DataError:
        return path, ""
    place = shapely.Polygon([info.transform @ (x * info.width, y * info.height) for x, y in corners])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        geopandas.GeoDataFrame(geometry=[place], crs=info.crs.to_wkt() if info.crs else None).to_file(path)
    return path, ""


def _verdict(
    capsys: pytest.CaptureFixture[str], image: Path, labels: Path, attribute: str, folder: Path, extent: str = "--quick"
) -> dict[str, Any]:
    """Return what a check of one scene says, as it prints it for programs."""
    (folder / "prep.csv").write_text(f'"{image}","{labels}",{attribute},trn\n')
    keys = "samples_size: 64, classes: [background, building]"
    (folder / "config.yaml").write_text(f"global: {{{keys}}}\nsample: {{prep_csv_file: prep.csv, workers: 1}}\n")
    capsys.readouterr()
    code = main([str(folder / "config.yaml"), "--json", extent])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (2 if found["errors"] else 0)
    return found


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_real_file_that_is_good(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orientation, crs, valid, expected = GOOD[name]
    image = shared_data("odd", name)

    found = _verdict(capsys, image, *_labels(image, tmp_path), tmp_path)

    assert found["errors"] == []
    (scene,) = found["scenes"]
    assert (scene["raster"]["orientation"], scene["raster"]["crs"]) == (orientation, crs)
    assert scene["pixels"]["valid_fraction"] == pytest.approx(valid, abs=0.001)
    assert found["expected"]["splits"]["trn"]["samples"] > 0
    said = [line for line in found["warnings"] if NO_VAL not in line]
    assert len(said) == len(expected), said
    for part in expected:
        assert any(part in line for line in said), said
    if name.startswith("derived_"):  # the labels were drawn on this image, whatever was done to it
        assert scene["offset"]["clear"]
        assert not scene["offset"]["shifted"]


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_real_file_that_is_bad(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = shared_data("odd", name)
    # That nothing is there is known for sure only where everything was read.
    found = _verdict(capsys, image, *_labels(image, tmp_path), tmp_path, "--full")
    assert len(found["errors"]) == 1
    assert re.search(BAD[name], found["errors"][0])


def test_every_odd_file_is_in_one_of_the_tables() -> None:
    files = {path.name for path in shared_data("odd").iterdir() if path.suffix in (".tif", ".vrt", ".nc")}
    assert files == set(GOOD) | set(BAD)


def test_real_labels_in_degrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, labels = (
        shared_data("odd", "derived_rotated30.tif"),
        shared_data("odd", "derived_banepa_labels_4326.geojson"),
    )
    found = _verdict(capsys, image, labels, "class", tmp_path)
    assert found["errors"] == []
    polygons = found["scenes"][0]["polygons"]
    assert polygons["crs"] == "reprojected"
    assert polygons["on_image"] == pytest.approx(0.75, abs=0.01)
    assert not found["scenes"][0]["offset"]["shifted"]


def _image(dtype: Any = np.uint8, bands: int = 3) -> Any:
    return np.random.default_rng(0).integers(1, 200, (bands, 80, 100)).astype(dtype)


TURNED = TRANSFORM * Affine.rotation(30)
# What is made, and what is said of it: orientation, share with data, a warning or None.
MADE: dict[str, tuple[dict[str, Any], str, float, str | None]] = {
    "south-up": ({"transform": Affine(1, 0, 5e5, 0, 1, 5e6)}, "south-up", 1.0, None),
    "turned": ({"transform": TURNED}, "rotated by 30.0 degrees", 1.0, None),
    "tall pixels": ({"transform": Affine(1, 0, 5e5, 0, -2, 5e6)}, "north-up, pixels not square", 1.0, None),
    "no place": ({"transform": None, "crs": None}, "no georeference", 1.0, None),
    "nodata": ({"nodata": 0}, "north-up", 0.9, None),
    "collar": ({}, "north-up", 1.0, "and no nodata value is set"),
    "mask": ({"mask": np.arange(80)[:, None] >= np.full(100, 8)}, "north-up", 0.9, None),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_file_made_here(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, orientation, valid, warning = MADE[name]
    image = _image()
    if name in ("nodata", "collar"):
        image[:, :8] = 0
    path = make_raster(tmp_path / "a.tif", image, **options)
    place = options.get("transform", TRANSFORM) or Affine.identity()
    crs = options.get("crs", UTM18)
    labels = make_polygons(tmp_path / "a.gpkg", [pixel_box(20, 20, 30, 30, place)], {"class": ["building"]}, crs=crs)

    found = _verdict(capsys, path, labels, "class", tmp_path)

    assert found["errors"] == []
    (scene,) = found["scenes"]
    assert scene["raster"]["orientation"] == orientation
    assert scene["pixels"]["valid_fraction"] == pytest.approx(valid)
    assert scene["expected"]["scene_pixels"][1] == 900
    said = [line for line in found["warnings"] if NO_VAL not in line]
    assert len(said) == (warning is not None), said
    assert warning is None or warning in said[0]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("elsewhere", "1 polygons, none of them on .*check the CRS and the pairing"),
        ("no CRS", "found no CRS, expected one, since .*assume_crs"),
        ("wrong attribute", "no attribute 'class', expected one of Class; did you mean 'Class'"),
        ("unknown class", "values 'shed' of no class"),
        ("points", "found Point, expected polygons"),
        ("not there", "no such file"),
        ("no vector file", "unreadable vector file"),
    ],
)
def test_labels_that_are_bad(what: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = make_raster(tmp_path / "a.tif", _image())
    shape: Any = pixel_box(500, 500, 9, 9) if what == "elsewhere" else pixel_box(5, 5, 9, 9)
    shape = shape.centroid if what == "points" else shape
    column = "Class" if what == "wrong attribute" else "class"
    value = "shed" if what == "unknown class" else "building"
    path = tmp_path / "a.gpkg"
    make_polygons(path, [shape], {column: [value]}, crs=None if what == "no CRS" else UTM18)
    if what == "not there":
        path.unlink()
    elif what == "no vector file":
        path.write_bytes(b"nonsense")

    found = _verdict(capsys, image, path, "class", tmp_path)

    assert len(found["errors"]) == 1, found["errors"]
    assert re.search(error, found["errors"][0]), found["errors"][0]


def test_damage_that_the_header_hides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_raster(
        tmp_path / "a.tif", _image(bands=1), compress="deflate", tiled=True, blockxsize=16, blockysize=16
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 900] = bytes(900)
    path.write_bytes(bytes(data))
    labels = make_polygons(tmp_path / "a.gpkg", [pixel_box(5, 5, 9, 9)], {"class": ["building"]})
    found = _verdict(capsys, path, labels, "class", tmp_path)
    assert len(found["errors"]) == 1
    assert "damaged data" in found["errors"][0]


def test_alpha_that_is_near_infrared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    path = make_raster(tmp_path / "a.tif", _image(bands=4), colorinterp=colours)
    with rasterio.open(path) as dataset:
        assert dataset.colorinterp[3] == ColorInterp.alpha
    labels = make_polygons(tmp_path / "a.gpkg", [pixel_box(5, 5, 9, 9)], {"class": ["building"]})
    warnings_ = _verdict(capsys, path, labels, "class", tmp_path)["warnings"]
    assert any("near infrared" in line for line in warnings_)
