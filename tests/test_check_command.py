"""`python -m geoseg.check` from its command line: what it says of good and bad scenes, and that it writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import UTM18, make_polygons, make_raster, pixel_box
from shapely import Polygon

from geoseg.check import main
from geoseg.data.store import open_store
from geoseg.sample import main as sample

BOXES = ((4, 5, 20, 30), (30, 40, 20, 20), (50, 4, 15, 15))


def write_project(folder: Path, splits: tuple[str, ...] = ("trn", "val"), **global_keys: object) -> Path:
    """Write scenes, their list and a config; return the config's path."""
    rng = np.random.default_rng(4)
    rows = ["image,labels,attribute,split"]
    for number, split in enumerate(splits):
        image = rng.integers(1, 250, (3, 70, 90)).astype(np.uint8)
        image[:, 60:] = 0
        place = {"transform": _moved(number)}
        make_raster(folder / f"s{number}.tif", image, nodata=0, **place)
        boxes = [pixel_box(*box, transform=_moved(number)) for box in BOXES]
        make_polygons(folder / f"s{number}.gpkg", boxes, {"kind": ["roof", "road", "roof"]})
        rows.append(f"s{number}.tif,s{number}.gpkg,kind,{split}")
    (folder / "prep.csv").write_text("\n".join(rows))
    keys = {"samples_size": 32, "classes": "[background, road, roof]", **global_keys}
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    config = folder / "config.yaml"
    config.write_text("\n".join(["global:", *lines, "sample:", "  samples_dist: 20", "  workers: 1", ""]))
    return config


