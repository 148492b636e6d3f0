"""Polygons across the end of a map, and on another turn of the globe than their image."""

import json

import geopandas
import numpy as np
import pyproj
import pytest
import rasterio
import shapely
from affine import Affine
from rasterio.crs import CRS

from geoseg.errors import DataError
from geoseg.geo.ground import GroundSource, read_ground
from geoseg.geo.raster import read_info
from geoseg.geo.vector import ClassMapping, LabelRules
from geoseg.geo.vector.turns import turn_of, unrolled

MAPPING = ClassMapping(num_classes=2)
FIJI = (179.0, -16.0)  # upper left corner of an image whose columns 5 to 14 are 179.5 to 180.5 degrees east


@pytest.fixture
def burnt(tmp_path):
    """Return a function that burns a label file into an image, given by its corner, pixels and CRS."""

    def burn_it(labels, left, top, shape, side=0.1, crs="EPSG:4326", **rules):
        path = tmp_path / "image.tif"
        height, width = shape
        profile = {"driver": "GTiff", "height": height, "width": width, "count": 1, "dtype": "uint8"}
        transform = Affine(side, 0, left, 0, -side, top)
        with rasterio.open(path, "w", crs=CRS.from_user_input(crs), transform=transform, **profile) as dataset:
            dataset.write(np.ones((1, height, width), np.uint8))
        info = read_info(path)
        source = GroundSource(labels, None, image=path)
        ground = read_ground(source, info, MAPPING, LabelRules(**rules))
        ground.check(source, info)
        return ground.read(info.window, info), ground

    return burn_it


def save(path, geometry, crs="EPSG:4326"):
    geopandas.GeoDataFrame(geometry=[geometry], crs=crs).to_file(path)
    return path


def box(left, right, bottom=-17.0, top=-16.5):
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def densified(left, bottom, right, top):
    return shapely.segmentize(shapely.box(left, bottom, right, top), 0.01)


def moved(geometry, crs, source="EPSG:4326"):
    """Move vertices one by one, as PROJ does."""
    transformer = pyproj.Transformer.from_crs(source, crs, always_xy=True)
    return shapely.transform(geometry, lambda p: np.column_stack(transformer.transform(p[:, 0], p[:, 1])))


def expected(shape, rows, cols):
    label = np.zeros(shape, np.uint8)
    label[rows, cols] = 1
    return label


