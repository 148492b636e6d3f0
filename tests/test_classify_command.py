"""The classify command: which images, which maps, and what it says when something does not fit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
import torch
from affine import Affine
from conftest import TRANSFORM, make_raster

from geoseg.classify import main
from geoseg.classify.running import Job
from geoseg.config import load_config
from geoseg.data.normalise import Normalisation
from geoseg.learn.modelfile import ModelSpec, model_hash, save_model_file
from geoseg.models import build_model
from geoseg.predict import scene as scene_module
from geoseg.predict.combine import Combination
from geoseg.predict.output import MapDescription
from geoseg.predict.scene import ClassifyOptions

CLASSES = (
    {"id": 0, "name": "background", "value": None, "colour": "#101010"},
    {"id": 1, "name": "field", "value": "F", "colour": None},
    {"id": 2, "name": "water", "value": "W", "colour": "#0000ff"},
)

SPEC = {
    "model_name": "unetsmall",
    "model_options": {},
    "in_channels": 2,
    "num_classes": 3,
    "classes": CLASSES,
    "bands": (1, 2),
    "band_names": ("red", None),
    "dtype": "uint8",
    "normalisation": Normalisation((100.0, 100.0), (50.0, 50.0)),
    "ignore_value": 255,
    "samples_size": 64,
    "resolution": (1.0, 1.0),
    "crs": "EPSG:32618",
}


def make_model(path: Path, **changes) -> Path:
    """Write a model file of a small network with weights that give all classes on noise."""
    torch.manual_seed(4)
    spec = {**SPEC, **changes}
    net = build_model(spec["model_name"], spec["in_channels"], spec["num_classes"])
    for layer in net.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out")  # torch's own start gives one class alone
    save_model_file(path, net, ModelSpec(**spec))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "best.safetensors")


def noise(shape: tuple[int, ...], dtype=np.uint8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 200, size=shape).astype(dtype)


def classify(model: Path, output: Path, *images: Path | str, more: tuple[str, ...] = ()) -> int:
    return main([*more, "--model", str(model), "--output", str(output), "--images", *map(str, images)])


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")} if folder.exists() else set()


def make_former(path: Path) -> Path:
    """Write a raster that says that geoseg made it."""
    make_raster(path, noise((1, 30, 30)))
    with rasterio.open(path, "r+") as raster:
        raster.update_tags(MODEL_HASH="0123")
    return path


def test_a_map_without_any_config(model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    image = make_raster(tmp_path / "scene.tif", noise((2, 70, 90)))
    assert classify(model, Path("maps"), "scene.tif") == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made, rasterio.open(image) as source:
        assert (made.transform, made.crs, made.shape) == (source.transform, source.crs, source.shape)
        assert (made.count, made.dtypes[0], made.nodata) == (1, "uint8", 255)
        assert made.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert set(np.unique(made.read(1))) <= {0, 1, 2}
        assert made.colormap(1)[2] == (0, 0, 255, 255)
        assert made.colormap(1)[0] == (16, 16, 16, 255)
        assert made.colormap(1)[255][3] == 0
        tags = made.tags()
    assert tags["MODEL_NAME"] == "unetsmall"
    assert tags["MODEL_HASH"] == model_hash(model)
    assert [entry["value"] for entry in json.loads(tags["CLASSES"])] == [None, "F", "W"]
    assert tags["SOURCE"] == "scene.tif"
    assert "<Category>water</Category>" in (tmp_path / "maps/scene_classes.tif.aux.xml").read_text()
    assert files(tmp_path / "maps") == {"classes.json", *(f"scene_classes.{e}" for e in ("qml", "tif", "tif.aux.xml"))}
    assert "90 x 70 pixels" in capsys.readouterr().out


def write_config(folder: Path, model: Path, text: str = "") -> Path:
    path = folder / "config.yaml"
    path.write_text(f"classification:\n  state_dict_path: {model}\n{text}", encoding="utf-8")
    return path


def test_a_config_scans_its_folder(model: Path, tmp_path: Path):
    folder = tmp_path / "to_classify"
    folder.mkdir()
    make_raster(folder / "a.tif", noise((2, 40, 40)))
    make_raster(folder / "b.TIFF", noise((2, 40, 40)))
    make_former(folder / "old_classes.tif")
    (folder / "notes.txt").write_text("no raster")
    assert main([str(write_config(tmp_path, model))]) == 0
    assert {name for name in files(tmp_path / "maps") if name.endswith(".tif")} == {"a_classes.tif", "b_classes.tif"}
    with rasterio.open(tmp_path / "maps/a_classes.tif") as made:
        assert "state_dict_path" in made.tags()["CONFIG"]
        assert len(made.tags()["CONFIG_HASH"]) == 12


def test_patterns_and_folders_are_images_too(model: Path, tmp_path: Path):
    for name in ("a1.tif", "a2.tif", "b1.tif"):
        make_raster(tmp_path / name, noise((2, 20, 20)))
    assert classify(model, tmp_path / "maps", tmp_path / "a*.tif") == 0
    assert {name for name in files(tmp_path / "maps") if name.endswith(".tif")} == {"a1_classes.tif", "a2_classes.tif"}


def test_probabilities_and_confidence(model: Path, tmp_path: Path):
    image = noise((2, 50, 60))
    image[:, 10:14, 20:30] = 0
    make_raster(tmp_path / "scene.tif", image, nodata=0)
    outputs = "classification.outputs=[classes,probabilities,confidence]"
    assert classify(model, tmp_path / "maps", tmp_path / "scene.tif", more=(outputs,)) == 0
    read = {}
    for output in ("classes", "probabilities", "confidence"):
        with rasterio.open(tmp_path / f"maps/scene_{output}.tif") as made:
            read[output] = made.read()
            if output == "probabilities":
                assert made.descriptions == ("background", "field", "water")
                assert np.isnan(made.nodata)
    hole = np.zeros((50, 60), dtype=bool)
    hole[10:14, 20:30] = True
    np.testing.assert_array_equal(read["classes"][0] == 255, hole)
    assert np.isnan(read["probabilities"][:, hole]).all()
    assert np.isnan(read["confidence"][0][hole]).all()
    shares = read["probabilities"][:, ~hole]
    np.testing.assert_allclose(shares.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_array_equal(shares.argmax(axis=0), read["classes"][0][~hole])
    np.testing.assert_array_equal(shares.max(axis=0), read["confidence"][0][~hole])


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("transform", [TRANSFORM @ Affine.rotation(30), Affine(2, 0, 5e5, 0, 2, 4e6), None])
def test_any_georeference_is_copied(model: Path, tmp_path: Path, transform: Affine | None):
    image = make_raster(
        tmp_path / "scene.tif", noise((2, 30, 30)), transform, None if transform is None else "EPSG:32618"
    )
    assert classify(model, tmp_path / "maps", image) == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made, rasterio.open(image) as source:
        assert made.transform == source.transform
        assert made.crs == source.crs


def test_control_points_are_copied(model: Path, tmp_path: Path):
    points = [rasterio.control.GroundControlPoint(r, c, 5e5 + c, 5e6 - r) for r in (0, 30) for c in (0, 30)]
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)), None, "EPSG:32618", gcps=points)
    assert classify(model, tmp_path / "maps", image) == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        assert [(p.row, p.col, p.x, p.y) for p in made.gcps[0]] == [(p.row, p.col, p.x, p.y) for p in points]
        assert made.transform == Affine.identity()
        assert made.crs is None


@pytest.mark.parametrize(("dtype", "nodata"), [("int16", -9999), ("float32", float("nan"))])
def test_nodata_of_the_image_is_not_that_of_the_map(tmp_path: Path, dtype: str, nodata: float):
    model = make_model(tmp_path / "m.safetensors", dtype=dtype)
    image = noise((2, 30, 30), dtype)
    image[0, 5, 6] = nodata
    make_raster(tmp_path / "scene.tif", image, nodata=nodata)
    assert classify(model, tmp_path / "maps", tmp_path / "scene.tif") == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        assert made.nodata == 255
        assert np.argwhere(made.read(1) == 255).tolist() == [[5, 6]]


def test_alpha_is_validity_and_no_band(tmp_path: Path):
    three = Normalisation((100.0,) * 3, (50.0,) * 3)
    names = (None, None, None)
    model = make_model(
        tmp_path / "m.safetensors", in_channels=3, bands=(1, 2, 3), band_names=names, normalisation=three
    )
    image = np.concatenate([noise((3, 30, 30)), np.full((1, 30, 30), 255, np.uint8)])
    image[3, :4] = 0
    make_raster(tmp_path / "scene.tif", image, photometric="RGB", alpha="YES")
    assert classify(model, tmp_path / "maps", tmp_path / "scene.tif") == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        assert (made.read(1)[:4] == 255).all()
        assert (made.read(1)[4:] != 255).all()


def refused(capsys, code: int, expected: int, *words: str) -> None:
    """Check that a run failed in single lines that say certain words."""
    error = capsys.readouterr().err
    assert code == expected, error
    assert "Traceback" not in error
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (lambda: noise((1, 20, 20)), ["1 bands", "2 bands"]),
        (lambda: noise((5, 20, 20)), ["5 bands", "2 as the model has", "--bands 1 2"]),
        (lambda: noise((2, 20, 20), "uint16"), ["uint16", "uint8", "gdal_translate -ot Byte"]),
    ],
)
def test_an_image_that_does_not_fit_is_refused(
    model: Path, tmp_path: Path, capsys, image: Callable[[], np.ndarray], words: list[str]
):
    path = make_raster(tmp_path / "scene.tif", image())
    refused(capsys, classify(model, tmp_path / "maps", path), 2, "scene.tif", *words)
    assert files(tmp_path / "maps") == set()


def test_named_bands_are_taken_from_an_image_with_more(model: Path, tmp_path: Path):
    bands = noise((5, 40, 40))
    make_raster(tmp_path / "five.tif", bands)
    make_raster(tmp_path / "two.tif", bands[[3, 0]])
    maps = tmp_path / "maps"
    assert classify(model, maps, tmp_path / "five.tif", more=("--bands", "4", "1")) == 0
    assert classify(model, maps, tmp_path / "two.tif") == 0
    with rasterio.open(maps / "five_classes.tif") as five, rasterio.open(maps / "two_classes.tif") as two:
        np.testing.assert_array_equal(five.read(1), two.read(1))
        assert five.tags()["BANDS"] == "4,1"


def test_recorded_bands_are_applied(tmp_path: Path):
    bands = noise((4, 40, 40))
    make_raster(tmp_path / "four.tif", bands)
    make_raster(tmp_path / "two.tif", bands[[2, 0]])
    maps = tmp_path / "maps"
    assert classify(make_model(tmp_path / "chosen.safetensors", bands=(3, 1)), maps, tmp_path / "four.tif") == 0
    assert classify(make_model(tmp_path / "all.safetensors"), maps, tmp_path / "two.tif") == 0
    with rasterio.open(maps / "four_classes.tif") as four, rasterio.open(maps / "two_classes.tif") as two:
        np.testing.assert_array_equal(four.read(1), two.read(1))


def test_bands_are_taken_by_name_from_images_that_have_all_of_them(tmp_path: Path, capsys):
    """Four bands in any order, with another between them, give the map of the two in the model's order."""
    model = make_model(tmp_path / "named.safetensors", band_names=("red", "nir"))
    bands = noise((2, 40, 40))
    extra = noise((2, 40, 40), seed=1)
    for name, stack, names in (
        ("right", bands, ("red", "nir")),
        ("turned", bands[::-1], ("nir", "red")),
        ("more", [extra[0], bands[1], extra[1], bands[0]], ("blue", " NIR", None, "Red")),
        ("unnamed", bands, ("B4", "B8")),
    ):
        with rasterio.open(make_raster(tmp_path / f"{name}.tif", np.array(stack)), "r+") as raster:
            raster.descriptions = names
    maps = tmp_path / "maps"
    assert classify(model, maps, *(tmp_path / f"{n}.tif" for n in ("right", "turned", "more", "unnamed"))) == 0
    assert "where the model had" not in _said(capsys)
    found = {}
    for name in ("right", "turned", "more", "unnamed"):
        with rasterio.open(maps / f"{name}_classes.tif") as raster:
            found[name] = raster.read(1), raster.tags()["BANDS"]
    assert [tag for _, tag in found.values()] == ["1,2", "2,1", "4,2", "1,2"]
    for label, _ in found.values():
        np.testing.assert_array_equal(label, found["right"][0])


