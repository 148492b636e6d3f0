"""Factories that all tests share: tiny rasters and polygon files, made in code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import geopandas
import hypothesis
import numpy as np
import pytest
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning

# Seconds say nothing about correctness on a shared machine.
# The same examples every time, so that a change is judged by itself; `--hypothesis-profile search` draws new ones.
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.register_profile("geoseg", deadline=None, derandomize=True)
hypothesis.settings.load_profile("geoseg")

# One metre pixels, north up, in UTM zone 18N.
TRANSFORM = Affine(1.0, 0.0, 500000.0, 0.0, -1.0, 5000000.0)
UTM18 = "EPSG:32618"


def make_raster(
    path: Path,
    array: NDArray[Any],
    transform: Affine | None = TRANSFORM,
    crs: Any = UTM18,
    nodata: float | None = None,
    **options: Any,
) -> Path:
    """Write (bands, H, W) or (H, W) as a GeoTIFF and return its path.

    Args:
        path: Name to write.
        array: Pixels; their dtype becomes the file's.
        transform: None for a raster without georeference.
        crs: None for a raster without CRS.
        nodata: Nodata value.
        **options: `mask` (H, W) bool writes an internal mask; `band_names`, `colorinterp`, `gcps` as rasterio takes
            them; the rest are creation options.
    """
    bands = array[None] if array.ndim == 2 else array
    mask, names = options.pop("mask", None), options.pop("band_names", None)
    interpretation = options.pop("colorinterp", None)
    # Without this GDAL would call the fourth of four 8-bit bands alpha.
    options.setdefault("photometric", "MINISBLACK")
    profile = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype.name}
    place = {"transform": transform, "crs": crs} if transform is not None else {"crs": crs}
    with warnings.catch_warnings(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", driver="GTiff", nodata=nodata, **profile, **place, **options) as dataset:
            if interpretation:
                # Before the pixels: afterwards the file's header is settled.
                dataset.colorinterp = interpretation
            dataset.write(bands)
            for band, name in enumerate(names or (), start=1):
                dataset.set_band_description(band, name)
            if mask is not None:
                dataset.write_mask(mask)
    return Path(path)


def make_polygons(
    path: Path,
    geometries: Sequence[Any],
    attributes: Mapping[str, Sequence[Any]] | None = None,
    crs: Any = UTM18,
    **options: Any,
) -> Path:
    """Write shapely geometries with columns of attributes; the format follows the suffix.

    Args:
        path: Name to write.
        geometries: Shapely geometries or None, in file order.
        attributes: Column name to values.
        crs: None for a file without CRS.
        **options: Handed to pyogrio, such as `layer`.
    """
    frame = geopandas.GeoDataFrame(dict(attributes or {}), geometry=list(geometries), crs=crs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        frame.to_file(path, **options)
    return Path(path)


def pixel_box(row: int, col: int, height: int, width: int, transform: Affine = TRANSFORM) -> Any:
    """Return the polygon that covers exactly these pixels of a raster."""
    from shapely import Polygon

    corners = [(col, row), (col + width, row), (col + width, row + height), (col, row + height)]
    return Polygon([transform @ corner for corner in corners])


def shared_data(*parts: str) -> Path:
    """Return a path in the folder of real scenes beside the checkout; skip the test where there is none."""
    root = Path(os.environ.get("GEOSEG_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no real scenes at {path}")
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20240607)
