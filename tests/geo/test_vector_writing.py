"""Files of polygons: what other readers find in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import pyproj
import pytest
import shapely

from geoseg.errors import DataError
from geoseg.geo.vector.writing import FORMATS, create_polygons, read_polygon_tags

UTM = pyproj.CRS("EPSG:32618")
COLUMNS = {"class": "whole", "name": "text", "area_m2": "number"}
SUFFIXES = tuple(FORMATS)


def squares(count: int) -> np.ndarray:
    corners = 500000.0 + 10 * np.arange(count)
    return shapely.orient_polygons(shapely.box(corners, 5_000_000.0, corners + 7, 5_000_007.0))


def write(path: Path, *sizes: int, crs: pyproj.CRS | None = UTM) -> Path:
    polygons = squares(sum(sizes))
    with create_polygons(path, crs, COLUMNS, {"RUN": "abc", "SOURCE": 'a "b" ü'}) as writer:
        for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            rows = np.arange(start, start + size)
            names = np.array([f"Äcker {row}" for row in rows], object)
            writer.write(polygons[rows], {"class": rows + 1, "name": names, "area_m2": rows / 4})
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_become_one_layer(suffix: str, tmp_path: Path):
    path = write(tmp_path / f"a{suffix}", 3, 1, 5)
    read = geopandas.read_parquet(path) if suffix == ".parquet" else geopandas.read_file(path)
    assert read["class"].tolist() == list(range(1, 10))
    assert read["name"].tolist() == [f"Äcker {row}" for row in range(9)]
    assert read["area_m2"].tolist() == [row / 4 for row in range(9)]
    expected = geopandas.GeoSeries(squares(9), crs=UTM)
    if suffix == ".geojson":
        assert read.crs == "EPSG:4326"
        expected = expected.to_crs(4326)
        assert read.geometry.geom_equals_exact(expected, 1e-9).all()
    else:
        assert read.crs == UTM
        assert read.geometry.geom_equals(expected).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_is_a_layer_too(suffix: str, tmp_path: Path):
    path = write(tmp_path / f"a{suffix}")
    read = geopandas.read_parquet(path) if suffix == ".parquet" else geopandas.read_file(path)
    assert len(read) == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_polygons_give_the_same_bytes_and_replace_what_was_there(suffix: str, tmp_path: Path):
    first = write(tmp_path / f"a{suffix}", 3, 2).read_bytes()
    other = tmp_path / f"b{suffix}"
    other.write_text("something else")
    assert write(other, 3, 2).read_bytes() == first


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_says_what_it_is_of(suffix: str, tmp_path: Path):
    path = tmp_path / f"a{suffix}"
    assert read_polygon_tags(path) == {}
    path.write_text("something else")
    assert read_polygon_tags(path) == {}
    assert read_polygon_tags(write(path, 2)) == {"RUN": "abc", "SOURCE": 'a "b" ü'}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_fails_leaves_nothing(suffix: str, tmp_path: Path):
    def fail() -> None:
        with create_polygons(tmp_path / f"a{suffix}", UTM, {"class": "whole"}) as writer:
            writer.write(squares(2), {"class": np.array([1, 2])})
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_place_that_cannot_be_written(suffix: str, tmp_path: Path):
    with pytest.raises(DataError, match="failed write"):
        write(tmp_path / f"missing/a{suffix}", 1)


def test_without_a_crs(tmp_path: Path):
    assert pyogrio.read_info(write(tmp_path / "a.gpkg", 2, crs=None))["crs"] is None
    assert geopandas.read_parquet(write(tmp_path / "a.parquet", 2, crs=None)).crs is None
    with pytest.raises(DataError, match="longitude and latitude"):
        write(tmp_path / "a.geojson", 2, crs=None)


def test_geojson_keeps_its_standard(tmp_path: Path):
    path = tmp_path / "a.geojson"
    with create_polygons(path, UTM, {"confidence": "number"}) as writer:
        writer.write(squares(2), {"confidence": np.array([0.5, np.nan])})
    plain = json.loads(path.read_text(encoding="utf-8"))
    assert plain["type"] == "FeatureCollection"
    assert "crs" not in plain
    assert [feature["properties"]["confidence"] for feature in plain["features"]] == [0.5, None]
    (ring,) = plain["features"][0]["geometry"]["coordinates"]
    assert shapely.LinearRing(ring).is_ccw
    longitude, latitude = ring[0]
    assert -75.1 < longitude < -74.9  # the middle of zone 18
    assert 45 < latitude < 45.3


def test_the_date_of_other_files_is_left_alone(tmp_path: Path):
    before = pyogrio.get_gdal_config_option("OGR_CURRENT_DATE")
    write(tmp_path / "a.gpkg", 1)
    assert pyogrio.get_gdal_config_option("OGR_CURRENT_DATE") == before
    assert "OGR_CURRENT_DATE" not in os.environ
