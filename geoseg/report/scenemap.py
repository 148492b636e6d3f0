"""The layers of an evaluated scene for the map in its report: image, reference, class map and their difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import Reference, on_grid_of
from geoseg.assess.classmap import open_class_map
from geoseg.assess.difference import COLOURS
from geoseg.geo.raster import open_raster, read_info
from geoseg.report.quicklook import Legend, shown_bands, stretched
from geoseg.report.slippy import MAX_SIDE, MapLayer, MapScene

_NOTHING = 255  # beyond all colours: transparent
UNKNOWN_COLOUR = "#8c8c8c"


def scene_layers(
    name: str,
    class_map: Path,
    legend: Legend,
    reference: Reference,
    difference: Path | None = None,
    max_side: int = MAX_SIDE,
) -> MapScene:
    """Read the layers of a scene, thinned to at most `max_side` pixels a side.

    Over the image, background is transparent; what is unknown or without a class is grey.

    Args:
        name: What the scene is called.
        class_map: The class map.
        legend: Names and colours of the classes.
        reference: Its reference, with the image if there is one.
        difference: The difference map; None leaves it out.
        max_side: Pixels.

    Raises:
        DataError: A file cannot be read.
    """
    classes, classified = _thinned(class_map, max_side)
    shape = classes.shape
    info = read_info(class_map, allow_palette=True)
    layers = []
    seen = np.ones(shape, bool)
    if reference.image is not None:
        bands = shown_bands(read_info(reference.image, reading=reference.reading), reference.bands)
        with open_raster(reference.image, bands, reading=reference.reading) as raster:
            pixels = on_grid_of(info, raster, reference).thumbnail(max_side)
        if pixels.valid.shape == shape:
            seen = pixels.valid
            layers.append(MapLayer("image", stretched(pixels)))
    label = reference.ground.thinned(info, shape)
    known = seen & (label != reference.ground.ignore_value)
    layers.append(_layer("reference", label, known, legend.colours, False))
    layers.append(_layer("class map", classes, classified, legend.colours, True))
    if difference is not None:
        layers.append(_layer("difference", *_thinned(difference, max_side), COLOURS, False))
    return MapScene(name, (info.height, info.width), layers)


def _layer(
    name: str, numbers: NDArray[np.integer], known: NDArray[np.bool_], colours: Sequence[str], shown: bool
) -> MapLayer:
    unknown = len(colours) if len(colours) < _NOTHING else _NOTHING
    picture = np.where(known, np.where(numbers == 0, _NOTHING, numbers), unknown).astype(np.uint8)
    return MapLayer(name, picture, [*colours, UNKNOWN_COLOUR][:_NOTHING], shown, 0.6)


def _thinned(path: Path, max_side: int) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    with open_class_map(path) as raster:
        pixels = raster.thumbnail(max_side)
    return pixels.image[0], pixels.valid