def test_bands_given_by_number_are_taken_by_number_with_a_warning(tmp_path: Path, capsys):
    model = make_model(tmp_path / "named.safetensors", band_names=("red", "nir"))
    image = make_raster(tmp_path / "turned.tif", noise((2, 40, 40)))
    with rasterio.open(image, "r+") as raster:
        raster.descriptions = ("nir", "red")
    for said, tag in ((("--bands", "1", "2"), "1,2"), (("--bands", "2", "1"), "2,1")):
        assert classify(model, tmp_path / "maps", image, more=said) == 0
        warned = "bands nir, red where the model had red, nir; here those are --bands 2 1" in _said(capsys)
        assert warned == (tag == "1,2")
        with rasterio.open(tmp_path / "maps/turned_classes.tif") as raster:
            assert raster.tags()["BANDS"] == tag
    config = str(write_config(tmp_path, model))
    for said, tag in (("global.bands=[1, 2]", "1,2"), ("global.bands=[red, nir]", "2,1")):
        assert main([config, said, "--output", str(tmp_path / "maps"), "--images", str(image)]) == 0
        with rasterio.open(tmp_path / "maps/turned_classes.tif") as raster:
            assert raster.tags()["BANDS"] == tag


def test_a_name_of_the_model_at_another_place_is_a_warning(tmp_path: Path, capsys):
    model = make_model(tmp_path / "named.safetensors", band_names=("red", "nir"))
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    with rasterio.open(image, "r+") as raster:
        raster.descriptions = ("green", "red")
    assert classify(model, tmp_path / "maps", image) == 0
    assert "bands green, red where the model had red, nir" in _said(capsys)


