"""Pixels of another size on the ground than those a model was trained on."""

from __future__ import annotations

import math
from typing import Any

from geoseg.errors import DataError, problem
from geoseg.geo.raster import RasterInfo
from geoseg.geo.vector.reproject import as_pyproj
from geoseg.learn.modelfile import ModelSpec

_FACTOR = 1.5  # ground pixels that differ by more look different to the network
_SAME = 0.02  # sides that differ by less are not resampled
_COARSEST, _FINEST = 16, 1000  # times the training's: beyond, there is nothing to see, or the scale is wrong


def resolution_warnings(info: RasterInfo, spec: ModelSpec) -> list[str]:
    """Say so where an image's pixels have another size than those of the training, if the two can be compared."""
    ratio = pixel_ratio(info, spec)
    if ratio is None or spec.resolution is None:
        return []
    trained = math.sqrt(spec.resolution[0] * spec.resolution[1])
    here = trained / math.sqrt(ratio[0] * ratio[1])
    if 1 / _FACTOR <= here / trained <= _FACTOR:
        return []
    return [
        f"{info.path}: pixels of {here:g} units, the model was trained on {trained:g}; "
        "expect worse results, or set classification.resample: true (--resample)"
    ]


def resampling_note(info: RasterInfo, spec: ModelSpec) -> str | None:
    """Say how large the map of an image will be that is resampled; None where it is not.

    Raises:
        DataError: The sizes cannot be compared.
    """
    shape = shape_for(info, spec)
    if shape is None:
        return None
    sides = (info.resolution[0] * info.width / shape[1], info.resolution[1] * info.height / shape[0])
    return (
        f"{info.path}: {info.width} x {info.height} pixels of {_sides(info.resolution)} are read as "
        f"{shape[1]} x {shape[0]} of {_sides(sides)}, the size of the training's; the map has as many"
    )


def _sides(sides: tuple[float, float]) -> str:
    return f"{sides[0]:g}" if f"{sides[0]:g}" == f"{sides[1]:g}" else f"{sides[0]:g} x {sides[1]:g}"


def shape_for(info: RasterInfo, spec: ModelSpec) -> tuple[int, int] | None:
    """Return (rows, columns) of an image over the same ground with pixels of the training's size.

    They are whole numbers, so the sides are met but for half a pixel over the whole width.

    Returns:
        None where the pixels have that size already, to 2 %.

    Raises:
        DataError: The sizes cannot be compared, or are too far apart.
    """
    ratio = pixel_ratio(info, spec)
    if ratio is None:
        found = "pixels whose size on the ground cannot be compared with that of the training"
        expected = "a transform, and a CRS whose units the model's are in"
        raise DataError(problem(info.path, found, expected, "leave out classification.resample for this image"))
    if min(ratio) < 1 / _COARSEST or max(ratio) > _FINEST:
        times = min(ratio) if min(ratio) < 1 / _COARSEST else max(ratio)
        found = f"pixels {1 / times:g} times as long as those of the training"
        expected = f"at most {_COARSEST} times, and at least 1/{_FINEST}"
        raise DataError(problem(info.path, found, expected, "leave out classification.resample for this image"))
    if max(abs(math.log(side)) for side in ratio) <= math.log1p(_SAME):
        return None
    return max(1, round(info.height / ratio[1])), max(1, round(info.width / ratio[0]))


def pixel_ratio(info: RasterInfo, spec: ModelSpec) -> tuple[float, float] | None:
    """Return how many pixels of an image lie along a row, and along a column, of a pixel of the training.

    Lengths are compared in the units of the two CRSs. Pixels in degrees are measured on the ellipsoid, in the middle of
    the image, where the training was in metres.

    Returns:
        None where nothing can be said: no resolution or transform, a CRS on one side alone, a training in degrees.
    """
    if spec.resolution is None or not info.georeferenced or not all(spec.resolution):
        return None
    try:
        here_in, trained_in = as_pyproj(info.crs, info.path), as_pyproj(spec.crs, "model")
    except DataError:
        return None
    # Without a CRS on either side the units are taken to be the same.
    if (here_in is None) != (trained_in is None):
        return None
    sides, unit = info.resolution, 1.0
    if here_in is not None and trained_in is not None:
        unit = trained_in.axis_info[0].unit_conversion_factor
        if here_in.is_geographic and not trained_in.is_geographic:
            sides = _ground_sides(info, here_in)
        elif here_in.is_geographic != trained_in.is_geographic:
            return None
        else:
            unit /= here_in.axis_info[0].unit_conversion_factor
    return spec.resolution[0] * unit / sides[0], spec.resolution[1] * unit / sides[1]


def _ground_sides(info: RasterInfo, crs: Any) -> tuple[float, float]:
    """Return the sides, in metres, of the pixel in the middle of an image in a geographic CRS."""
    geod = crs.get_geod()
    column, row = info.width / 2, info.height / 2
    ends = [info.transform @ at for at in ((column + 0.5, row), (column, row + 0.5))]
    starts = [info.transform @ at for at in ((column - 0.5, row), (column, row - 0.5))]
    lengths = [geod.inv(*start, *end)[2] for start, end in zip(starts, ends, strict=True)]
    return lengths[0], lengths[1]
