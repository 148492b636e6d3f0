"""What a raster says about itself, before a pixel is read."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from rasterio._err import CPLE_BaseError
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
from rasterio.rpc import RPC

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster.names import STACK, Name, common_stem, is_gdal_name, members, stem
from geoseg.geo.raster.options import Reading, converted_dtype

# GDAL would take 5 % of the machine's memory for each process; blocks are read once, so a small cache is enough.
# In bytes: unlike GDAL itself, rasterio does not read small numbers as megabytes.
CACHE_BYTES = 32 * 2**20
# rasterio lets some of GDAL's own errors through, unwrapped.
GDAL_ERRORS = (RasterioError, CRSError, CPLE_BaseError)

_SUBDATASETS_SHOWN = 5
_SAME_PLACE = 1e-3  # of a pixel


@dataclass(frozen=True)
class RasterInfo:
    """What a raster says about itself, and how it is read.

    Attributes:
        path: The name it was opened by (may be a GDAL name such as /vsizip/... or netcdf:..., or names joined by |).
        height: Rows.
        width: Columns.
        count: Bands, alpha included.
        dtype: numpy name of the type that its bands are read as.
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
        stored: numpy name of each band's type in the file.
        scales: Each band's scale and offset.
        colours: (red, green, blue, alpha) by index, where the palette is expanded.
        reading: What is done to the values.
        members: The files of a stack, in order.
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
    stored: tuple[str, ...] = ()
    scales: tuple[tuple[float, float], ...] = ()
    colours: tuple[tuple[int, int, int, int], ...] = ()
    reading: Reading = field(default_factory=Reading)
    members: tuple[RasterInfo, ...] = ()

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


def read_info(name: Name, *, allow_palette: bool = False, reading: Reading | None = None) -> RasterInfo:
    """Return what a raster says about itself, without reading pixels.

    Args:
        name: File name, any name GDAL opens, or several joined by ``|``.
        allow_palette: Take a raster with a colour table as it is (its values are then class ids, as in a class map).
        reading: What is to be done to the values.

    Raises:
        DataError: If a file is missing or unreadable, has no bands, bands of several types, complex values, or (if
            neither allowed nor expanded) a colour table; if the files of a stack do not lie on one grid.
    """
    reading = reading or Reading()
    parts = members(name)
    if len(parts) > 1:
        return _stacked(STACK.join(parts), tuple(_read_one(part, allow_palette, reading) for part in parts))
    return _read_one(parts[0] if parts else os.fspath(name), allow_palette, reading)


def is_raster(name: str) -> bool:
    """Tell whether GDAL opens a file as a raster."""
    with gdal_session():
        try:
            with open_dataset(name):
                return True
        except (*GDAL_ERRORS, ValueError):
            return False


