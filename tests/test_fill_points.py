"""The tool that stands in for a person who looks at sample points."""

from __future__ import annotations

from pathlib import Path

import geopandas
import numpy as np
import pytest
from conftest import make_polygons, make_raster, pixel_box

import fill_points
from geoseg.assess.design import DesignMap, draw, read_answers, survey, write_design

NAMES = ("background", "field", "water")


def test_points_get_the_class_of_the_polygon_on_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = [DesignMap(make_raster(tmp_path / "m.tif", np.zeros((20, 20), np.uint8)))]
    path = tmp_path / "p.gpkg"
    write_design(path, maps, survey(maps, NAMES), draw(maps, np.array([400, 0, 0]), 0))  # every pixel
    boxes = [pixel_box(0, 0, 20, 10), pixel_box(0, 0, 5, 20), pixel_box(15, 15, 5, 5)]
    labels = make_polygons(tmp_path / "l.gpkg", boxes, {"kind": ["F", "water", "else"]})
    assert fill_points.main([str(path), str(labels), "kind", "F=field"]) == 0
    # Water lies over field; "else" is no class.
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed == ["150 points of background", "150 points of field", "100 points of water"]
    _, counts, missing = read_answers(path)
    assert (counts[0].tolist(), missing) == ([150, 150, 100], 0)
    assert len(geopandas.read_file(path, layer="points")) == 400


def test_without_arguments_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert fill_points.main([]) == 2
    assert "POINTS.gpkg" in capsys.readouterr().err
