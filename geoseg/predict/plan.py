"""Which windows a scene is classified in, and in which parts its maps are made; arithmetic alone.

A scene is cut into strips of columns and those into *parts* of 2048 rows: what is finished, put on disk and, after an
interruption, not done again. Parts are multiples of four tiles of a map, so that two overviews of a part need no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geoseg.geo.grid import Tile, Window, bounding, grown, tiles
from geoseg.predict.blend import Span, overlapping_tiles, window_count

BLENDINGS = ("none", "hann", "gaussian")
PART = 2048
_WIDEST = 8  # parts of a strip
_PIECES_PER_WORKER = 4
_STATE_BYTES = 24 * 2**20
#: Of the rows of pixels of a strip that windows above each other share, so that GDAL's cache holds them.
_ROWS_BYTES = 24 * 2**20
_SMALLEST_SIDE = 16  # networks take no less
_LARGEST_CONTEXT = 256
_CONTEXT_OF_GLOBAL_NETS = 64  # no context is enough for them; this hides the seams


@dataclass(frozen=True)
class SlidingOptions:
    """How windows slide over a raster.

    Attributes:
        window: Side of the square that is written at once, in pixels; None chooses 512 on a CPU, 1024 on a GPU.
        overlap: Pixels that a window sees beyond that square; None takes the network's receptive radius. With blending
            "none" on each side; with the others neighbouring windows share twice as many, which are averaged.
        blending: "none" keeps the centre of every window; "hann" and "gaussian" average overlapping windows smoothly.
        batch_size: Windows computed at once; None chooses 1 on a CPU (larger ones are slower), 8 on a GPU.
    """

    window: int | None = None
    overlap: int | None = None
    blending: str = "none"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.blending not in BLENDINGS:
            raise ValueError(f"blending is {self.blending!r}, expected one of {', '.join(BLENDINGS)}")
        least = {"window": (self.window, 1), "overlap": (self.overlap, 0), "batch_size": (self.batch_size, 1)}
        if any(value is not None and value < minimum for value, minimum in least.values()):
            raise ValueError("window and batch_size must be at least 1, overlap at least 0")


@dataclass(frozen=True)
class Network:
    """What a plan must know about a network.

    Attributes:
        size_divisor: Windows begin at multiples of this.
        receptive_radius: How far a pixel's score looks; None if over the whole window.
        num_classes: Number of classes.
        cuda: Whether it computes on a GPU.
        pixel_bytes: Of its input in the image's file.
    """

    size_divisor: int = 1
    receptive_radius: int | None = 0
    num_classes: int = 2
    cuda: bool = False
    pixel_bytes: int = 4


@dataclass(frozen=True)
class Plan:
    """The windows of one scene, all lengths in pixels and multiples of the network's size divisor.

    Attributes:
        height: Rows of the scene.
        width: Columns of the scene.
        side: Side of what a window writes.
        context: What it sees beyond.
        divisor: The network's.
        batch_size: Windows computed at once.
        blending: One of `BLENDINGS`.
        strip: Columns of a strip.
    """

    height: int
    width: int
    side: int
    context: int
    divisor: int
    batch_size: int
    blending: str
    strip: int = 4 * PART

    @property
    def overlap(self) -> int:
        """Pixels that neighbouring windows share, where they are blended."""
        return 2 * self.context


def plan_windows(network: Network, height: int, width: int, options: SlidingOptions) -> Plan:
    """Fill in what the options leave open and round to what the network needs."""
    divisor = network.size_divisor
    context = options.overlap
    if context is None:
        radius = network.receptive_radius
        context = min(_CONTEXT_OF_GLOBAL_NETS if radius is None else radius, _LARGEST_CONTEXT)
    side = options.window or (1024 if network.cuda else 512)
    side = max(min(side, max(height, width)), _SMALLEST_SIDE)  # a small scene needs no large window
    context = _round_up(context, divisor)
    return Plan(
        height=height,
        width=width,
        side=_round_up(side, divisor),
        context=context,
        divisor=divisor,
        batch_size=options.batch_size or (8 if network.cuda else 1),
        blending=options.blending,
        strip=_strip(network, options.blending, side, 2 * context),
    )


def _strip(network: Network, blending: str, side: int, overlap: int) -> int:
    """Return columns of a strip: few enough for the memory they take, but of several windows that are blended.

    With fewer, the windows at a strip's border, which are computed twice, would outweigh the memory saved.
    """
    if blending == "none":
        return PART * max(1, min(_WIDEST, _ROWS_BYTES // (2 * side * network.pixel_bytes) // PART))
    fitting = _STATE_BYTES // (4 * network.num_classes * max(overlap, 1)) // PART
    return PART * max(2, min(_WIDEST, fitting))


def parts(plan: Plan) -> list[Window]:
    """Return the parts of a scene, strip by strip, from above."""
    return [
        Window(row, col, min(PART, plan.height - row), min(plan.strip, plan.width - col))
        for col in range(0, plan.width, plan.strip)
        for row in range(0, plan.height, PART)
    ]


def runs(wanted: Sequence[Window]) -> list[list[Window]]:
    """Group parts, in the order of `parts`, into those that lie directly below one another."""
    groups: list[list[Window]] = []
    for part in wanted:
        above = groups[-1][-1] if groups else None
        if above is not None and (above.col_off, above.row_stop) == (part.col_off, part.row_off):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def pieces(plan: Plan, wanted: Sequence[Window], workers: int = 1) -> list[list[Window]]:
    """Cut parts, in the order of `parts`, into pieces that are computed apart.

    Windows that reach across the border of two pieces are computed twice: one worker takes runs as long as they are,
    several take shorter ones, so that all are done at about the same time.
    """
    if plan.blending == "none" and PART % plan.side == 0:
        return [[part] for part in wanted]
    longest = len(wanted) if workers == 1 else -(-len(wanted) // (_PIECES_PER_WORKER * workers))
    return [run[at : at + longest] for run in runs(wanted) for at in range(0, len(run), max(1, longest))]


def share_of(wanted: Sequence[Window], share: tuple[int, int]) -> list[Window]:
    """Return the i-th of n shares of parts, i from 1: neighbours, which have windows in common."""
    place, count = share
    return list(wanted[(place - 1) * len(wanted) // count : place * len(wanted) // count])


def spans(plan: Plan, region: Window) -> tuple[Span, Span]:
    """Return the rows and the columns of overlapping windows that decide a region."""
    return (
        _span(plan, region.row_off, region.row_stop, plan.height),
        _span(plan, region.col_off, region.col_stop, plan.width),
    )


def region_tiles(plan: Plan, region: Window) -> Iterator[Tile]:
    """Yield the windows that a region needs, in order; what they write is not clipped to it where they are blended."""
    if plan.blending == "none":
        # Windows of the whole strip, cut: so they are the same wherever the region begins and ends.
        top = region.row_off // plan.side * plan.side
        for tile in tiles(plan.height - top, region.width, plan.side, 0):
            whole = tile.write.shifted(top, region.col_off)
            write = whole.intersection(region)
            if write is None:
                return
            yield Tile(write, grown(whole, plan.context, plan.divisor))
        return
    yield from overlapping_tiles(plan.height, plan.width, plan.side, plan.overlap, *spans(plan, region))


def count_windows(plan: Plan, wanted: Sequence[Window] | None = None) -> int:
    """Return how many windows parts of a scene take (all, by default), those computed twice at borders included."""
    total = 0
    for run in runs(parts(plan) if wanted is None else wanted):
        region = bounding(run)
        if plan.blending == "none":
            rows_of_windows = -(-region.row_stop // plan.side) - region.row_off // plan.side
            total += rows_of_windows * -(-region.width // plan.side)
        else:
            rows, columns = spans(plan, region)
            total += (rows.stop - rows.lead) * (columns.stop - columns.lead)
    return total


def _span(plan: Plan, start: int, stop: int, length: int) -> Span:
    count = window_count(length, plan.side, plan.overlap)
    first = min(start // plan.side, count - 1)
    lead = max(0, first - -(-plan.overlap // plan.side))
    return Span(lead, first, min(-(-stop // plan.side), count))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
