"""Rasters as pixels with a validity: what is in the file, and windows of it.

Values are handed on unchanged (no scaling, no conversion of dtype). Where a pixel holds no data is said by a second
array, never by a value.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
from rasterio.rpc import RPC

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window

# GDAL would take 5 % of the machine's memory for each process; blocks are read once, so a small cache is enough.
# In bytes: unlike GDAL itself, rasterio does not read small numbers as megabytes.
CACHE_BYTES = 64 * 2**20
# rasterio lets some of GDAL's own errors through, unwrapped.
GDAL_ERRORS = (RasterioError, CRSError, CPLE_BaseError)


@dataclass(frozen=True)
class RasterInfo:
    """What a raster file says about itself.

    Attributes:
        path: The name it was opened by (may be a GDAL name such as /vsizip/... or netcdf:...).
        height: Rows.
        width: Columns.
        count: Bands, alpha included.
        dtype: numpy name of the bands' common type.
        crs: None where the file has none, or has ground control points or RPCs in place of a transform.
        transform: Pixel (column, row) to CRS coordinates; the identity where there is no georeference.
        nodata: The first band's nodata value, which may be NaN.
        nodata_values: Each band's nodata value, None where it has none.
        band_names: Each band's description.
        alpha_band: Number, from 1, of the band that holds transparency.
        masked: Whether a mask band (internal, or a .msk file) says where data are.
        band_masks: Whether each band has a mask band of its own.
        palette: Whether the values are indices into a colour table.
        gcps: Ground control points.
        gcps_crs: Their CRS.
        rpcs: Rational polynomial coefficients.
    """

    path: str
    height: int
    width: int
    count: int
    dtype: str
    crs: CRS | None
    transform: Affine
    nodata: float | None
    nodata_values: tuple[float | None, ...]
    band_names: tuple[str | None, ...]
    alpha_band: int | None
    masked: bool = False
    band_masks: bool = False
    palette: bool = False
    gcps: tuple[GroundControlPoint, ...] = ()
    gcps_crs: CRS | None = None
    rpcs: RPC | None = None

    @property
    def image_bands(self) -> tuple[int, ...]:
        """Numbers, from 1, of all bands but the alpha band."""
        return tuple(band for band in range(1, self.count + 1) if band != self.alpha_band)

    @property
    def resolution(self) -> tuple[float, float]:
        """Length of a pixel's side along a row and along a column, in units of the CRS; right for rotated rasters."""
        t = self.transform
        return float(np.hypot(t.a, t.d)), float(np.hypot(t.b, t.e))

    @property
    def window(self) -> Window:
        """The window of the whole raster."""
        return Window(0, 0, self.height, self.width)

    @property
    def georeferenced(self) -> bool:
        """Whether the transform says anything."""
        return self.transform != Affine.identity()


class Pixels(NamedTuple):
    """A window of a raster.

    Attributes:
        image: (bands, height, width) in the file's dtype, native byte order; 0 outside the raster and where a value
            was NaN or infinite, otherwise the values of the file.
        valid: (height, width) bool; False where any band is nodata, NaN or infinite, where the alpha or mask band is
            0, and outside the raster.
    """

    image: NDArray[Any]
    valid: NDArray[np.bool_]


