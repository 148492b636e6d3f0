"""Odd rasters, file by file, through sampling and classification: the right result, or the one line that says why not.

Right is what rasterio alone makes of the same file: its own mask, its own burning of the reprojected polygons.
"""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import rasterio.features
import shapely
import torch
from conftest import make_polygons, shared_data
from numpy.typing import NDArray
from rasterio.enums import ColorInterp

from geoseg.data.normalise import Normalisation
from geoseg.errors import DataError
from geoseg.geo.raster import read_info
from geoseg.learn.modelfile import ModelSpec
from geoseg.predict.fitting import check_image
from geoseg.predict.output import MapDescription
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, classify_scene
from geoseg.sample import main

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

# File: how many samples of 256 x 256 pixels at a stride of 256.
GOOD = {
    "bgra_uint16_alpha.tif": 6,
    "cog_6_overviews_jpeg_mask.tif": 16,
    "derived_1band.tif": 9,
    "derived_257x513.tif": 6,
    "derived_cog.tif": 9,
    "derived_epsg4326.tif": 9,
    "derived_exact_256.tif": 1,
    "derived_float32_nan.tif": 9,
    "derived_int16_negative.tif": 9,
    "derived_internal_mask.tif": 9,
    "derived_no_georef.tif": 9,
    "derived_nonsquare_pixels.tif": 6,
    "derived_reference.tif": 9,
    "derived_rgba.tif": 9,
    "derived_rotated30.tif": 9,
    "derived_small_200x180.tif": 1,
    "derived_south_up.tif": 9,
    "derived_uint16_12bit.tif": 9,
    "derived_utm45n_0.5m.tif": 9,
    "esri_wkt_2x2.tif": 1,
    "float32_nodata_minus3.4e38.tif": 1,
    "gcps_no_geotransform.vrt": 12,
    "geostationary_projection.tif": 9,
    "gray_nodata255.tif": 16,
    "rgb_external_msk.tif": 12,
    "rgb_nodata0_uint8.tif": 12,
    "rgba_uint8_alpha.tif": 12,
    "rpcs_no_geotransform.vrt": 12,
    "tiny_20x20.tif": 1,
    "tiny_2x3_float_nan.tif": 1,
    "tiny_rotated_geotransform.tif": 1,
    "world_lonlat_256x512.tif": 2,
}
REFUSED_BY_SAMPLE = {
    "all_nodata.tif": r"samples: found samples per split trn 0, .*no known pixel.*expected at least one trn sample",
    "corrupt_blocks.tif": r"corrupt_blocks\.tif: found damaged data in rows 0-1023, .*expected readable pixels",
    "derived_no_crs.tif": r"derived_no_crs\.tif: found no CRS, expected one, since its labels .*assume_crs: true",
    "netcdf_3_subdatasets.nc": r"found no bands, .*name one of its parts instead: netcdf:.*:Band1, .*:Band3",
}
REFUSED_BY_CLASSIFY = {
    "corrupt_blocks.tif": "damaged data in rows",
    "netcdf_3_subdatasets.nc": "no bands, expected at least one",
}


def labels_of(path: Path, folder: Path) -> Path:
    """Return the drone scene's buildings for its crops; for others a box over the upper left 36 % of the raster."""
    buildings = shared_data("odd", "derived_banepa_labels.gpkg")
    if path.name.startswith("derived_") and path.name != "derived_no_georef.tif":
        return buildings
    if path.suffix == ".nc":
        return buildings  # it fails before they are looked at
    with rasterio.open(path) as dataset:
        tied = dataset.transform.is_identity and (dataset.gcps[0] or dataset.rpcs)
        right, bottom = dataset.width * 0.6, dataset.height * 0.6
        corners = [dataset.transform @ corner for corner in ((0, 0), (right, 0), (right, bottom), (0, bottom))]
        crs = None if tied or not dataset.crs else dataset.crs.to_wkt()
    return make_polygons(folder / "labels.gpkg", [shapely.Polygon(corners)], crs=crs)


def sampled(path: Path, folder: Path, capsys: Any, **keys: Any) -> tuple[int, list[str]]:
    """Sample one scene; return the exit code and the error lines."""
    (folder / "prep.csv").write_text(f"image,labels,split\n{path},{labels_of(path, folder)},trn\n")
    lines = [f"  {key}: {value}" for key, value in {"workers": 1, "remove_background": "false", **keys}.items()]
    (folder / "config.yaml").write_text("\n".join(["sample:", *lines]))
    code = main([str(folder / "config.yaml")])
    text = [line for line in capsys.readouterr().err.splitlines() if ": found " in line]
    return code, text


def valid_of(dataset: rasterio.DatasetReader) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the bands but alpha, and where each of them is valid by rasterio's own masks."""
    bands = [n for n, use in enumerate(dataset.colorinterp, 1) if use != ColorInterp.alpha or dataset.count == 1]
    image = dataset.read(bands)
    valid = (dataset.read_masks(bands) > 0).all(axis=0)
    return image, valid & np.isfinite(image.astype(np.float64)).all(axis=0)


def expected_class_pixels(path: Path, labels: Path) -> int:
    with rasterio.open(path) as dataset:
        _, valid = valid_of(dataset)
        frame = geopandas.read_file(labels)
        if frame.crs is not None and dataset.crs:
            frame = frame.to_crs(dataset.crs.to_wkt())
        burnt = rasterio.features.rasterize(frame.geometry, dataset.shape, transform=dataset.transform)
    return int((burnt[valid] == 1).sum())


