"""Reading of labels: layers, attributes, CRS, repair; what cannot be meant is refused."""

from __future__ import annotations

import unicodedata

import geopandas
import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio.crs
import shapely
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box, shared_data

from geoseg.errors import DataError
from geoseg.geo.raster import read_info
from geoseg.geo.vector import ClassMapping, LabelRules, burn, read_labels

TWO = ClassMapping(2)
FIVE = ClassMapping(5)
BOX = pixel_box(2, 3, 5, 5)


def burnt(labels, shape=(10, 10), transform=TRANSFORM):
    return burn(labels, transform, shape)


@pytest.mark.parametrize("suffix", ["gpkg", "geojson", "shp", "fgb", "parquet"])
def test_formats(tmp_path, suffix):
    crs = "EPSG:4326" if suffix == "geojson" else UTM18
    source = geopandas.GeoSeries([BOX], crs=UTM18).to_crs(crs)
    path = tmp_path / f"a.{suffix}"
    frame = geopandas.GeoDataFrame({"cls": [3]}, geometry=source)
    frame.to_parquet(path) if suffix == "parquet" else frame.to_file(path)
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert labels.ids.tolist() == [3]
    expected = np.zeros((10, 10), np.uint8)
    expected[2:7, 3:8] = 3
    np.testing.assert_array_equal(burnt(labels), expected)


@pytest.mark.parametrize("values", [["1"], [1], [1.0]])
def test_class_column_as_text_or_number_burns_alike(tmp_path, values):
    labels = read_labels(make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": values}), "cls", UTM18, FIVE)
    assert (burnt(labels) == 1).sum() == 25


def test_text_NA_is_text(tmp_path):  # noqa: N802
    path = make_polygons(tmp_path / "a.gpkg", [BOX, BOX], {"cls": ["NA", "nan"]})
    labels = read_labels(path, "cls", UTM18, ClassMapping(3, {"NA": 1, "nan": 2}))
    assert labels.ids.tolist() == [1, 2]


def test_values_out_of_range_name_the_file(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX] * 3, {"cls": [300, 70000, -1]})
    with pytest.raises(DataError, match=r"a\.gpkg, layer a, attribute cls: found class ids -1, 300, 70000"):
        read_labels(path, "cls", UTM18, FIVE)
    path = make_polygons(tmp_path / "b.gpkg", [BOX], {"cls": [2.7]})
    with pytest.raises(DataError, match=r"2\.7, expected class ids, which must be whole numbers"):
        read_labels(path, "cls", UTM18, FIVE)


@pytest.mark.parametrize(("name", "hint"), [("class", "'Class'"), ("Clas", "'Class'"), ("zzz", "choose one")])
def test_missing_attribute_lists_the_fields(tmp_path, name, hint):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"Class": [1], "area": [2.0]}, layer="fields")
    with pytest.raises(
        DataError, match=rf"layer fields: found no attribute '{name}', expected one of Class, area; .*{hint}"
    ):
        read_labels(path, name, UTM18, FIVE)


def test_without_attribute_every_polygon_is_class_one(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [7]})
    assert read_labels(path, None, UTM18, TWO).ids.tolist() == [1]
    with pytest.raises(DataError, match="no attribute for 5 classes"):
        read_labels(path, None, UTM18, FIVE)


def test_null_and_ignored_values_are_unknown_ground(tmp_path):
    boxes = [pixel_box(0, col, 1, 1) for col in range(4)]
    path = make_polygons(tmp_path / "a.gpkg", boxes, {"cls": ["1", None, "9", "2"]})
    labels = read_labels(path, "cls", UTM18, ClassMapping(5, ignore_values=frozenset({9})))
    assert burnt(labels)[0, :5].tolist() == [1, 255, 255, 2, 0]
    assert (labels.counts.null_value, labels.counts.ignored) == (1, 1)
    assert "1 polygons without a value are unknown ground" in labels.warnings[0]


def test_layers(tmp_path):
    path = tmp_path / "a.gpkg"
    make_polygons(path, [BOX], {"cls": [1]}, layer="one")
    assert read_labels(path, "cls", UTM18, FIVE).layer == "one"
    make_polygons(path, [shapely.Point(0, 0)], {"cls": [1]}, layer="points")
    assert read_labels(path, "cls", UTM18, FIVE).layer == "one"
    make_polygons(path, [BOX], {"cls": [4]}, layer="two")
    with pytest.raises(DataError, match=r"3 layers \(one, points, two\), expected one layer of polygons"):
        read_labels(path, "cls", UTM18, FIVE)
    assert read_labels(path, "cls", UTM18, FIVE, layer="two").ids.tolist() == [4]
    with pytest.raises(DataError, match="no layer 'three', expected one of one, points, two"):
        read_labels(path, "cls", UTM18, FIVE, layer="three")


