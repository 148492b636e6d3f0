"""The report of a sample store: what it says, that it holds all it shows, and that it is the same every time."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box
from PIL import Image

from geoseg.data.store import Store, StoreInfo, open_store
from geoseg.report.store import store_warnings, write_store_report
from geoseg.sample import main

SIZE = 32


def make_store(folder: Path, thin: bool = False, **raster: object) -> Store:
    """Sample three scenes of four bands (blue, green, red, nir) and three classes."""
    rng = np.random.default_rng(1)
    rows = ["image,labels,attribute,split"]
    for number, split in enumerate(("trn", "trn", "val")):
        image = rng.integers(50, 200, (4, 70, 90)).astype(np.uint8)
        image[2, 4:24, 5:35] = 250
        image[:, :, 80:] = 0
        options = {"nodata": 0, "band_names": ["blue", "green", "red", "nir"], **raster}
        make_raster(folder / f"{number}.tif", image, **options)
        place = TRANSFORM if options.get("transform", TRANSFORM) else Affine.identity()
        boxes = [pixel_box(4, 5, 20, 30, place), pixel_box(40, 40, 20, 20, place)]
        boxes += [pixel_box(60, 5.1, 5, 0.2)] if thin else []
        crs = {"crs": options["crs"]} if "crs" in options else {}
        make_polygons(folder / f"{number}.gpkg", boxes, {"kind": ["roof", "<road>", "roof"][: len(boxes)]}, **crs)
        rows.append(f"{number}.tif,{number}.gpkg,kind,{split}")
    (folder / "prep.csv").write_text("\n".join(rows))
    classes = "classes: [background, {name: '<road>', colour: '#0000ff'}, {name: roof, colour: '#ff0000'}]"
    sample = "{samples_dist: 20, workers: 1, prep_csv_file: prep.csv}"
    (folder / "config.yaml").write_text(f"global:\n  samples_size: {SIZE}\n  {classes}\nsample: {sample}\n")
    assert main([str(folder / "config.yaml")]) == 0
    return open_store(folder / "data")


def written(store: Store, path: Path) -> str:
    write_store_report(store, path)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("store"))


def test_what_it_says(store: Store, tmp_path: Path) -> None:
    text = written(store, tmp_path / "a.html")

    info = store.info
    assert f"{sum(info.samples.values())} samples ({info.samples['trn']} trn, {info.samples['val']} val)" in text
    assert "(1 blue, 2 green, 3 red, 4 nir)" in text
    assert "&lt;road&gt;" in text
    assert "<road>" not in text
    assert f"{info.class_pixels['val'][2]:,} pixels of roof" in text
    assert text.count('aria-label="histogram of band') == 4
    for scene in info.scenes:
        assert scene["id"] in text


def _but(info: StoreInfo, **changes: object) -> StoreInfo:
    return replace(info, **changes)  # type: ignore[arg-type]


def test_warnings(store: Store, tmp_path: Path) -> None:
    info = store.info
    scene = {**info.scenes[0], "warnings": ["one & two", "one & two"]}
    empty = {**info.scenes[1], "samples": 0, "dropped": {"trn": {"background": 5, "unknown": 2, "invalid": 3}}}
    changed = _but(info, scenes=(scene, empty), class_pixels={**info.class_pixels, "trn": (9, 0, 9)})
    assert store_warnings(changed)[:2] == ["one & two", "the trn samples hold no pixel of <road>"]
    assert store_warnings(changed)[-1].endswith("5 windows hold background alone, 2 no known pixel, 3 too little")
    assert store_warnings(_but(info, samples={"trn": 9, "val": 0}))[-1].startswith("no sample came into the split val")
    alone = _but(info, scenes=(scene,), samples={"trn": 9}, splitting={})
    assert "there are no val samples" in store_warnings(alone)[-1]
    touching = _but(info, splitting={"distance_m": {"trn-val": 0, "trn-tst": 3.5}})
    assert [line for line in store_warnings(touching) if "share ground" in line] == [
        "samples of trn-val touch or share ground: scores may be too good"
    ]
    text = written(Store(store.folder, changed, store.index), tmp_path / "a.html")
    assert text.count("<li>one &amp; two</li>") == 1


def test_warnings_of_the_scenes_come_with_the_store(tmp_path: Path) -> None:
    store = make_store(tmp_path, thin=True)
    assert sum("burn none of it" in line for line in store_warnings(store.info)) == 3
    assert "burn none of it" in (store.folder / "report.html").read_text()


def test_it_is_the_same_every_time_and_does_not_say_where_it_lies(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    assert written(store, first) == written(store, second)
    assert str(store.folder) not in first.read_text()


def test_it_holds_all_that_it_shows(store: Store, tmp_path: Path) -> None:
    text = written(store, tmp_path / "a.html")
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []
    assert "url(" not in text
    assert "<script" not in text


def _sheets(text: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), np.int64) for data in found]


def test_samples_are_shown_in_red_green_and_blue_with_labels_over_them(store: Store, tmp_path: Path) -> None:
    sheets = _sheets(written(store, tmp_path / "a.html"))

    assert len(sheets) == 2
    above, below = sheets[0][:192], sheets[0][196:]
    assert above.shape == below.shape
    # The roof is bright in the band named red, which is the third; its label is red as well.
    bright = (above[..., 0] > 230) & (above[..., 1] < 200) & (above[..., 2] < 200)
    assert bright.any()
    change = below[bright].mean(axis=0) - above[bright].mean(axis=0)
    assert change[1] < -20
    assert change[2] < -20


def test_the_ground_of_each_split_is_on_a_map(store: Store, tmp_path: Path) -> None:
    text = written(store, tmp_path / "a.html")
    # The three scenes lie on the same ground: one map, with the frames of all samples.
    assert text.count('aria-label="footprints') == 1
    assert text.count(" trn samples</title>") == 2
    assert text.count(" val samples</title>") == 1
    (frames,) = re.findall(r'<path d="([^"]*)" fill="none"', text)
    assert frames.count("M") == sum(store.info.samples.values())


def test_scenes_without_a_place_are_drawn_one_by_one(tmp_path: Path) -> None:
    store = make_store(tmp_path, transform=None, crs=None)
    text = written(store, tmp_path / "a.html")
    assert text.count('aria-label="footprints') == 3
    assert " pixels</text>" in text


def test_the_command_puts_it_into_the_store(store: Store) -> None:
    text = (store.folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>Sample store</h1>" in text
