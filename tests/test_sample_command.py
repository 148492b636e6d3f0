"""`python -m geoseg.sample` from its command line: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box, shared_data

from geoseg.data.store import open_store
from geoseg.sample import main


def _write_project(folder: Path, **global_keys: object) -> Path:
    """Write three scenes, their list and a config; return the config's path."""
    rng = np.random.default_rng(4)
    for number, name in enumerate(("south", "west", "north")):
        place = TRANSFORM * Affine.translation(0, 100 * number)
        values = rng.integers(1, 250, (3, 70, 90)).astype(np.uint8)
        make_raster(folder / f"{name}.tif", values, nodata=0, transform=place)
        boxes = [pixel_box(4, 5, 20, 30, place), pixel_box(30, 40, 20, 20, place), pixel_box(0, 70, 8, 8, place)]
        make_polygons(folder / f"{name}.gpkg", boxes, {"kind": ["roof", "road", None]})
    rows = ["image;labels;attribute;split", "south.tif;south.gpkg;kind;trn", "west.tif;west.gpkg;kind;val"]
    (folder / "prep.csv").write_text("\n".join([*rows, "north.tif;north.gpkg;kind;tst"]))
    keys = {"samples_size": 32, "classes": "[background, road, roof]", "number_of_bands": 3, **global_keys}
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    config = folder / "config.yaml"
    config.write_text("\n".join(["global:", *lines, "sample:", "  samples_dist: 20", "  workers: 1", ""]))
    return config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return _write_project(tmp_path)


