"""COGs from ready tiles: both kinds of TIFF, the order of tiles, what stands around them, overviews by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import rasterio
from conftest import make_raster

from geoseg.geo.grid import Window
from geoseg.geo.raster import create_geotiff, finish_cog, read_info, tiff
from geoseg.geo.raster.overviews import halved


def scene_of(path):
    """A scene of 700 x 1100 pixels."""
    return replace(read_info(make_raster(path, np.zeros((1, 7, 11), np.uint8))), height=700, width=1100)


@pytest.mark.parametrize("limit", [tiff._CLASSIC_LIMIT, 0])
@pytest.mark.parametrize(("count", "dtype", "nodata"), [(1, "uint8", 255), (3, "float32", float("nan"))])
def test_pixels_and_overviews_read_back(tmp_path, rng, monkeypatch, limit, count, dtype, nodata):
    monkeypatch.setattr(tiff, "_CLASSIC_LIMIT", limit)
    like = replace(
        read_info(make_raster(tmp_path / "source.tif", np.zeros((1, 7, 11), np.uint8))), height=700, width=1100
    )
    values = rng.integers(0, 5, (count, 700, 1100)).astype(dtype)
    with create_geotiff(tmp_path / "tmp.tif", like, count, dtype, nodata) as writer:
        writer.write(values, Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif", "mode" if count == 1 else "average")
    data = (tmp_path / "map.tif").read_bytes()
    assert data[:4] == (b"II+\0" if limit == 0 else b"II*\0")
    with rasterio.open(tmp_path / "map.tif") as made:
        np.testing.assert_array_equal(made.read(), values)
        assert (made.transform, made.crs) == (like.transform, like.crs)
        assert made.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert made.overviews(1) == [2, 4]
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as made:
        np.testing.assert_array_equal(made.read(), halved(values, "mode" if count == 1 else "average", nodata))


def test_tiles_stand_between_their_size_and_their_last_bytes(tmp_path, rng):
    like = replace(
        read_info(make_raster(tmp_path / "source.tif", np.zeros((1, 7, 11), np.uint8))), height=700, width=1100
    )
    with create_geotiff(tmp_path / "tmp.tif", like, 1, "uint8", 255) as writer:
        writer.write(rng.integers(0, 5, (700, 1100), dtype=np.uint8), Window(0, 0, 700, 1100))
    finish_cog(tmp_path / "tmp.tif", tmp_path / "map.tif")
    data = (tmp_path / "map.tif").read_bytes()
    first = tiff.read_directory(tmp_path / "map.tif")
    offsets, sizes = (first[tag].numbers.astype(int).tolist() for tag in (tiff.TILE_OFFSETS, tiff.TILE_SIZES))
    assert offsets == sorted(offsets)
    assert len(offsets) == 2 * 3
    for offset, size in zip(offsets, sizes, strict=True):
        assert int.from_bytes(data[offset - 4 : offset], "little") == size
        assert data[offset + size : offset + size + 4] == data[offset + size - 4 : offset + size]
    assert offsets[-1] + sizes[-1] + 4 == len(data)


@pytest.mark.parametrize(
    ("four", "expected"),
    [
        ([1, 2, 2, 3], 2),
        ([1, 2, 3, 3], 3),
        ([1, 1, 2, 2], 1),
        ([2, 1, 1, 2], 2),
        ([4, 3, 2, 1], 4),
        ([255, 255, 255, 7], 7),
        ([255, 9, 8, 8], 8),
        ([255, 9, 255, 8], 9),
        ([255, 255, 255, 255], 255),
        ([3, 2, 2, 2], 2),
    ],
)
def test_the_most_frequent_of_four(four, expected):
    assert halved(np.array(four, np.uint8).reshape(1, 2, 2), "mode", 255).tolist() == [[[expected]]]


def test_means_pass_over_what_is_unknown():
    values = np.array([[1.0, 3.0, np.nan], [np.nan, np.nan, np.nan], [5.0, 7.0, 9.0]], np.float32)[None]
    np.testing.assert_array_equal(halved(values, "average", np.nan)[0], [[2, np.nan], [6, 9]])
    steps = np.array([[10, 11], [255, 255]], np.uint8)[None]
    assert halved(steps, "average", 255).tolist() == [[[11]]]
    assert halved(steps, "nearest", 255).tolist() == [[[10]]]