class Raster:
    """An open raster, a choice of its bands, and their validity.

    It may be pickled, and used after a fork: every process opens the file for itself, since a GDAL handle shared
    between processes returns wrong bytes.
    """

    def __init__(self, info: RasterInfo, bands: tuple[int, ...]) -> None:
        self.info = info
        self.bands = bands
        # An alpha band that was asked for as a band is taken to be a spectral band with a wrong tag (four-band 8-bit
        # GeoTIFFs are tagged RGBA by default, near infrared or not), so it does not decide validity then.
        self._alpha = info.alpha_band if info.alpha_band not in bands else None
        self._handle: rasterio.DatasetReader | None = None
        self._owner = -1

    def read(self, window: Window) -> Pixels:
        """Return the pixels of a window, which may overhang the raster or miss it.

        Raises:
            DataError: If the file cannot be read there.
        """
        inside = window.intersection(self.info.window)
        if inside is None:
            image = np.zeros((len(self.bands), *window.shape), self.info.dtype)
            return Pixels(image, np.zeros(window.shape, bool))
        pixels = self._read_inside(inside)
        if inside == window:
            return pixels
        rows, cols = inside.within(window)
        image = np.zeros((len(self.bands), *window.shape), pixels.image.dtype)
        valid = np.zeros(window.shape, bool)
        image[:, rows, cols] = pixels.image
        valid[rows, cols] = pixels.valid
        return Pixels(image, valid)

    def thumbnail(self, max_side: int) -> Pixels:
        """Return the whole raster, thinned to at most `max_side` pixels a side (overviews are used where there are).

        Raises:
            DataError: If the file cannot be read.
        """
        factor = max(1.0, max(self.info.window.shape) / max_side)
        height, width = (max(1, round(side / factor)) for side in self.info.window.shape)
        return self._read_inside(self.info.window, (height, width))

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._handle is not None and self._owner == os.getpid():
            self._handle.close()
        self._handle = None

    def _read_inside(self, window: Window, shape: tuple[int, int] | None = None) -> Pixels:
        numbers = [*self.bands, self._alpha] if self._alpha else list(self.bands)
        place = ((window.row_off, window.row_stop), (window.col_off, window.col_stop))
        shape = shape or window.shape
        with gdal_session():
            try:
                dataset = self._dataset()
                values = dataset.read(numbers, window=place, out_shape=(len(numbers), *shape))
                masks = self._read_masks(dataset, place, shape)
            except (*GDAL_ERRORS, ValueError) as error:
                raise DataError(_unreadable_window(self.info.path, window, error)) from error
        count = len(self.bands)
        image = _native(values[:count])
        valid = _valid_values(image, [self.info.nodata_values[band - 1] for band in self.bands])
        if self._alpha:
            valid &= values[count] != 0
        if masks is not None:
            valid &= (masks != 0).all(axis=0)
        return Pixels(image, valid)

    def _read_masks(self, dataset: rasterio.DatasetReader, place: Any, shape: tuple[int, int]) -> NDArray[Any] | None:
        if not self.info.masked and not self.info.band_masks:
            return None
        numbers = list(self.bands) if self.info.band_masks else [self.bands[0]]
        masks: NDArray[Any] = dataset.read_masks(numbers, window=place, out_shape=(len(numbers), *shape))
        return masks

    def _dataset(self) -> rasterio.DatasetReader:
        if self._handle is None or self._owner != os.getpid():
            self._handle = _open(self.info.path)
            self._owner = os.getpid()
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_owner": -1}


@contextlib.contextmanager
def open_raster(
    path: str | os.PathLike[str], bands: Sequence[int] | None = None, *, allow_palette: bool = False
) -> Iterator[Raster]:
    """Open a raster for reading by windows.

    Args:
        path: File name, or any name GDAL opens.
        bands: Numbers, from 1, in the order wanted; by default all bands but the alpha band.
        allow_palette: Take a raster with a colour table (its values are then class ids, as in a class map).

    Raises:
        DataError: If the file is missing or unreadable, has no such band, or holds what an image cannot be made of.
    """
    info = read_info(path, allow_palette=allow_palette)
    raster = Raster(info, _checked_bands(info, bands))
    try:
        yield raster
    finally:
        raster.close()


def read_info(path: str | os.PathLike[str], *, allow_palette: bool = False) -> RasterInfo:
    """Return what a raster says about itself, without reading pixels.

    Args:
        path: File name, or any name GDAL opens.
        allow_palette: Take a raster with a colour table.

    Raises:
        DataError: If the file is missing or unreadable, has no bands, bands of several types, complex values, or (if
            not allowed) a colour table.
    """
    name = os.fspath(path)
    with gdal_session():
        try:
            with _open(name) as dataset:
                _refuse_unusable(name, dataset)
                info = _describe(name, dataset)
        except (*GDAL_ERRORS, ValueError) as error:
            raise DataError(_unreadable(name, error)) from error
    if info.palette and not allow_palette:
        remedy = f"write its colours as bands: gdal_translate -expand rgb {name} out.tif"
        raise DataError(problem(name, "a colour table (values are indices)", "measured values", remedy))
    return info