def test_table_without_geometries(tmp_path):
    import pandas as pd

    pyogrio.write_dataframe(pd.DataFrame({"cls": [1]}), tmp_path / "a.gpkg", layer="table")
    with pytest.raises(DataError, match="no layer with geometries"):
        read_labels(tmp_path / "a.gpkg", "cls", UTM18, FIVE)
    with pytest.raises(DataError, match="no geometries in layer table"):
        read_labels(tmp_path / "a.gpkg", "cls", UTM18, FIVE, layer="table")


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(DataError, match=r"gone\.gpkg: found no such file, expected a vector file"):
        read_labels(tmp_path / "gone.gpkg", "cls", UTM18, FIVE)
    for name in ("text.gpkg", "text.geojson", "text.parquet"):
        (tmp_path / name).write_text("not a vector file")
        with pytest.raises(DataError, match=rf"{name}: found an unreadable vector file"):
            read_labels(tmp_path / name, "cls", UTM18, FIVE)


def test_empty_layer_is_all_background(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [], {"cls": np.array([], "int64")})
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert len(labels) == 0
    assert burnt(labels).sum() == 0
    assert "no features; all of the image is background" in labels.warnings[0]
    (tmp_path / "b.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    assert len(read_labels(tmp_path / "b.geojson", "cls", UTM18, FIVE)) == 0


def test_null_and_empty_geometries_are_left_out_and_counted(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [None, BOX, shapely.Polygon()], {"cls": [1, 2, 3]})
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert labels.ids.tolist() == [2]
    assert (labels.counts.read, labels.counts.null_geometry, labels.counts.empty) == (3, 1, 1)
    assert len(labels.warnings) == 2


def test_null_geometries_alone(tmp_path):
    (tmp_path / "a.geojson").write_text(
        '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"cls": 1}, "geometry": null}]}'
    )
    labels = read_labels(tmp_path / "a.geojson", "cls", UTM18, FIVE)
    assert (len(labels), labels.counts.null_geometry) == (0, 1)
    assert "no polygon is left; all of the image is background" in labels.warnings[-1]


def test_polygons_without_an_area_alone_are_all_background_and_counted_once(tmp_path):
    point = (500000, 5000000)
    flat = shapely.Polygon([point, (500005, 4999995), point, point])
    path = make_polygons(tmp_path / "a.gpkg", [shapely.Polygon(), flat, shapely.Polygon([point] * 4)], {"cls": [1] * 3})
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert (len(labels), labels.counts.empty, labels.counts.repaired) == (0, 3, 0)
    assert [line.split(": ")[1] for line in labels.warnings] == [
        "3 features with an empty geometry were left out",
        "no polygon is left; all of the image is background",
    ]


def test_points_and_lines_are_no_areas(tmp_path):
    line = shapely.LineString([(500000, 5000000), (500005, 4999995)])
    path = make_polygons(tmp_path / "a.geojson", [line, BOX], {"cls": [1, 2]}, crs="EPSG:4326")
    labels = read_labels(path, "cls", "EPSG:4326", FIVE)
    assert (labels.ids.tolist(), labels.counts.not_polygon) == ([2], 1)
    path = make_polygons(tmp_path / "b.gpkg", [line], {"cls": [1]})
    with pytest.raises(DataError, match="found LineString, expected polygons"):
        read_labels(path, "cls", UTM18, FIVE)


def test_areas_of_a_collection_are_kept(tmp_path):
    mixed = shapely.GeometryCollection(
        [BOX, shapely.Point(500000, 5000000), shapely.MultiPolygon([pixel_box(9, 9, 1, 1)])]
    )
    path = make_polygons(tmp_path / "a.gpkg", [mixed], {"cls": [1]})
    assert burnt(read_labels(path, "cls", UTM18, FIVE)).sum() == 26


def test_heights_are_dropped(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [shapely.force_3d(BOX, 12.5)], {"cls": [1]})
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert not shapely.has_z(labels.geometries).any()
    assert burnt(labels).sum() == 25


def test_curves_become_polygons(tmp_path):
    # A circle of radius 10 about the middle of a 40 x 40 raster covers about 314 pixels.
    (tmp_path / "a.csv").write_text(
        "WKT,cls\n"
        '"CURVEPOLYGON (CIRCULARSTRING (500010 4999980, 500020 4999990, 500030 4999980, '
        '500020 4999970, 500010 4999980))",1\n'
    )
    labels = read_labels(tmp_path / "a.csv", "cls", UTM18, FIVE, rules=LabelRules(assume_crs=True))
    assert abs(int(burnt(labels, (40, 40)).sum()) - 314) <= 6


def test_a_bow_tie_keeps_both_lobes(tmp_path):
    tie = shapely.Polygon([TRANSFORM @ p for p in [(0, 0), (8, 8), (8, 0), (0, 8)]])
    labels = read_labels(make_polygons(tmp_path / "a.gpkg", [tie, BOX], {"cls": [1, 0]}), "cls", UTM18, FIVE)
    assert labels.counts.repaired == 1
    assert "1 invalid polygons were repaired" in labels.warnings[0]
    # Two triangles of 16; a buffer of zero leaves one of them.
    assert labels.geometries[0].area == pytest.approx(32)
    alone = read_labels(make_polygons(tmp_path / "b.gpkg", [tie], {"cls": [1]}), "cls", UTM18, FIVE)
    assert burnt(alone).sum() == 32


def test_a_polygon_that_collapses_is_counted_as_empty(tmp_path):
    flat = shapely.Polygon([(500000, 5000000), (500005, 4999995), (500000, 5000000), (500000, 5000000)])
    labels = read_labels(make_polygons(tmp_path / "a.gpkg", [flat, BOX], {"cls": [1, 2]}), "cls", UTM18, FIVE)
    assert (labels.ids.tolist(), labels.counts.empty) == ([2], 1)


def test_file_order_is_kept_by_the_fast_reader(tmp_path, rng):
    boxes = [pixel_box(int(r), int(c), 3, 3) for r, c in rng.integers(0, 500, (3000, 2))]
    path = make_polygons(tmp_path / "a.gpkg", boxes, {"cls": np.arange(3000) % 251})
    labels = read_labels(path, "cls", UTM18, ClassMapping(251))
    np.testing.assert_array_equal(labels.ids, np.arange(3000) % 251)


def test_labels_without_crs_need_leave(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]}, crs=None)
    with pytest.raises(DataError, match=r"a\.gpkg: found no CRS, .*image\.tif has WGS 84 / UTM zone 18N; .*assume_crs"):
        read_labels(path, "cls", UTM18, FIVE, image="image.tif")
    assert burnt(read_labels(path, "cls", UTM18, FIVE, rules=LabelRules(assume_crs=True))).sum() == 25


