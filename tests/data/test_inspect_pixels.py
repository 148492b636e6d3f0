"""What the pixels of a raster show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_raster
from numpy.typing import NDArray
from rasterio.enums import ColorInterp

from geoseg.data.inspect.pixels import BandRange, PixelFacts, collar, inspect_pixels, scaled_differently
from geoseg.geo.raster import open_raster


def _inspected(path: Path, bands: tuple[int, ...] | None = None, side: int = 64) -> PixelFacts:
    with open_raster(path, bands) as raster:
        return inspect_pixels(raster.info, raster.bands, raster.thumbnail(side))


def _noise(rng: np.random.Generator, dtype: Any = np.uint8, bands: int = 3) -> NDArray[Any]:
    return rng.integers(10, 200, (bands, 60, 50)).astype(dtype)


def test_ranges_and_share_of_data(tmp_path: Path, rng: np.random.Generator) -> None:
    image = _noise(rng, np.int16, 2)
    image[0, 0, 0], image[1, 5, 5] = -300, 999
    image[:, 30:] = -1
    facts = _inspected(make_raster(tmp_path / "a.tif", image, nodata=-1, band_names=["red", "nir"]))

    assert facts.thinning == 1
    assert facts.valid_fraction == pytest.approx(0.5)
    assert [(r.band, r.name) for r in facts.ranges] == [(1, "red"), (2, "nir")]
    assert facts.ranges[0].low == -300
    assert facts.ranges[1].high == 999
    assert facts.warnings == ()


def test_a_large_raster_is_thinned(tmp_path: Path, rng: np.random.Generator) -> None:
    path = make_raster(tmp_path / "a.tif", _noise(rng))
    assert _inspected(path, side=20).thinning == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize(("dtype", "value"), [(np.uint8, 0), (np.uint8, 255), (np.uint16, 65535), (np.float32, -9999)])
def test_a_collar_without_a_nodata_tag(tmp_path: Path, rng: np.random.Generator, dtype: Any, value: float) -> None:
    image = _noise(rng, dtype)
    image[:, :6], image[:, :, :4] = value, value

    (hint, *_) = _inspected(make_raster(tmp_path / "a.tif", image)).warnings
    tagged = _inspected(make_raster(tmp_path / "b.tif", image, nodata=value))

    share = 100 * (6 * 50 + 54 * 4) / 3000
    assert f"{share:.1f} % at the border are {value:g} in all bands, and no nodata value is set" in hint
    assert f"gdal_edit.py -a_nodata {value:g}" in hint
    assert tagged.warnings == ()


def test_a_collar_blurred_by_lossy_compression(rng: np.random.Generator) -> None:
    image = _noise(rng)
    image[:, :10] = rng.integers(0, 3, (3, 10, 50))
    assert collar(image, np.ones((60, 50), bool)) == (0.0, 500 / 3000)


def test_what_is_no_collar(rng: np.random.Generator) -> None:
    valid = np.ones((60, 50), bool)
    image = _noise(rng)
    image[:, 20:40, 10:30] = 0  # a dark roof
    image[:, 20:40, :5] = 0  # and a dark pond at one side
    image[0, :10] = 0  # one band alone
    assert collar(image, valid) is None
    image = _noise(rng)
    image[:, 0, :10] = 0  # too small
    assert collar(image, valid) is None


def test_nodata_values(tmp_path: Path, rng: np.random.Generator) -> None:
    # rasterio refuses to write this one; other programs do not.
    with open_raster(make_raster(tmp_path / "a.tif", _noise(rng, bands=1))) as raster:
        info = replace(raster.info, nodata_values=(-9999.0,))
        (impossible,) = inspect_pixels(info, (1,), raster.thumbnail(64)).warnings
    assert "the nodata value -9999 cannot occur in uint8" in impossible

    dark = _noise(rng)
    dark[1, :3] = 0
    (partly,) = _inspected(make_raster(tmp_path / "dark.tif", dark, nodata=0)).warnings
    assert "5.0 % of the pixels are nodata in some bands but not in all" in partly

    untagged = _noise(rng, np.float32)
    untagged[:, 30, 30] = -9999
    (warning,) = _inspected(make_raster(tmp_path / "untagged.tif", untagged)).warnings
    assert "the least value -9999 looks like nodata" in warning


def test_alpha(tmp_path: Path, rng: np.random.Generator) -> None:
    colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    image = _noise(rng, bands=4)
    measured = make_raster(tmp_path / "nir.tif", image, colorinterp=colours)
    assert "the alpha band 4 holds" in _inspected(measured).warnings[0]
    assert "band 4 is tagged as alpha but used as an image band" in _inspected(measured, (1, 2, 4)).warnings[0]

    image[3] = 255
    image[3, :10] = 0
    facts = _inspected(make_raster(tmp_path / "alpha.tif", image, colorinterp=colours))
    assert facts.warnings == ()
    assert facts.valid_fraction == pytest.approx(5 / 6)


def test_no_data_at_all_and_no_difference(tmp_path: Path) -> None:
    empty = _inspected(make_raster(tmp_path / "empty.tif", np.zeros((2, 9, 9), np.uint8), nodata=0))
    assert "no pixel holds data" in empty.warnings[0]
    assert empty.ranges[0] == BandRange(1, None, None, None, None, None)
    constant = np.stack([np.full((9, 9), 7), np.arange(81).reshape(9, 9) + 50]).astype(np.uint8)
    (warning,) = _inspected(make_raster(tmp_path / "constant.tif", constant)).warnings
    assert warning.endswith("bands without any difference between their pixels: 1 (always 7)")


def test_images_that_are_scaled_differently() -> None:
    def ranges(top: float) -> list[BandRange]:
        return [BandRange(1, None, 0, top, 0, top)]

    assert scaled_differently([("a", ranges(1.0)), ("b", ranges(9.0))]) == []
    (warning,) = scaled_differently([("a", ranges(0.9)), ("b", ranges(10000.0)), ("c", ranges(1.0))])
    assert warning == "images that seem to be scaled differently (band 1): a up to 0.9, b up to 10000"
    assert scaled_differently([]) == []
