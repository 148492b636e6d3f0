"""Whether an image is one that a model can classify, said before a pixel is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from geoseg.errors import DataError, problem
from geoseg.geo.raster import RasterInfo, Reading, contradicting, numbers_by_name, read_info
from geoseg.learn.modelfile import ModelSpec
from geoseg.predict.finishing import check_finish
from geoseg.predict.resolution import resolution_warnings, shape_for
from geoseg.predict.scene import ClassifyOptions


def check_image(image: str | os.PathLike[str], spec: ModelSpec, options: ClassifyOptions | None = None) -> list[str]:
    """Check that an image is one the model can classify, without reading pixels.

    Args:
        image: The image.
        spec: The model's metadata.
        options: Which bands are to be used.

    Returns:
        Warnings.

    Raises:
        DataError: Another number of bands or data type than the model was trained on, an unreadable file, or one
            without the CRS that the options ask for.
    """
    options = options or ClassifyOptions()
    info = read_info(image, reading=spec.reading)
    check_finish(info, options.finish)
    named = _named_bands(info, spec, options)
    if named is None:
        _check_bands(info, spec, options.bands)
    if info.dtype != spec.dtype and not options.convert:
        remedy = (
            "set classification.convert_dtype: true if its numbers mean the same, or convert it without scaling: "
            f"gdal_translate -ot {_gdal_type(spec.dtype)}"
        )
        expected = f"{spec.dtype} as in the model's training images"
        raise DataError(problem(image, f"{info.dtype} values", expected, remedy))
    notes = [] if named else _name_warnings(info, spec, options.bands or spec.bands)
    if options.resample:
        shape_for(info, spec)
        return notes
    return [*notes, *resolution_warnings(info, spec)]


def fitted(image: str | os.PathLike[str], spec: ModelSpec, options: ClassifyOptions) -> ClassifyOptions:
    """Return options with all that depends on the image decided: its bands, how its values are read, its size.

    Raises:
        DataError: The image cannot be read, or has pixels of a size that cannot be compared with the model's.
    """
    info = read_info(image, reading=spec.reading)
    return replace(
        options,
        bands=_named_bands(info, spec, options) or options.bands or spec.bands,
        reading=_reading(info, spec),
        shape=shape_for(info, spec) if options.resample else None,
    )


def _reading(info: RasterInfo, spec: ModelSpec) -> Reading:
    if info.dtype == spec.dtype:
        return spec.reading
    return replace(spec.reading, dtype=spec.dtype, exact=True)


def _named_bands(info: RasterInfo, spec: ModelSpec, options: ClassifyOptions) -> tuple[int, ...] | None:
    return numbers_by_name(spec.band_names, info.band_names) if options.by_name else None


def _check_bands(info: RasterInfo, spec: ModelSpec, bands: Sequence[int] | None) -> None:
    chosen = tuple(bands or spec.bands)
    here = len(info.image_bands)
    if len(chosen) != spec.in_channels:
        found = f"{len(chosen)} chosen bands {list(chosen)}"
        raise DataError(problem(info.path, found, f"{spec.in_channels} as the model has", "choose as many"))
    if max(chosen) > info.count:
        found = f"{info.count} bands"
        expected = f"at least {max(chosen)}: the model has {spec.in_channels} bands, numbers {list(chosen)}"
        raise DataError(problem(info.path, found, expected, "give an image with the bands of the training images"))
    # Bands 1..n were most likely all the bands there were; taking the first n of more could pair wrong ones silently.
    if bands is None and chosen == tuple(range(1, len(chosen) + 1)) and here > len(chosen):
        remedy = f"name the ones to use: --bands {' '.join(map(str, chosen))} or global.bands"
        raise DataError(problem(info.path, f"{here} bands", f"{spec.in_channels} as the model has", remedy))


def _name_warnings(info: RasterInfo, spec: ModelSpec, chosen: tuple[int, ...]) -> list[str]:
    """Say where bands are taken by number although the image has one of the model's names at another place."""
    here = tuple(info.band_names[band - 1] for band in chosen)
    if not contradicting(spec.band_names, here):
        return []
    found = f"bands {', '.join(str(name) for name in here)} where the model had {', '.join(map(str, spec.band_names))}"
    right = numbers_by_name(spec.band_names, info.band_names)
    return [f"{info.path}: {found}" + (f"; here those are --bands {' '.join(map(str, right))}" if right else "")]


def _gdal_type(dtype: str) -> str:
    names = {"uint8": "Byte", "int8": "Int8", "float32": "Float32", "float64": "Float64"}
    return names.get(dtype, dtype.replace("uint", "UInt").replace("int", "Int"))