def _said(capsys) -> str:
    said = capsys.readouterr()
    return said.out + said.err


def test_one_bad_image_does_not_stop_the_others(model: Path, tmp_path: Path, capsys):
    make_raster(tmp_path / "a.tif", noise((2, 30, 30)))
    (tmp_path / "b.tif").write_bytes(b"not a raster")
    make_raster(tmp_path / "c.tif", noise((2, 30, 30)))
    code = classify(model, tmp_path / "maps", *(tmp_path / f"{name}.tif" for name in "abc"))
    refused(capsys, code, 4, "b.tif")
    assert {name for name in files(tmp_path / "maps") if name.endswith(".tif")} == {"a_classes.tif", "c_classes.tif"}


def test_when_all_images_fail_each_says_why(model: Path, tmp_path: Path, capsys):
    for name in ("a.tif", "b.tif"):
        (tmp_path / name).write_bytes(b"not a raster")
    refused(capsys, classify(model, tmp_path / "maps", tmp_path / "a.tif", tmp_path / "b.tif"), 2, "a.tif", "b.tif")


def test_a_run_that_fails_half_way_leaves_the_old_map(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 600, 600)), tiled=True, blockxsize=256, blockysize=256)
    maps = tmp_path / "maps"
    maps.mkdir()
    former = make_former(maps / "scene_classes.tif").read_bytes()
    content = bytearray(image.read_bytes())
    content[-50_000:] = b"\0" * 0
    image.write_bytes(content)  # the last blocks are cut off
    refused(capsys, classify(model, maps, image, more=("classification.window=256",)), 2, "scene.tif")
    assert files(maps) == {"scene_classes.tif"}
    assert (maps / "scene_classes.tif").read_bytes() == former


