"""Class maps whose small regions are removed and that become polygons: killed and resumed, with and without a CRS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pyogrio
import pytest
import rasterio
import rasterio.features
import torch
from conftest import UTM18, make_raster
from flood_fill import flood
from rasterio.control import GroundControlPoint
from torch import nn

from geoseg.errors import DataError
from geoseg.geo.raster import read_info
from geoseg.predict import finishing
from geoseg.predict.finishing import FinishOptions, check_finish
from geoseg.predict.output import MapDescription
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.polygons import outlines
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, classify_scene

# Parts, tiles and blocks are small, so that a small scene has many; the process kills itself at a given polygon.
_RUN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from geoseg.geo.raster import overviews
overviews.TILE = 16
from geoseg.predict import plan
plan.PART = 64
plan._WIDEST = 2
from test_finishing import classify

# A process each, forked, since they are killed; what happened goes to its standard output.
for job in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        print(json.dumps(classify(**job)), flush=True)
        os._exit(0)
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        print("null", flush=True)
"""


def classify(image: Any, folder: Any, kill_at: int = 0, **wanted: Any) -> list:
    """Classify in small blocks; return whether all was there, pixels per class, and the files' names by output.

    Args:
        image: The image.
        folder: Of the maps.
        kill_at: The polygon at which the process kills itself.
        **wanted: `outputs`, `scaled`, `values`; the rest goes to `FinishOptions`.
    """
    torch.manual_seed(0)
    network = nn.Conv2d(2, 3, 5, padding=2, bias=False).requires_grad_(False)
    network.weight -= network.weight.mean(dim=(1, 2, 3), keepdim=True)  # noise to all classes alike

    def killing(*arguments: Any) -> Iterator[Any]:
        for number, outline in enumerate(outlines(*arguments), 1):
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield outline

    description = MapDescription(tuple("abc"), ("#000000", "#ff0000", "#00ff00"), values=wanted.pop("values", None))
    outputs, scaled = tuple(wanted.pop("outputs", ("classes", "confidence"))), wanted.pop("scaled", False)
    options = ClassifyOptions(
        SlidingOptions(window=48), outputs, scaled=scaled, resume=True, finish=FinishOptions(**wanted)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishing, "outlines", killing)
        patch.setattr("geoseg.predict.polygons.SIDE", 48)
        patch.setattr("geoseg.predict.polygons.BATCH", 700)
        patch.setattr("geoseg.predict.sieve.SIDE", 32)
        predictor = Predictor(network, 3, size_divisor=8, receptive_radius=2)
        result = classify_scene(image, predictor, (1, 2), Path(folder), description, options)
    return [result.already, result.class_pixels.tolist(), {name: path.name for name, path in result.paths.items()}]


