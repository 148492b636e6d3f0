"""Drawing points: areas of the classes, who is drawn, what the file holds, and reading the answers back."""

from __future__ import annotations

from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import pytest
from affine import Affine
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box

from geoseg.assess import design as module
from geoseg.assess.design import DesignMap, count_blocks, draw, overlapping, read_answers, survey, write_design
from geoseg.errors import DataError
from geoseg.geo.pixelarea import PixelAreas
from geoseg.geo.raster import read_info
from geoseg.geo.vector import ClassMapping, read_labels

NAMES = ("background", "field", "water")


def stripes(folder: Path, name: str = "a", transform: Affine = TRANSFORM, crs: str | None = UTM18) -> DesignMap:
    """Rows 0-19 background, 20-27 field, 28-29 water; the last column has no class. 30 x 41 pixels."""
    classes = np.zeros((30, 41), np.uint8)
    classes[20:], classes[28:], classes[:, 40] = 1, 2, 255
    return DesignMap(make_raster(folder / f"{name}.tif", classes, transform, crs, nodata=255))


@pytest.mark.parametrize("block", [1024, 16])
def test_areas_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int):
    monkeypatch.setattr(module, "_BLOCK", block)
    made = survey([stripes(tmp_path, transform=TRANSFORM @ Affine.scale(2)), stripes(tmp_path, "b")], NAMES)
    np.testing.assert_array_equal(made.pixels, [1600, 640, 160])
    np.testing.assert_array_equal(made.area, [4000, 1600, 400])
    assert made.unit == "m2"


def test_areas_in_degrees(tmp_path: Path):
    entry = stripes(tmp_path, transform=Affine(0.5, 0, 10, 0, -2, 60), crs="EPSG:4326")
    rows = PixelAreas(read_info(entry.path)).of(read_info(entry.path).window)[:, 0]
    np.testing.assert_allclose(
        survey([entry], NAMES).area, [rows[:20].sum() * 40, rows[20:28].sum() * 40, rows[28:].sum() * 40]
    )


def test_the_area_of_interest(tmp_path: Path):
    area = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 22, 10)])
    polygons = read_labels(area, None, UTM18, ClassMapping(num_classes=2))
    entry = DesignMap(stripes(tmp_path).path, polygons)
    np.testing.assert_array_equal(survey([entry], NAMES).pixels, [200, 20, 0])
    points = draw([entry], np.array([200, 5, 0]), 1)
    assert points.col.max() < 10


def test_points_lie_in_their_class_and_none_twice(tmp_path: Path):
    maps = [stripes(tmp_path), stripes(tmp_path, "b")]
    points = draw(maps, np.array([50, 640, 20]), 3)
    np.testing.assert_array_equal(np.bincount(points.stratum), [50, 640, 20])
    np.testing.assert_array_equal(np.digitize(points.row, [20, 28]), points.stratum)
    assert len(np.unique(np.column_stack([points.map, points.row, points.col]), axis=0)) == 710
    assert np.ptp(points.map[:20]) == 1  # the order tells nothing
    again = draw(maps, np.array([50, 640, 20]), 3)
    np.testing.assert_array_equal(points.col, again.col)
    assert not np.array_equal(points.col, draw(maps, np.array([50, 640, 20]), 4).col)


def test_every_piece_of_ground_has_the_same_chance(tmp_path: Path):
    # One class from 80 degrees north to the equator: a row's share of the points is its share of the ground.
    path = make_raster(tmp_path / "a.tif", np.zeros((80, 300), np.uint8), Affine(1, 0, 0, 0, -1, 80), "EPSG:4326")
    points = draw([DesignMap(path)], np.array([2000]), 7)
    rows = PixelAreas(read_info(path)).of(read_info(path).window)[:, 0]
    share = np.add.reduceat(rows, range(0, 80, 20)) / rows.sum()
    found = np.add.reduceat(np.bincount(points.row, minlength=80), range(0, 80, 20)) / 2000
    np.testing.assert_allclose(found, share, atol=0.03)  # three standard errors
    assert share[3] > 2.5 * share[0]