def _fails(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """Run the command, which must end with 2; return the lines of problems."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("warning:", "looking at"))]


def test_summary_of_splits_and_classes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config)]) == 0

    out = capsys.readouterr()
    store = open_store(config.parent / "data")
    lines = {line.split("  ")[0]: line.split() for line in out.out.splitlines()}
    assert lines[""][:3] == ["trn", "val", "tst"]
    assert lines["samples"][1:] == [str(store.info.samples[s]) for s in ("trn", "val", "tst")]
    assert lines["2 roof"][2] == f"{store.info.class_pixels['trn'][2]:,}"
    assert str(store.folder / "report.html") in out.out
    # A polygon without a value, in each of three files.
    assert out.err.count("warning:") == 3
    assert "3 warnings" in out.err
    assert store.info.bands == (1, 2, 3)
    assert [c["name"] for c in store.info.classes] == ["background", "road", "roof"]


def test_the_same_store_through_a_shell_with_four_processes(config: Path) -> None:
    words = [sys.executable, "-m", "geoseg.sample", str(config), "sample.workers=4", "global.data_path=elsewhere"]

    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)

    assert done.returncode == 0, done.stderr
    assert main([str(config)]) == 0
    one, four = (config.parent / name / "samples" for name in ("data", "elsewhere"))
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) > 12
    for file in files:
        assert (one / file).read_bytes() == (four / file).read_bytes(), file


def test_safe_to_run_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(config)])
    before = {path: path.stat().st_mtime_ns for path in config.parent.rglob("*")}

    assert main([str(config)]) == 0

    assert "already done" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in config.parent.rglob("*")} == before


def test_another_store_is_replaced_only_when_asked(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(config)])

    (line,) = _fails(capsys, config, "sample.samples_dist=32")

    assert "--overwrite" in line
    assert open_store(config.parent / "data").info.stride == 20
    assert main([str(config), "sample.samples_dist=32", "--overwrite"]) == 0
    assert open_store(config.parent / "data").info.stride == 32


def test_wrong_number_of_bands_names_each_image(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _fails(capsys, config, "global.number_of_bands=4")

    assert len(lines) == 3
    assert "south.tif" in lines[0]
    assert "found 3 bands, expected 4" in lines[0]
    assert not (config.parent / "data").exists()


def test_text_without_a_class_is_listed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _fails(capsys, config, "global.classes=[background, road, rof]")

    assert "'roof'" in lines[0]
    assert "'rof'" in lines[0]
    assert not (config.parent / "data").exists()


def test_missing_files_are_named_by_their_absolute_path(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.parent / "south.tif").unlink()
    (config.parent / "west.gpkg").unlink()
    monkeypatch.chdir(config.parent)

    lines = _fails(capsys, "config.yaml")

    assert str(config.parent / "south.tif") in lines[0]
    assert "line 2" in lines[0]
    assert str(config.parent / "west.gpkg") in lines[1]
    assert "line 3" in lines[1]


def test_list_without_training_scenes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "prep.csv").write_text("north.tif,north.gpkg,kind,tst\n")

    (line,) = _fails(capsys, config)

    assert "trn 0, val 0, tst 1" in line


def test_samples_further_apart_than_wide(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = _fails(capsys, config, "sample.samples_dist=33")

    assert "samples_dist" in line


def test_scenes_without_samples_are_warned_of(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = TRANSFORM * Affine.translation(0, 100)
    make_raster(config.parent / "west.tif", np.zeros((3, 70, 90), np.uint8), nodata=0, transform=place)

    assert main([str(config)]) == 0

    err = capsys.readouterr().err
    assert "west.tif: no samples; 0 windows hold background alone, 12 no known pixel" in err
    assert "no sample came into the split val" in err


def test_real_land_cover_in_another_crs(tmp_path: Path) -> None:
    data = shared_data("nc_landsat7")
    image, labels = data / "images" / "nc_landsat7_2000_5band.tif", data / "labels" / "landcover_1996_polygons.gpkg"
    (tmp_path / "prep.csv").write_text(f"{image},{labels},class_id,trn\n")
    (tmp_path / "config.yaml").write_text("global:\n  num_classes: 8\n  samples_size: 128\n")

    assert main([str(tmp_path / "config.yaml")]) == 0

    info = open_store(tmp_path / "data").info
    (scene,) = info.scenes
    counts = np.array(scene["class_pixels"])
    assert counts[0] < 0.01 * counts.sum()
    shares = [30.1, 0.7, 10.9, 6.7, 49.7, 2.0, 0.1]  # per cent, of the raster the polygons were made from
    np.testing.assert_allclose(100 * counts[1:] / counts.sum(), shares, atol=1.5)
    # 15.3 % of the pixels are -99999.
    assert all(0.84 < s["count"] / (489 * 443) < 0.86 and s["min"] >= 0 for s in info.statistics)


def test_real_aerial_scene_with_named_classes_and_unlabelled_ground(tmp_path: Path) -> None:
    data = shared_data("newbrunswick_aerial")
    rows = [
        f"{data}/images/bakerlake_{part}of2.tif,{data}/labels/bakerlake_{part}of2.gpkg,class,{split}"
        for part, split in ((2, "trn"), (1, "val"))
    ]
    (tmp_path / "prep.csv").write_text("\n".join(rows))
    classes = "[other, building, hydro, road, train, vegetation]"
    text = f"global:\n  classes: {classes}\n  samples_size: 128\nsample:\n  mask_input_image: true\n"
    (tmp_path / "config.yaml").write_text(text)

    assert main([str(tmp_path / "config.yaml")]) == 0

    first, second = open_store(tmp_path / "data").info.scenes
    for scene, shares in ((first, [1.2, 21.0, 0.6, 2.9, 56.5]), (second, [3.8, 14.1, 5.2, 0, 10.5])):
        found = 100 * np.array(scene["class_pixels"]) / (scene["height"] * scene["width"])
        np.testing.assert_allclose(found, [0, *shares], atol=0.3)


def test_a_store_grows_with_its_list_and_shrinks_when_asked(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = (config.parent / "prep.csv").read_text().splitlines()
    (config.parent / "prep.csv").write_text("\n".join(listed[:3]))
    assert main([str(config)]) == 0

    (config.parent / "prep.csv").write_text("\n".join(listed))
    assert main([str(config)]) == 0
    assert "2 scenes stay, 1 are added" in capsys.readouterr().out
    assert main([str(config), "--remove", "north"]) == 0
    assert len(open_store(config.parent / "data").info.scenes) == 2
    (config.parent / "prep.csv").write_text("\n".join([listed[0], listed[3]]))
    (line,) = _fails(capsys, config)
    assert "--append" in line or "trn" in line
    assert main([str(config), "--append"]) == 0
    assert [s["split"] for s in open_store(config.parent / "data").info.scenes] == ["trn", "val", "tst"]
    assert main([str(config), "--verify"]) == 0


def test_options_that_do_not_go_together(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--verify and --append" in _fails(capsys, config, "--verify", "--append")[0]
    assert "--scheduler and --dask-local" in _fails(capsys, config, "--scheduler", "tcp://a:1", "--dask-local", "2")[0]
    assert "3/2" in _fails(capsys, config, "--shard", "3/2")[0]


def test_distance_between_blocks_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample.split={method: blocks, size: 45 px, fractions: {trn: 0.6, val: 0.4}}", "sample.samples_dist=16"]

    assert main([str(config), *words]) == 0

    assert "smallest distance between splits: trn-val 8.0 m" in capsys.readouterr().out


def test_no_room(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 2**20})())

    (line,) = _fails(capsys, config)

    assert "GiB free" in line
    assert not (config.parent / "data").exists()