def test_image_without_crs_needs_leave(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]})
    with pytest.raises(
        DataError, match=r"image\.tif: found no CRS, expected one, since its labels .*a\.gpkg have WGS 84"
    ):
        read_labels(path, "cls", None, FIVE, image="image.tif")
    assert burnt(read_labels(path, "cls", None, FIVE, rules=LabelRules(assume_crs=True))).sum() == 25


def test_neither_with_crs_share_coordinates(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]}, crs=None)
    labels = read_labels(path, "cls", rasterio.crs.CRS(), FIVE)
    assert burnt(labels).sum() == 25
    assert not labels.counts.reprojected


@pytest.mark.parametrize("compound", ["EPSG:32618+5773", "EPSG:32618+5703"])
def test_heights_of_a_crs_do_not_matter(tmp_path, compound):
    plain = read_labels(make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]}), "cls", UTM18, FIVE)
    path = make_polygons(tmp_path / "b.gpkg", [BOX], {"cls": [1]}, crs=compound)
    assert pyogrio.read_info(path)["crs"] != UTM18
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert not labels.counts.reprojected
    np.testing.assert_array_equal(burnt(labels), burnt(plain))
    other_way = read_labels(tmp_path / "a.gpkg", "cls", rasterio.crs.CRS.from_user_input(compound), FIVE)
    np.testing.assert_array_equal(burnt(other_way), burnt(plain))


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:4979", "EPSG:3857", "EPSG:32617", "EPSG:2950"])
def test_labels_of_another_crs_fall_on_the_same_pixels(tmp_path, crs):
    # Well inside pixels, so that millimetres of the way there and back change none.
    inset = [shapely.affinity.scale(pixel_box(2, 3, 40, 30), 0.995, 0.995), pixel_box(60, 70, 11, 9).buffer(-0.2)]
    path = make_polygons(tmp_path / "a.gpkg", inset, {"cls": [1, 2]})
    expected = burnt(read_labels(path, "cls", UTM18, FIVE), (100, 100))
    assert np.bincount(expected.ravel()).tolist() == [10000 - 1200 - 99, 1200, 99]
    moved = geopandas.read_file(path).to_crs(crs)
    moved.to_file(tmp_path / "b.gpkg")
    labels = read_labels(tmp_path / "b.gpkg", "cls", UTM18, FIVE)
    assert labels.counts.reprojected
    np.testing.assert_array_equal(burnt(labels, (100, 100)), expected)


