"""The classify command in folders where files lie already: only those that geoseg made are replaced, or removed."""

from __future__ import annotations

from pathlib import Path

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from conftest import UTM18, make_raster
from test_classify_command import classify, files, make_former, make_model, noise, refused

from geoseg.predict.former import is_ours
from geoseg.predict.images import find_images

SURE = "classification.outputs=[classes,confidence]"
ALL = "classification.outputs=[classes,probabilities,confidence,entropy]"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "best.safetensors")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))


def polygons_of_a_user(path: Path) -> Path:
    frame = geopandas.GeoDataFrame({"class": [1]}, geometry=[shapely.box(0, 0, 1, 1)], crs=UTM18)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_file(path)
    return path


def raster_of_a_user(path: Path) -> Path:
    return make_raster(path, noise((1, 30, 30)))


# Replacing


@pytest.mark.parametrize(
    ("name", "make", "more"),
    [
        ("scene_classes.tif", raster_of_a_user, ()),
        ("scene_classes.tif", lambda path: path.write_text("my notes"), ()),
        ("scene_classes.tif", Path.mkdir, ()),
        ("scene_confidence.tif", raster_of_a_user, (SURE,)),
        ("scene_classes.gpkg", polygons_of_a_user, ("classification.polygons=gpkg",)),
        ("scene_classes.parquet", polygons_of_a_user, ("classification.polygons=parquet",)),
        ("scene_classes.geojson", polygons_of_a_user, ("classification.polygons=geojson",)),
        ("classes.json", lambda path: path.write_text('{"classes": ["mine"]}'), ()),
    ],
)
def test_a_file_of_the_user_is_not_replaced(model: Path, image: Path, capsys, name, make, more):
    maps = image.parent / "maps"
    maps.mkdir()
    make(maps / name)
    before = (maps / name).read_bytes() if (maps / name).is_file() else None
    refused(capsys, classify(model, maps, image, more=more), 2, f"maps/{name}: found", "did not make", "rename it")
    assert files(maps) == {name}
    assert before is None or (maps / name).read_bytes() == before


def test_other_images_are_done_all_the_same(model: Path, image: Path, capsys):
    other, maps = make_raster(image.with_name("other.tif"), noise((2, 30, 30))), image.parent / "maps"
    maps.mkdir()
    raster_of_a_user(maps / "scene_classes.tif")
    refused(capsys, classify(model, maps, image, other), 4, "scene_classes.tif")
    assert (maps / "other_classes.tif").exists()
    assert not is_ours(maps / "scene_classes.tif")


@pytest.mark.parametrize("kind", ["gpkg", "parquet", "geojson"])
def test_files_of_another_run_are_replaced(model: Path, image: Path, kind: str):
    more = (ALL, f"classification.polygons={kind}")
    maps = image.parent / "maps"
    assert classify(model, maps, image, more=more) == 0
    made = {path for path in maps.iterdir() if path.suffix in (".tif", f".{kind}", ".json")}
    assert len(made) == 6
    assert all(is_ours(path) for path in made)
    before = {path.name: path.read_bytes() for path in made if path.suffix != ".json"}
    other = make_model(image.with_name("other.safetensors"), samples_size=32)
    assert classify(other, maps, image, more=more) == 0
    assert files(maps) >= set(before)
    assert all((maps / name).read_bytes() != content for name, content in before.items())


def test_an_image_of_the_same_call_is_not_replaced(model: Path, image: Path, capsys):
    """The map of one image would have the name of the other, which geoseg made and somebody gave two bands."""
    second = make_raster(image.with_name("scene_classes.tif"), noise((2, 30, 30), seed=1))
    with rasterio.open(second, "r+") as raster:
        raster.update_tags(MODEL_HASH="0123")
    before = second.read_bytes()
    refused(capsys, classify(model, image.parent, image, second), 4, "scene_classes.tif", "input of the same call")
    assert second.read_bytes() == before
    assert is_ours(image.with_name("scene_classes_classes.tif"))