@pytest.mark.parametrize("name", GOOD)
def test_sampling_gives_the_right_labels(name: str, tmp_path: Path, capsys: Any) -> None:
    path = shared_data("odd", name)
    code, _ = sampled(path, tmp_path, capsys)
    assert code == 0
    (label,) = (tmp_path / "data/samples/labels").glob("*.tif")
    with rasterio.open(label) as made, rasterio.open(path) as source:
        values = made.read(1)
        assert (made.transform, made.shape) == (source.transform, source.shape)
        np.testing.assert_array_equal(values == 255, ~valid_of(source)[1])
    # Coordinates are rounded to a millionth of a pixel, which may move a centre that lies on an edge.
    wanted = expected_class_pixels(path, labels_of(path, tmp_path))
    assert int((values == 1).sum()) == pytest.approx(wanted, rel=1e-4, abs=1)
    (images,) = (tmp_path / "data/samples/shards").glob("*.images.npy")
    windows = math.prod(max(1, math.ceil((side - 256) / 256) + 1) for side in values.shape)
    empty = windows - GOOD[name]
    assert len(np.load(images, mmap_mode="r")) == GOOD[name]
    assert 0 <= empty <= 4  # windows without a valid pixel


@pytest.mark.parametrize("name", REFUSED_BY_SAMPLE)
def test_sampling_says_why_not(name: str, tmp_path: Path, capsys: Any) -> None:
    code, lines = sampled(shared_data("odd", name), tmp_path, capsys)
    assert code == 2
    assert len(lines) == 1
    assert re.search(REFUSED_BY_SAMPLE[name], lines[0])
    assert not (tmp_path / "data/samples").exists()


def test_a_crs_may_be_assumed(tmp_path: Path, capsys: Any) -> None:
    code, _ = sampled(shared_data("odd", "derived_no_crs.tif"), tmp_path, capsys, assume_crs="true")
    assert code == 0


def test_a_part_of_a_netcdf_is_an_image(tmp_path: Path, capsys: Any) -> None:
    path = shared_data("odd", "netcdf_3_subdatasets.nc")
    names = [f"netcdf:{path}:Band{n}" for n in (1, 2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        box = labels_box(names[0], tmp_path)
    (tmp_path / "prep.csv").write_text(f"image,labels,split\n{'|'.join(names)},{box},trn\n")
    (tmp_path / "config.yaml").write_text("sample:\n  workers: 1\n")
    assert main([str(tmp_path / "config.yaml")]) == 0
    (shard,) = (tmp_path / "data/samples/shards").glob("netcdf_3_subdatasets*.images.npy")
    images = np.load(shard)
    for number, name in enumerate(names):
        with rasterio.open(name) as dataset:
            source = dataset.read(1)
        assert images.shape[1] == 3
        assert set(np.unique(images[:, number])) <= set(np.unique(source)) | {0}


def labels_box(name: str, folder: Path) -> Path:
    with rasterio.open(name) as dataset:
        box = shapely.box(*dataset.bounds)
        return make_polygons(folder / "box.gpkg", [box], crs=dataset.crs.to_wkt() if dataset.crs else None)


def bright(batch: torch.Tensor) -> torch.Tensor:
    """Class 1 where the first band is above 0, else class 0."""
    return torch.stack([-batch[:, 0], batch[:, 0]], dim=1)


def classified(path: Path, folder: Path) -> Path:
    info = read_info(path)
    bands, count = info.image_bands, len(info.image_bands)
    even = Normalisation((0.0,) * count, (1.0,) * count)
    classes = ({"id": 0, "name": "dark"}, {"id": 1, "name": "bright"})
    spec = ModelSpec("unetsmall", {}, count, 2, classes, bands, (None,) * count, info.dtype, even, 255, 256)
    check_image(path, spec)
    predictor = Predictor(bright, 2, even)
    description = MapDescription(("dark", "bright"), ("#000000", "#ffffff"))
    return classify_scene(path, predictor, bands, folder, description, ClassifyOptions()).paths["classes"]


@pytest.mark.parametrize("name", [*GOOD, "all_nodata.tif", "derived_no_crs.tif"])
def test_a_class_map_is_right_pixel_by_pixel(name: str, tmp_path: Path) -> None:
    path = shared_data("odd", name)
    made = classified(path, tmp_path)
    with rasterio.open(path) as source, rasterio.open(made) as result:
        image, valid = valid_of(source)
        wanted = np.where(valid, image[0] > 0, 255)
        np.testing.assert_array_equal(result.read(1), wanted)
        assert result.transform == source.transform
        assert result.crs == source.crs or source.gcps[0]  # with control points there is no CRS of a transform
        assert len(result.gcps[0]) == len(source.gcps[0])


@pytest.mark.parametrize("name", REFUSED_BY_CLASSIFY)
def test_classification_says_why_not(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=REFUSED_BY_CLASSIFY[name]):
        classified(shared_data("odd", name), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_odd_file_has_a_row() -> None:
    folder = shared_data("odd")
    files = {path.name for path in folder.iterdir() if path.suffix in (".tif", ".vrt", ".nc")}
    assert files == set(GOOD) | set(REFUSED_BY_SAMPLE)
