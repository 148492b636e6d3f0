"""The commands as a user runs them: from rasters and polygons to scores, and what they say when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio

import synthetic

ROOT = Path(__file__).resolve().parents[1]
CLASSES = list(synthetic.CLASSES)
CONFIG = """\
global:
  samples_size: 64
  classes: [background, field, water, road, building]
  number_of_bands: 4
  seed: 3
sample:
  samples_dist: 32
  remove_background: false
training:
  batch_size: 4
  num_epochs: 6
  learning_rate: 0.001
  optimizer: adamw
  scheduler: one_cycle
  workers: 0
"""


def geoseg(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m geoseg.COMMAND` in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("GEOSEG_CONFIG", None)
    line = [sys.executable, "-m", f"geoseg.{command}", *arguments]
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


def succeed(command: str, *arguments: str, cwd: Path) -> str:
    """Run a command that must end with exit code 0; return what it printed."""
    done = geoseg(command, *arguments, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def make_inputs(folder: Path, side: int = 128) -> Path:
    """Write scenes, polygons, prep.csv and config.yaml."""
    synthetic.write_project(folder, side=side, seed=11, dtype="uint16")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all four commands have run, called from another folder."""
    folder = make_inputs(tmp_path_factory.mktemp("project"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for command in ("sample", "train", "classify", "evaluate"):
        succeed(command, str(folder / "config.yaml"), cwd=elsewhere)
    assert list(elsewhere.iterdir()) == []  # everything is relative to the config, nothing to where one stands
    return folder


def test_the_store_holds_every_window_of_every_scene(project: Path) -> None:
    store = project / "data/samples"
    info = json.loads((store / "store.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in info["classes"]] == CLASSES
    assert info["dtype"] == "uint16"
    # An axis of length L has ceil((L - 64) / 32) + 1 windows: 7 over 256 pixels, 3 over 128.
    index = gpd.read_parquet(store / "index.parquet")
    assert index.groupby("split").size().to_dict() == {"trn": 7 * 3, "val": 9, "tst": 9}
    for scene, rows in index.groupby("scene"):
        images = np.load(store / f"shards/{scene}.images.npy", mmap_mode="r")
        assert images.shape == (len(rows), 4, 64, 64)
        assert images.dtype == np.uint16


def test_samples_are_the_pixels_of_the_scene(project: Path) -> None:
    store = project / "data/samples"
    index = gpd.read_parquet(store / "index.parquet")
    row = index[(index["split"] == "val") & (index["row_off"] == 32) & (index["col_off"] == 64)].iloc[0]
    images = np.load(store / f"shards/{row['scene']}.images.npy")
    labels = np.load(store / f"shards/{row['scene']}.labels.npy")
    with rasterio.open(project / "images/val.tif") as image:
        expected = image.read()[:, 32:96, 64:128]
    assert np.array_equal(images[row["position"]], expected)
    painted = synthetic.make_scene(128, 128, 12, "uint16", origin=(6e5, 5e6)).label()[32:96, 64:128]
    # The polygons went through degrees: outlines may move by a hair, so a pixel here or there may differ.
    assert (labels[row["position"]] == painted).mean() > 0.998


def test_statistics_are_those_of_the_training_scene(project: Path) -> None:
    info = json.loads((project / "data/samples/store.json").read_text(encoding="utf-8"))
    with rasterio.open(project / "images/train.tif") as image:
        pixels = image.read().astype(np.float64)
    for band, statistics in enumerate(info["statistics"]):
        assert statistics["count"] == 256 * 128
        assert statistics["mean"] == pytest.approx(pixels[band].mean(), rel=1e-9)
        assert statistics["std"] == pytest.approx(pixels[band].std(), rel=1e-6)


def test_the_run_folder_is_complete(project: Path) -> None:
    run = project / "runs/unetsmall"
    for name in ("config.yaml", "metrics.csv", "best.safetensors", "last.ckpt", "tensorboard"):
        assert (run / name).exists(), name
    assert len(pd.read_csv(run / "metrics.csv")) == 6


def test_the_map_lies_on_the_image(project: Path) -> None:
    with (
        rasterio.open(project / "to_classify/test.tif") as image,
        rasterio.open(project / "maps/test_classes.tif") as made,
    ):
        assert made.transform == image.transform
        assert made.crs == image.crs
        assert (made.height, made.width, made.count, made.dtypes[0]) == (128, 128, 1, "uint8")
        assert made.nodata == 255
        assert made.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert set(np.unique(made.read(1))) <= set(range(5))
        assert len({made.colormap(1)[class_id] for class_id in range(5)}) == 5
    left = [path.name for path in (project / "maps").iterdir() if path.is_file()]
    assert sorted(left) == ["classes.json", "test_classes.qml", "test_classes.tif", "test_classes.tif.aux.xml"]


def test_the_map_is_better_than_the_commonest_class(project: Path) -> None:
    label = synthetic.make_scene(128, 128, 13, "uint16", origin=(7e5, 5e6)).label()
    with rasterio.open(project / "maps/test_classes.tif") as made:
        right = (made.read(1) == label).mean()
    assert right > np.bincount(label.ravel()).max() / label.size + 0.1


def test_scores_can_be_computed_from_the_files_that_a_user_has(project: Path) -> None:
    label = synthetic.make_scene(128, 128, 13, "uint16", origin=(7e5, 5e6)).label()
    with rasterio.open(project / "maps/test_classes.tif") as made:
        mapped = made.read(1)
    scores = json.loads((project / "maps/evaluation/scores.json").read_text(encoding="utf-8"))
    for class_id, entry in enumerate(scores["classes"]):
        in_map, in_label = mapped == class_id, label == class_id
        expected = (in_map & in_label).sum() / max((in_map | in_label).sum(), 1)
        assert entry["name"] == CLASSES[class_id]
        assert entry["iou"] == pytest.approx(expected, abs=0.02)


def test_running_again_gives_the_same_map(project: Path, tmp_path: Path) -> None:
    succeed("classify", "config.yaml", f"classification.output_path={tmp_path}", cwd=project)
    with (
        rasterio.open(project / "maps/test_classes.tif") as first,
        rasterio.open(tmp_path / "test_classes.tif") as again,
    ):
        assert np.array_equal(first.read(1), again.read(1))


def test_the_model_file_alone_classifies(project: Path, tmp_path: Path) -> None:
    model, image = tmp_path / "m.safetensors", tmp_path / "scene.tif"
    shutil.copy(project / "runs/unetsmall/best.safetensors", model)
    shutil.copy(project / "to_classify/test.tif", image)
    succeed("classify", "--model", str(model), "--output", "maps", "--images", "scene.tif", cwd=tmp_path)
    with (
        rasterio.open(tmp_path / "maps/scene_classes.tif") as alone,
        rasterio.open(project / "maps/test_classes.tif") as made,
    ):
        assert np.array_equal(alone.read(1), made.read(1))


def test_training_into_an_existing_run_is_refused(project: Path) -> None:
    before = (project / "runs/unetsmall/best.safetensors").read_bytes()
    done = geoseg("train", "config.yaml", cwd=project)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert "--overwrite" in done.stderr
    assert (project / "runs/unetsmall/best.safetensors").read_bytes() == before


def change_list(old: str, new: str) -> Callable[[Path], None]:
    """Return an edit of prep.csv."""

    def edit(folder: Path) -> None:
        path = folder / "prep.csv"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return edit


def unreadable_image(folder: Path) -> None:
    (folder / "images/val.tif").write_bytes(b"this is no raster")


def labels_without_crs(folder: Path) -> None:
    path = folder / "labels/val.gpkg"
    frame = gpd.read_file(path)
    path.unlink()
    frame.set_crs(None, allow_override=True).to_file(path, layer="labels", driver="GPKG")


def labels_far_away(folder: Path) -> None:
    path = folder / "labels/val.gpkg"
    frame = gpd.read_file(path)
    path.unlink()
    frame.translate(xoff=5).to_frame("geometry").join(frame.drop(columns="geometry")).to_file(path, driver="GPKG")


def too_few_classes(folder: Path) -> None:
    change_list(",class,", ",class_id,")(folder)
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    text = text.replace("classes: [background, field, water, road, building]", "num_classes: 3")
    (folder / "config.yaml").write_text(text, encoding="utf-8")


BAD_INPUT = {
    "a missing image": (change_list("images/val.tif", "images/vol.tif"), ["vol.tif"]),
    "an unreadable raster": (unreadable_image, ["val.tif"]),
    "a misspelt attribute": (change_list(",class,val", ",Class,val"), ["Class", "class_id", "labels"]),
    "labels without a CRS": (labels_without_crs, ["val.gpkg", "CRS"]),
    "labels elsewhere": (labels_far_away, ["val.gpkg", "overlap"]),
    "class ids beyond num_classes": (too_few_classes, ["3, 4"]),
    "no training scene": (change_list(",trn", ",tst"), ["trn"]),
    "an unknown split": (change_list(",trn", ",learn"), ["learn", "trn"]),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_said_in_a_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    spoil, words = BAD_INPUT[case]
    folder = make_inputs(tmp_path, side=64)
    spoil(folder)
    before = {path for path in folder.rglob("*") if path.is_file()}
    done = geoseg("sample", "config.yaml", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert all(len(line) < 1000 and ";" in line for line in done.stderr.strip().splitlines() if ": found " in line)
    assert {path for path in folder.rglob("*") if path.is_file()} == before


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    folder = make_inputs(tmp_path, side=64)
    change_list("images/val.tif", "images/vol.tif")(folder)
    change_list(",class,tst", ",klass,tst")(folder)
    done = geoseg("sample", "config.yaml", cwd=folder)
    assert done.returncode == 2
    assert "vol.tif" in done.stderr
    assert "klass" in done.stderr


def test_a_misspelt_key_names_the_right_one(project: Path) -> None:
    done = geoseg("sample", "config.yaml", "sample.samples_dits=10", cwd=project)
    assert done.returncode == 2
    assert "samples_dist" in done.stderr


def test_a_raster_with_other_bands_is_refused_before_anything_is_written(project: Path, tmp_path: Path) -> None:
    with rasterio.open(project / "to_classify/test.tif") as source:
        profile = {**source.profile, "count": 3}
        with rasterio.open(tmp_path / "three.tif", "w", **profile) as target:
            target.write(source.read([1, 2, 3]))
    done = geoseg("classify", "config.yaml", "classification.images=[three.tif]", cwd=project)
    assert done.returncode == 2  # the pattern is relative to the config, where there is no such file
    arguments = [f"classification.images=[{tmp_path}/three.tif]", f"classification.output_path={tmp_path}/maps"]
    done = geoseg("classify", "config.yaml", *arguments, cwd=project)
    assert done.returncode == 2, done.stderr
    assert "three.tif" in done.stderr
    assert "3 bands" in done.stderr
    assert not list(tmp_path.rglob("*_classes.tif*"))


def test_a_model_file_of_another_architecture_is_refused(project: Path) -> None:
    model = project / "runs/unetsmall/best.safetensors"
    arguments = ["global.model_name=unet", f"classification.state_dict_path={model}"]
    done = geoseg("classify", "config.yaml", *arguments, cwd=project)
    assert done.returncode == 2, done.stderr
    assert "unetsmall" in done.stderr