def test_a_picture_that_is_an_image_of_the_call_is_not_replaced(model: Path, image: Path, capsys):
    picture = make_raster(image.with_name("scene_classes.png"), noise((2, 30, 30)))
    before = picture.read_bytes()
    code = classify(model, image.parent, image, picture, more=("classification.quicklook=true",))
    refused(capsys, code, 4, "scene_classes.png", "input of the same call")
    assert picture.read_bytes() == before


# Removing


def test_what_describes_another_map_is_removed(model: Path, image: Path, capsys):
    maps = image.parent / "maps"
    assert classify(model, maps, image, more=(ALL, "classification.polygons=gpkg")) == 0
    (maps / "scene_entropy.tif.aux.xml").write_text("<PAMDataset/>")
    mine = [polygons_of_a_user(maps / "scene_classes.geojson"), raster_of_a_user(maps / "scene_notes.tif")]
    neighbour = make_former(maps / "scene2_confidence.tif")
    other = make_model(image.with_name("other.safetensors"), samples_size=32)
    capsys.readouterr()
    assert classify(other, maps, image, more=(SURE,)) == 0
    written = {"scene_classes.tif", "scene_classes.tif.aux.xml", "scene_classes.qml", "scene_confidence.tif"}
    assert files(maps) == {"classes.json", *written, *(path.name for path in [*mine, neighbour])}
    notes = [line for line in capsys.readouterr().err.splitlines() if "removed" in line]
    assert len(notes) == 1
    names = ("scene_probabilities.tif", "scene_entropy.tif", "scene_classes.gpkg")
    assert notes[0].startswith("3 files")
    assert all(name in notes[0] for name in names)
    assert classify(other, maps, image, more=(SURE,)) == 0
    assert "removed" not in capsys.readouterr().err


def test_nothing_is_removed_where_the_new_map_fails(model: Path, image: Path, capsys):
    maps = image.parent / "maps"
    assert classify(model, maps, image, more=(SURE,)) == 0
    before = files(maps)
    make_raster(image, noise((1, 30, 30)))
    refused(capsys, classify(model, maps, image), 2, "scene.tif")
    assert files(maps) == before


def test_an_area_file_is_not_removed_though_a_former_run_made_it(model: Path, image: Path):
    maps = image.parent / "maps"
    assert classify(model, maps, image, more=("classification.polygons=gpkg",)) == 0
    area = maps / "scene_classes.gpkg"
    before = area.read_bytes()
    assert classify(model, maps, image, more=(f"classification.aoi={area}",)) == 0
    assert area.read_bytes() == before


# Finding


def test_rasters_of_the_user_with_names_of_maps_are_images(model: Path, tmp_path: Path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("land_classes.tif", "land_confidence.tif"):
        make_raster(folder / name, noise((2, 20, 20)))
    for number in range(7):
        make_former(folder / f"old{number}_entropy.tif")
    assert classify(model, tmp_path / "maps", folder) == 0
    made = {path.name for path in (tmp_path / "maps").glob("*.tif")}
    assert made == {"land_classes_classes.tif", "land_confidence_classes.tif"}
    said = [line for line in capsys.readouterr().err.splitlines() if "passed over" in line]
    shown = ", ".join(f"old{number}_entropy.tif" for number in range(5))
    assert said == [f"7 maps made by geoseg are passed over: {shown} and 2 more"]


def test_patterns_and_paths(tmp_path: Path):
    mine, former = raster_of_a_user(tmp_path / "a_classes.tif"), make_former(tmp_path / "b_classes.tif")
    found = find_images([tmp_path / "*.tif", tmp_path / "*_classes.tif"])
    assert (found.images, found.maps_passed_over) == ([mine], [former])
    assert find_images([former]).images == [former]


def test_a_folder_of_nothing_but_maps_says_so(model: Path, tmp_path: Path, capsys):
    make_former(tmp_path / "b_classes.tif")
    refused(capsys, classify(model, tmp_path / "maps", tmp_path), 2, "nothing but maps that geoseg made")


def test_a_broken_raster_with_the_name_of_a_map_is_an_image(tmp_path: Path):
    broken = tmp_path / "a_classes.tif"
    broken.write_bytes(np.random.default_rng(0).bytes(100))
    assert find_images([tmp_path]).images == [broken]
