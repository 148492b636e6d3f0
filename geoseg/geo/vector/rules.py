"""What labels mean beyond their values: which polygon is on top, how wide it is, what counts as touched."""

from __future__ import annotations

from dataclasses import dataclass

#: Orders that need no column; any other word is the name of one.
PRIORITIES = ("file", "class", "area")


@dataclass(frozen=True)
class LabelRules:
    """How labels become pixels.

    Attributes:
        assume_crs: Take labels without a CRS to be in that of their image.
        mask_outside: Pixels outside every polygon are unknown, not background.
        priority: Where polygons overlap, the one on top is: file, the later in the file; class, the one of the higher
            class id (unknown ground above all); area, the smaller; or the name of a column: the one with the greater
            number there (nulls at the bottom). What ties is in the order of the file.
        all_touched: A polygon burns all pixels it touches, not only those whose centre it holds.
        buffers: Metres by which the polygons of each class id grow (or shrink); classes beyond its end stay.
        boundary_ignore: Pixels within this many rows and columns of another class are unknown.
    """

    assume_crs: bool = False
    mask_outside: bool = False
    priority: str = "file"
    all_touched: bool = False
    buffers: tuple[float, ...] = ()
    boundary_ignore: int = 0

    @property
    def order_column(self) -> str | None:
        """The column that decides which polygon is on top, if one does."""
        return None if self.priority in PRIORITIES else self.priority

    @property
    def widens(self) -> bool:
        """Whether some class grows, so that its lines and points become areas."""
        return any(distance > 0 for distance in self.buffers)