def test_same_zone_of_another_datum_moves(tmp_path):
    # NAD27 and WGS 84 put 500000, 5000000 of zone 18 about 228 m apart.
    square = shapely.box(499990, 4999990, 500010, 5000010)
    path = make_polygons(tmp_path / "a.gpkg", [square], {"cls": [1]}, crs="EPSG:26718")
    labels = read_labels(path, "cls", UTM18, FIVE)
    assert labels.counts.datum_shift
    transform = rasterio.Affine(1, 0, 499500, 0, -1, 5000500)
    rows, cols = np.nonzero(burnt(labels, (1000, 1000), transform))
    assert len(rows) == pytest.approx(400, abs=40)
    x, y = transform @ (cols.mean() + 0.5, rows.mean() + 0.5)
    assert np.hypot(x - 500000, y - 5000000) == pytest.approx(227.9, abs=1.0)
    expected = pyproj.Transformer.from_crs(26718, 32618, always_xy=True).transform(500000, 5000000)
    assert (x, y) == pytest.approx(expected, abs=0.6)


def test_a_vertex_with_no_place_in_the_crs_names_its_feature(tmp_path):
    good, bad = shapely.box(-75, 45, -74, 46), shapely.box(-75, 80, -74, 95)
    path = make_polygons(tmp_path / "a.gpkg", [good, bad], {"cls": [1, 1]}, crs="EPSG:4326")
    with pytest.raises(DataError, match=r"a\.gpkg, layer a: found feature 2 with a vertex at \(-74, 95\)"):
        read_labels(path, "cls", UTM18, FIVE)


def test_a_crs_of_no_place_on_earth_is_refused(tmp_path):
    path = make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]})
    local = 'LOCAL_CS["plant",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'
    with pytest.raises(DataError, match=r"a\.gpkg.*does not lead to the image's plant"):
        read_labels(path, "cls", local, FIVE)
    with pytest.raises(DataError, match=r"image\.tif: found the CRS nonsense"):
        read_labels(path, "cls", "nonsense", FIVE, image="image.tif")


def test_reports_survive_the_way_to_another_process(tmp_path):
    import pickle

    labels = read_labels(make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]}), "cls", UTM18, FIVE)
    expected = burnt(labels)
    again = pickle.loads(pickle.dumps(labels))
    assert again.cache == {}
    np.testing.assert_array_equal(burnt(again), expected)
    assert again.counts == labels.counts


@pytest.mark.parametrize("name", ["reference", "south_up", "epsg4326", "utm45n_0.5m", "rotated30", "nonsquare_pixels"])
def test_real_labels_in_two_crs_agree(name):
    info = read_info(shared_data("odd", f"derived_{name}.tif"))
    first = read_labels(shared_data("odd", "derived_banepa_labels.gpkg"), None, info.crs, TWO)
    second = read_labels(shared_data("odd", "derived_banepa_labels_4326.geojson"), None, info.crs, TWO)
    one, two = burnt(first, info.window.shape, info.transform), burnt(second, info.window.shape, info.transform)
    assert 0.25 < one.mean() < 0.40
    assert (one != two).mean() < 1e-4


def test_image_crs_of_a_file(tmp_path):
    info = read_info(make_raster(tmp_path / "a.tif", np.zeros((1, 10, 10), np.uint8)))
    labels = read_labels(make_polygons(tmp_path / "a.gpkg", [BOX], {"cls": [1]}), "cls", info.crs, FIVE)
    assert not labels.counts.reprojected


def test_text_of_unknown_encoding_is_named(tmp_path):
    path = make_polygons(tmp_path / "fields.shp", [shapely.box(0, 0, 4, 4)], {"cls": ["Gruen"]}, UTM18)
    table = path.with_suffix(".dbf")
    table.write_bytes(table.read_bytes().replace(b"Gruen", b"Gr\xfcn "))
    path.with_suffix(".cpg").unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"\.cpg"):
        read_labels(path, "cls", UTM18, ClassMapping(2, {"Grün": 1}))


@pytest.mark.parametrize("suffix", [".gpkg", ".parquet"])
@pytest.mark.parametrize(("written", "asked"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_names_of_attributes_match_however_their_accents_are_written(tmp_path, suffix, written, asked):
    written, asked = (unicodedata.normalize(form, "Fläche") for form in (written, asked))
    assert written != asked
    frame = geopandas.GeoDataFrame({written: [1]}, geometry=[pixel_box(2, 3, 4, 5)], crs=UTM18)
    path = tmp_path / f"labels{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_file(path)
    labels = read_labels(path, asked, UTM18, ClassMapping(num_classes=2))
    assert (burnt(labels) == 1).sum() == 20