def read_tags(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a raster as it is written in its file: name to text.

    Raises:
        DataError: If the file is missing or unreadable.
    """
    name = os.fspath(path)
    with gdal_session():
        try:
            with _open(name) as dataset:
                return dict(dataset.tags())
        except (*GDAL_ERRORS, ValueError) as error:
            raise DataError(_unreadable(name, error)) from error


@contextlib.contextmanager
def gdal_session() -> Iterator[None]:
    """Set GDAL up for geoseg: a small cache, and no warning about rasters without a georeference."""
    with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES), warnings.catch_warnings():
        # A raster without a georeference is a legitimate input here; the info says so.
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


def _open(name: str) -> rasterio.DatasetReader:
    return rasterio.open(name)


def _describe(name: str, dataset: rasterio.DatasetReader) -> RasterInfo:
    points, points_crs = dataset.gcps
    interpretations = list(dataset.colorinterp)
    alpha = interpretations.index(ColorInterp.alpha) + 1 if ColorInterp.alpha in interpretations else None
    masks = dataset.mask_flag_enums
    flags = {flag for band in masks for flag in band}
    tied = dataset.transform == Affine.identity() and bool(points or dataset.rpcs)
    return RasterInfo(
        path=name,
        height=dataset.height,
        width=dataset.width,
        count=dataset.count,
        dtype=np.dtype(dataset.dtypes[0]).name,
        # With control points alone the CRS would be a promise about a transform that is not there.
        crs=None if tied or not dataset.crs else dataset.crs,
        transform=dataset.transform,
        nodata=dataset.nodatavals[0],
        nodata_values=tuple(dataset.nodatavals),
        band_names=tuple(dataset.descriptions),
        alpha_band=alpha if dataset.count > 1 else None,
        masked=MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags,
        band_masks=any(not band for band in masks),
        palette=ColorInterp.palette in interpretations,
        gcps=tuple(points),
        gcps_crs=points_crs if points else None,
        rpcs=dataset.rpcs,
    )


def _refuse_unusable(name: str, dataset: rasterio.DatasetReader) -> None:
    if dataset.count == 0:
        inner = ", ".join(dataset.subdatasets[:5]) or "none"
        remedy = f"name one of its parts instead: {inner}"
        raise DataError(problem(name, "no bands", "at least one", remedy))
    dtypes = sorted(set(dataset.dtypes))
    if len(dtypes) > 1:
        remedy = "convert it to one type with gdal_translate -ot"
        raise DataError(problem(name, f"bands of types {', '.join(dtypes)}", "one type", remedy))
    if dtypes[0].startswith("complex"):
        raise DataError(problem(name, f"{dtypes[0]} values", "real numbers", "write amplitude or phase as bands"))
    if dataset.transform.determinant == 0:
        found = f"the transform {tuple(dataset.transform)[:6]}, which flattens the ground"
        raise DataError(problem(name, found, "pixels with an area", "georeference the raster again"))


def _checked_bands(info: RasterInfo, bands: Sequence[int] | None) -> tuple[int, ...]:
    if bands is None:
        if not info.image_bands:
            raise DataError(problem(info.path, "an alpha band alone", "image bands", "name the bands to use"))
        return info.image_bands
    chosen = tuple(bands)
    wrong = [band for band in chosen if not 1 <= band <= info.count]
    if wrong or not chosen:
        found = f"bands {list(chosen)}"
        raise DataError(problem(info.path, found, f"numbers from 1 to {info.count}", "numbering starts at 1"))
    return chosen


def _native(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


def _valid_values(image: NDArray[Any], nodata_values: Sequence[float | None]) -> NDArray[np.bool_]:
    """Return where no band is nodata, NaN or infinite, and set what is not finite to 0 in place."""
    valid = np.ones(image.shape[1:], bool)
    for band, nodata in zip(image, nodata_values, strict=True):
        marker = _as_dtype(nodata, image.dtype)
        if marker is not None:
            valid &= band != marker
        if image.dtype.kind == "f":
            finite = np.isfinite(band)
            if not finite.all():
                valid &= finite
                band[~finite] = 0
    return valid


def _as_dtype(nodata: float | None, dtype: np.dtype[Any]) -> Any:
    """Return nodata as a value of dtype, or None where no pixel can hold it (-9999 in uint8, NaN, 0.5 in int16)."""
    if nodata is None or not np.isfinite(nodata):
        return None
    if dtype.kind == "f":
        # The file's text may have more digits than a float32 has; both sides must be rounded alike.
        with np.errstate(over="ignore"):
            return dtype.type(nodata)
    limits = np.iinfo(dtype)
    if nodata != int(nodata) or not limits.min <= int(nodata) <= limits.max:
        return None
    return dtype.type(int(nodata))


def _unreadable(name: str, error: Exception) -> str:
    # GDAL's own names (/vsizip/, netcdf:...) and URLs are not paths, so only a plain name can be said to be missing.
    plain = not name.startswith("/vsi") and ":" not in name
    if plain and not Path(name).exists():
        return problem(name, "no such file", "a raster", "check the path")
    return problem(
        name, f"an unreadable raster ({reason(error)})", "a raster that GDAL opens", "check or replace the file"
    )


def _unreadable_window(name: str, window: Window, error: Exception) -> str:
    found = (
        f"damaged data in rows {window.row_off}-{window.row_stop - 1}, "
        f"columns {window.col_off}-{window.col_stop - 1} ({reason(error)})"
    )
    return problem(name, found, "readable pixels", "get the file again, or leave it out")


def reason(error: BaseException) -> str:
    """Return the first cause of an error, which is where GDAL says what it met."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
