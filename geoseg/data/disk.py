"""How much room a store needs, and whether it is there, before the first byte is written."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from geoseg.data.sampling import SampleOptions
from geoseg.data.survey import SceneFacts
from geoseg.errors import DataError, problem
from geoseg.geo.grid import axis_offsets

_SPARE = 64 * 2**20  # index, preview, report, what file systems add


def bytes_needed(facts: Sequence[SceneFacts], options: SampleOptions) -> int:
    """Return an upper bound of the bytes on disk while a store is made: no window dropped, nothing compressed.

    While a scene is finished its parts and its shard are both there, so the largest scene counts twice.
    """
    finished = [_scene_bytes(f, options) for f in facts]
    parts = [_sample_bytes(f, options) * _windows(f, options) for f in facts]
    # Scenes are finished as soon as their last part is there: about one is doubled at a time.
    return sum(finished) + max(parts, default=0) + _SPARE


def check_room(folder: Path, needed: int) -> None:
    """Refuse to begin what would not fit.

    Raises:
        DataError: The disk of `folder` has less free space than needed.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        remedy = "free some space, choose another global.data_path, or a larger sample.samples_dist"
        raise DataError(problem(folder, f"{free / 2**30:.1f} GiB free", f"{needed / 2**30:.1f} GiB or more", remedy))


def _windows(facts: SceneFacts, options: SampleOptions) -> int:
    info, size, stride = facts.info, options.size, options.stride
    grid = len(axis_offsets(info.height, size, stride)) * len(axis_offsets(info.width, size, stride))
    if options.windows.mode == "grid" or facts.scene.split != "trn":
        return grid
    return options.windows.count or grid


def _sample_bytes(facts: SceneFacts, options: SampleOptions) -> int:
    return options.size**2 * (len(facts.bands) * np.dtype(facts.info.dtype).itemsize + 1) + options.size**2 // 8


def _scene_bytes(facts: SceneFacts, options: SampleOptions) -> int:
    # The label raster compresses, by how much nobody knows.
    return _sample_bytes(facts, options) * _windows(facts, options) + facts.info.height * facts.info.width