def _moved(number: int) -> Any:
    from affine import Affine

    return Affine(1.0, 0.0, 500000.0 + 1000 * number, 0.0, -1.0, 5000000.0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def as_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    """Run the command with --json --quick; return what it prints."""
    capsys.readouterr()
    assert main([*map(str, words), "--json", "--quick"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_table_for_each_scene_and_one_for_all(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config)]) == 0

    out = capsys.readouterr().out
    first = out.split("\n\n")[0]
    lines = dict(line.strip().split(maxsplit=1) for line in first.splitlines()[1:])
    assert lines["size"] == "90 x 70 pixels (across, down), 3 bands of uint8"
    assert lines["ground"] == "EPSG:32618, north-up, pixels of 1 x 1 metre"
    assert lines["classes"] == "road 1, roof 2"
    assert lines["data"] == "85.7 % of all pixels hold data"
    assert lines["geometries"] == "3 features; none flawed"
    assert lines["overlap"].startswith("100.0 % of the polygons' area lies on the image")
    assert lines["verdict"] == "good"
    assert "about " in out.split("disk")[1]
    assert "to train unetsmall with batches of 8" in out
    assert out.rstrip().endswith("verdict on 2 scenes: good")


def test_samples_and_pixels_are_those_of_sampling(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = as_json(capsys, config)["expected"]
    assert sample([str(config)]) == 0

    info = open_store(config.parent / "data").info
    assert expected["exact"]
    assert expected["classes"] == ["background", "road", "roof"]
    for split in ("trn", "val"):
        assert expected["splits"][split]["samples"] == info.samples[split]
        assert tuple(expected["splits"][split]["class_pixels"]) == info.class_pixels[split]


@pytest.mark.parametrize(
    "override",
    [
        "sample.split={method: blocks, size: 40 px, buffer: 0 px, fractions: {trn: 0.7, val: 0.3}}",
        "sample.min_annotated_percent=30",
        "sample.windows=objects",
    ],
)
def test_they_are_so_for_other_windows_and_splits(
    config: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    expected = as_json(capsys, config, override)["expected"]
    assert sample([str(config), override]) == 0

    info = open_store(config.parent / "data").info
    counts = {split: entry["samples"] for split, entry in expected["splits"].items() if entry["samples"]}
    assert counts == {split: count for split, count in info.samples.items() if count}
    assert {s: tuple(expected["splits"][s]["class_pixels"]) for s in counts} == {
        s: info.class_pixels[s] for s in counts
    }


def test_nothing_is_written(config: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in config.parent.rglob("*")}
    assert main([str(config), "sample.split={method: blocks, size: 40 px}"]) == 0
    assert {path: path.stat().st_mtime_ns for path in config.parent.rglob("*")} == before


def test_all_problems_of_all_scenes_together(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config.parent
    make_raster(folder / "s0.tif", np.ones((4, 70, 90), np.uint8))
    make_polygons(folder / "s0.gpkg", [pixel_box(*BOXES[0])], {"kind": ["rooof"]})
    (folder / "s1.tif").unlink()

    found = as_json(capsys, config, "global.number_of_bands=3", code=2)

    assert len(found["errors"]) == 3
    assert "4 bands" in found["errors"][0]
    assert "'rooof'" in found["errors"][1]
    assert "no such file" in found["errors"][2]
    assert found["scenes"][0]["raster"]["bands"] == 4
    assert found["scenes"][1]["raster"] is None
    assert main([str(config), "global.number_of_bands=3"]) == 2
    captured = capsys.readouterr()
    assert [line for line in captured.err.splitlines() if "prep.csv, line" in line] == found["errors"]
    assert captured.out.count("  error       ") == 3


def test_warnings_are_counted_and_strict_makes_them_errors(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config.parent
    boxes = [pixel_box(*box, transform=_moved(0)) for box in (*BOXES, BOXES[0])]
    make_polygons(folder / "s0.gpkg", boxes, {"kind": ["roof", "road", "roof", "roof"]})

    found = as_json(capsys, config)
    assert found["verdict"] == "1 warning"
    assert "polygons are there twice" in found["warnings"][0]
    assert found["scenes"][0]["polygons"]["duplicates"] == 1

    assert main([str(config), "--strict", "--quick"]) == 2
    assert "polygons are there twice" in capsys.readouterr().err


def test_labels_that_are_shifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_project(tmp_path, splits=("trn",))
    rng = np.random.default_rng(0)
    image = rng.normal(90, 10, (3, 300, 300))
    boxes = []
    for row in range(20, 260, 45):
        for col in range(20, 260, 45):
            height, width = rng.integers(12, 30, 2).tolist()
            image[:, row : row + height, col : col + width] += 50
            boxes.append(pixel_box(row - 3, col + 5, height, width))  # 3 up, 5 to the right
    make_raster(tmp_path / "s0.tif", image.clip(1, 255).astype(np.uint8))
    make_polygons(tmp_path / "s0.gpkg", boxes, {"kind": ["roof"] * len(boxes)})

    found = as_json(capsys, config)

    offset = found["scenes"][0]["offset"]
    assert (offset["columns"], offset["rows"], offset["shifted"]) == (5, -3, True)
    shown = "the labels seem to lie 5 pixels right of and 3 pixels above what the image shows"
    assert any(shown in line for line in found["warnings"])


def test_geometries_and_crs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyproj import Transformer
    from shapely import transform

    to_degrees = Transformer.from_crs(UTM18, "EPSG:4326", always_xy=True).transform
    tie = Polygon([_moved(0) @ corner for corner in ((5, 30), (25, 50), (25, 30), (5, 50))])
    shapes = [*(pixel_box(*box, transform=_moved(0)) for box in (*BOXES, (10, 10, 20, 20))), tie]
    shapes = [transform(shape, to_degrees, interleaved=False) for shape in shapes]
    path = config.parent / "s0.gpkg"
    make_polygons(path, shapes, {"kind": ["roof", "road", "roof", "road", None]}, crs="EPSG:4326")

    found = as_json(capsys, config)["scenes"][0]["polygons"]

    assert found["crs"] == "reprojected"
    assert (found["repaired"], found["null_value"], found["overlapping"]) == (1, 1, 1)
    assert found["classes"] == {"1": 2, "2": 2, "255": 1}


def test_scenes_of_other_resolution_and_scale(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from affine import Affine

    coarse = Affine(10.0, 0.0, 501000.0, 0.0, -10.0, 5000000.0)
    dim = (np.random.default_rng(1).integers(1, 12, (3, 70, 90))).astype(np.uint8)
    make_raster(config.parent / "s1.tif", dim, transform=coarse)
    make_polygons(config.parent / "s1.gpkg", [pixel_box(*BOXES[0], transform=coarse)], {"kind": ["road"]})

    warnings = as_json(capsys, config)["warnings"]

    assert any("images of very different resolution" in line for line in warnings)
    assert any("images that seem to be scaled differently (band 1)" in line for line in warnings)
    assert any("the val samples hold no pixel of roof" in line for line in warnings)


def test_a_large_scene_is_read_in_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_project(tmp_path, splits=("trn",))
    rng = np.random.default_rng(2)
    make_raster(tmp_path / "s0.tif", rng.integers(1, 255, (1, 4200, 4200)).astype(np.uint8))
    make_polygons(tmp_path / "s0.gpkg", [pixel_box(0, 0, 4200, 2100)], {"kind": ["roof"]})
    words = [config, "global.samples_size=256", "sample.samples_dist=256", "sample.remove_background=false"]

    part = as_json(capsys, *words)["expected"]
    capsys.readouterr()
    assert main([*map(str, words), "--json", "--full"]) == 0
    whole = json.loads(capsys.readouterr().out)["expected"]

    assert not part["exact"]
    assert whole["exact"]
    assert whole["splits"]["trn"]["samples"] == 17 * 17
    assert part["splits"]["trn"]["samples"] == pytest.approx(17 * 17, rel=0.15)


def test_no_training_sample_to_expect(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, config, "sample.min_annotated_percent=100", code=2)
    assert "no trn sample to expect" in found["errors"][0]
    assert any("no samples to expect (left out:" in line for line in found["warnings"])


def test_splits_that_cannot_be_made(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, config, "sample.split={method: random}", code=2)
    assert "method: blocks" in found["errors"][0]


def test_a_store_that_sample_would_not_replace(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sample([str(config)]) == 0
    assert as_json(capsys, config)["warnings"] == []
    (line,) = as_json(capsys, config, "sample.samples_dist=16")["warnings"]
    assert line.startswith("sample would stop: ")
    assert "--overwrite" in line
    assert as_json(capsys, config, "sample.samples_dist=16", "sample.overwrite=true")["warnings"] == []


def test_a_disk_that_is_full(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5))
    assert "GiB free" in as_json(capsys, config, code=2)["errors"][0]


def test_through_a_shell(config: Path) -> None:
    words = [sys.executable, "-m", "geoseg", "check", str(config), "--quick", "sample.workers=2"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == 0, done.stderr
    assert "verdict on 2 scenes: good" in done.stdout


def test_bands_in_another_order_are_looked_at_in_one(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second image is written with its bands turned around; what is said of them is said in the first's order."""
    import rasterio

    for number, names in ((0, ("red", "green", "nir")), (1, ("nir", "green", "red"))):
        with rasterio.open(config.parent / f"s{number}.tif", "r+") as raster:
            raster.descriptions = names
            raster.write(np.stack([np.where(raster.read(1), 10 * (1 + n), 0) for n in range(3)]).astype(np.uint8))
    found = as_json(capsys, config)
    assert any("bands in another order than in" in line for line in found["warnings"])
    first, second = (scene["pixels"]["ranges"] for scene in found["scenes"])
    assert [band["name"] for band in first] == [band["name"] for band in second] == ["red", "green", "nir"]
    assert [band["high"] for band in second] == [30, 20, 10]
    capsys.readouterr()
    assert main([str(config)]) == 0
    assert "bands       3 red, 2 green, 1 nir are used" in capsys.readouterr().out
