"""Pixel sizes of images and of the training: compared in the units of their CRSs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from conftest import make_raster

from geoseg.data.normalise import Normalisation
from geoseg.errors import DataError
from geoseg.geo.raster import RasterInfo, read_info
from geoseg.learn.modelfile import ModelSpec
from geoseg.predict.resolution import pixel_ratio, resampling_note, resolution_warnings, shape_for

CLASSES = ({"id": 0, "name": "a"}, {"id": 1, "name": "b"})
SPEC = ModelSpec("unetsmall", {}, 1, 2, CLASSES, (1,), (None,), "uint8", Normalisation((0.0,), (1.0,)), 255, 64)


def trained(resolution: tuple[float, float] | None, crs: str | None = "EPSG:32618") -> ModelSpec:
    return replace(SPEC, resolution=resolution, crs=crs)


def image(folder: Path, transform: Affine | None, crs: str | None = "EPSG:32618") -> RasterInfo:
    return read_info(make_raster(folder / "a.tif", np.ones((1, 100, 60), np.uint8), transform, crs))


def utm(x: float, y: float) -> Affine:
    return Affine(x, 0, 5e5, 0, -y, 5e6)


def test_sides_are_compared_one_by_one(tmp_path: Path):
    info = image(tmp_path, utm(0.5, 0.25))
    assert pixel_ratio(info, trained((1.0, 1.0))) == pytest.approx((2, 4))
    assert shape_for(info, trained((1.0, 1.0))) == (25, 30)
    turned = image(tmp_path, utm(0.5, 0.5) @ Affine.rotation(30))
    assert pixel_ratio(turned, trained((0.25, 0.25))) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("EPSG:32618", "EPSG:3857", 1.0),
        ("EPSG:2263", "EPSG:32618", 1200 / 3937),  # a US survey foot has 1200 / 3937 metres
        ("EPSG:32618", "EPSG:2263", 3937 / 1200),
        (None, None, 1.0),
    ],
)
def test_units_are_those_of_the_crs(tmp_path: Path, here: str | None, there: str | None, expected: float):
    ratio = pixel_ratio(image(tmp_path, utm(1, 1), here), trained((1.0, 1.0), there))
    assert ratio == pytest.approx((1 / expected, 1 / expected), rel=1e-6)


def test_degrees_are_measured_on_the_ground(tmp_path: Path):
    """On the GRS80 ellipsoid at 60 degrees north a degree of longitude has 55,800 m and one of latitude 111,412 m."""
    info = image(tmp_path, Affine(1e-5, 0, 10, 0, -1e-5, 60 + 50e-5), "EPSG:4326")
    across, along = pixel_ratio(info, trained((1.0, 1.0))) or (math.nan, math.nan)
    assert 1 / across == pytest.approx(0.55800, rel=1e-4)
    assert 1 / along == pytest.approx(1.11412, rel=1e-4)
    degrees = trained((2e-5, 1e-5), "EPSG:4326")
    assert pixel_ratio(info, degrees) == pytest.approx((2, 1))


def test_what_cannot_be_compared(tmp_path: Path):
    spec = trained((1.0, 1.0))
    for info, other in (
        (image(tmp_path, utm(1, 1)), trained(None)),
        (image(tmp_path, None, None), spec),
        (image(tmp_path, utm(1, 1), None), spec),
        (image(tmp_path, utm(1, 1)), trained((1.0, 1.0), None)),
        (image(tmp_path, utm(1, 1)), trained((1e-5, 1e-5), "EPSG:4326")),
    ):
        assert pixel_ratio(info, other) is None
        assert resolution_warnings(info, other) == []
        with pytest.raises(DataError, match=r"cannot be compared.*leave out classification\.resample"):
            shape_for(info, other)


@pytest.mark.parametrize(
    ("side", "expected"),
    [(1.0, None), (1.015, None), (0.99, None), (1.03, (103, 62)), (15, (1500, 900)), (0.001, (1, 1))],
)
def test_nearly_the_same_is_the_same(tmp_path: Path, side: float, expected: tuple[int, int] | None):
    assert shape_for(image(tmp_path, utm(side, side)), trained((1.0, 1.0))) == expected


def test_a_raster_becomes_one_pixel_at_least(tmp_path: Path):
    assert shape_for(image(tmp_path, utm(1, 1)), trained((500.0, 500.0))) == (1, 1)


@pytest.mark.parametrize(("side", "times"), [(17.0, "17 times"), (20055.0, "20055 times"), (0.0009, "0.0009 times")])
def test_sizes_that_are_worlds_apart_are_refused(tmp_path: Path, side: float, times: str):
    with pytest.raises(DataError, match=f"found pixels {times} as long as those of the training, .*leave out"):
        shape_for(image(tmp_path, utm(1.0, side)), trained((1.0, 1.0)))


def test_what_is_said(tmp_path: Path):
    info = image(tmp_path, utm(0.5, 0.25))
    assert resampling_note(info, trained((0.5, 0.25))) is None
    note = resampling_note(info, trained((1.0, 1.0)))
    assert "60 x 100 pixels of 0.5 x 0.25 are read as 30 x 25 of 1," in str(note)
    (warning,) = resolution_warnings(image(tmp_path, utm(2, 2)), trained((1.0, 1.0)))
    assert "pixels of 2 units, the model was trained on 1" in warning
    assert resolution_warnings(image(tmp_path, utm(1.4, 1.4)), trained((1.0, 1.0))) == []
