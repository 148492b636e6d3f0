"""One pass over a class map and its reference, block by block, for any number of measures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.classmap import open_class_map
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Tile, Window, tiles
from geoseg.geo.ground import Ground
from geoseg.geo.raster import Raster, RasterInfo, Reading, Resampled, open_raster, read_info

BLOCK = 1024


@dataclass(frozen=True)
class Reference:
    """What a map is compared with.

    Attributes:
        ground: What is known of the ground, in the map's CRS; its unknown pixels are not counted.
        image: The image that was classified, whose invalid pixels are unknown; None leaves that test out.
        bands: Its bands that count for validity.
        reading: How its values were read.
        uncertain: Id in the map of pixels that it leaves open; they count as pixels without a class.
        resampled: Whether the image was resampled to the map's grid before it was classified.
    """

    ground: Ground
    image: Path | str | None = None
    bands: Sequence[int] | None = None
    reading: Reading | None = None
    uncertain: int | None = None
    resampled: bool = False


@dataclass(frozen=True)
class ComparedBlock:
    """A piece of a map and of its reference; all arrays are (height, width) with a margin around what counts.

    Attributes:
        window: The pixels that this block is for; the windows of all blocks partition the map.
        inner: Where they lie in the arrays.
        label: Class of the reference, where `known`.
        known: Whether the reference is known; False outside the map.
        predicted: Class in the map, where `classified`.
        classified: Whether the map has a class; False outside the map.
    """

    window: Window
    inner: tuple[slice, slice]
    label: NDArray[np.uint8]
    known: NDArray[np.bool_]
    predicted: NDArray[np.integer]
    classified: NDArray[np.bool_]

    def cropped(self) -> ComparedBlock:
        """Return the block without its margin."""
        i = self.inner
        whole = (slice(0, self.window.height), slice(0, self.window.width))
        arrays = (self.label[i], self.known[i], self.predicted[i], self.classified[i])
        return ComparedBlock(self.window, whole, *arrays)


class Measure(Protocol):
    """Something that is worked out from all blocks of a scene, which come row by row."""

    @property
    def margin(self) -> int:
        """Pixels that must be known around a block."""
        ...

    def add(self, block: ComparedBlock) -> None:
        """Take a block into account."""
        ...


def compare(
    map_path: Path,
    reference: Reference,
    measures: Sequence[Measure],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Read a class map and its reference once, and give every block to all measures.

    Args:
        map_path: A class map: class ids, or values that it tells the ids of; nodata where there is no class.
        reference: What is known about the same ground.
        measures: What is to be worked out.
        on_progress: Called with the number of blocks just done.

    Raises:
        DataError: A raster cannot be read, or the map does not lie on its image's grid.
    """
    margin = max((measure.margin for measure in measures), default=0)
    with (
        open_class_map(map_path) as class_map,
        _validity_source(reference, class_map.info) as image,
    ):
        for tile in block_tiles(class_map.info, margin):
            block = _read(tile, class_map, reference, image)
            for measure in measures:
                measure.add(block)
            if on_progress:
                on_progress(1)


def count_blocks(map_path: str | os.PathLike[str]) -> int:
    """Return how many blocks `compare` will go through."""
    return len(block_tiles(read_info(map_path, allow_palette=True)))


def block_tiles(info: RasterInfo, margin: int = 0) -> list[Tile]:
    """Return the blocks of a map, row by row, each with a margin to be read."""
    return tiles(info.height, info.width, BLOCK, margin)


def _read(tile: Tile, class_map: Raster, reference: Reference, image: Raster | None) -> ComparedBlock:
    predicted, classified = class_map.read(tile.read)
    if reference.uncertain is not None:
        classified = classified & (predicted[0] != reference.uncertain)
    label = reference.ground.read(tile.read, class_map.info)
    known = label != reference.ground.ignore_value
    if image is not None:
        known &= image.read(tile.read).valid
    inside = tile.read.intersection(class_map.info.window)
    if inside is not None and inside != tile.read:
        there = np.zeros(tile.read.shape, bool)
        there[inside.within(tile.read)] = True
        known &= there
    return ComparedBlock(tile.write, tile.write.within(tile.read), label, known, predicted[0], classified)


def on_grid_of(class_map: RasterInfo, image: Raster, reference: Reference) -> Raster:
    """Return an image as it was classified: resampled to the map's grid, if it was then."""
    return Resampled(image, class_map.height, class_map.width) if reference.resampled else image


@contextlib.contextmanager
def _validity_source(reference: Reference, class_map: RasterInfo) -> Iterator[Raster | None]:
    if reference.image is None:
        yield None
        return
    with open_raster(reference.image, reference.bands, reading=reference.reading) as source:
        image = on_grid_of(class_map, source, reference)
        info = image.info
        size, map_size = (info.height, info.width), (class_map.height, class_map.width)
        if size != map_size or not info.transform.almost_equals(class_map.transform, 1e-9):
            found = f"a map of {map_size[1]} x {map_size[0]} pixels at {tuple(class_map.transform)[:6]}"
            expected = f"the grid of {info.path}: {size[1]} x {size[0]} at {tuple(info.transform)[:6]}"
            raise DataError(problem(class_map.path, found, expected, "classify that image again"))
        yield image
