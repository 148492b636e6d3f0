"""What the polygons of a label file are like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box
from shapely import Point, Polygon

from geoseg.data.inspect import polygons as module
from geoseg.data.inspect.polygons import PolygonFacts, inspect_polygons
from geoseg.geo.raster import read_info
from geoseg.geo.vector import ClassMapping, read_labels


def _inspected(folder: Path, geometries: list[Any], values: list[Any] | None = None, crs: Any = UTM18) -> PolygonFacts:
    import numpy as np

    info = read_info(make_raster(folder / "a.tif", np.ones((40, 50), np.uint8)))
    values = [1] * len(geometries) if values is None else values
    path = make_polygons(folder / "labels.gpkg", geometries, {"cls": values}, crs=crs)
    labels = read_labels(path, "cls", info.crs, ClassMapping(4, ignore_values=frozenset([9]), unmapped="ignore"))
    return inspect_polygons("labels.gpkg", labels, info)


def test_classes_and_values(tmp_path: Path) -> None:
    boxes = [pixel_box(0, 6 * i, 5, 5) for i in range(7)]
    facts = _inspected(tmp_path, boxes, [1, 1, 3, None, 9, 77, 1])

    assert facts.features == 7
    assert facts.classes == {1: 3, 3: 1, 255: 3}
    assert (facts.null_value, facts.ignored, facts.unmapped) == (1, 1, 1)
    assert facts.crs == "equal"
    assert facts.on_image == 1.0
    assert facts.warnings == ()


def test_flaws(tmp_path: Path) -> None:
    bow_tie = Polygon([TRANSFORM @ corner for corner in ((0, 20), (8, 28), (8, 20), (0, 28))])
    geometries = [pixel_box(0, 0, 5, 5), None, Polygon(), Point(500001, 4999999), bow_tie, pixel_box(30, 0.6, 5, 0.3)]
    facts = _inspected(tmp_path, geometries)

    assert (facts.null_geometry, facts.empty, facts.not_polygon) == (1, 1, 1)
    assert facts.repaired == 1
    assert facts.unburnt == 1


def test_duplicates_and_overlaps(tmp_path: Path) -> None:
    geometries = [
        pixel_box(0, 0, 10, 10),
        pixel_box(5, 5, 10, 10),  # of another class, on the first
        pixel_box(0, 0, 10, 10),  # the first again
        pixel_box(8, 0, 10, 3),  # of the first's class, on it
        pixel_box(0, 10, 5, 5),  # touches the first along a side
        pixel_box(20, 20, 5, 5),
    ]
    facts = _inspected(tmp_path, geometries, [1, 2, 1, 1, 2, 1])

    assert facts.duplicates == 1
    assert (facts.overlapping, facts.overlapping_same) == (1, 1)
    assert facts.pairs_complete
    assert [line.split(": ")[1] for line in facts.warnings] == [
        "1 polygons are there twice; the later one counts",
        "1 pairs of polygons of different classes overlap; the later one wins",
    ]


def test_a_sliver_along_a_common_border_is_no_overlap(tmp_path: Path) -> None:
    facts = _inspected(tmp_path, [pixel_box(0, 0, 10, 10), pixel_box(0, 9.96, 10, 10)], [1, 2])
    assert facts.overlapping == 0


def test_many_pairs_are_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    facts = _inspected(tmp_path, [pixel_box(0, i, 9, 9) for i in range(5)], [1, 2, 1, 2, 1])
    assert not facts.pairs_complete
    assert "at least 1 pairs" in facts.warnings[0]


def test_share_on_the_image(tmp_path: Path) -> None:
    # Whole inside, half over the lower border, outside: 100 + 50 of 400 pixels.
    geometries = [pixel_box(0, 0, 10, 10), pixel_box(35, 0, 10, 10), pixel_box(100, 0, 10, 20)]
    facts = _inspected(tmp_path, geometries)
    assert facts.on_image == pytest.approx(150 / 400)
    assert facts.outside == 1
    assert facts.warnings == ("labels.gpkg: only 37.5 % of the polygons' area lies on the image (1 of 3 off)",)


def test_next_to_nothing_on_the_image_is_said_even_where_no_polygon_is_off(tmp_path: Path) -> None:
    """A polygon so large that 2,000 pixels of the image are 0.002 % of it."""
    facts = _inspected(tmp_path, [pixel_box(-5000, -5000, 10_000, 10_000)])
    assert facts.outside == 0
    assert facts.warnings == ("labels.gpkg: only 0.0 % of the polygons' area lies on the image (0 of 1 off)",)
    assert _inspected(tmp_path, [pixel_box(-50, -50, 200, 200)]).warnings == ()


def test_reprojected_labels(tmp_path: Path) -> None:
    from pyproj import Transformer
    from shapely import transform

    to_degrees = Transformer.from_crs(UTM18, "EPSG:4326", always_xy=True).transform
    to_nad27 = Transformer.from_crs(UTM18, "EPSG:26718", always_xy=True).transform
    box = pixel_box(5, 5, 10, 10)
    assert _inspected(tmp_path, [transform(box, to_degrees, interleaved=False)], crs="EPSG:4326").crs == "reprojected"
    facts = _inspected(tmp_path, [transform(box, to_nad27, interleaved=False)], crs="EPSG:26718")
    assert facts.crs == "reprojected, datum differs"
    assert facts.on_image == 1.0
