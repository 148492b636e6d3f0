"""The pixels of a part of a scene: image, validity, label and area of interest, as all of sampling reads them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.data.survey import SceneFacts, SurveyOptions, scene_ground
from geoseg.geo.grid import Window
from geoseg.geo.raster import Raster, as_raster


@dataclass(frozen=True)
class BlockPixels:
    """Image (bands, h, w), valid (h, w), label (h, w) and area of interest (h, w; None: all) of a window."""

    image: NDArray[Any]
    valid: NDArray[np.bool_]
    label: NDArray[np.uint8]
    area: NDArray[np.bool_] | None = None


def read_pixels(facts: SceneFacts, options: SurveyOptions, window: Window, again: bool = False) -> BlockPixels:
    """Return the pixels of a window with its labels burnt.

    Args:
        facts: The scene.
        options: How to read its labels.
        window: Which part of it.
        again: Whether windows beside this one will be read next, so that what they share is worth keeping.

    Raises:
        DataError: The image or the labels cannot be read.
    """
    raster = _opened(facts)
    try:
        image, valid = raster.read(window)
    except Exception:
        close_raster()
        raise
    if not again:
        close_raster()
    label = burnt_label(facts, options, window)
    if not valid.all():
        label[~valid] = options.mapping.ignore_value
        # Nodata values are arbitrary; 0 keeps them out of any later arithmetic and makes shards compress.
        image[:, ~valid] = 0
    area = None
    if facts.scene.aoi is not None:
        with _labels_lock:
            area = scene_ground(facts.scene, facts.info, options).inside(window, facts.info)
    return BlockPixels(image, valid, label, area)


def burnt_label(facts: SceneFacts, options: SurveyOptions, window: Window) -> NDArray[np.uint8]:
    """Return the label of a window as the label files say, whatever the image's validity.

    Args:
        facts: The scene.
        options: How to read its labels.
        window: Which part of it.
    """
    with _labels_lock:
        return scene_ground(facts.scene, facts.info, options).read(window, facts.info)


def close_raster() -> None:
    """Close the raster that this thread keeps open."""
    raster: Raster | None = getattr(_kept, "raster", None)
    if raster is not None:
        raster.close()
    _kept.raster = _kept.key = None


def _opened(facts: SceneFacts) -> Raster:
    """Return the scene's raster, from this thread's hand if it is the one that was read last and has not changed."""
    states = [(path, path.stat()) for path in facts.scene.files() if isinstance(path, Path) and path.is_file()]
    files = [(path, state.st_size, state.st_mtime_ns, state.st_ino) for path, state in states]
    key = (facts.info.path, facts.bands, facts.info.reading, files)
    if getattr(_kept, "key", None) != key:
        close_raster()
        _kept.raster, _kept.key = as_raster(facts.info, facts.bands), key
    raster: Raster = _kept.raster
    return raster


_labels_lock = threading.Lock()  # a cluster's worker may run several tasks in threads of one process
_kept = threading.local()