def test_an_interrupted_run_leaves_nothing(model: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_):
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(scene_module, "predict_blocks", interrupted)
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    refused(capsys, classify(model, tmp_path / "maps", image), 130, "interrupted")
    assert files(tmp_path / "maps") == set()


def test_a_new_map_replaces_the_old_one_and_its_side_files(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    maps = tmp_path / "maps"
    maps.mkdir()
    make_former(maps / "scene_classes.tif")
    for suffix in (".aux.xml", ".ovr", ".msk"):
        (maps / f"scene_classes.tif{suffix}").write_text("STATISTICS_MAXIMUM 5")
    assert classify(model, maps, image) == 0
    assert files(maps) == {"classes.json", "scene_classes.qml", "scene_classes.tif", "scene_classes.tif.aux.xml"}
    assert "STATISTICS" not in (maps / "scene_classes.tif.aux.xml").read_text()


def test_existing_maps_may_be_kept(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/scene_classes.tif").write_text("old")
    assert classify(model, tmp_path / "maps", image, more=("classification.overwrite=false",)) == 0
    assert (tmp_path / "maps/scene_classes.tif").read_text() == "old"
    assert "skipped" in capsys.readouterr().err


def test_the_input_is_never_overwritten(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "real.tif", noise((2, 30, 30)))
    before = image.read_bytes()
    link = tmp_path / "scene_classes.tif"
    link.symlink_to(image)
    named = tmp_path / "scene.tif"
    named.symlink_to(image)
    refused(capsys, classify(model, tmp_path, named), 2, "scene_classes.tif", "input image itself")
    assert image.read_bytes() == before


def test_two_images_of_one_name_are_refused(model: Path, tmp_path: Path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make_raster(tmp_path / folder / "scene.tif", noise((2, 30, 30)))
    code = classify(model, tmp_path / "maps", tmp_path / "a/scene.tif", tmp_path / "b/scene.tif")
    refused(capsys, code, 2, "a/scene.tif", "b/scene.tif", "rename")


@pytest.mark.parametrize("empty", ["missing.tif", "none*.tif", "folder"])
def test_no_image_is_an_error(model: Path, tmp_path: Path, capsys, empty: str):
    (tmp_path / "folder").mkdir()
    refused(capsys, classify(model, tmp_path / "maps", tmp_path / empty), 2, empty)
    assert files(tmp_path / "maps") == set()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("global.model_name=unet", ["'unetsmall'", "'unet'"]),
        ("global.num_classes=5", ["3", "5"]),
        ("global.number_of_bands=4", ["2", "4"]),
        ("global.bands=[2, 1]", ["[1, 2]", "[2, 1]"]),
        ("global.classes=[background, water, field]", ["'water', 'field'", "'field', 'water'"]),
        ("global.ignore_value=254", ["255", "254"]),
    ],
)
def test_a_config_that_contradicts_the_model_is_refused(model: Path, tmp_path: Path, capsys, override: str, words):
    make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    code = main([str(write_config(tmp_path, model)), override, "--images", str(tmp_path / "scene.tif")])
    refused(capsys, code, 2, "best.safetensors", *words)
    assert files(tmp_path / "maps") == set()


def test_a_config_that_agrees_passes(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((3, 30, 30)))
    said = ("global.bands=[red, 2]", "global.classes=[background, field, water]", "global.model_name=unetsmall")
    assert main([str(write_config(tmp_path, model)), *said, "--images", str(image)]) == 0


def test_no_model_file_is_an_error(tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    refused(capsys, classify(tmp_path / "no.safetensors", tmp_path / "maps", image), 2, "no.safetensors", "train first")


def test_another_ground_resolution_is_a_warning(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)), Affine(2, 0, 5e5, 0, -2, 5e6))
    assert classify(model, tmp_path / "maps", image) == 0
    assert "pixels of 2 units" in capsys.readouterr().err
    near = make_raster(tmp_path / "near.tif", noise((2, 30, 30)), Affine(1.4, 0, 5e5, 0, -1.4, 5e6))
    assert classify(model, tmp_path / "maps", near) == 0
    assert "units" not in capsys.readouterr().err


