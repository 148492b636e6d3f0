from __future__ import annotations

from pathlib import Path

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from conftest import make_raster
from pyproj import Transformer
from scenery import make_options, make_scene, make_store

from geoseg.data.footprints import Frame, sharing
from geoseg.data.indexing import footprints_of
from geoseg.data.scenes import Scene
from geoseg.geo.raster import read_info


def _footprints(path: Path, offsets: list[list[int]]) -> np.ndarray:
    info = read_info(path)
    return footprints_of(info.transform, info.crs, info.window.shape, np.array(offsets), 16)


def test_index_is_geoparquet_with_a_row_per_sample(tmp_path: Path) -> None:
    store = make_store(tmp_path / "data", [make_scene(tmp_path)])

    index = geopandas.read_parquet(store.folder / "index.parquet")

    assert index.crs == "EPSG:4326"
    assert len(index) == 12
    row = index.iloc[5]  # second row of samples, at row 16, second column
    assert (row["row_off"], row["col_off"], row["position"]) == (16, 16, 5)
    assert row["crs"] == "EPSG:32618"
    assert list(row["transform"]) == [1, 0, 500016, 0, -1, 4999984]
    assert (store.folder / row["shard"]).is_file()
    west, north = Transformer.from_crs(32618, 4326, always_xy=True).transform(500016, 4999984)
    assert row["geometry"].bounds[0] == pytest.approx(west, abs=1e-9)
    assert row["geometry"].bounds[3] == pytest.approx(north, abs=1e-9)


def test_footprints_are_clipped_to_the_scene(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, image=np.ones((1, 5, 10), np.uint8))

    (footprint,) = _footprints(scene.image, [[0, 0]])

    ground = geopandas.GeoSeries([footprint], crs=4326).to_crs(32618)[0]
    assert ground.area == pytest.approx(50, rel=1e-5)


def test_footprints_of_a_rotated_scene(tmp_path: Path) -> None:
    turned = Affine.translation(500000, 5000000) * Affine.rotation(30) * Affine.scale(2, -2)
    path = make_raster(tmp_path / "a.tif", np.ones((1, 40, 40), np.uint8), transform=turned)

    (footprint,) = _footprints(path, [[8, 16]])

    x, y = geopandas.GeoSeries([footprint], crs=4326).to_crs(32618)[0].exterior.coords[0]
    assert (x, y) == pytest.approx(turned @ (16, 8), abs=1e-4)


@pytest.mark.parametrize("place", [{"crs": None}, {"transform": None, "crs": None}])
def test_no_footprint_without_a_place_on_earth(tmp_path: Path, place: dict[str, None]) -> None:
    path = make_raster(tmp_path / "a.tif", np.ones((1, 20, 20), np.uint8), **place)
    labels = tmp_path / "a.gpkg"
    x, y = (0, 0) if "transform" in place else (500000, 4999980)
    corners = [(x, y), (x + 9, y), (x + 9, y + 9), (x, y + 9)]
    frame = geopandas.GeoDataFrame({"cls": [1]}, geometry=geopandas.points_from_xy(*zip(*corners, strict=True))[:1])
    frame.geometry = [geopandas.GeoSeries.from_xy(*zip(*corners, strict=True)).union_all().convex_hull]
    with pytest.warns(UserWarning, match="crs"):
        frame.to_file(labels)

    store = make_store(tmp_path / "data", [Scene(path, labels, "cls", "trn")], make_options())

    index = geopandas.read_parquet(store.folder / "index.parquet")
    assert index.geometry.isna().all()
    assert index["crs"].isna().all()
    assert store.info.crs is None


def test_footprints_across_the_antimeridian_are_whole() -> None:
    """100 km of UTM zone 60 at the equator, from 179.5 degrees east to about 180.4."""
    left, _ = Transformer.from_crs("EPSG:4326", "EPSG:32660", always_xy=True).transform(179.5, 0.0)
    footprints = footprints_of(
        Affine(1000, 0, left, 0, -1000, 50_000), "EPSG:32660", (100, 100), np.array([[0, 0], [0, 50], [0, 60]]), 50
    )
    degrees = np.array([0, 50, 60, 100]) / 111.32
    left, _, right, _ = shapely.bounds(footprints).T
    np.testing.assert_allclose(right, [179.5 + degrees[1], 179.5 + degrees[3], -180.5 + degrees[3]], atol=0.01)
    np.testing.assert_allclose(left, [179.5, 179.5 + degrees[1], -180.5 + degrees[2]], atol=0.01)


def test_scenes_of_the_two_zones_at_the_antimeridian_share_ground() -> None:
    """The same square of ground, written in the zone before the antimeridian and in the one behind it."""
    places = []
    for crs in ("EPSG:32660", "EPSG:32601"):
        x, y = Transformer.from_crs("EPSG:4326", crs, always_xy=True).transform(180.0, 10.0)
        places.append((Affine(100, 0, x - 5000, 0, -100, y + 5000), crs, (100, 100)))
    frame = Frame(places)
    footprints = np.concatenate([frame.footprints(i, np.array([[0, 0, 100, 100]])) for i in (0, 1)])
    assert shapely.intersection(*footprints).area * frame.factor() ** 2 == pytest.approx(1e8, rel=0.05)
    assert len(sharing(footprints, np.array(["trn", "val"]))) == 1