def run(*jobs: dict) -> list:
    """Classify in a process for each job, in small parts; return what `classify` does, or None if it was killed."""
    words = [sys.executable, "-c", _RUN, str(Path(__file__).parent), json.dumps(jobs, default=str)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def maps(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def image_of(path: Path, **options) -> Path:
    coarse = np.random.default_rng(0).integers(0, 255, (2, 50, 70), dtype=np.uint8)
    values = np.kron(coarse, np.ones((1, 3, 3), np.uint8))
    values[:, 60:90, 20:120] = 0
    return make_raster(path, values, nodata=0, **options)


def test_killed_among_polygons_and_resumed_to_the_same_bytes(tmp_path: Path):
    whole, folder, left = tmp_path / "whole", tmp_path / "killed", tmp_path / "left"
    job = {"image": image_of(tmp_path / "scene.tif"), "polygons": "gpkg", "unit": 6, "background": True}
    resumed, killing = {**job, "folder": folder}, {**job, "kill_at": 25}
    first, *killed, last, again = run(
        {**job, "folder": whole}, {**killing, "folder": left}, {**killing, "folder": folder}, resumed, resumed
    )
    assert killed == [None, None]
    assert maps(left) == {}
    assert last == first
    assert last[2]["polygons"] == "scene_classes.gpkg"
    assert maps(folder) == maps(whole)
    assert set(maps(whole)) >= {"scene_classes.tif", "scene_confidence.tif", "scene_classes.gpkg"}
    assert again[0]
    assert not list(folder.glob(".*"))
    with rasterio.open(folder / "scene_classes.tif") as made:
        assert made.overviews(1) == [2, 4, 8, 15]
        half, full = made.read(1, out_shape=(75, 105)), made.read(1)
    # An overview is of the map as it is now.
    corners = np.stack([full[row::2, col::2] for row in (0, 1) for col in (0, 1)])
    assert (half == corners).any(axis=0).all()
    assert min(map(len, flood(full, 255))) >= 6


def test_polygons_of_another_run_are_replaced_and_missing_ones_made(tmp_path: Path):
    folder = tmp_path / "maps"
    job = {"image": image_of(tmp_path / "scene.tif"), "folder": folder, "polygons": "gpkg", "unit": 4}
    assert [classify(**job, background=True)[0], classify(**job)[0], classify(**job)[0]] == [False, False, True]
    assert set(geopandas.read_file(folder / "scene_classes.gpkg")["class"]) == {1, 2}
    (folder / "scene_classes.gpkg").unlink()
    assert [classify(**job)[0] for _ in range(2)] == [False, True]
    classify(**{**job, "folder": tmp_path / "other"}, background=True)
    (tmp_path / "other/scene_classes.gpkg").rename(folder / "scene_classes.gpkg")
    assert not classify(**job)[0]


@pytest.mark.parametrize("scaled", [False, True])
def test_attributes_and_counts_are_those_of_the_maps(scaled: bool, tmp_path: Path):
    image, folder = (
        image_of(tmp_path / "scene.tif", transform=rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)),
        tmp_path / "maps",
    )
    job = {"image": image, "polygons": "gpkg", "unit": "23.9 m2", "background": True, "scaled": scaled}
    _, pixels, _ = classify(folder=folder, values=(7, 300, 40), **job)
    with rasterio.open(folder / "scene_classes.tif") as made, rasterio.open(folder / "scene_confidence.tif") as sure:
        values, confidence = made.read(1), sure.read(1) * sure.scales[0]
        assert made.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert (made.overviews(1), made.dtypes[0], made.nodata) == ([], "uint16", 65535)
        transform, crs = made.transform, made.crs
    assert pixels == [int((values == value).sum()) for value in (7, 300, 40)]
    regions = flood(values, 65535)
    assert min(map(len, regions)) == 6  # 24 square metres
    read = geopandas.read_file(folder / "scene_classes.gpkg")
    assert read.crs == crs
    assert list(read.columns) == ["class", "name", "area_m2", "confidence", "geometry"]
    assert set(zip(read["class"], read["name"], strict=True)) == {(7, "a"), (300, "b"), (40, "c")}
    pairs = zip(read.geometry, read["class"], strict=True)
    again = rasterio.features.rasterize(pairs, values.shape, fill=65535, transform=transform, dtype=np.uint16)
    np.testing.assert_array_equal(again, values)
    expected = sorted(
        (int(values[region[0]]), 4 * len(region), confidence[tuple(np.transpose(region))].mean()) for region in regions
    )
    found = sorted(zip(read["class"], read["area_m2"], read["confidence"], strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(read.area, read["area_m2"])


def test_confidence_is_that_of_the_network_and_stays(tmp_path: Path):
    image = image_of(tmp_path / "scene.tif")
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    (_, before, _), (_, after, _) = classify(image, plain), classify(image, changed, unit=6)
    assert before != after
    assert sum(before) == sum(after)
    with (
        rasterio.open(plain / "scene_confidence.tif") as one,
        rasterio.open(changed / "scene_confidence.tif") as other,
        rasterio.open(plain / "scene_classes.tif") as classes,
        rasterio.open(changed / "scene_classes.tif") as sieved,
    ):
        np.testing.assert_array_equal(one.read(), other.read())
        np.testing.assert_array_equal(classes.read(1) == 255, sieved.read(1) == 255)


def test_a_map_without_crs_has_polygons_in_pixels(tmp_path: Path):
    points = [GroundControlPoint(row, col, 10 + col, 50 - row) for row, col in ((0, 0), (0, 210), (150, 0))]
    images = (
        image_of(tmp_path / "bare.tif", transform=None, crs=None),
        image_of(tmp_path / "points.tif", transform=None, crs=UTM18, gcps=points),
    )
    for image in images:
        job = {"image": image, "folder": tmp_path / "maps", "polygons": "gpkg", "outputs": ["classes"]}
        classify(**job, background=True)
        path = tmp_path / f"maps/{image.stem}_classes.gpkg"
        assert pyogrio.read_info(path)["crs"] is None
        read = geopandas.read_file(path)
        assert list(read.columns) == ["class", "name", "area_px", "geometry"]
        with rasterio.open(tmp_path / f"maps/{image.stem}_classes.tif") as made:
            values = made.read(1)
        pairs = zip(read.geometry, read["class"], strict=True)
        again = rasterio.features.rasterize(pairs, values.shape, fill=255, dtype=np.uint8)
        np.testing.assert_array_equal(again, values)


def test_what_needs_a_crs_is_refused_without_one(tmp_path: Path):
    info = read_info(image_of(tmp_path / "bare.tif", transform=None, crs=None))
    check_finish(info, FinishOptions(unit=5, polygons="gpkg", simplify=2.0))
    for options in (FinishOptions(unit="5 m2"), FinishOptions(simplify="2 m", polygons="gpkg")):
        with pytest.raises(DataError, match="sizes in metres"):
            check_finish(info, options)
    with pytest.raises(DataError, match="longitude and latitude"):
        check_finish(info, FinishOptions(polygons="geojson"))
