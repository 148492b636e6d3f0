"""Writing of rasters: streamed as a tiled GeoTIFF, to be put in place by `geoseg.geo.raster.publishing`."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import rasterio
from numpy.typing import DTypeLike, NDArray
from rasterio.enums import ColorInterp

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster import overviews
from geoseg.geo.raster.info import GDAL_ERRORS, RasterInfo, gdal_session, reason
from geoseg.geo.raster.names import members

Colour = str | Sequence[int]
# The tag through which category names travel from the streamed file to the finished one.
NAMES_TAG = "CLASS_NAMES"
_HEX_COLOUR = re.compile(r"#([0-9a-fA-F]{6}|[0-9a-fA-F]{8})")
SIDE_FILES = (".aux.xml", ".ovr", ".msk", ".msk.ovr", ".ovr.tmp", ".msk.ovr.tmp")


class Description(TypedDict, total=False):
    """What a raster tells its reader beyond its pixels.

    Attributes:
        colours: Class id to "#rrggbb" or (red, green, blue[, alpha]); for one band of uint8 or uint16.
        tags: Free metadata, written as text.
        names: Names of the classes, in the order of their ids.
        band_names: Descriptions of the bands, in their order.
        compress: How blocks are compressed: "deflate" unless said otherwise. "packbits" takes a quarter of the time and
            much the same room for large areas of one class, and none of it for anything else.
        scale: What values are to be multiplied by, stated for every band.
    """

    colours: Mapping[int, Colour] | Sequence[Colour] | None
    tags: Mapping[str, object] | None
    names: Sequence[str] | None
    band_names: Sequence[str] | None
    compress: str
    scale: float


class RasterWriter:
    """Writes windows of a tiled, compressed GeoTIFF, in any order and of any alignment.

    A compressed block that is written twice leaves its first copy behind as dead bytes. Therefore blocks that a window
    covers in part are kept in memory until they are full; windows that come row by row keep about one row of blocks.
    Pixels that are never written are nodata.
    """

    def __init__(self, dataset: rasterio.io.DatasetWriter, tile: int) -> None:
        self._dataset = dataset
        self._nodata = 0 if dataset.nodata is None else dataset.nodata
        self._tile = tile
        self._pending: dict[Window, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        self._written: set[Window] = set()
        self._scene = Window(0, 0, dataset.height, dataset.width)

    def write(self, array: NDArray[Any], window: Window) -> None:
        """Write (count, h, w), or (h, w) into every band, at a window inside the raster.

        Raises:
            DataError: If the file cannot be written (the disk is full).
            ValueError: If shape or dtype do not fit; conversion would wrap values silently.
        """
        values = np.broadcast_to(array, (self._dataset.count, *array.shape[-2:]))
        if values.shape[-2:] != window.shape or not self._scene.contains(window):
            raise ValueError(f"an array of shape {array.shape} does not fit {window} of {self._scene}")
        if values.dtype != np.dtype(self._dataset.dtypes[0]):
            raise ValueError(f"the raster holds {self._dataset.dtypes[0]}, not {values.dtype}")
        core = self._whole_blocks(window)
        if core is not None:
            self._write_blocks(values[(slice(None), *core.within(window))], core)
        for block in self._blocks(window):
            if core is None or not core.contains(block):
                self._keep(values, window, block)

    def flush(self) -> None:
        """Write the blocks that are not full; the rest of them is nodata."""
        for block, (values, _) in sorted(self._pending.items()):
            self._write_blocks(values, block, done=False)
        self._pending.clear()

    def _keep(self, values: NDArray[Any], window: Window, block: Window) -> None:
        part = window.intersection(block)
        assert part is not None
        kept, covered = self._pending.get(block) or self._started(block)
        rows, cols = part.within(block)
        kept[:, rows, cols] = values[(slice(None), *part.within(window))]
        covered[rows, cols] = True
        self._pending[block] = kept, covered
        if covered.all():
            self._write_blocks(kept, block)

    def _started(self, block: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        shape = (self._dataset.count, *block.shape)
        if block in self._written:
            return self._dataset.read(window=_slices(block)), np.ones(block.shape, bool)
        return np.full(shape, self._nodata, self._dataset.dtypes[0]), np.zeros(block.shape, bool)

    def _write_blocks(self, values: NDArray[Any], window: Window, done: bool = True) -> None:
        with as_data_error(self._dataset.name):
            self._dataset.write(values, window=_slices(window))
        if done:
            for block in self._blocks(window):
                self._written.add(block)
                self._pending.pop(block, None)

    def _whole_blocks(self, window: Window) -> Window | None:
        """Return the part of window that is made of whole blocks."""
        row_off, row_stop = _aligned(window.row_off, window.row_stop, self._tile, self._scene.height)
        col_off, col_stop = _aligned(window.col_off, window.col_stop, self._tile, self._scene.width)
        if row_stop <= row_off or col_stop <= col_off:
            return None
        return Window(row_off, col_off, row_stop - row_off, col_stop - col_off)

    def _blocks(self, window: Window) -> Iterator[Window]:
        tile = self._tile
        for row in range(window.row_off // tile * tile, window.row_stop, tile):
            for col in range(window.col_off // tile * tile, window.col_stop, tile):
                height, width = min(tile, self._scene.height - row), min(tile, self._scene.width - col)
                yield Window(row, col, height, width)


@contextlib.contextmanager
def create_geotiff(
    path: str | os.PathLike[str],
    like: RasterInfo,
    count: int,
    dtype: DTypeLike,
    nodata: float | None,
    tile: int = 512,
    **description: Unpack[Description],
) -> Iterator[RasterWriter]:
    """Create a tiled, deflated GeoTIFF over the same ground as `like`, to be written window by window.

    It is written under `path` itself: give a temporary name, then call `finish_cog` or `publish`. A file whose writing
    was cut short looks whole when opened, so it must never carry the final name. If the block raises, it is removed.

    Args:
        path: Name to write.
        like: The raster whose size, transform, CRS and ground control points are copied exactly.
        count: Bands.
        dtype: numpy dtype of the bands.
        nodata: Value of pixels without data; must fit dtype.
        tile: Side of the file's blocks, a multiple of 16.
        **description: Colours, tags and names, see `Description`.

    Raises:
        DataError: If the file cannot be written.
        ValueError: If nodata does not fit dtype, or colours were given for a raster that cannot hold them.
    """
    name = os.fspath(path)
    profile = _profile(like, count, dtype, nodata, tile, description)

    def created() -> Any:
        dataset = rasterio.open(name, "w+", **profile)
        _describe(dataset, like, nodata, description)
        return dataset

    with _written(name, created) as dataset:
        writer = RasterWriter(dataset, tile)
        yield writer
        writer.flush()


@contextlib.contextmanager
def _written(path: str | os.PathLike[str], create: Callable[[], Any]) -> Iterator[Any]:
    """Hold a dataset that is being written; it is closed at the end, and removed if anything raises."""
    try:
        with as_data_error(path), gdal_session():
            dataset = create()
        try:
            yield dataset
        finally:
            with as_data_error(path):
                dataset.close()
    except BaseException:
        remove_files(path)
        raise


@contextlib.contextmanager
def create_tiles(path: Path, height: int, width: int, profile: dict[str, Any]) -> Iterator[RasterWriter]:
    """Create a file that holds tiles of a map, to be written window by window; if the block raises, it is removed.

    Args:
        path: Name to write.
        height: Rows.
        width: Columns.
        profile: From `tile_profile`.

    Raises:
        DataError: If the file cannot be written.
    """
    with _written(path, lambda: rasterio.open(path, "w+", height=height, width=width, **profile)) as dataset:
        writer = RasterWriter(dataset, profile["blockxsize"])
        yield writer
        writer.flush()


def same_file(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> bool:
    """Tell whether two names lead to the same file, through links too; the second need not exist.

    The first may be several files joined by ``|``: then whether any of them is the second.
    """
    if len(parts := members(first)) > 1:
        return any(same_file(part, second) for part in parts)
    if Path(first).exists() and Path(second).exists():
        return Path(first).samefile(second)
    return Path(first).resolve() == Path(second).resolve()


def _profile(
    like: RasterInfo, count: int, dtype: DTypeLike, nodata: float | None, tile: int, description: Description
) -> dict[str, Any]:
    kind = np.dtype(dtype)
    if nodata is not None and kind.kind in "iu" and not np.iinfo(kind).min <= nodata <= np.iinfo(kind).max:
        raise ValueError(f"nodata {nodata} does not fit {kind}")
    coloured = description.get("colours") is not None
    if coloured and (count != 1 or kind.name not in ("uint8", "uint16")):
        raise ValueError("a colour table needs one band of uint8 or uint16")
    profile: dict[str, Any] = {
        "driver": "GTiff",
        "height": like.height,
        "width": like.width,
        "count": count,
        "dtype": kind.name,
        "nodata": nodata,
        "tiled": True,
        "blockxsize": tile,
        "blockysize": tile,
        "compress": description.get("compress", "deflate"),
        "bigtiff": "IF_SAFER",
        "endianness": "little",
        # Otherwise closing fills every block that was not written, which an interrupted run would have to wait for.
        "sparse_ok": True,
        # By default GDAL would call four 8-bit bands RGB and alpha.
        "photometric": "PALETTE" if coloured else "MINISBLACK",
        "interleave": "pixel",
    }
    if profile["compress"] == "deflate":
        profile |= _deflate(kind)
    if like.georeferenced:
        profile |= {"transform": like.transform, "crs": like.crs}
    elif like.gcps:
        profile |= {"gcps": list(like.gcps), "crs": like.gcps_crs}
    elif like.crs:
        profile |= {"crs": like.crs}
    return profile


def tile_profile(count: int, dtype: DTypeLike, nodata: float | None) -> dict[str, Any]:
    """Return rasterio's profile of a file that holds tiles of a map: no georeference, every tile written."""
    kind = np.dtype(dtype)
    return {
        "driver": "GTiff",
        "count": count,
        "dtype": kind.name,
        "nodata": nodata,
        "tiled": True,
        "blockxsize": overviews.TILE,
        "blockysize": overviews.TILE,
        "compress": "deflate",
        "bigtiff": "IF_SAFER",
        "endianness": "little",
        "photometric": "MINISBLACK",
        "interleave": "pixel",
        **_deflate(kind),
    }


