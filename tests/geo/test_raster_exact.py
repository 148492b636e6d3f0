"""Number types that are changed where no value is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import make_raster

from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.raster import Reading, open_raster


def read(path: Path, dtype: str):
    with open_raster(path, reading=Reading(dtype=dtype, exact=True)) as raster:
        assert raster.info.dtype == dtype
        return raster.read(Window(0, 0, *raster.info.window.shape))


@pytest.mark.parametrize(
    ("stored", "wanted", "values"),
    [
        ("int16", "uint16", [0, 5, 32767]),
        ("uint32", "uint16", [0, 65535]),
        ("float32", "uint16", [0.0, 65535.0]),
        ("float64", "float32", [0.5, 2.0**100]),
        ("int32", "float32", [2**24, 2**24 + 2, -(2**31)]),
        ("uint16", "uint8", [0, 255]),
        ("uint8", "uint16", [0, 255]),
    ],
)
def test_values_that_fit_stay(tmp_path: Path, stored: str, wanted: str, values: list[float]):
    pixels = read(make_raster(tmp_path / "a.tif", np.array([[values]], stored)), wanted)
    assert pixels.image.dtype == wanted
    assert pixels.image[0, 0].tolist() == values
    assert pixels.valid.all()


@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [
        ("int16", "uint16", -1),
        ("uint16", "uint8", 256),
        ("float32", "uint16", 0.5),
        ("float32", "uint16", 65536.0),
        ("float64", "float32", 0.1),
        ("int32", "float32", 2**24 + 1),
        ("int32", "float32", 2**31 - 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(tmp_path: Path, stored: str, wanted: str, value: float):
    path = make_raster(tmp_path / "a.tif", np.array([[[1, value]]], stored))
    with pytest.raises(DataError, match=rf"a\.tif: found the value .* in {stored}, .*values that {wanted} holds"):
        read(path, wanted)


def test_what_is_not_valid_need_not_fit(tmp_path: Path):
    path = make_raster(tmp_path / "a.tif", np.array([[[7, -9999, 3]], [[-9999, 4, 5]]], np.int16), nodata=-9999)
    pixels = read(path, "uint8")
    assert pixels.valid.tolist() == [[False, False, True]]
    assert pixels.image[:, 0, 2].tolist() == [3, 5]
    nan = make_raster(tmp_path / "b.tif", np.array([[[np.nan, 2.0]]], np.float32))
    assert read(nan, "uint8").image.tolist() == [[[0, 2]]]
