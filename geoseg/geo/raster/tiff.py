"""The directories of a TIFF file, as bytes: reading them, and laying them out before the data.

Only what a Cloud Optimized GeoTIFF needs that is put together from tiles which GDAL has compressed already: numbers
are little-endian, pixels are in tiles. Layout after the TIFF 6.0 and BigTIFF specifications and GDAL's description of
its COG driver (directories first, smallest overview's tiles first, each tile led by its size and followed by its last
four bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

NEW_SUBFILE_TYPE, WIDTH, HEIGHT = 254, 256, 257
TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_SIZES = 322, 323, 324, 325
#: What says how tiles are to be decoded and shown: bits, compression, photometric meaning, samples, layout, predictor,
#: colours, extra samples, sample format, tile sides, nodata. An overview needs these alone.
STRUCTURE = (258, 259, 262, 277, 284, 317, 320, 322, 323, 338, 339, 42113)
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_UNSIGNED = {1: "<u1", 3: "<u2", 4: "<u4", 16: "<u8"}
_LONG, _LONG8 = 4, 16
_CLASSIC_LIMIT = 2**32 - 2**16

_GHOST_BODY = (
    "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    "BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_GHOST = (f"GDAL_STRUCTURAL_METADATA_SIZE={len(_GHOST_BODY):06d} bytes\n" + _GHOST_BODY).encode()
#: Bytes around each tile: its size before it, its last four bytes again behind it.
_LEADER = _TRAILER = 4


class Entry(NamedTuple):
    """One entry of a directory: TIFF type, number of values, their bytes."""

    kind: int
    length: int
    data: bytes

    @property
    def numbers(self) -> NDArray[np.uint64]:
        """The values of an unsigned type."""
        return np.frombuffer(self.data, _UNSIGNED[self.kind], self.length).astype(np.uint64)


Directory = Mapping[int, Entry]


def read_directory(path: Path) -> Directory:
    """Return the first directory of a TIFF file, by tag.

    Raises:
        ValueError: The file is no little-endian TIFF.
    """
    with path.open("rb") as file:
        head = file.read(16)
        if head[:4] == b"II*\0":
            big, offset = False, struct.unpack_from("<I", head, 4)[0]
        elif head[:4] == b"II+\0":
            big, offset = True, struct.unpack_from("<Q", head, 8)[0]
        else:
            raise ValueError(f"{path} is no little-endian TIFF file")
        return _entries(file, offset, big)


def _entries(file: BinaryIO, offset: int, big: bool) -> dict[int, Entry]:
    counter, entry, room = ("<Q", "<HHQ", 8) if big else ("<H", "<HHI", 4)
    file.seek(offset)
    (count,) = struct.unpack(counter, file.read(struct.calcsize(counter)))
    step = struct.calcsize(entry) + room
    table = file.read(count * step)
    found = {}
    for start in range(0, len(table), step):
        tag, kind, values = struct.unpack_from(entry, table, start)
        size = values * _SIZES[kind]
        place = table[start + step - room : start + step]
        if size > room:
            file.seek(struct.unpack("<Q" if big else "<I", place)[0])
            place = file.read(size)
        found[tag] = Entry(kind, values, place[:size])
    return found


@dataclass(frozen=True)
class ImageLayout:
    """One image of a file to be laid out.

    Attributes:
        height: Rows.
        width: Columns.
        entries: Its directory, but for sides, kind and the places of tiles.
        sizes: Bytes of each tile, row-major.
    """

    height: int
    width: int
    entries: Directory
    sizes: NDArray[np.uint64]


class Head(NamedTuple):
    """The bytes before the first tile, and where each image's tiles begin (behind their leaders)."""

    data: bytes
    offsets: list[NDArray[np.uint64]]


