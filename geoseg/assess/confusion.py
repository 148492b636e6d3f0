"""A class map against reference labels: one confusion matrix over all known pixels, counted block by block."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Tile, tiles
from geoseg.geo.ground import Ground
from geoseg.geo.raster import Raster, RasterInfo, Reading, open_raster, read_info

_BLOCK = 1024


@dataclass(frozen=True)
class Reference:
    """What a map is compared with.

    Attributes:
        ground: What is known of the ground, in the map's CRS; its unknown pixels are not counted.
        image: The image that was classified, whose invalid pixels are unknown; None leaves that test out.
        bands: Its bands that count for validity.
        reading: How its values were read.
    """

    ground: Ground
    image: Path | str | None = None
    bands: Sequence[int] | None = None
    reading: Reading | None = None


@dataclass(frozen=True)
class SceneConfusion:
    """Counts of one scene.

    Attributes:
        name: The scene.
        matrix: (C, C) known and classified pixels by reference class (rows) and class in the map (columns).
        unclassified: (C,) known pixels that the map leaves without a class, by reference class.
        unknown: Pixels whose reference is unknown.
    """

    name: str
    matrix: NDArray[np.int64]
    unclassified: NDArray[np.int64]
    unknown: int


def confusion_of(
    map_path: Path,
    reference: Reference,
    num_classes: int,
    name: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SceneConfusion:
    """Compare a class map with its reference.

    Args:
        map_path: A class map: class ids, nodata where there is no class.
        reference: What is known about the same ground.
        num_classes: Number of classes, background included.
        name: Name of the scene, by default the map's.
        on_progress: Called with the number of blocks just done.

    Raises:
        DataError: The map cannot be read, holds ids beyond the classes, or does not lie on its image's grid.
    """
    matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
    unclassified, unknown = np.zeros(num_classes, dtype=np.int64), 0
    with (
        open_raster(map_path, [1], allow_palette=True) as class_map,
        _validity_source(reference, class_map.info) as image,
    ):
        for tile in _blocks(class_map.info):
            predicted, classified = class_map.read(tile.write)
            label = reference.ground.read(tile.write, class_map.info)
            known = label != reference.ground.ignore_value
            if image is not None:
                known &= image.read(tile.write).valid
            counts = _count(label[known], np.where(classified, predicted[0], num_classes)[known], num_classes, map_path)
            matrix += counts[:, :num_classes]
            unclassified += counts[:, num_classes]
            unknown += known.size - int(known.sum())
            if on_progress:
                on_progress(1)
    return SceneConfusion(name or map_path.stem, matrix, unclassified, unknown)


def whole_set(scenes: Sequence[SceneConfusion], name: str = "all scenes") -> SceneConfusion:
    """Return the sum over scenes (at least one): every pixel weighs the same, whichever scene it is in."""
    return SceneConfusion(
        name=name,
        matrix=np.sum([scene.matrix for scene in scenes], axis=0),
        unclassified=np.sum([scene.unclassified for scene in scenes], axis=0),
        unknown=sum(scene.unknown for scene in scenes),
    )


def count_blocks(map_path: str | os.PathLike[str]) -> int:
    """Return how many blocks `confusion_of` will go through."""
    return len(_blocks(read_info(map_path, allow_palette=True)))


def _blocks(info: RasterInfo) -> list[Tile]:
    return tiles(info.height, info.width, _BLOCK, 0)


@contextlib.contextmanager
def _validity_source(reference: Reference, class_map: RasterInfo) -> Iterator[Raster | None]:
    if reference.image is None:
        yield None
        return
    with open_raster(reference.image, reference.bands, reading=reference.reading) as image:
        info = image.info
        size, map_size = (info.height, info.width), (class_map.height, class_map.width)
        if size != map_size or not info.transform.almost_equals(class_map.transform, 1e-9):
            found = f"a map of {map_size[0]} x {map_size[1]} pixels at {tuple(class_map.transform)[:6]}"
            expected = f"the grid of {info.path}: {size[0]} x {size[1]} at {tuple(info.transform)[:6]}"
            raise DataError(problem(class_map.path, found, expected, "classify that image again"))
        yield image


def _count(
    label: NDArray[np.integer], predicted: NDArray[np.integer], num_classes: int, map_path: Path
) -> NDArray[np.int64]:
    """Return (C, C + 1) counts by reference and map; the last column is for pixels without a class in the map."""
    for values, last, what in ((predicted, num_classes, str(map_path)), (label, num_classes - 1, "reference")):
        if values.size and values.max() > last:
            found = f"class id {values.max()}"
            raise DataError(problem(what, found, f"ids 0 to {num_classes - 1}", "compare a map with its own classes"))
    pairs = label.astype(np.int64) * (num_classes + 1) + predicted
    return np.bincount(pairs, minlength=num_classes * (num_classes + 1)).reshape(num_classes, num_classes + 1)