WRITTEN = {
    "vertices that jump": shapely.Polygon(box(179.5, -179.5)),
    "cut in two at 180": shapely.MultiPolygon(
        [shapely.box(179.5, -17, 180, -16.5), shapely.box(-180, -17, -179.5, -16.5)]
    ),
    "0 to 360": shapely.Polygon(box(179.5, 180.5)),
    "-360 to 0": shapely.Polygon(box(-180.5, -179.5)),
    "a turn too far": shapely.Polygon(box(539.5, 540.5)),
    "jumps the other way around": shapely.Polygon(box(-179.5, 179.5)),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("left", [179.0, -181.0], ids=["image to 181", "image from -181"])
def test_polygons_across_the_antimeridian_burn_where_they_are_however_they_are_written(how, left, burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", WRITTEN[how])
    label, ground = burnt(labels, left, -16.0, (20, 20))
    np.testing.assert_array_equal(label, expected((20, 20), slice(5, 10), slice(5, 15)))
    assert any("half the globe" in line for line in ground.warnings) == ("jump" in how)


def test_a_map_of_the_world_shows_both_ends_of_a_polygon(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", WRITTEN["vertices that jump"])
    label, _ = burnt(labels, -180.0, -16.0, (4, 720), side=0.5)
    columns = [0, 719]  # 0.5 degrees at either end
    np.testing.assert_array_equal(label, expected((4, 720), slice(1, 2), columns))


def test_polygons_in_0_to_360_burn_into_an_image_of_the_western_half(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.box(250.0, 40.0, 251.0, 41.0))
    label, _ = burnt(labels, -111.0, 42.0, (30, 30))
    np.testing.assert_array_equal(label, expected((30, 30), slice(10, 20), slice(10, 20)))


def test_an_edge_around_the_whole_globe_stays(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.box(-180, -10, 180, 10))
    label, ground = burnt(labels, -30.0, 20.0, (40, 40), side=1.0)
    np.testing.assert_array_equal(label, expected((40, 40), slice(10, 30), slice(0, 40)))
    assert not ground.warnings


def test_an_edge_of_more_than_half_the_globe_is_no_jump_in_the_middle_of_the_map(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.box(-160, -10, 160, 10))
    label, ground = burnt(labels, -180.0, 20.0, (40, 360), side=1.0)
    np.testing.assert_array_equal(label, expected((40, 360), slice(10, 30), slice(20, 340)))
    assert any("half the globe" in line for line in ground.warnings)


@pytest.mark.parametrize("crs", ["EPSG:32760", "EPSG:3832", "EPSG:3857"])
@pytest.mark.parametrize("left", [179.0, -181.0])
def test_polygons_of_a_projected_file_are_whole_in_degrees(crs, left, burnt, tmp_path):
    # A mercator map about Greenwich ends at 180: there the polygon is drawn beyond the end.
    geometry = moved(densified(179.5, -17.0, 180.5, -16.5), crs)
    if crs == "EPSG:3857":
        turn = 2 * np.pi * 6378137
        geometry = shapely.transform(geometry, lambda p: np.where(p < [0, -np.inf], p + [turn, 0], p))
    label, _ = burnt(save(tmp_path / "labels.gpkg", geometry, crs), left, -16.0, (20, 20))
    np.testing.assert_array_equal(label, expected((20, 20), slice(5, 10), slice(5, 15)))


def test_an_edge_of_a_projected_map_that_is_longer_than_half_the_globe_is_taken_as_drawn(burnt, tmp_path):
    robinson = moved(shapely.box(-170, -10, 170, 10), "ESRI:54030")
    label, ground = burnt(save(tmp_path / "labels.gpkg", robinson, "ESRI:54030"), -20.0, 5.0, (4, 40), side=1.0)
    assert label.all()
    assert not ground.warnings


@pytest.mark.parametrize("hole", [False, True])
def test_ground_around_the_pole(hole, burnt, tmp_path):
    """The oracle asks each pixel's centre, in polar stereographic metres."""
    shape = shapely.box(-5e5, -4e5, 6e5, 5e5)
    inner = shapely.box(-2e5, -2e5, 2e5, 2e5)
    geometry = shapely.segmentize(shape.difference(inner) if hole else shape, 2e3)
    labels = save(tmp_path / "labels.gpkg", geometry, "EPSG:3031")
    label, _ = burnt(labels, -180.0, -80.0, (10, 360), side=1.0)
    lon, lat = np.meshgrid(np.arange(-179.5, 180), np.arange(-80.5, -90, -1))
    x, y = pyproj.Transformer.from_crs("EPSG:4326", "EPSG:3031", always_xy=True).transform(lon, lat)
    np.testing.assert_array_equal(label, shapely.contains_xy(geometry, x, y))
    assert label[9].all() == (not hole)


def test_polygons_across_the_end_of_a_mercator_map(burnt, tmp_path):
    """Polygons in degrees, an image whose map repeats itself in metres."""
    labels = save(tmp_path / "labels.gpkg", shapely.Polygon(box(179.0, 181.0, 0.0, 1.0)))
    side, turn = 6378137 * np.pi / 180, 2 * np.pi * 6378137  # a pixel is a degree wide
    label, _ = burnt(labels, -turn / 2, 3 * side, (6, 360), side=side, crs="EPSG:3857")
    np.testing.assert_array_equal(label, expected((6, 360), slice(2, 3), [0, 359]))


def test_a_map_that_ends_refuses_polygons_across_its_edge(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.Polygon(box(179.0, 181.0)))
    with pytest.raises(DataError, match="feature 1 across the edge of the map"):
        burnt(labels, 16e6, -1.5e6, (10, 10), side=1e5, crs="ESRI:54030")


def test_a_map_that_ends_takes_long_polygons_that_stay_on_it(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.segmentize(shapely.box(-120, -10, 120, 10), 60))
    label, _ = burnt(labels, -1e6, 5e5, (10, 20), side=1e5, crs="ESRI:54030")
    assert label.all()


def test_holes_go_with_their_polygon(burnt, tmp_path):
    ring = [(179.7, -16.9), (-179.7, -16.9), (-179.7, -16.7), (179.7, -16.7)]
    east = [(-179.9, -16.9), (-179.7, -16.9), (-179.7, -16.7), (-179.9, -16.7)]
    for hole, columns in ((ring, slice(7, 13)), (east, slice(11, 13))):
        labels = save(tmp_path / "labels.gpkg", shapely.Polygon(box(179.5, -179.5), [hole]))
        label, _ = burnt(labels, 179.0, -16.0, (20, 20))
        right = expected((20, 20), slice(5, 10), slice(5, 15))
        right[7:9, columns] = 0
        np.testing.assert_array_equal(label, right)


def test_buffers_across_the_antimeridian(burnt, tmp_path):
    labels = save(tmp_path / "labels.gpkg", shapely.Point(179.99, 0.0))
    label, _ = burnt(labels, 179.0, 1.0, (20, 20), buffers=(0.0, 30_000.0))
    lon, lat = np.meshgrid(np.arange(179.05, 181, 0.1), np.arange(0.95, -1, -0.1))
    _, _, distance = pyproj.Geod(ellps="WGS84").inv(lon, lat, np.full_like(lon, 179.99), np.zeros_like(lon))
    np.testing.assert_array_equal(label, distance < 30_000)
    assert label[:, 10:].any()


def test_area_of_interest_across_the_antimeridian(tmp_path, burnt):
    labels = save(tmp_path / "labels.gpkg", shapely.Polygon(box(179.5, 180.5)))
    area = save(tmp_path / "area.gpkg", shapely.Polygon(box(179.2, -179.8, -16.9, -16.1)))
    _, ground = burnt(labels, 179.0, -16.0, (20, 20))
    info = read_info(tmp_path / "image.tif")
    ground = read_ground(GroundSource(labels, None, aoi=area), info, MAPPING, LabelRules())
    right = np.zeros((20, 20), bool)
    right[1:9, 2:12] = True
    np.testing.assert_array_equal(ground.inside(info.window, info), right)


@pytest.mark.parametrize(("left", "first"), [(0.0, 240), (-180.0, 60)], ids=["0 to 360", "-180 to 180"])
@pytest.mark.parametrize("image_left", [-120.0, 240.0, 600.0])
def test_label_rasters_on_another_turn(left, first, image_left, burnt, tmp_path):
    """One row of labels, 1 where the globe's longitude is 245 to 250; the image shows 240 to 260."""
    path = tmp_path / "labels.tif"
    transform = Affine(1, 0, left, 0, -1, 10)
    profile = {"driver": "GTiff", "height": 4, "width": 360, "count": 1, "dtype": "uint8", "crs": "EPSG:4326"}
    values = np.zeros((1, 4, 360), np.uint8)
    values[..., first + 5 : first + 10] = 1
    with rasterio.open(path, "w", transform=transform, **profile) as dataset:
        dataset.write(values)
    label, _ = burnt(path, image_left, 10.0, (4, 20), side=1.0)
    np.testing.assert_array_equal(label, expected((4, 20), slice(0, 4), slice(5, 10)))


def test_a_label_raster_of_the_world_goes_on_at_its_end(burnt, tmp_path):
    path = tmp_path / "labels.tif"
    profile = {"driver": "GTiff", "height": 4, "width": 360, "count": 1, "dtype": "uint8", "crs": "EPSG:4326"}
    values = np.zeros((1, 4, 360), np.uint8)
    values[..., [0, 359]] = 1
    with rasterio.open(path, "w", transform=Affine(1, 0, -180, 0, -1, 10), **profile) as dataset:
        dataset.write(values)
    label, _ = burnt(path, 178.0, 10.0, (4, 4), side=1.0)
    np.testing.assert_array_equal(label, expected((4, 4), slice(0, 4), slice(1, 3)))


@pytest.mark.parametrize(
    ("crs", "length"),
    [("EPSG:4326", 360.0), ("EPSG:4807", 400.0), ("EPSG:3857", 2 * np.pi * 6378137), ("EPSG:32632", None)]
    + [("EPSG:3031", None), ("EPSG:3832", 2 * np.pi * 6378137), ("ESRI:54030", None)],
)
def test_how_far_maps_repeat_themselves(crs, length):
    found = turn_of(pyproj.CRS(crs))
    assert (found and found.length) == (length if length is None else pytest.approx(length, rel=1e-12))


def test_geojson_of_the_standard_is_read(burnt, tmp_path):
    parts = [[box(179.5, 180.0)], [box(-180.0, -179.5)]]
    geometry = {"type": "MultiPolygon", "coordinates": [[[*ring, ring[0]] for ring in part] for part in parts]}
    path = tmp_path / "labels.geojson"
    path.write_text(
        json.dumps(
            {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": geometry}]}
        )
    )
    label, _ = burnt(path, *FIJI, (20, 20))
    np.testing.assert_array_equal(label, expected((20, 20), slice(5, 10), slice(5, 15)))


def test_what_has_no_jump_is_the_same_object():
    shapes = np.array(
        [shapely.box(0, 0, 1, 1), shapely.box(-180, 0, 180, 1), shapely.MultiPoint([(-179, 0), (179, 0)])]
    )
    found = unrolled(shapes, turn_of(pyproj.CRS("EPSG:4326")))
    assert found.count == 0
    assert all(a is b for a, b in zip(found.geometries, shapes, strict=True))
