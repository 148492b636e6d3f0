"""Cloud Optimized GeoTIFFs, put together from tiles that are compressed already.

GDAL's own COG driver reads a file again, compresses it again and makes overviews on the way. Here the tiles that were
streamed are copied as they are, so that what is left of the finishing pass is to make overviews.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from geoseg.geo.grid import Window
from geoseg.geo.raster import tiff
from geoseg.geo.raster.overviews import half_shape, write_overview

_OPEN_FILES = 64


@dataclass(frozen=True)
class TileFile:
    """A tiled GeoTIFF that holds a rectangle of an image.

    Attributes:
        path: The file.
        row: The image's row, in pixels, at which it begins; a multiple of the tile's side.
        col: The same for columns.
    """

    path: Path
    row: int = 0
    col: int = 0


@dataclass(frozen=True)
class Level:
    """An image or an overview: its sides, and the files that cover it without overlap."""

    height: int
    width: int
    files: Sequence[TileFile]


def assemble(template: Path, levels: Sequence[Level], target: Path) -> None:
    """Write a Cloud Optimized GeoTIFF of tiles that lie in other files.

    Args:
        template: A GeoTIFF whose georeference, tags, colours and nodata the result shall have; its pixels are not used.
        levels: The full image, then its overviews, each half as large as the one before. All files have the same data
            type, number of bands, tiles and compression; their bands are interleaved by pixel or there is one.
        target: File to write.

    Raises:
        OSError: If it cannot be written.
        ValueError: If files do not cover a level.
    """
    described = tiff.read_directory(template)
    maps = [_TileMap(level) for level in levels]
    images = []
    for number, (level, tiles) in enumerate(zip(levels, maps, strict=True)):
        stored = {tag: entry for tag, entry in tiles.structure.items() if tag in tiff.STRUCTURE}
        shown = {tag: described[tag] for tag in (262, 320, 42113) if tag in described}
        entries = {**(described if number == 0 else {}), **stored, **shown}
        images.append(tiff.ImageLayout(level.height, level.width, entries, tiles.sizes))
    head = tiff.lay_out(images)
    with target.open("wb") as out:
        out.write(head.data)
        for tiles in reversed(maps):
            for data in tiles.read():
                out.write(tiff.tile_bytes(data))


class _TileMap:
    """Where the tiles of a level lie: for each, row-major, the number of its file, its offset and its size."""

    def __init__(self, level: Level) -> None:
        self._paths = [file.path for file in level.files]
        directories = [tiff.read_directory(path) for path in self._paths]
        self.structure = directories[0]
        side = int(self.structure[tiff.TILE_WIDTH].numbers[0])
        shape = -(-level.height // side), -(-level.width // side)
        self._file = np.full(shape, -1, np.int32)
        self._offset, sizes = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        for number, (file, directory) in enumerate(zip(level.files, directories, strict=True)):
            place = _place(file, directory, side)
            self._file[place] = number
            self._offset[place] = directory[tiff.TILE_OFFSETS].numbers.reshape(self._offset[place].shape)
            sizes[place] = directory[tiff.TILE_SIZES].numbers.reshape(sizes[place].shape)
        if (self._file < 0).any() or not sizes.all():
            raise ValueError(
                f"{int((sizes == 0).sum())} tiles of a level of {level.width} x {level.height} are missing"
            )
        self.sizes: NDArray[np.uint64] = sizes.ravel()

    def read(self) -> Iterator[bytes]:
        """Yield the tiles, row-major."""
        handles: dict[int, int] = {}
        try:
            places = zip(self._file.ravel().tolist(), self._offset.ravel().tolist(), self.sizes.tolist(), strict=True)
            for number, offset, size in places:
                if number not in handles:
                    if len(handles) >= _OPEN_FILES:
                        os.close(handles.pop(next(iter(handles))))
                    handles[number] = os.open(self._paths[number], os.O_RDONLY)
                yield os.pread(handles[number], size, offset)
        finally:
            for handle in handles.values():
                os.close(handle)


def _place(file: TileFile, directory: tiff.Directory, side: int) -> tuple[slice, slice]:
    height, width = (int(directory[tag].numbers[0]) for tag in (tiff.HEIGHT, tiff.WIDTH))
    row, col = file.row // side, file.col // side
    return slice(row, row + -(-height // side)), slice(col, col + -(-width // side))


class Mosaic:
    """Reads windows of a level across its files, of which few are open at a time."""

    def __init__(self, level: Level) -> None:
        self._level = level
        sides = [tiff.read_directory(file.path) for file in level.files]
        self._places = [
            Window(file.row, file.col, *(int(side[tag].numbers[0]) for tag in (tiff.HEIGHT, tiff.WIDTH)))
            for file, side in zip(level.files, sides, strict=True)
        ]
        # Rows and columns of all files, to find those that a window meets.
        self._bounds = np.array([(p.row_off, p.row_stop, p.col_off, p.col_stop) for p in self._places])
        self._open: dict[int, Any] = {}

    def read(self, window: Window) -> NDArray[Any]:
        """Return (count, h, w) of a window."""
        top, bottom, left, right = self._bounds.T
        meets = (
            (top < window.row_stop) & (bottom > window.row_off) & (left < window.col_stop) & (right > window.col_off)
        )
        out: NDArray[Any] | None = None
        for number in np.flatnonzero(meets).tolist():
            dataset, place = self._dataset(number), self._places[number]
            part = window.intersection(place)
            assert part is not None
            inner = part.shifted(-place.row_off, -place.col_off)
            values = dataset.read(window=((inner.row_off, inner.row_stop), (inner.col_off, inner.col_stop)))
            if part == window:
                return values  # type: ignore[no-any-return]
            out = np.empty((dataset.count, *window.shape), dataset.dtypes[0]) if out is None else out
            rows, cols = part.within(window)
            out[:, rows, cols] = values
        assert out is not None, "files do not cover the level"
        return out

    def close(self) -> None:
        """Close the files."""
        for dataset in self._open.values():
            dataset.close()
        self._open.clear()

    def _dataset(self, number: int) -> Any:
        if number not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            self._open[number] = rasterio.open(self._level.files[number].path)
        return self._open[number]


def add_overviews(
    levels: list[Level], wanted: int, name: Callable[[int], Path], profile: dict[str, Any], resampling: str
) -> None:
    """Append overviews to a list of levels until there are as many as wanted.

    Args:
        levels: The full image, and those of its overviews that exist.
        wanted: Number of levels, the full image included.
        name: The file of a level, by its number.
        profile: rasterio's profile of the files, without sides.
        resampling: "mode", "nearest" or "average".
    """
    for number in range(len(levels), wanted):
        finer = levels[-1]
        mosaic = Mosaic(finer)
        try:
            write_overview(mosaic.read, (finer.height, finer.width), name(number), profile, resampling)
        finally:
            mosaic.close()
        levels.append(Level(*half_shape((finer.height, finer.width)), [TileFile(name(number))]))
