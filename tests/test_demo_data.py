"""The demo's data: tiles joined at the right place, and synthetic scenes where the wheel cannot be had."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import geopandas as gpd
import numpy as np
import pytest
import rasterio
from PIL import Image
from pyproj import Transformer

import demo_data
import synthetic
from demo_data import Area, UnavailableError

AREA = Area("small", "trn", "train", (193342, 193343), (110124, 110124))


def encoded(value: int, side: int = 256) -> bytes:
    """A PNG tile of one colour: lossless, so that joined pixels can be compared exactly."""
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (value, value + 1, value + 2)).save(stream, "PNG")
    return stream.getvalue()


def made_up_wheel(path: Path) -> Path:
    """A zip laid out as the real wheel: two tiles of the area, one of another zoom, one house in the second tile."""
    transform = demo_data.tile_transform(193343, 110124, 18)
    west, north = transform * (64, 64)
    east, south = transform * (128, 192)
    to_degrees = Transformer.from_crs(3857, 4326, always_xy=True).transform
    ring = [to_degrees(x, y) for x, y in ((west, north), (east, north), (east, south), (west, south), (west, north))]
    house = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"osm_id": 7, "tags": {"building": "yes", "roof:material": "tin"}},
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for column, row, zoom, value in ((193342, 110124, 18, 10), (193343, 110124, 18, 20), (1, 1, 17, 30)):
            wheel.writestr(f"{demo_data.INSIDE}/train/oam/OAM-{column}-{row}-{zoom}.tif", encoded(value))
        collection = {"type": "FeatureCollection", "features": [house]}
        wheel.writestr(f"{demo_data.INSIDE}/train/osm/labels.geojson", json.dumps(collection))
        wheel.writestr("fair/__init__.py", "raise SystemExit('never imported')")
    return path


def test_tile_zero_is_the_whole_world() -> None:
    transform = demo_data.tile_transform(0, 0, 0)
    assert transform * (0, 0) == pytest.approx((-20037508.342789244, 20037508.342789244))
    assert transform * (256, 256) == pytest.approx((20037508.342789244, -20037508.342789244))


def test_tile_corner_has_the_longitude_and_latitude_of_the_xyz_scheme() -> None:
    corner = demo_data.tile_transform(193343, 110117, 18) * (0, 0)
    found = Transformer.from_crs(3857, 4326, always_xy=True).transform(*corner)
    # Longitude is linear in the column; the latitude was worked out as atan(sinh(pi * (1 - 2 * row / 2**zoom))).
    assert found == pytest.approx((193343 / 2**18 * 360 - 180, 27.638523614271943), abs=1e-9)


def test_tiles_are_joined_column_by_column_and_row_by_row() -> None:
    area = Area("a", "trn", "train", (5, 6), (8, 9))
    tiles = {(5, 8): encoded(1), (6, 8): encoded(11), (5, 9): encoded(21), (6, 9): encoded(31)}
    image = demo_data.join_tiles(tiles, area)
    assert image.shape == (3, 512, 512)
    assert image[:, 0, 0].tolist() == [1, 2, 3]
    assert image[0, 0, 256] == 11
    assert image[0, 256, 0] == 21
    assert image[0, 511, 511] == 31


def test_a_missing_or_odd_tile_is_refused() -> None:
    with pytest.raises(UnavailableError, match="tile 193343, 110124 is not in the wheel"):
        demo_data.join_tiles({(193342, 110124): encoded(1)}, AREA)
    with pytest.raises(UnavailableError, match="shape"):
        demo_data.join_tiles({(193342, 110124): encoded(1), (193343, 110124): encoded(1, 128)}, AREA)


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"abc")
    demo_data.check_hash(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(UnavailableError, match="SHA-256"):
        demo_data.check_hash(path, demo_data.SHA256)


def test_outlines_lie_on_their_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "AREAS", (AREA,))
    demo_data.make_real(made_up_wheel(tmp_path / "w.whl"), tmp_path / "demo")
    with rasterio.open(tmp_path / "demo/images/small.tif") as image:
        assert (image.height, image.width, image.count) == (256, 512, 3)
        assert image.crs == "EPSG:3857"
        assert image.read(1)[0, [0, 256]].tolist() == [10, 20]
        outlines = gpd.read_file(tmp_path / "demo/labels/small.gpkg")
        corners = [~image.transform * corner for corner in outlines.to_crs(3857).geometry[0].exterior.coords]
    assert np.min(corners, axis=0) == pytest.approx([256 + 64, 64], abs=0.01)
    assert np.max(corners, axis=0) == pytest.approx([256 + 128, 192], abs=0.01)
    assert outlines[["class", "roof", "osm_id"]].iloc[0].tolist() == ["building", "tin", 7]


def test_without_the_wheel_synthetic_scenes_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> Path:
        raise UnavailableError("no registry")

    monkeypatch.setattr(demo_data, "download", fail)
    monkeypatch.setattr(synthetic, "write_project", lambda folder, side: small_project(folder))
    assert demo_data.main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "no registry" in printed.err
    assert "Synthetic" in printed.out
    with (tmp_path / "prep.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["split"] for row in rows] == ["trn", "val", "tst"]
    assert all((tmp_path / row["image"]).exists() and (tmp_path / row["labels"]).exists() for row in rows)
    assert [row["image"] for row in rows] == [f"{area.folder}/{area.name}.tif" for area in demo_data.AREAS]

    assert demo_data.main([str(tmp_path)]) == 0
    assert "complete already" in capsys.readouterr().out


write_project = synthetic.write_project


def small_project(folder: Path) -> Path:
    return write_project(folder, side=64)


def test_synthetic_pixels_follow_from_the_seed_and_not_from_the_strips() -> None:
    first, again, other = (synthetic.make_scene(300, 96, seed, "uint16") for seed in (3, 3, 4))
    assert np.array_equal(first.image(), again.image())
    assert not np.array_equal(first.image(), other.image())
    strips = list(first.strips())
    assert [(row, strip.shape[1]) for row, strip in strips] == [(0, 256), (256, 44)]


def test_synthetic_classes_are_all_there_and_look_different() -> None:
    scene = synthetic.make_scene(160, 160, seed=5, dtype="uint16")
    image, label = scene.image(), scene.label()
    assert image.dtype == np.uint16
    assert image.min() >= 1
    assert set(np.unique(label)) == set(range(5))
    means = np.array([image[:, label == class_id].mean(axis=1) for class_id in range(5)]) / 10_000
    assert np.abs(means - synthetic.REFLECTANCE).max() < 0.06


def test_synthetic_files_agree_with_the_label_they_were_painted_from(tmp_path: Path) -> None:
    scene = synthetic.make_scene(96, 128, seed=2)
    with rasterio.open(synthetic.write_image(scene, tmp_path / "s.tif")) as image:
        assert np.array_equal(image.read(), scene.image())
        assert image.descriptions == synthetic.BANDS
        assert "alpha" not in [meaning.name for meaning in image.colorinterp]
        frame = gpd.read_file(synthetic.write_labels(scene, tmp_path / "s.gpkg")).to_crs(image.crs)
        shapes = list(zip(frame.geometry, frame["class_id"], strict=True))
        burnt = rasterio.features.rasterize(shapes, out_shape=image.shape, transform=image.transform, dtype="uint8")
    # There and back through degrees moves an outline by much less than a pixel.
    assert (burnt != scene.label()).mean() < 1e-3


@pytest.mark.slow
def test_the_real_wheel_gives_the_three_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = demo_data.make_demo(tmp_path)
    if note == demo_data.SYNTHETIC_NOTE:
        pytest.skip("the wheel cannot be downloaded here")
    printed = capsys.readouterr().out
    assert "train: 3840 x 1280 pixels, 20.6% building" in printed
    assert "val: 1280 x 1536 pixels, 14.6% building" in printed
    assert "test: 1536 x 1536 pixels, 31.1% building" in printed
