"""The classify command with small regions removed and polygons: what is written, said and refused."""

from __future__ import annotations

import json
from pathlib import Path

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from conftest import make_raster
from flood_fill import flood
from test_classify_command import classify, files, make_model, noise

ASKED = ("classification.polygons=gpkg", "classification.minimum_mapping_unit=8", "classification.quicklook=true")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "best.safetensors")


def test_map_polygons_and_summary_agree(model: Path, tmp_path: Path, capsys):
    image, maps = make_raster(tmp_path / "scene.tif", noise((2, 70, 90))), tmp_path / "maps"
    assert classify(model, maps, image, more=(*ASKED, "classification.polygon_background=true")) == 0
    said = capsys.readouterr()
    assert files(maps) == {
        "classes.json",
        *(f"scene_classes.{e}" for e in ("qml", "tif", "tif.aux.xml", "png", "gpkg")),
    }
    with rasterio.open(maps / "scene_classes.tif") as made:
        values, tags = made.read(1), made.tags()
    assert tags["MINIMUM_MAPPING_UNIT"] == "8 pixels"
    assert min(map(len, flood(values))) >= 8
    read = geopandas.read_file(maps / "scene_classes.gpkg")
    listed = json.loads((maps / "classes.json").read_text())["classes"]
    names = {entry["value"]: entry["name"] for entry in listed}
    assert [names[value] for value in read["class"]] == read["name"].tolist()
    for value, name in names.items():
        share = 100 * (values == value).mean()
        assert read["area_m2"][read["class"] == value].sum() == (values == value).sum()
        assert (f"{name} {share:.1f} %" in said.out) == (share > 0)
    assert "scene_classes.gpkg" in said.out
    assert "confidence among classification.outputs" in said.err + said.out


def test_polygons_that_are_missing_are_made_though_maps_are_kept(model: Path, tmp_path: Path):
    image, maps = make_raster(tmp_path / "scene.tif", noise((2, 40, 40))), tmp_path / "maps"
    keep = "classification.overwrite=false"
    assert classify(model, maps, image, more=(keep,)) == 0
    assert classify(model, maps, image, more=(keep, *ASKED)) == 0
    before = (maps / "scene_classes.gpkg").stat().st_mtime_ns
    assert classify(model, maps, image, more=(keep, *ASKED)) == 0
    assert (maps / "scene_classes.gpkg").stat().st_mtime_ns == before


def test_an_image_without_crs_is_refused_before_the_work(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)), transform=None, crs=None)
    for asked, said in (
        ("classification.polygons=geojson", "GeoJSON is in longitude and latitude"),
        ("classification.minimum_mapping_unit=100 m2", "sizes in metres"),
    ):
        assert classify(model, tmp_path / "maps", image, more=(asked,)) == 2
        assert said in capsys.readouterr().err
        assert files(tmp_path / "maps") == set()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("classification.polygons=shp", "one of gpkg, parquet, geojson"),
        ("classification.minimum_mapping_unit=0", "a number of pixels of at least 1, or one of metres such as '2 m2'"),
        ("classification.minimum_mapping_unit=2 m", "a number of pixels"),
        ("classification.polygon_simplify=1 m2", "a number of pixels of at least 0, or one of metres such as '2 m'"),
        ("classification.polygon_min_area=-3 m2", "a number of pixels of at least 0"),
    ],
)
def test_what_sizes_may_be(asked: str, said: str, model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 20, 20)))
    assert classify(model, tmp_path / "maps", image, more=(asked,)) == 2
    assert said in capsys.readouterr().err


def test_polygons_need_a_class_map(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 20, 20)))
    more = ("classification.outputs=[confidence]", *ASKED)
    assert classify(model, tmp_path / "maps", image, more=more) == 2
    error = capsys.readouterr().err
    assert "classification.polygons: found 'gpkg' without a class map" in error
    assert "classification.minimum_mapping_unit" in error


def test_sizes_of_ground(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 60, 60)))
    sizes = ("classification.minimum_mapping_unit=3 m2", "classification.polygon_min_area=20 m2")
    more = (*sizes, "classification.polygons=parquet", "classification.polygon_fill_holes=20m2")
    assert classify(model, tmp_path / "maps", image, more=(*more, "classification.polygon_simplify=2 m")) == 0
    read = geopandas.read_parquet(tmp_path / "maps/scene_classes.parquet")
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        regions, values = flood(made.read(1)), made.read(1)
    assert min(map(len, regions)) >= 3
    assert 0 < len(read) < sum(values[region[0]] > 0 for region in regions)
    assert read["area_m2"].min() >= 20
    np.testing.assert_allclose(read.area, read["area_m2"])
    assert read.is_valid.all()
    holes = [shapely.Polygon(ring).area for polygon in read.geometry for ring in polygon.interiors]
    assert min([20.0, *holes]) >= 20


def test_a_size_of_polygons_without_polygons_is_said(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    assert classify(model, tmp_path / "maps", image, more=("classification.polygon_min_area=5",)) == 0
    assert "classification.polygon_min_area: no use without classification.polygons" in capsys.readouterr().err
