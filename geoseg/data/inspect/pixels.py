"""What the pixels of a raster show: their range, where there are data, and what the file's tags do not say.

All of it comes from the raster thinned to `SIDE` pixels a side; overviews are used where the file has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.geo.raster import Pixels, RasterInfo, open_raster

SIDE = 1024
_COLLAR_SHARE = 0.005  # of the raster: a smaller border is not worth a warning
_COLLAR_PIXELS = 16
_NEARLY = 2  # lossy compression of bytes blurs a collar by about so much
_PARTLY_SHARE = 0.01
_ALPHA_VALUES = 8  # blended edges give an alpha band some values between 0 and its greatest, a measured band has more
_USUAL_NODATA = (-9999.0, -99999.0, -32768.0, -32767.0, float(np.finfo(np.float32).min))


@dataclass(frozen=True)
class BandRange:
    """Range of one band over its valid pixels; None where there are none.

    Attributes:
        band: Number in the file, from 1.
        name: Its description.
        low: Least value.
        high: Greatest value.
        p2: 2nd percentile.
        p98: 98th percentile.
    """

    band: int
    name: str | None
    low: float | None
    high: float | None
    p2: float | None
    p98: float | None


@dataclass(frozen=True)
class PixelFacts:
    """What a thinned raster shows.

    Attributes:
        thinning: Sides of a raster pixel that one pixel looked at stands for; 1 where all were looked at.
        valid_fraction: Share of pixels that hold data, 0..1.
        ranges: Of each band used, in their order.
        warnings: What the user should know.
    """

    thinning: float
    valid_fraction: float
    ranges: tuple[BandRange, ...]
    warnings: tuple[str, ...]


def inspect_pixels(info: RasterInfo, bands: Sequence[int], pixels: Pixels) -> PixelFacts:
    """Return what the thinned pixels of a raster show.

    Args:
        info: Of the raster.
        bands: The bands that were read.
        pixels: From `Raster.thumbnail`.

    Raises:
        DataError: If the alpha band cannot be read.
    """
    ranges = tuple(
        _band_range(band, info.band_names[band - 1], values[pixels.valid])
        for band, values in zip(bands, pixels.image, strict=True)
    )
    warnings = [*_emptiness(pixels), *_tags(info, bands, pixels), *_alpha(info, bands)]
    if pixels.valid.any():
        warnings += [*_collar_warning(info, pixels), *_values(info, ranges, int(pixels.valid.sum()))]
    thinning = max(1.0, info.height / pixels.valid.shape[0], info.width / pixels.valid.shape[1])
    named = tuple(f"{info.path}: {text}" for text in warnings)
    return PixelFacts(thinning, float(pixels.valid.mean()), ranges, named)


def _band_range(band: int, name: str | None, values: NDArray[Any]) -> BandRange:
    if values.size == 0:
        return BandRange(band, name, None, None, None, None)
    p2, p98 = np.percentile(values.astype(np.float64), (2, 98))
    return BandRange(band, name, float(values.min()), float(values.max()), float(p2), float(p98))


def _emptiness(pixels: Pixels) -> list[str]:
    return [] if pixels.valid.any() else ["no pixel holds data: its samples would all be left out"]


def _tags(info: RasterInfo, bands: Sequence[int], pixels: Pixels) -> list[str]:
    """Compare the nodata tag with the type and the values."""
    warnings = []
    tags = {info.nodata_values[band - 1] for band in bands} - {None}
    dtype = np.dtype(info.dtype)
    for tag in sorted(tag for tag in tags if tag is not None):
        if dtype.kind in "iu" and not _fits(tag, dtype):
            warnings.append(f"the nodata value {tag:g} cannot occur in {dtype}: set the right one, or remove it")
    partly = _partly_nodata(info, bands, pixels)
    if partly > _PARTLY_SHARE:
        text = f"{100 * partly:.1f} % of the pixels are nodata in some bands but not in all, and unknown therefore"
        warnings.append(f"{text}; if they are only dark or bright, the nodata value is the wrong one")
    return warnings


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return bool(np.isfinite(value)) and value == int(value) and limits.min <= value <= limits.max


def _partly_nodata(info: RasterInfo, bands: Sequence[int], pixels: Pixels) -> float:
    """Return the share of pixels that are nodata in some of the bands only."""
    marks = [info.nodata_values[band - 1] for band in bands]
    if len(bands) < 2 or any(mark is None or not np.isfinite(mark) for mark in marks):
        return 0.0
    found = np.stack([values == mark for values, mark in zip(pixels.image, marks, strict=True)])
    return float((found.any(axis=0) & ~found.all(axis=0)).mean())


def _alpha(info: RasterInfo, bands: Sequence[int]) -> list[str]:
    if info.alpha_band is None:
        return []
    if info.alpha_band in bands:
        return [f"band {info.alpha_band} is tagged as alpha but used as an image band: transparency is not looked at"]
    with open_raster(info.path, [info.alpha_band], reading=info.reading) as raster:
        values = np.unique(raster.thumbnail(SIDE).image)
    if len(values) <= _ALPHA_VALUES:
        return []
    found = f"the alpha band {info.alpha_band} holds {len(values)} different values"
    return [f"{found}; if it is a measured band (near infrared?), name it in global.bands"]


def _collar_warning(info: RasterInfo, pixels: Pixels) -> list[str]:
    if info.masked or info.band_masks or info.alpha_band or any(value is not None for value in info.nodata_values):
        return []
    found = collar(pixels.image, pixels.valid)
    if found is None:
        return []
    value, share = found
    text = f"{100 * share:.1f} % at the border are {value:g} in all bands, and no nodata value is set"
    return [f"{text}; if these are no data: gdal_edit.py -a_nodata {value:g} {info.path}"]


def collar(image: NDArray[Any], valid: NDArray[np.bool_]) -> tuple[float, float] | None:
    """Return (value, share of all pixels) of a border of one extreme value in all bands, or None.

    Args:
        image: (bands, H, W).
        valid: (H, W).

    Only areas that reach a corner of the image count: dark water may touch a side, a collar holds a corner.
    """
    best: tuple[float, float] | None = None
    for value in _extremes(image.dtype):
        tolerance = _NEARLY if image.dtype == np.uint8 else 0
        flat = valid & (np.abs(image.astype(np.float64) - value) <= tolerance).all(axis=0)
        if not flat.any():
            continue
        _, areas = cv2.connectedComponents(flat.astype(np.uint8), connectivity=4)
        corners = {int(areas[row, col]) for row in (0, -1) for col in (0, -1)} - {0}
        count = int(np.isin(areas, list(corners)).sum())
        share = count / flat.size
        if count >= _COLLAR_PIXELS and share >= _COLLAR_SHARE and (best is None or share > best[1]):
            best = float(value), share
    return best


def _extremes(dtype: np.dtype[Any]) -> list[float]:
    if dtype.kind == "f":
        return [0.0, 1.0, *_USUAL_NODATA]
    limits = np.iinfo(dtype)
    return sorted({0.0, float(limits.min), float(limits.max), *(v for v in _USUAL_NODATA if _fits(v, dtype))})


def _values(info: RasterInfo, ranges: Sequence[BandRange], count: int) -> list[str]:
    warnings = []
    constant = [found for found in ranges if found.low == found.high]
    if constant and count > 1:
        shown = ", ".join(f"{found.band} (always {found.low:g})" for found in constant[:10])
        warnings.append(f"bands without any difference between their pixels: {shown}")
    marks = {found.low for found in ranges if found.low in _USUAL_NODATA}
    for value in sorted(mark for mark in marks if mark is not None):
        if not (info.dtype == "int16" and value == -32767):
            warnings.append(f"the least value {value:g} looks like nodata, but is not tagged as such")
    return warnings


def scaled_differently(scenes: Sequence[tuple[str, Sequence[BandRange]]]) -> list[str]:
    """Return a warning if the same band of some images spans ten times what it does in others, or more.

    Args:
        scenes: Name and ranges of each image; those of one dtype.
    """
    for place in range(min((len(ranges) for _, ranges in scenes), default=0)):
        tops = {name: high for name, ranges in scenes if (high := ranges[place].p98) is not None and high > 0}
        if tops and max(tops.values()) > 10 * min(tops.values()):
            least, most = min(tops, key=tops.__getitem__), max(tops, key=tops.__getitem__)
            text = f"{least} up to {tops[least]:g}, {most} up to {tops[most]:g}"
            return [f"images that seem to be scaled differently (band {scenes[0][1][place].band}): {text}"]
    return []