def _deflate(kind: np.dtype[Any]) -> dict[str, int]:
    # Level 5 takes no more time than 1 for class maps, a third of that of 6, for files a fourteenth larger than 6.
    # Differences of class ids compress worse than the ids.
    return {"zlevel": 5, "predictor": 3 if kind.kind == "f" else 1}


def _describe(
    dataset: rasterio.io.DatasetWriter, like: RasterInfo, nodata: float | None, description: Description
) -> None:
    if like.rpcs and not like.georeferenced:
        dataset.rpcs = like.rpcs
    tags = {key: str(value) for key, value in (description.get("tags") or {}).items()}
    names = description.get("names")
    if names:
        tags[NAMES_TAG] = json.dumps(list(names), ensure_ascii=False)
    dataset.update_tags(**tags)
    for band, text in enumerate(description.get("band_names") or (), start=1):
        dataset.set_band_description(band, text)
    if description.get("scale", 1) != 1:
        dataset.scales = [description["scale"]] * dataset.count
    colours = description.get("colours")
    if colours is not None:
        dataset.write_colormap(1, _colour_table(colours, nodata))
    else:
        dataset.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * (dataset.count - 1)


def _colour_table(colours: Mapping[int, Colour] | Sequence[Colour], nodata: float | None) -> dict[int, Any]:
    pairs = colours.items() if isinstance(colours, Mapping) else enumerate(colours)
    table = {int(value): _rgba(colour) for value, colour in pairs}
    if nodata is not None:
        table.setdefault(int(nodata), (0, 0, 0, 0))
    return table