def read_tags(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a raster as it is written in its file: name to text.

    Raises:
        DataError: If the file is missing or unreadable.
    """
    name = os.fspath(path)
    with gdal_session():
        try:
            with open_dataset(name) as dataset:
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


def open_dataset(name: str) -> rasterio.DatasetReader:
    """Open one file; to be called in a `gdal_session`."""
    return rasterio.open(name)


def _read_one(name: str, allow_palette: bool, reading: Reading) -> RasterInfo:
    with gdal_session():
        try:
            with open_dataset(name) as dataset:
                _refuse_unusable(name, dataset)
                info = _describe(name, dataset)
                if reading.expand_palette and info.palette and not allow_palette:
                    info = _expanded(info, dataset.colormap(1))
        except (*GDAL_ERRORS, ValueError) as error:
            raise DataError(_unreadable(name, error)) from error
    if info.palette and not allow_palette and not info.colours:
        remedy = f"set sample.expand_palette: true, or write its colours as bands: gdal_translate -expand rgb {name}"
        raise DataError(problem(name, "a colour table (values are indices)", "measured values", remedy))
    if reading.nodata is not None:
        info = replace(info, nodata=reading.nodata, nodata_values=(reading.nodata,) * len(info.nodata_values))
    dtypes = ("uint8",) if info.colours else tuple(info.stored[band - 1] for band in info.image_bands or (1,))
    return replace(info, dtype=converted_dtype(name, dtypes, reading), reading=reading)


def _describe(name: str, dataset: rasterio.DatasetReader) -> RasterInfo:
    points, points_crs = dataset.gcps
    interpretations = list(dataset.colorinterp)
    alpha = interpretations.index(ColorInterp.alpha) + 1 if ColorInterp.alpha in interpretations else None
    masks = dataset.mask_flag_enums
    flags = {flag for band in masks for flag in band}
    tied = dataset.transform == Affine.identity() and bool(points or dataset.rpcs)
    stored = tuple(np.dtype(dtype).name for dtype in dataset.dtypes)
    return RasterInfo(
        path=name,
        height=dataset.height,
        width=dataset.width,
        count=dataset.count,
        dtype=stored[0],
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
        stored=stored,
        scales=tuple(zip(map(float, dataset.scales), map(float, dataset.offsets), strict=True)),
    )


def _expanded(info: RasterInfo, table: dict[int, tuple[int, int, int, int]]) -> RasterInfo:
    """Return the info of the three bands that a colour table stands for."""
    if info.count > 1:
        found = f"{info.count} bands, one of them with a colour table"
        raise DataError(problem(info.path, found, "a colour table on a single band", "write its colours as bands"))
    missing = (0, 0, 0, 0)
    colours = tuple(tuple(table.get(index, missing)) for index in range(max(table, default=0) + 1))
    return replace(
        info,
        count=3,
        nodata_values=info.nodata_values * 3,
        band_names=("red", "green", "blue"),
        scales=((1.0, 0.0),) * 3,
        colours=colours,  # type: ignore[arg-type]
    )


def _stacked(name: str, parts: tuple[RasterInfo, ...]) -> RasterInfo:
    """Return the info of files that are one image: their bands one after the other, alpha bands left out."""
    first = parts[0]
    problems = [line for part in parts[1:] for line in _other_grid(first, part)]
    if problems:
        raise DataError(problems)
    differing = next((part for part in parts if part.dtype != first.dtype), None)
    if differing is not None:
        found = f"{differing.dtype} values, but {first.dtype} in {first.path}"
        remedy = "set sample.dtype, or convert one with gdal_translate -ot"
        raise DataError(problem(differing.path, found, "one type in all files of an image", remedy))
    bands = [(part, band) for part in parts for band in part.image_bands]
    return replace(
        first,
        path=name,
        # In some formats only the first of several parts says where they all are.
        crs=next((part.crs for part in parts if part.crs), None),
        count=len(bands),
        nodata_values=tuple(part.nodata_values[band - 1] for part, band in bands),
        band_names=_stacked_names(parts),
        alpha_band=None,
        masked=False,
        band_masks=False,
        palette=False,
        stored=tuple(first.dtype for _ in bands),
        scales=((1.0, 0.0),) * len(bands),
        colours=(),
        members=parts,
    )


def _stacked_names(parts: tuple[RasterInfo, ...]) -> tuple[str | None, ...]:
    """Return the bands' names: their own, or, for a file of one band, what its name does not share with the others."""
    stems = [stem(part.path) for part in parts]
    common = common_stem(stems)
    names: list[str | None] = []
    for part, own in zip(parts, stems, strict=True):
        rest = own[len(common) :].lstrip("_-. ") or own
        for band in part.image_bands:
            names.append(part.band_names[band - 1] or (rest if len(part.image_bands) == 1 else None))
    return tuple(names)


def _other_grid(first: RasterInfo, other: RasterInfo) -> list[str]:
    if (first.height, first.width) != (other.height, other.width):
        found = f"{other.width} x {other.height} pixels"
        expected = f"{first.width} x {first.height} as in {first.path}"
    elif first.crs != other.crs and not (_same_place(first, other) and None in (first.crs, other.crs)):
        found, expected = f"the CRS {other.crs or 'none'}", f"{first.crs or 'none'} as in {first.path}"
    elif not _same_place(first, other):
        found = f"the transform {tuple(other.transform)[:6]}"
        expected = f"{tuple(first.transform)[:6]} as in {first.path}"
    else:
        return []
    return [problem(other.path, found, expected, "resample one onto the grid of the other with gdalwarp")]


def _same_place(first: RasterInfo, other: RasterInfo) -> bool:
    """Tell whether the corners of two rasters of one size fall together, on the same ground if they say where."""
    if first.georeferenced != other.georeferenced:
        return False
    inverse = ~first.transform
    corners = [(0, 0), (first.width, 0), (0, first.height), (first.width, first.height)]
    moved = [inverse @ (other.transform @ corner) for corner in corners]
    return all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) < _SAME_PLACE for a, b in zip(corners, moved, strict=True))


def _refuse_unusable(name: str, dataset: rasterio.DatasetReader) -> None:
    if dataset.count == 0:
        shown = list(dataset.subdatasets[:_SUBDATASETS_SHOWN])
        more = len(dataset.subdatasets) - len(shown)
        inner = ", ".join(shown) + (f" and {more} more" if more > 0 else "") or "none"
        raise DataError(problem(name, "no bands", "at least one", f"name one of its parts instead: {inner}"))
    complex_ = [dtype for dtype in dataset.dtypes if str(dtype).startswith("complex")]
    if complex_:
        raise DataError(problem(name, f"{complex_[0]} values", "real numbers", "write amplitude or phase as bands"))
    if dataset.transform.determinant == 0:
        found = f"the transform {tuple(dataset.transform)[:6]}, which flattens the ground"
        raise DataError(problem(name, found, "pixels with an area", "georeference the raster again"))


def _unreadable(name: str, error: Exception) -> str:
    # GDAL's own names (/vsizip/, netcdf:...) and URLs are not paths, so only a plain name can be said to be missing.
    if not is_gdal_name(name) and not Path(name).exists():
        return problem(name, "no such file", "a raster", "check the path")
    return problem(
        name, f"an unreadable raster ({reason(error)})", "a raster that GDAL opens", "check or replace the file"
    )


def reason(error: BaseException) -> str:
    """Return the first cause of an error, which is where GDAL says what it met."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
