"""Stacks, conversions, label rasters, areas of interest: through classify and evaluate they mean what sample means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box
from test_classify_command import classify, make_model, noise
from test_evaluate_command import CLASSES, make_map

from geoseg.classify import main as classify_main
from geoseg.evaluate import main as evaluate_main
from geoseg.geo.raster import Reading
from geoseg.sample import main as sample_main


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as dataset:
        return np.asarray(dataset.read(1))


# Classify


def test_a_stack_is_classified_as_the_file_of_its_bands(tmp_path: Path) -> None:
    model = make_model(tmp_path / "best.safetensors")
    bands = noise((2, 70, 90))
    whole = make_raster(tmp_path / "whole.tif", bands)
    parts = [make_raster(tmp_path / f"scene_B{n}.tif", band) for n, band in enumerate(bands, 1)]
    assert classify(model, tmp_path / "maps", whole, "|".join(map(str, parts))) == 0
    np.testing.assert_array_equal(read(tmp_path / "maps/whole_classes.tif"), read(tmp_path / "maps/scene_classes.tif"))


def test_a_stack_in_the_config_is_relative_to_it(tmp_path: Path) -> None:
    make_model(tmp_path / "best.safetensors")
    for number, band in enumerate(noise((2, 40, 40)), 1):
        make_raster(tmp_path / f"scene_B{number}.tif", band)
    text = "classification:\n  state_dict_path: best.safetensors\n  images: [scene_B1.tif|scene_B2.tif]\n"
    (tmp_path / "config.yaml").write_text(text)
    assert classify_main([str(tmp_path / "config.yaml")]) == 0
    assert (tmp_path / "maps/scene_classes.tif").is_file()


def test_values_are_read_as_in_training(tmp_path: Path) -> None:
    reading = Reading(dtype="float32", valid_range=(50.0, 150.0))
    model = make_model(tmp_path / "best.safetensors", dtype="float32", reading=reading)
    pixels = noise((2, 40, 50))
    image = make_raster(tmp_path / "scene.tif", pixels)
    assert classify(model, tmp_path / "maps", image) == 0
    unknown = read(tmp_path / "maps/scene_classes.tif") == 255
    np.testing.assert_array_equal(unknown, ~((pixels >= 50) & (pixels <= 150)).all(axis=0))
    with rasterio.open(tmp_path / "maps/scene_classes.tif") as dataset:
        assert json.loads(dataset.tags()["READING"]) == {"dtype": "float32", "valid_range": [50.0, 150.0]}


def test_a_config_that_reads_values_otherwise_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "best.safetensors")
    image = make_raster(tmp_path / "scene.tif", noise((2, 40, 50)))
    (tmp_path / "config.yaml").write_text("sample:\n  apply_scale: true\n")
    assert classify(model, tmp_path / "maps", image, more=(str(tmp_path / "config.yaml"),)) == 2
    assert "best.safetensors: found reading" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("sample:\n  apply_scale: false\n")
    assert classify(model, tmp_path / "maps", image, more=(str(tmp_path / "config.yaml"),)) == 0


# Evaluate


def evaluated(folder: Path, rows: str, text: str = "") -> dict[str, Any]:
    (folder / "prep.csv").write_text(rows)
    (folder / "config.yaml").write_text("evaluation:\n  split: tst\n" + text)
    assert evaluate_main([str(folder / "config.yaml")]) == 0
    return dict(json.loads((folder / "maps/evaluation/scores.json").read_text()))


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """An image of 40 x 40 pixels and a map of it: field in the left half."""
    image = make_raster(tmp_path / "a.tif", noise((3, 40, 40)))
    mapped = np.zeros((40, 40))
    mapped[:, :20] = 1
    make_map(tmp_path / "maps", image, mapped)
    return tmp_path


def test_a_reference_may_be_a_raster_of_another_resolution(scene: Path) -> None:
    values = np.full((20, 20), 70, np.uint8)  # pixels of 2 m: upper half field, the rest water, one row unknown
    values[:10], values[19] = 7, 99
    make_raster(scene / "truth.tif", values, transform=TRANSFORM * TRANSFORM.scale(2), nodata=99)
    # The map's own classes decide: field is "F" or "G", water "W"; a raster holds numbers, so the map gets numbers.
    table = ({**CLASSES[0], "value": 1}, {**CLASSES[1], "value": 7}, {**CLASSES[2], "value": 70})
    mapped = np.zeros((40, 40))
    mapped[:, :20] = 1
    make_map(scene / "maps", scene / "a.tif", mapped, table)
    scores = evaluated(scene, "image,labels,split\na.tif,truth.tif,tst\n")
    text = (scene / "maps/evaluation/confusion.csv").read_text()
    # Field: 20 rows x 40 columns, half found. Water: rows 20..37 mapped field or background.
    numbers = [[int(cell) for cell in line.split(",")[1:4]] for line in text.splitlines()[1:4]]
    assert numbers == [[0, 0, 0], [400, 400, 0], [360, 360, 0]]
    assert scores["references"] == [str(scene / "truth.tif")]


def test_outside_the_area_of_interest_nothing_counts(scene: Path) -> None:
    make_polygons(scene / "l.gpkg", [pixel_box(0, 0, 40, 20)], {"kind": ["F"]})
    make_polygons(scene / "aoi.gpkg", [pixel_box(0, 10, 5, 20)])
    evaluated(scene, "image,labels,attribute,split,aoi\na.tif,l.gpkg,kind,tst,aoi.gpkg\n")
    text = (scene / "maps/evaluation/confusion.csv").read_text()
    numbers = [[int(cell) for cell in line.split(",")[1:4]] for line in text.splitlines()[1:4]]
    assert numbers == [[50, 0, 0], [0, 50, 0], [0, 0, 0]]


def test_the_area_of_interest_on_the_command_line(scene: Path) -> None:
    labels = make_polygons(scene / "l.gpkg", [pixel_box(0, 0, 40, 20)], {"kind": ["F"]})
    aoi = make_polygons(scene / "aoi.gpkg", [pixel_box(0, 10, 5, 20)])
    words = ["--maps", str(scene / "maps/a_classes.tif"), "--references", str(labels), "--attribute", "kind"]
    assert evaluate_main([*words, "--aoi", str(aoi), "--output", str(scene / "out")]) == 0
    lines = (scene / "out/confusion.csv").read_text().splitlines()[1:4]
    assert [int(line.split(",")[number]) for number, line in enumerate(lines, 1)] == [50, 50, 0]


def test_sample_and_evaluate_take_a_label_pixel_to_mean_the_same(tmp_path: Path) -> None:
    # A map that is the label of the samples is right everywhere, whatever the rules.
    make_raster(tmp_path / "a.tif", noise((3, 64, 64)))
    boxes = [pixel_box(5, 5, 30, 30), pixel_box(20, 20, 40, 25)]
    make_polygons(tmp_path / "l.gpkg", boxes, {"kind": ["F", "W"], "rank": [2, 1]})
    make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 50, 64)])
    for split in ("trn", "tst"):
        rows = f"image,labels,attribute,split,aoi\na.tif,l.gpkg,kind,{split},aoi.gpkg\n"
        (tmp_path / f"{split}.csv").write_text(rows)
    (tmp_path / "config.yaml").write_text(
        "global:\n  samples_size: 32\n  classes:\n    - background\n    - {name: field, value: [F, G], buffer: 1.5}\n"
        "    - {name: water, value: W, buffer: -1}\nsample:\n  prep_csv_file: trn.csv\n  workers: 1\n  priority: rank\n"
        "  all_touched: true\n  boundary_ignore: 2\nevaluation:\n  prep_csv_file: tst.csv\n"
    )
    assert sample_main([str(tmp_path / "config.yaml")]) == 0
    (label,) = (tmp_path / "data/samples/labels").glob("*.tif")
    mapped = read(label)
    make_map(tmp_path / "maps", tmp_path / "a.tif", mapped)
    assert evaluate_main([str(tmp_path / "config.yaml")]) == 0
    lines = (tmp_path / "maps/evaluation/confusion.csv").read_text().splitlines()[1:4]
    numbers = np.array([[int(cell) for cell in line.split(",")[1:5]] for line in lines])
    assert numbers.sum() == (mapped != 255).sum() == np.trace(numbers)
    assert numbers.trace() > 1000