def _rgba(colour: Colour) -> tuple[int, ...]:
    if isinstance(colour, str):
        parts = list(bytes.fromhex(colour[1:])) if _HEX_COLOUR.fullmatch(colour) else []
    else:
        parts = [int(part) for part in colour]
    if len(parts) not in (3, 4) or not all(0 <= part <= 255 for part in parts):
        raise ValueError(f"{colour!r} is not a colour such as #1f78b4")
    return (*parts, 255) if len(parts) == 3 else tuple(parts)


def _aligned(start: int, stop: int, tile: int, length: int) -> tuple[int, int]:
    return -(-start // tile) * tile, stop if stop == length else stop // tile * tile


def _slices(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    return (window.row_off, window.row_stop), (window.col_off, window.col_stop)


def remove_files(name: str | Path, suffixes: Sequence[str] = ("", *SIDE_FILES)) -> None:
    for suffix in suffixes:
        Path(f"{name}{suffix}").unlink(missing_ok=True)


@contextlib.contextmanager
def as_data_error(name: str | Path) -> Iterator[None]:
    try:
        yield
    except (*GDAL_ERRORS, OSError) as error:
        remedy = "check that the folder exists, may be written and has room"
        raise DataError(problem(name, f"a failed write ({reason(error)})", "a writable place", remedy)) from error