def test_the_file(tmp_path: Path):
    maps = [stripes(tmp_path), stripes(tmp_path, "b", crs="EPSG:32617")]
    path = tmp_path / "points.gpkg"
    points = draw(maps, np.array([3, 4, 5]), 0)
    write_design(path, maps, survey(maps, NAMES), points)
    frame = geopandas.read_file(path, layer="points")
    assert frame.crs == UTM18
    assert frame["reference"].isna().all()
    fields = dict(zip(*(pyogrio.read_info(path, layer="points")[key] for key in ("fields", "dtypes")), strict=True))
    assert fields["reference"] == "object"  # text
    assert list(frame["mapped"]) == [NAMES[number] for number in points.stratum]
    own = frame[frame["map"] == "a.tif"]
    np.testing.assert_allclose(own.geometry.x, 500000 + own["col"] + 0.5)
    np.testing.assert_allclose(own.geometry.y, 5000000 - own["row"] - 0.5)
    moved = frame[frame["map"] == "b.tif"].to_crs("EPSG:32617")
    np.testing.assert_allclose(moved.geometry.x, 500000 + moved["col"] + 0.5, atol=1e-3)
    assert len(list(tmp_path.glob(".*"))) == 0


def filled(folder: Path, answers) -> Path:
    entry, path = stripes(folder), folder / "points.gpkg"
    strata = survey([entry], NAMES)
    write_design(path, [entry], strata, draw([entry], np.array([4, 2, 2]), 0))
    frame = geopandas.read_file(path, layer="points").sort_values("stratum", kind="stable")
    frame["reference"] = answers
    pyogrio.write_dataframe(frame, path, layer="points")
    return path


@pytest.mark.parametrize(
    "answers",
    [
        ["background", "background", "field", None, "Field", "water", " water ", "unknown"],
        ["0", "0", "1", "", "1", "2", "2", None],
        [0.0, 0.0, 1.0, np.nan, 1.0, 2.0, 2.0, np.nan],
    ],
)
def test_answers_by_name_or_id(tmp_path: Path, answers):
    strata, counts, missing = read_answers(filled(tmp_path, answers))
    np.testing.assert_array_equal(counts, [[2, 1, 0], [0, 1, 1], [0, 0, 1]])
    assert missing == 2
    assert strata.names == NAMES
    np.testing.assert_array_equal(strata.area, [800, 320, 80])


def test_classes_called_unknown_and_uncertain(tmp_path: Path):
    entry, path = stripes(tmp_path), tmp_path / "points.gpkg"
    names = ("unknown", "field", "uncertain")
    write_design(path, [entry], survey([entry], names), draw([entry], np.array([4, 2, 2]), 0))
    frame = geopandas.read_file(path, layer="points").sort_values("stratum", kind="stable")
    frame["reference"] = ["unknown", "0", "field", "uncertain", "1", None, "1", "unknown"]
    pyogrio.write_dataframe(frame, path, layer="points")
    _, counts, missing = read_answers(path)
    # A class of that name is an answer; where the map is uncertain is a stratum, but no class that is on the ground.
    np.testing.assert_array_equal(counts, [[2, 1, 0], [0, 1, 0], [1, 1, 0]])
    assert missing == 2


def test_answers_that_are_no_class(tmp_path: Path):
    with pytest.raises(DataError, match=r"'lake' \(2 points\).*0 background, 1 field, 2 water"):
        read_answers(filled(tmp_path, ["lake", "0", "lake", "0", "1", "1", "2", "2"]))


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no such file"):
        read_answers(tmp_path / "none.gpkg")
    other = make_polygons(tmp_path / "other.gpkg", [pixel_box(0, 0, 1, 1)])
    with pytest.raises(DataError, match="'strata'"):
        read_answers(other)


def test_maps_that_cannot_be_one_population(tmp_path: Path):
    with pytest.raises(DataError, match="no CRS"):
        survey([stripes(tmp_path), stripes(tmp_path, "b", crs=None)], NAMES)
    with pytest.raises(DataError, match="class id 2"):
        survey([stripes(tmp_path)], NAMES[:2])
    empty = make_raster(tmp_path / "e.tif", np.full((5, 5), 255, np.uint8), nodata=255)
    with pytest.raises(DataError, match="no classified pixel"):
        survey([DesignMap(empty)], NAMES)


def test_maps_that_overlap_are_found(tmp_path: Path):
    beside = stripes(tmp_path, "b", TRANSFORM @ Affine.translation(41, 0))
    over = stripes(tmp_path, "c", TRANSFORM @ Affine.translation(40, 29))
    elsewhere = stripes(tmp_path, "d", crs="EPSG:32617")
    maps = [stripes(tmp_path), beside, over, elsewhere, stripes(tmp_path, "e", Affine.identity(), None)]
    assert [(a.name, b.name) for a, b in overlapping(maps)] == [("a.tif", "c.tif"), ("b.tif", "c.tif")]


def test_progress(tmp_path: Path):
    maps, seen = [stripes(tmp_path)], []
    survey(maps, NAMES, seen.append)
    assert sum(seen) == count_blocks(maps) == 1