def lay_out(images: Sequence[ImageLayout]) -> Head:
    """Return what comes before the tiles of a file: header and directories.

    Args:
        images: The full image, then its overviews from large to small. Tiles follow in the opposite order of images,
            each as `tile_bytes` gives it.
    """
    data_size = sum(int(image.sizes.sum()) + (_LEADER + _TRAILER) * len(image.sizes) for image in images)
    big = data_size + _head_size(images, big=False) >= _CLASSIC_LIMIT
    offsets: list[NDArray[np.uint64]] = []
    at = _head_size(images, big)
    for image in reversed(images):
        steps = image.sizes + np.uint64(_LEADER + _TRAILER)
        ends = np.cumsum(steps, dtype=np.uint64)
        offsets.insert(0, np.uint64(at + _LEADER) + ends - steps)
        at += int(ends[-1])
    return Head(_head(images, offsets, big), offsets)


def tile_bytes(data: bytes) -> bytes:
    """Return a tile with its leader and trailer."""
    return struct.pack("<I", len(data)) + data + data[-_TRAILER:].rjust(_TRAILER, b"\0")


def _directory(image: ImageLayout, offsets: NDArray[np.uint64], first: bool, big: bool) -> list[tuple[int, Entry]]:
    kind, places = (_LONG8, offsets.astype("<u8")) if big else (_LONG, offsets.astype("<u4"))
    entries = {tag: entry for tag, entry in image.entries.items() if first or tag in STRUCTURE}
    entries[NEW_SUBFILE_TYPE] = _whole(0 if first else 1)
    entries[WIDTH], entries[HEIGHT] = _whole(image.width), _whole(image.height)
    entries[TILE_OFFSETS] = Entry(kind, len(places), places.tobytes())
    entries[TILE_SIZES] = Entry(_LONG, len(places), image.sizes.astype("<u4").tobytes())
    return sorted(entries.items())


def _whole(value: int) -> Entry:
    return Entry(_LONG, 1, struct.pack("<I", value))


def _directory_size(entries: Sequence[tuple[int, Entry]], big: bool) -> int:
    fixed, per_entry, room = (16, 20, 8) if big else (6, 12, 4)
    outside = sum(_even(len(entry.data)) for _, entry in entries if len(entry.data) > room)
    return fixed + per_entry * len(entries) + outside


def _head_size(images: Sequence[ImageLayout], big: bool) -> int:
    zeros = [np.zeros_like(image.sizes) for image in images]
    tables = (_directory(i, z, n == 0, big) for n, (i, z) in enumerate(zip(images, zeros, strict=True)))
    return _start(big) + sum(_directory_size(table, big) for table in tables)


def _start(big: bool) -> int:
    return _even((16 if big else 8) + len(_GHOST))


def _head(images: Sequence[ImageLayout], offsets: Sequence[NDArray[np.uint64]], big: bool) -> bytes:
    start = _start(big)
    header = struct.pack("<2sHHHQ", b"II", 43, 8, 0, start) if big else struct.pack("<2sHI", b"II", 42, start)
    out = bytearray((header + _GHOST).ljust(start, b"\0"))
    for number, (image, places) in enumerate(zip(images, offsets, strict=True)):
        table = _directory(image, places, number == 0, big)
        following = len(out) + _directory_size(table, big) if number + 1 < len(images) else 0
        out += _packed(table, len(out), following, big)
    return bytes(out)


def _packed(table: Sequence[tuple[int, Entry]], start: int, following: int, big: bool) -> bytes:
    counter, entry_form, offset_form, room = ("<Q", "<HHQ", "<Q", 8) if big else ("<H", "<HHI", "<I", 4)
    fixed, per_entry = (16, 20) if big else (6, 12)
    outside_at = start + fixed + per_entry * len(table)
    inside, outside = bytearray(struct.pack(counter, len(table))), bytearray()
    for tag, entry in table:
        inside += struct.pack(entry_form, tag, entry.kind, entry.length)
        if len(entry.data) > room:
            inside += struct.pack(offset_form, outside_at + len(outside))
            outside += entry.data.ljust(_even(len(entry.data)), b"\0")
        else:
            inside += entry.data.ljust(room, b"\0")
    return bytes(inside + struct.pack(offset_form, following) + outside)


def _even(size: int) -> int:
    return size + size % 2