def test_normalisation_is_that_of_the_model_file(tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 64, 64)))
    results = []
    for mean in (100.0, 20.0):
        model = make_model(tmp_path / "m.safetensors", normalisation=Normalisation((mean, mean), (50.0, 5.0)))
        assert classify(model, tmp_path / "maps", image) == 0
        with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
            results.append(made.read(1))
    assert (results[0] != results[1]).any()


def test_window_overlap_and_blending_come_from_the_config(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 150, 150)))
    results = []
    for more in (("window=64", "overlap=0"), ("window=64",), ("window=512",), ("window=64", "blending=hann")):
        overrides = tuple(f"classification.{item}" for item in more)
        assert classify(model, tmp_path / "maps", image, more=overrides) == 0
        with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
            results.append(made.read(1))
    assert (results[0] != results[1]).any()  # without context there are seams
    assert (results[1] == results[2]).mean() > 0.999  # with it there are none, up to float32 rounding
    assert (results[1] == results[3]).mean() > 0.9


def test_beside_the_maps_lie_a_style_and_the_classes(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    assert classify(model, tmp_path / "maps", image, more=("classification.quicklook=true",)) == 0
    style = ElementTree.parse(tmp_path / "maps/scene_classes.qml").getroot()
    entries = [(e.get("value"), e.get("label"), e.get("color")) for e in style.iter("paletteEntry")]
    assert entries[0] == ("0", "background", "#101010")
    assert [entry[1] for entry in entries] == ["background", "field", "water"]
    said = json.loads((tmp_path / "maps/classes.json").read_text())
    assert said["model_hash"] == model_hash(model)
    assert said["classes"][2] == {"id": 2, "name": "water", "colour": "#0000ff", "value": 2}
    assert (tmp_path / "maps/scene_classes.png").read_bytes()[:4] == b"\x89PNG"


def test_values_of_the_attribute_in_place_of_ids(tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    classes = tuple({**entry, "value": value} for entry, value in zip(CLASSES, (None, 311, "7"), strict=True))
    ids = make_model(tmp_path / "m.safetensors", classes=classes)
    assert classify(ids, tmp_path / "ids", image) == 0
    assert classify(ids, tmp_path / "values", image, more=("classification.values=attribute",)) == 0
    with (
        rasterio.open(tmp_path / "ids/scene_classes.tif") as one,
        rasterio.open(tmp_path / "values/scene_classes.tif") as other,
    ):
        assert (other.dtypes[0], other.nodata) == ("uint16", 65535)
        np.testing.assert_array_equal(other.read(1), np.array([0, 311, 7])[one.read(1)])
        assert other.colormap(1)[7] == (0, 0, 255, 255)
        assert json.loads(other.tags()["VALUES"]) == [0, 311, 7]
        assert "VALUES" not in one.tags()
    words = make_model(tmp_path / "w.safetensors")
    code = classify(words, tmp_path / "no", image, more=("classification.values=attribute",))
    refused(capsys, code, 2, "class field", "'F'", "class water")


def test_doubtful_pixels_are_a_class_of_their_own(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    outputs = "classification.outputs=[classes,confidence]"
    assert classify(model, tmp_path / "sure", image, more=(outputs,)) == 0
    below = "classification.uncertain_below=[0.0, 1.0, 0.6]"
    assert classify(model, tmp_path / "maps", image, more=(outputs, below)) == 0
    with rasterio.open(tmp_path / "sure/scene_classes.tif") as sure:
        ids = sure.read(1)
    with rasterio.open(tmp_path / "maps/scene_confidence.tif") as made:
        doubtful = made.read(1) < np.array([0.0, 1.0, 0.6])[ids]
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        np.testing.assert_array_equal(made.read(1), np.where(doubtful, 3, ids))
        assert [entry["name"] for entry in json.loads(made.tags()["CLASSES"])][3] == "uncertain"
    both = "classification.outputs=[classes,probabilities]"
    assert classify(model, tmp_path / "both", image, more=(both, below)) == 0
    with (
        rasterio.open(tmp_path / "both/scene_classes.tif") as made,
        rasterio.open(tmp_path / "both/scene_probabilities.tif") as shares,
    ):
        np.testing.assert_array_equal(made.read(1), np.where(doubtful, 3, ids))
        assert shares.descriptions == tuple(entry["name"] for entry in json.loads(made.tags()["CLASSES"]))[:3]
        np.testing.assert_array_equal(shares.read().argmax(axis=0), ids)
    assert 0 < doubtful.sum() < doubtful.size
    assert load_config(None, ["classification.uncertain_below=0.6"]).classification.uncertain_below == 0.6


def test_several_models_and_looks_are_averaged(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    other = make_model(tmp_path / "other.safetensors", samples_size=32)
    outputs, uint8 = "classification.outputs=[classes,probabilities]", "classification.fractions=uint8"
    looks = ("classification.test_time_augmentation=flips", f"classification.ensemble=[{other}]")
    files = [model, other]
    words = [
        outputs,
        uint8,
        "--output",
        str(tmp_path / "maps"),
        "--images",
        str(image),
        *(f"--model={file}" for file in files),
    ]
    assert main([*words]) == 0
    with rasterio.open(tmp_path / "maps/scene_probabilities.tif") as made:
        assert made.scales == (0.004,) * 3
        shares = made.read()
    assert (abs(shares.sum(axis=0, dtype=int) - 250) <= 2).all()
    assert main([str(write_config(tmp_path, model)), *looks, "--images", str(image)]) == 0
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as made:
        assert made.tags()["MODEL_HASH"] == f"{model_hash(model)}+{model_hash(other)}"
        assert made.tags()["LOOKS"].startswith("flips")
    stranger = make_model(tmp_path / "stranger.safetensors", bands=(2, 1))
    code = main(["--output", str(tmp_path / "m"), "--images", str(image), f"--model={model}", f"--model={stranger}"])
    refused(capsys, code, 2, "stranger.safetensors", "bands")


def test_shares_of_a_batch_array_are_the_whole(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        make_raster(tmp_path / f"{name}.tif", noise((2, 20, 20)))
    images, maps = tmp_path / "*.tif", tmp_path / "maps"
    assert classify(model, maps, images, more=("--shard", "2/2")) == 0
    assert {name for name in files(maps) if name.endswith(".tif")} == {"b_classes.tif"}
    monkeypatch.setenv("AWS_BATCH_JOB_ARRAY_INDEX", "0")
    monkeypatch.setenv("AWS_BATCH_JOB_ARRAY_SIZE", "2")
    assert classify(model, maps, images) == 0
    assert {name for name in files(maps) if name.endswith(".tif")} == {f"{name}_classes.tif" for name in "abc"}


def tall(path: Path) -> Path:
    """Write a raster of three parts of 2,048 rows, of which the last is short."""
    return make_raster(path, noise((2, 4200, 32)), tiled=True, blockxsize=32, blockysize=256)


def test_shares_of_one_image_are_its_parts(model: Path, tmp_path: Path, capsys):
    image = tall(tmp_path / "tall.tif")
    assert classify(model, tmp_path / "one", image) == 0
    whole = (tmp_path / "one/tall_classes.tif").read_bytes()
    maps = tmp_path / "maps"
    said = []
    for share in ("3/4", "1/4", "4/4", "2/4"):
        assert not (maps / "tall_classes.tif").exists()
        assert classify(model, maps, image, more=("--shard", share)) == 0
        said.append(_said(capsys))
    # Three parts for four shares: one of them has nothing to do.
    assert [text.count("the map needs those of other shares") for text in said] == [1, 1, 1, 0]
    assert (maps / "tall_classes.tif").read_bytes() == whole
    assert files(maps) == files(tmp_path / "one")
    assert classify(model, maps, image, more=("--shard", "2/4")) == 0
    assert "was done already" in _said(capsys)
    assert classify(model, tmp_path / "rest", image, more=("--shard", "2/3")) == 0
    assert classify(model, tmp_path / "rest", image, more=("--resume",)) == 0
    assert (tmp_path / "rest/tall_classes.tif").read_bytes() == whole


def test_shares_of_one_image_need_the_same_windows(model: Path, tmp_path: Path, capsys):
    image = tall(tmp_path / "tall.tif")
    share = ("--shard", "1/2", "--max-memory", "8GiB")
    refused(capsys, classify(model, tmp_path / "maps", image, more=share), 2, "--shard", "classification.window")
    fixed = ("classification.window=512", "classification.batch_size=1")
    assert classify(model, tmp_path / "maps", image, more=(*fixed, *share)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [("classification.workers=2",), ("--dask-local", "2")])
def test_processes_make_the_parts_of_one_image(model: Path, tmp_path: Path, capsys, how: tuple[str, ...]):
    image = tall(tmp_path / "tall.tif")
    outputs = "classification.outputs=[classes,confidence]"
    assert classify(model, tmp_path / "one", image, more=(outputs,)) == 0
    maps = tmp_path / "maps"
    assert classify(model, maps, image, more=(outputs, *how)) == 0
    assert "3 parts" in _said(capsys)
    assert files(maps) == files(tmp_path / "one")
    for name in files(maps):
        assert (maps / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert classify(model, maps, image, more=(outputs, *how, "--resume")) == 0
    assert "was done already" in _said(capsys)


def test_a_process_loads_a_model_once_and_notices_another(model: Path, tmp_path: Path):
    path = tmp_path / "best.safetensors"
    path.write_bytes(model.read_bytes())
    predictors = []
    for _ in range(2):
        described = MapDescription((), (), {"MODEL_HASH": model_hash(path)})
        spec, folder = ModelSpec(**SPEC), tmp_path / "maps"
        job = Job((path,), "cpu", "auto", Combination(), spec, (), described, folder, ClassifyOptions(), False)
        predictors.append(job.predictor)
        assert job.predictor is predictors[-1]
        assert len(pickle.dumps(job)) < 20_000  # no weights in it
        path.write_bytes(make_model(tmp_path / "other.safetensors", samples_size=32).read_bytes())
    assert predictors[1] is not predictors[0]


@pytest.mark.slow
def test_processes_make_the_same_maps(model: Path, tmp_path: Path, capsys):
    for name in "ab":
        make_raster(tmp_path / f"{name}.tif", noise((2, 60, 60)))
    (tmp_path / "c.tif").write_bytes(b"no raster")
    images = [tmp_path / f"{name}.tif" for name in "abc"]
    assert classify(model, tmp_path / "one", *images) == 4
    assert classify(model, tmp_path / "two", *images, more=("classification.workers=2",)) == 4
    assert files(tmp_path / "one") == files(tmp_path / "two")
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_help_does_not_wait_for_torch():
    code = "import sys, geoseg.classify; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_self_test_says_what_it_did(capsys):
    assert main(["--self-test"]) == 0
    assert "position-coded scene: the same map" in _said(capsys)


def test_only_the_area_of_interest_is_classified(model: Path, tmp_path: Path):
    image = make_raster(tmp_path / "scene.tif", noise((2, 150, 150)))
    assert classify(model, tmp_path / "all", image) == 0
    left, top = TRANSFORM * (20, 30)
    right, bottom = TRANSFORM * (90, 100)
    polygon = shapely.box(left, bottom, right, top)
    geopandas.GeoDataFrame(geometry=[polygon], crs="EPSG:32618").to_crs(4326).to_file(tmp_path / "aoi.geojson")
    for name, key in (
        ("aoi", f"aoi={tmp_path / 'aoi.geojson'}"),
        ("box", f"bounds=[{left}, {bottom}, {right}, {top}]"),
    ):
        more = (f"classification.{key}", "classification.window=64")
        assert classify(model, tmp_path / name, image, more=more) == 0
        with (
            rasterio.open(tmp_path / "all/scene_classes.tif") as whole,
            rasterio.open(tmp_path / name / "scene_classes.tif") as part,
        ):
            inside = np.zeros((150, 150), dtype=bool)
            inside[30:100, 20:90] = True
            np.testing.assert_array_equal(part.read(1)[~inside], 255)
            assert (part.read(1)[inside] == whole.read(1)[inside]).mean() > 0.999
            assert part.transform == whole.transform


def test_an_area_that_is_not_there_is_said_in_a_line(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 40)))
    code = classify(model, tmp_path / "maps", image, more=(f"classification.aoi={tmp_path / 'nope.gpkg'}",))
    refused(capsys, code, 2, "nope.gpkg", "no such file")


def test_bounds_beside_the_image_are_refused(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 30, 30)))
    code = classify(model, tmp_path / "maps", image, more=("classification.bounds=[0, 0, 1, 1]",))
    refused(capsys, code, 2, "scene.tif", "not on the image")


def test_lists_are_images_too(model: Path, tmp_path: Path, capsys):
    for name in "abc":
        make_raster(tmp_path / f"{name}.tif", noise((2, 20, 20)))
    (tmp_path / "plain.csv").write_text("a.tif\nb.tif\n")
    (tmp_path / "prep.csv").write_text("split,image\ntst,c.tif\n")
    assert classify(model, tmp_path / "maps", tmp_path / "plain.csv", tmp_path / "prep.csv") == 0
    assert {name for name in files(tmp_path / "maps") if name.endswith(".tif")} == {f"{n}_classes.tif" for n in "abc"}
    (tmp_path / "empty.csv").write_text("image\n")
    refused(capsys, classify(model, tmp_path / "maps", tmp_path / "empty.csv"), 2, "empty.csv", "no image")


def test_memory_that_does_not_suffice_is_said_before_the_work(model: Path, tmp_path: Path, capsys):
    image = make_raster(tmp_path / "scene.tif", noise((2, 900, 900)))
    refused(capsys, classify(model, tmp_path / "maps", image, more=("--max-memory", "50MiB")), 3, "at least", "MiB")
    assert files(tmp_path / "maps") == set()
    assert classify(model, tmp_path / "maps", image, more=("--max-memory", "64GiB")) == 0
