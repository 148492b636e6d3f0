"""Window arithmetic: which pixels of a scene a sample, a block or a tile covers.

Everything here is whole numbers: windows are integer offsets and sides, never floating bounds, because a window rebuilt
from bounds is off by one as soon as the pixel side is not exact in binary (0.1 m).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A rectangle of pixels: rows row_off..row_stop-1 and columns col_off..col_stop-1.

    Offsets may be negative and the window may reach beyond its scene; sorting is row-major.
    """

    row_off: int
    col_off: int
    height: int
    width: int

    @property
    def row_stop(self) -> int:
        """The first row below the window."""
        return self.row_off + self.height

    @property
    def col_stop(self) -> int:
        """The first column to the right of the window."""
        return self.col_off + self.width

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width), as numpy wants it."""
        return self.height, self.width

    def intersection(self, other: Window) -> Window | None:
        """Return the common rectangle, or None where the two share no pixel."""
        row_off, row_stop = max(self.row_off, other.row_off), min(self.row_stop, other.row_stop)
        col_off, col_stop = max(self.col_off, other.col_off), min(self.col_stop, other.col_stop)
        if row_stop <= row_off or col_stop <= col_off:
            return None
        return Window(row_off, col_off, row_stop - row_off, col_stop - col_off)

    def contains(self, other: Window) -> bool:
        """Tell whether every pixel of `other` lies in this window."""
        return (
            self.row_off <= other.row_off
            and self.col_off <= other.col_off
            and other.row_stop <= self.row_stop
            and other.col_stop <= self.col_stop
        )

    def shifted(self, rows: int, cols: int) -> Window:
        """Return the window moved down by `rows` and right by `cols`."""
        return Window(self.row_off + rows, self.col_off + cols, self.height, self.width)

    def within(self, outer: Window) -> tuple[slice, slice]:
        """Return (rows, columns) of this window in an array that holds `outer`.

        Raises:
            ValueError: If this window is not inside `outer`; negative slices would silently wrap around.
        """
        if not outer.contains(self):
            raise ValueError(f"{self} does not lie inside {outer}")
        top, left = self.row_off - outer.row_off, self.col_off - outer.col_off
        return slice(top, top + self.height), slice(left, left + self.width)


@dataclass(frozen=True, slots=True)
class Block:
    """Samples that are cut from one read.

    Attributes:
        window: The union of the samples' windows, clipped to the scene.
        windows: The samples' own windows, row-major, unclipped.
    """

    window: Window
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One step of a pass over a scene.

    Attributes:
        write: The pixels this step decides; the `write` windows of a scene partition it.
        read: `write` grown by the context, not clipped to the scene.
    """

    write: Window
    read: Window


def axis_offsets(length: int, size: int, stride: int) -> tuple[int, ...]:
    """Return where the windows of one axis start, so that they cover all of it.

    There are ceil((length - size) / stride) + 1 of them. The last one is shifted back inside; an axis no longer than
    `size` has one window at 0 (which then reaches beyond the scene).

    Args:
        length: Pixels of the axis, at least 1.
        size: Side of a window, at least 1.
        stride: Step between windows, 1..size (a larger one would leave pixels uncovered).

    Raises:
        ValueError: If an argument is out of its range.
    """
    if length < 1 or size < 1 or not 1 <= stride <= size:
        raise ValueError(f"no windows of side {size} and stride {stride} cover an axis of {length} pixels")
    if length <= size:
        return (0,)
    last = length - size
    return (*range(0, last, stride), last)


def sample_windows(height: int, width: int, size: int, stride: int) -> list[Window]:
    """Return the size x size windows that cover a scene, row-major.

    Where a side of the scene is shorter than `size`, the windows overhang it.
    """
    columns = axis_offsets(width, size, stride)
    return [Window(row, col, size, size) for row in axis_offsets(height, size, stride) for col in columns]


def sample_blocks(height: int, width: int, size: int, stride: int, max_side: int = 2048) -> list[Block]:
    """Partition the windows of `sample_windows` into blocks of at most max_side and an overlap (size - stride) a side.

    So blocks begin where tiles of a file do, if strides add up to them, and share no more tiles than they must. Blocks
    are bounded in both directions, so that a scene of any width is read in constant memory. They depend on nothing but
    the arguments and come row-major, which makes them the canonical order of the work.
    """
    scene = Window(0, 0, height, width)
    row_groups = _groups(axis_offsets(height, size, stride), stride, max_side)
    col_groups = _groups(axis_offsets(width, size, stride), stride, max_side)
    blocks = []
    for rows in row_groups:
        for cols in col_groups:
            windows = tuple(Window(row, col, size, size) for row in rows for col in cols)
            union = Window(rows[0], cols[0], rows[-1] - rows[0] + size, cols[-1] - cols[0] + size)
            clipped = union.intersection(scene)
            assert clipped is not None
            blocks.append(Block(clipped, windows))
    return blocks


def tiles(height: int, width: int, side: int, context: int, multiple: int = 1) -> list[Tile]:
    """Return the steps of a pass over a scene: what each writes and what it must read for that.

    Args:
        height: Rows of the scene, at least 1.
        width: Columns of the scene, at least 1.
        side: Side of what a step writes, at least 1; clipped at the scene's lower and right edges.
        context: Pixels that are read around it at least, on every side.
        multiple: Offsets and sides of `read` are multiples of this (a shift by one pixel changes a U-Net's result).

    Returns:
        Tiles whose `write` windows partition the scene, row-major. `read` may start at negative offsets and may reach
        beyond the scene.

    Raises:
        ValueError: If an argument is out of its range.
    """
    if min(height, width, side, multiple) < 1 or context < 0:
        raise ValueError(f"no tiles of side {side}, context {context}, multiple {multiple} for {height} x {width}")
    result = []
    for row in range(0, height, side):
        for col in range(0, width, side):
            write = Window(row, col, min(side, height - row), min(side, width - col))
            result.append(Tile(write, grown(write, context, multiple)))
    return result


def grown(write: Window, context: int, multiple: int = 1) -> Window:
    """Return a window with context on every side; its offsets and sides are multiples of `multiple`."""
    row_off = (write.row_off - context) // multiple * multiple
    col_off = (write.col_off - context) // multiple * multiple
    row_stop = -(-(write.row_stop + context) // multiple) * multiple
    col_stop = -(-(write.col_stop + context) // multiple) * multiple
    return Window(row_off, col_off, row_stop - row_off, col_stop - col_off)


def bounding(windows: Iterable[Window]) -> Window:
    """Return the smallest window that contains all of `windows` (at least one)."""
    every = list(windows)
    row_off, col_off = min(w.row_off for w in every), min(w.col_off for w in every)
    row_stop, col_stop = max(w.row_stop for w in every), max(w.col_stop for w in every)
    return Window(row_off, col_off, row_stop - row_off, col_stop - col_off)


def _groups(offsets: tuple[int, ...], stride: int, max_side: int) -> list[tuple[int, ...]]:
    """Cut offsets into runs of at most max_side pixels up to the next run (a stride may be larger than that)."""
    groups: list[list[int]] = []
    for offset in offsets:
        if groups and offset + stride - groups[-1][0] <= max_side:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    return [tuple(group) for group in groups]
