"""`evaluate --design` and `--points`: from maps to points, and from answers to areas."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import pytest
from conftest import make_polygons, make_raster, pixel_box
from test_evaluate_command import make_scene, refused, write_project

from geoseg.evaluate import main


def answer(path: Path, truth: np.ndarray) -> None:
    """Fill in what a raster of the true classes says at each point."""
    frame = geopandas.read_file(path, layer="points")
    frame["reference"] = [str(truth[row, col]) for row, col in zip(frame["row"], frame["col"], strict=True)]
    pyogrio.write_dataframe(frame, path, layer="points")


def test_from_maps_to_areas(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    assert main([config, "--design", "evaluation.sample_points=300", "evaluation.allocation=equal"]) == 0
    path = tmp_path / "maps/evaluation/points.gpkg"
    frame = geopandas.read_file(path, layer="points")
    assert list(np.bincount(frame["stratum"], minlength=3)) == [150, 150, 0]  # the map has no water
    assert "--points" in capsys.readouterr().out
    truth = np.zeros((40, 40), int)
    truth[:, :20], truth[:10] = 1, 2
    answer(path, truth)

    assert main([config, "--points", str(path)]) == 0
    content = json.loads((path.parent / "areas.json").read_text())
    # 39 rows are mapped, of 15 columns of field (one pixel without a class) and 25 of background.
    assert content["mapped"] == [39 * 25, 39 * 15 - 1, 0]
    real = [29 * 20, 29 * 20 - 1, 10 * 40]
    for found, error, expected in zip(content["area"], content["area_error"], real, strict=True):
        assert abs(found - expected) < 4 * error
    assert content["users"][2] is None
    assert content["unit"] == "m2"
    with (path.parent / "areas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["background", "field", "water"]
    low, high = float(rows[2]["area_low_95"]), float(rows[2]["area_high_95"])
    assert (low + high) / 2 == pytest.approx(content["area"][2])
    page = (path.parent / "areas.html").read_text()
    assert "Olofsson" in page
    assert "#00ff00" in page
    assert "http" not in page
    printed = capsys.readouterr().out
    assert "estimated area" in printed
    assert "areas.html" in printed


def test_without_any_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    classes = np.zeros((40, 40), np.uint8)
    classes[:, 20:] = 1
    make_raster(tmp_path / "m.tif", classes, nodata=255)
    monkeypatch.chdir(tmp_path)
    assert main(["--maps", "m.tif", "--design", "--points", "p.gpkg", "evaluation.sample_points=20"]) == 0
    answer(tmp_path / "p.gpkg", classes)
    assert main(["--points", "p.gpkg"]) == 0
    content = json.loads((tmp_path / "areas.json").read_text())
    assert content["area"] == [800, 800]
    assert content["overall"] == 1


def test_the_key_for_points(tmp_path: Path):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north", text="  points: maps/evaluation/points.gpkg\n")
    assert main([str(config), "--design", "evaluation.sample_points=50"]) == 0
    answer(tmp_path / "maps/evaluation/points.gpkg", np.zeros((40, 40), int))
    assert main([str(config)]) == 0
    assert json.loads((tmp_path / "maps/evaluation/areas.json").read_text())["producers"][0] < 1
    assert not (tmp_path / "maps/evaluation/scores.json").exists()
    assert main([str(config), "evaluation.points=null"]) == 0
    assert (tmp_path / "maps/evaluation/scores.json").exists()


def test_the_number_of_points_follows_from_the_standard_error(tmp_path: Path):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    assert main([config, "--design", "evaluation.standard_error=0.05", "evaluation.expected_accuracy=0.9"]) == 0
    frame = geopandas.read_file(tmp_path / "maps/evaluation/points.gpkg", layer="points")
    assert len(frame) == 36  # (0.3 / 0.05) squared


def test_answers_are_never_overwritten(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    assert main([config, "--design", "evaluation.sample_points=50"]) == 0
    refused(capsys, main([config, "--design"]), 2, "points.gpkg", "may hold answers")


def test_points_are_drawn_into_a_geopackage_alone(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    for name in ("p.shp", "p.geojson", "points"):
        refused(capsys, main([config, "--design", "--points", str(tmp_path / name)]), 2, name, "a GeoPackage (.gpkg)")
        assert not (tmp_path / name).exists()
    assert main([config, "--design", "evaluation.sample_points=50", "--points", str(tmp_path / "P.GPKG")]) == 0
    assert len(geopandas.read_file(tmp_path / "P.GPKG", layer="points")) == 50


def test_a_folder_of_areas_that_cannot_be_made_is_one_line(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    path = tmp_path / "p.gpkg"
    assert main([str(write_project(tmp_path, "north")), "--design", "--points", str(path)]) == 0
    answer(path, np.zeros((40, 40), int))
    capsys.readouterr()
    (tmp_path / "afile").write_text("kept")
    for folder in (tmp_path / "afile", Path("/proc/x")):
        refused(capsys, main(["--points", str(path), "--output", str(folder)]), 2, f"{folder}: found a folder that")
        call = ["--maps", str(tmp_path / "maps/north_classes.tif"), "--design", "--output", str(folder)]
        refused(capsys, main(call), 2, f"{folder}: found a folder that cannot be made")
    assert (tmp_path / "afile").read_text() == "kept"


def test_a_map_that_is_named_twice_is_one_stratum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    classes = np.zeros((40, 40), np.uint8)
    classes[:, 30:] = 1
    make_raster(tmp_path / "m.tif", classes, nodata=255)
    monkeypatch.chdir(tmp_path)
    maps = ("--maps", "m.tif", str(tmp_path / "m.tif"))
    assert main([*maps, "--design", "--points", "p.gpkg", "evaluation.sample_points=20"]) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'm.tif'}: named more than once; it counts once" in said.err
    assert "overlap" not in said.err
    strata = pyogrio.read_dataframe("p.gpkg", layer="strata")
    assert list(strata["pixels"]) == [1200, 400]


def test_an_empty_file_is_refused(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    assert main([config, "--design", "evaluation.sample_points=50"]) == 0
    path = tmp_path / "maps/evaluation/points.gpkg"
    refused(capsys, main([config, "--points", str(path)]), 2, "no reference in any of 50 points", "fill it in")


def test_shares_must_fit_the_classes(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = str(write_project(tmp_path, "north"))
    refused(capsys, main([config, "--design", "evaluation.expected_accuracy=[0.9, 0.8]"]), 2, "2 shares", "3 classes")
    refused(capsys, main([config, "evaluation.expected_accuracy=1.5"]), 2, "expected_accuracy", "below 1")


def test_the_area_of_interest_of_a_scene_limits_the_points(tmp_path: Path):
    make_scene(tmp_path, "north")
    make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 40, 10)])
    config = write_project(tmp_path, "north")
    (tmp_path / "prep.csv").write_text("image,labels,attribute,split,aoi\nnorth.tif,north.gpkg,kind,tst,aoi.gpkg\n")
    assert main([str(config), "--design", "evaluation.sample_points=50"]) == 0
    frame = geopandas.read_file(tmp_path / "maps/evaluation/points.gpkg", layer="points")
    assert frame["col"].max() < 10
    assert set(frame["mapped"]) == {"field"}
