"""Samples exported for other tools: pixels and places are those of the scenes, instances are those of the labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.features
from affine import Affine
from conftest import TRANSFORM, make_polygons, make_raster, pixel_box
from numpy.typing import NDArray
from PIL import Image
from shapely import Polygon

import export_samples
from geoseg.sample import main as sample

SIZE = 32


def _project(folder: Path, dtype: Any = np.uint16, bands: int = 4) -> Path:
    rng = np.random.default_rng(2)
    image = rng.integers(1, 250, (bands, 50, 60)).astype(dtype)
    image[:, :, 50:] = 0
    make_raster(folder / "a.tif", image, nodata=0, band_names=[f"b{i}" for i in range(bands)])
    ring = Polygon(pixel_box(2, 3, 20, 20).exterior, [pixel_box(8, 8, 5, 5).exterior])
    boxes = [ring, pixel_box(30, 30, 10, 15), pixel_box(8, 30, 4, 4), pixel_box(44, 2, 3, 3)]
    make_polygons(folder / "a.gpkg", boxes, {"cls": [1, 2, 2, None]})
    (folder / "prep.csv").write_text("image,labels,attribute,split\na.tif,a.gpkg,cls,trn\n")
    keys = f"samples_size: {SIZE}, num_classes: 3, data_path: data"
    (folder / "config.yaml").write_text(
        f"global: {{{keys}}}\nsample: {{prep_csv_file: prep.csv, workers: 1, remove_background: false}}\n"
    )
    assert sample([str(folder / "config.yaml")]) == 0
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return _project(tmp_path)


def _export(project: Path, *words: str) -> Path:
    assert export_samples.main([str(project / "data"), str(project / "out"), *words]) == 0
    return project / "out"


def test_geotiffs_hold_the_pixels_of_the_scene_at_their_place(project: Path) -> None:
    out = _export(project)

    files = sorted((out / "trn" / "images").iterdir())
    assert len(files) == 4
    with rasterio.open(project / "a.tif") as scene:
        source, mask = scene.read(), scene.dataset_mask()
        crs = scene.crs
    (burnt,) = (project / "data" / "samples" / "labels").glob("*.tif")
    with rasterio.open(burnt) as dataset:
        whole = dataset.read(1)
    for file in files:
        row, col = (int(number) for number in file.stem.split("_")[-2:])
        place = (slice(row, row + SIZE), slice(col, col + SIZE))
        with rasterio.open(file) as image, rasterio.open(out / "trn" / "labels" / file.name) as label:
            assert image.crs == label.crs == crs
            assert image.transform == label.transform == TRANSFORM * Affine.translation(col, row)
            assert image.dtypes == ("uint16",) * 4
            assert image.descriptions == ("b0", "b1", "b2", "b3")
            assert np.array_equal(image.read(), source[(slice(None), *place)])
            assert np.array_equal(image.dataset_mask(), mask[place])
            assert np.array_equal(label.read(1), whole[place])
            assert label.nodata == 255
            assert label.colormap(1)[1][3] == 255


def _decoded(found: dict[str, Any], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mask of an annotation, by the definition of its format."""
    segmentation = found["segmentation"]
    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        values = np.repeat(np.arange(len(counts)) % 2, counts)
        return values.reshape(shape, order="F").astype(np.uint8)
    corners = np.array(segmentation[0]).reshape(-1, 2)
    geometry = {"type": "Polygon", "coordinates": [[*map(tuple, corners), tuple(corners[0])]]}
    return rasterio.features.rasterize([geometry], out_shape=shape, dtype="uint8")


def test_coco_instances_add_up_to_the_labels(project: Path) -> None:
    out = _export(project, "--format", "coco", "--split", "trn")

    content = json.loads((out / "trn.json").read_text())
    assert [c["name"] for c in content["categories"]] == ["class 1", "class 2"]
    assert len(content["images"]) == 4
    assert len({a["id"] for a in content["annotations"]}) == len(content["annotations"])
    kinds = set()
    for entry in content["images"]:
        picture = Image.open(out / entry["file_name"])
        mask = np.asarray(Image.open(out / entry["file_name"].replace("images", "masks")))
        assert picture.size == (entry["width"], entry["height"]) == mask.shape[::-1]
        assert picture.mode == "RGB"
        again = np.zeros(mask.shape, np.uint8)
        for found in (a for a in content["annotations"] if a["image_id"] == entry["id"]):
            kinds.add(type(found["segmentation"]).__name__)
            area = _decoded(found, mask.shape)
            assert area.sum() == found["area"]
            rows, cols = np.nonzero(area)
            left, top, width, height = found["bbox"]
            assert (left, top) == (cols.min(), rows.min())
            assert (left + width, top + height) == (cols.max() + 1, rows.max() + 1)
            assert again[area == 1].sum() == 0
            again[area == 1] = found["category_id"]
        assert np.array_equal(again, np.where(mask == 255, 0, mask))
        assert (mask == 255).any() or "_0_0." in entry["file_name"]
    assert kinds == {"list", "dict"}


@pytest.mark.parametrize(("dtype", "bands"), [(np.uint8, 1), (np.uint8, 3), (np.float32, 2), (np.uint8, 6)])
def test_pictures_of_any_bands(tmp_path: Path, dtype: Any, bands: int) -> None:
    out = _export(_project(tmp_path, dtype, bands), "--format", "coco")
    file = next(file for file in (out / "trn" / "images").iterdir() if "_0_0." in file.name)
    picture = np.asarray(Image.open(file))
    if dtype == np.uint8:
        with rasterio.open(tmp_path / "a.tif") as scene:
            source = scene.read()[: 3 if bands >= 3 else 1, :SIZE, :SIZE]
        assert np.array_equal(picture, np.broadcast_to(np.moveaxis(source, 0, -1), picture.shape))
    assert picture.std() > 10


def test_a_scene_without_a_place(tmp_path: Path) -> None:
    _project(tmp_path)
    image = np.random.default_rng(3).integers(1, 9, (1, 40, 40)).astype(np.uint8)
    make_raster(tmp_path / "a.tif", image, transform=None, crs=None)
    make_polygons(tmp_path / "a.gpkg", [pixel_box(2, 3, 20, 20, Affine.identity())], {"cls": [1]}, crs=None)
    assert sample([str(tmp_path / "config.yaml"), "--overwrite"]) == 0
    (first, *_) = sorted((_export(tmp_path) / "trn" / "images").iterdir())
    with rasterio.open(first) as dataset:
        assert dataset.crs is None
        assert np.array_equal(dataset.read(), image[:, :SIZE, :SIZE])


def test_run_lengths() -> None:
    assert export_samples.run_lengths(np.array([[0, 1], [0, 1]], np.uint8)) == [2, 2]
    assert export_samples.run_lengths(np.array([[1, 0], [0, 1]], np.uint8)) == [0, 1, 2, 1]
    assert export_samples.run_lengths(np.ones((2, 2), np.uint8)) == [0, 4]


def test_what_cannot_be_exported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(project / "data")
    assert export_samples.main([store, str(project / "out"), "--split", "tst"]) == 2
    assert "no sample of these splits" in capsys.readouterr().err
    assert export_samples.main([str(project), str(project / "out")]) == 2
    assert "no sample store" in capsys.readouterr().err
    assert export_samples.main([store, str(project / "data" / "samples")]) == 2
    assert "the store itself" in capsys.readouterr().err
