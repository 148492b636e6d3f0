"""Charts of a training: curves over epochs, the confusion matrix, how sure the model is, and where memory goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.calibration import Reliability
from geoseg.report.svg import INK, QUIET, drawing, line, path, rect, round_step, text

# Apart for those who see few colours (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
_WIDTH, _HEIGHT = 330, 190
_LEFT, _TOP, _BOTTOM, _RIGHT = 52, 40, 34, 10
_DOTS = 80  # with more points, dots would hide the line
_CELL = 46


def curves(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    start: float | None = None,
    end: float | None = None,
) -> str:
    """Return lines over epochs.

    Args:
        title: What the values are.
        lines: Name to points (epoch, value); those that are not finite are left out.
        start: Where the axis starts; None: at the least value.
        end: Where it ends; None: at the greatest value. What lies beyond is drawn at the edge.
    """
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in lines.items()}
    finite = {name: points for name, points in finite.items() if points}
    ys = [y for points in finite.values() for _, y in points]
    xs = [x for points in finite.values() for x, _ in points]
    if not ys:
        return ""
    low, high = min(ys) if start is None else start, max(ys) if end is None else end
    high = high if high > low else low + (abs(low) or 1.0)
    first, last = min(xs), max(max(xs), min(xs) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - first) / (last - first) * _WIDTH
        return across, _TOP + (1 - (min(max(y, low), high) - low) / (high - low)) * _HEIGHT

    pieces = [text(0, 13, title, font_weight="600"), *_axes(low, high, first, last, place)]
    for number, (name, points) in enumerate(finite.items()):
        colour = COLOURS[number % len(COLOURS)]
        pieces += [rect(_LEFT + 110 * number, 22, 12, 4, colour), text(_LEFT + 16 + 110 * number, 29, name, fill=QUIET)]
        corners = [place(x, y) for x, y in points]
        pieces.append(
            path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners), "none", stroke=colour, stroke_width="1.8")
        )
        if len(points) <= _DOTS:
            dots = zip(points, corners, strict=True)
            pieces += [rect(x - 2.5, y - 2.5, 5, 5, colour, f"epoch {e:g}: {v:.5g}") for (e, v), (x, y) in dots]
    return drawing(_LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM, pieces, title)


def _axes(
    low: float, high: float, first: float, last: float, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    pieces = []
    step = round_step((high - low) / 3)
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        y = at(first, number * step)[1]
        pieces += [line(_LEFT, y, _LEFT + _WIDTH, y), text(_LEFT - 6, y + 4, f"{number * step:.4g}", "end", QUIET)]
    step = max(1, round_step((last - first) / 4))
    for number in range(math.ceil(first / step), math.floor(last / step) + 1):
        x = at(number * step, low)[0]
        pieces.append(text(x, _TOP + _HEIGHT + 16, f"{number * step:g}", "middle", QUIET))
    pieces.append(line(_LEFT, _TOP + _HEIGHT, _LEFT + _WIDTH, _TOP + _HEIGHT, QUIET))
    pieces.append(text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 30, "epoch", "middle", QUIET))
    return pieces


def confusion_chart(matrix: NDArray[np.integer], names: Sequence[str]) -> str:
    """Return a confusion matrix as shaded squares: of the pixels of each reference class, the share predicted as each.

    Args:
        matrix: (C, C) counts by reference (rows) and prediction (columns).
        names: Of the classes.
    """
    left, top = 190, 44
    totals = matrix.sum(axis=1)
    count = len(names)
    pieces = [
        text(left + count * _CELL / 2, 14, "predicted class", "middle", QUIET),
        text(0, top - 8, "reference class", fill=QUIET),
    ]
    for row, name in enumerate(names):
        y = top + row * _CELL
        pieces.append(text(0, y + _CELL / 2 + 4, _short(f"{row} {name}", 26)))
        pieces.append(text(left + row * _CELL + _CELL / 2, top - 8, str(row), "middle"))
        for column in range(count):
            share = matrix[row, column] / totals[row] if totals[row] else 0.0
            hint = f"{int(matrix[row, column]):,} pixels of {name} predicted as {names[column]}"
            x = left + column * _CELL
            colour = _shade(share, "#0072b2" if row == column else "#d55e00")
            pieces.append(rect(x + 1, y + 1, _CELL - 2, _CELL - 2, colour, hint))
            if totals[row]:
                ink = "#ffffff" if share > 0.6 else INK
                pieces.append(text(x + _CELL / 2, y + _CELL / 2 + 4, f"{100 * share:.1f}", "middle", ink))
    return drawing(
        left + count * _CELL + 4, top + count * _CELL + 4, pieces, "confusion matrix, % of the reference class"
    )


def reliability_chart(reliability: Reliability) -> str:
    """Return how often the model is right by how sure it is; on the dashed line it is as sure as it should be."""
    side, left, top = 240, 46, 30
    bins, total = len(reliability.pixels), reliability.pixels.sum() or 1
    columns = zip(reliability.pixels, reliability.mean_confidence, reliability.accuracy, strict=True)
    pieces = []
    for percent in (0, 50, 100):
        y = top + side * (1 - percent / 100)
        pieces += [line(left, y, left + side, y), text(left - 6, y + 4, f"{percent} %", "end", QUIET)]
        pieces.append(text(left + side * percent / 100, top + side + 16, f"{percent} %", "middle", QUIET))
    for number, (pixels, confidence, accuracy) in enumerate(columns):
        if pixels:
            tall = side * accuracy
            share = pixels / total
            hint = f"{100 * confidence:.1f} % sure, {100 * accuracy:.1f} % right: {100 * share:.1f} % of the pixels"
            shade = str(round(0.35 + 0.65 * math.sqrt(share), 2))
            x = left + side * number / bins
            pieces.append(rect(x + 1, top + side - tall, side / bins - 2, tall, COLOURS[0], hint, fill_opacity=shade))
    pieces.append(line(left, top + side, left + side, top, INK, stroke_dasharray="4 3"))
    pieces.append(text(left + side / 2, top + side + 34, "probability of the predicted class", "middle", QUIET))
    pieces.append(text(0, 13, "share of the pixels that is right", fill=QUIET))
    return drawing(left + side + 24, top + side + 40, pieces, "how often the model is right, by how sure it is")


def bars(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> str:
    """Return horizontal bars in groups.

    Args:
        title: What the lengths are.
        rows: Name of a group, and its bars: name to length; NaN is left out.
        unit: Written after each number.
    """
    left, length, tall = 250, 430, 16
    kinds = list(dict.fromkeys(kind for _, found in rows for kind in found))
    top = max((value for _, found in rows for value in found.values() if math.isfinite(value)), default=0.0) or 1.0
    pieces, y = [], 6.0
    for name, found in rows:
        pieces.append(text(0, y + 12, _short(name, 40)))
        for kind, value in found.items():
            if math.isfinite(value):
                wide = max(value / top * length, 1.0 if value else 0.0)
                colour = COLOURS[kinds.index(kind) % len(COLOURS)]
                pieces.append(rect(left, y + 1, wide, tall - 3, colour, f"{name}, {kind}: {value:,.1f} {unit}"))
                pieces.append(
                    text(
                        left + wide + 6,
                        y + 12,
                        f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}",
                        fill=QUIET,
                    )
                )
                y += tall
        y += 8
    if len(kinds) > 1:
        for number, kind in enumerate(kinds):
            x = left + 150 * number
            pieces += [rect(x, y + 4, 12, 10, COLOURS[number % len(COLOURS)]), text(x + 18, y + 13, kind, fill=QUIET)]
        y += 22
    return drawing(left + length + 110, y, pieces, title)


def _shade(share: float, colour: str) -> str:
    """Return a colour between white and another."""
    full = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (part - 255) * min(1.0, share)):02x}" for part in full)


def _short(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 1] + "…"
