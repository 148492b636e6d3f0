"""Rasters as pixels with a validity: windows of them.

Values are handed on unchanged, unless asked otherwise (`Reading`). Where a pixel holds no data is said by a second
array, never by a value.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import rasterio
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster.info import GDAL_ERRORS, RasterInfo, gdal_session, open_dataset, read_info, reason
from geoseg.geo.raster.names import Name
from geoseg.geo.raster.options import Reading


class Pixels(NamedTuple):
    """A window of a raster.

    Attributes:
        image: (bands, height, width) in the file's dtype, native byte order; 0 outside the raster and where a value
            was NaN or infinite, otherwise the values of the file.
        valid: (height, width) bool; False where any band is nodata, NaN, infinite or beyond the range of float32,
            where the alpha or mask band is 0, and outside the raster.
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
        info = self.info
        numbers = [1] if info.colours else [*self.bands, *([self._alpha] if self._alpha else [])]
        place = ((window.row_off, window.row_stop), (window.col_off, window.col_stop))
        shape = shape or window.shape
        with gdal_session():
            try:
                dataset = self._dataset()
                values = self._stored(dataset, numbers, place, shape)
                masks = self._read_masks(dataset, place, shape)
            except (*GDAL_ERRORS, ValueError) as error:
                raise DataError(_unreadable_window(info.path, window, error)) from error
        bands = [_native(band) for band in values] if isinstance(values, list) else _native(values)
        stored = bands[:1] if info.colours else bands[: len(self.bands)]
        valid = _valid_values(stored, [info.nodata_values[band - 1] for band in self.bands[: len(stored)]])
        if self._alpha:
            valid &= bands[-1] != 0
        if masks is not None:
            valid &= (masks != 0).all(axis=0)
        return Pixels(self._converted(stored, valid), valid)

    def _stored(
        self, dataset: rasterio.DatasetReader, numbers: list[int], place: Any, shape: tuple[int, int]
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Return bands as they are in the file; a list where they are of several types."""
        if len({self.info.stored[number - 1] for number in numbers}) == 1:
            values: NDArray[Any] = dataset.read(numbers, window=place, out_shape=(len(numbers), *shape))
            return values
        return [dataset.read(number, window=place, out_shape=shape) for number in numbers]

    def _converted(self, stored: NDArray[Any] | list[NDArray[Any]], valid: NDArray[np.bool_]) -> NDArray[Any]:
        """Return (bands, h, w) values as `Reading` wants them; what must not be used is marked in `valid` in place."""
        info, reading = self.info, self.info.reading
        if info.colours:
            image = _looked_up(stored[0], info.colours, self.bands, valid)
        elif isinstance(stored, np.ndarray) and not reading.apply_scale:
            image = stored
        else:
            scales = info.scales if reading.apply_scale else ((1.0, 0.0),) * info.count
            dtype = np.dtype(info.dtype)
            if reading.exact and not reading.apply_scale:
                dtype = np.result_type(*(band.dtype for band in stored))
            image = _scaled(stored, [scales[band - 1] for band in self.bands], dtype)
        if image.dtype != info.dtype and reading.exact:
            image = _unchanged(image, valid, np.dtype(info.dtype), info.path)
        elif image.dtype != info.dtype:
            with np.errstate(over="ignore"):
                image = image.astype(info.dtype)
        if image.dtype.kind == "f" and image is not stored:
            _drop_infinite(image, valid)  # float64 holds numbers that float32 does not
        if reading.valid_range is not None:
            low, high = reading.valid_range
            for band in image:
                valid &= (band >= low) & (band <= high)
        return image

    def _read_masks(self, dataset: rasterio.DatasetReader, place: Any, shape: tuple[int, int]) -> NDArray[Any] | None:
        if not self.info.masked and not self.info.band_masks:
            return None
        numbers = list(self.bands) if self.info.band_masks else [self.bands[0]]
        if self.info.colours:
            numbers = [1]
        masks: NDArray[Any] = dataset.read_masks(numbers, window=place, out_shape=(len(numbers), *shape))
        return masks

    def _dataset(self) -> rasterio.DatasetReader:
        if self._handle is None or self._owner != os.getpid():
            self._handle = open_dataset(self.info.path)
            self._owner = os.getpid()
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_owner": -1}


class Stack(Raster):
    """Several files on one grid, read as one raster; a pixel is valid where it is in all files that are used."""

    def __init__(self, info: RasterInfo, bands: tuple[int, ...]) -> None:
        super().__init__(info, bands)
        place = [(number, band) for number, part in enumerate(info.members) for band in part.image_bands]
        self._parts: list[tuple[Raster, list[int]]] = []
        for number, member in enumerate(info.members):
            positions = [index for index, band in enumerate(bands) if place[band - 1][0] == number]
            if positions:
                self._parts.append((Raster(member, tuple(place[bands[i] - 1][1] for i in positions)), positions))

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        for raster, _ in self._parts:
            raster.close()

    def _read_inside(self, window: Window, shape: tuple[int, int] | None = None) -> Pixels:
        shape = shape or window.shape
        image = np.empty((len(self.bands), *shape), self.info.dtype)
        valid = np.ones(shape, bool)
        for raster, positions in self._parts:
            pixels = raster._read_inside(window, shape)
            image[positions] = pixels.image
            valid &= pixels.valid
        return Pixels(image, valid)


@contextlib.contextmanager
def open_raster(
    path: Name, bands: Sequence[int] | None = None, *, allow_palette: bool = False, reading: Reading | None = None
) -> Iterator[Raster]:
    """Open a raster for reading by windows.

    Args:
        path: File name, any name GDAL opens, or several joined by ``|`` (one image of their bands).
        bands: Numbers, from 1, in the order wanted; by default all bands but the alpha band.
        allow_palette: Take a raster with a colour table as it is (its values are then class ids, as in a class map).
        reading: What is done to the values; by default nothing.

    Raises:
        DataError: If the file is missing or unreadable, has no such band, or holds what an image cannot be made of.
    """
    info = read_info(path, allow_palette=allow_palette, reading=reading)
    raster = as_raster(info, _checked_bands(info, bands))
    try:
        yield raster
    finally:
        raster.close()


def as_raster(info: RasterInfo, bands: tuple[int, ...]) -> Raster:
    """Return a raster of which all is known already, to be opened when it is read and closed by the caller.

    Args:
        info: From `read_info`.
        bands: Numbers, from 1, that it has.
    """
    return Stack(info, bands) if info.members else Raster(info, bands)


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


def _valid_values(bands: NDArray[Any] | list[NDArray[Any]], nodata_values: Sequence[float | None]) -> NDArray[np.bool_]:
    """Return where no band is nodata, NaN or infinite as float32, and set what is not finite to 0 in place."""
    valid = np.ones(bands[0].shape, bool)
    for band, nodata in zip(bands, nodata_values, strict=True):
        marker = _as_dtype(nodata, band.dtype)
        if marker is not None:
            valid &= band != marker
        if band.dtype.kind == "f":
            _drop_infinite(band[None], valid)
    return valid


def _drop_infinite(image: NDArray[Any], valid: NDArray[np.bool_]) -> None:
    """Set what is not finite as float32 to 0 and mark it as not valid, in place."""
    for band in image:
        # A network computes in float32, and the squares of such numbers are infinite in float64 too.
        finite = np.isfinite(band) if band.itemsize <= 4 else np.abs(band) <= np.finfo(np.float32).max
        if not finite.all():
            valid &= finite
            band[~finite] = 0


def _looked_up(
    indices: NDArray[Any], colours: Sequence[Sequence[int]], bands: Sequence[int], valid: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return colours (bands, h, w); indices beyond the table and colours of alpha 0 are marked as not valid."""
    table = np.array(colours, np.uint8)
    known = (indices >= 0) & (indices < len(table))
    entries = table[np.where(known, indices, 0)]
    valid &= known & (entries[..., 3] != 0)
    return np.ascontiguousarray(np.moveaxis(entries[..., [band - 1 for band in bands]], -1, 0))


def _scaled(
    stored: NDArray[Any] | list[NDArray[Any]], scales: Sequence[tuple[float, float]], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return value * scale + offset of each band, computed in float64."""
    image = np.empty((len(stored), *stored[0].shape), dtype)
    with np.errstate(over="ignore"):
        for target, band, (scale, offset) in zip(image, stored, scales, strict=True):
            target[...] = band if (scale, offset) == (1.0, 0.0) else band.astype(np.float64) * scale + offset
    return image


def _unchanged(image: NDArray[Any], valid: NDArray[np.bool_], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Return an image in another type that holds all of its valid values; the others become 0.

    Raises:
        DataError: It does not.
    """
    values = np.where(valid, image, 0)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wrong = (values < limits.min) | (values > limits.max) | (values != np.rint(values))
        converted = np.where(wrong, 0, values).astype(dtype)
    else:
        with np.errstate(over="ignore"):
            converted = values.astype(dtype)
        wrong = converted.astype(np.float64) != values.astype(np.float64)
    if wrong.any():
        found = f"the value {values[wrong][0]:g} in {image.dtype}"
        remedy = "leave out classification.convert_dtype, and convert the image to the units of the training"
        raise DataError(problem(name, found, f"values that {dtype} holds unchanged", remedy))
    return converted


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


def _unreadable_window(name: str, window: Window, error: Exception) -> str:
    found = (
        f"damaged data in rows {window.row_off}-{window.row_stop - 1}, "
        f"columns {window.col_off}-{window.col_stop - 1} ({reason(error)})"
    )
    return problem(name, found, "readable pixels", "get the file again, or leave it out")
