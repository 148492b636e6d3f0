"""Charts of a sample store: shares of classes, how much of the samples holds data, histograms of the bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.report.svg import INK, LINE, QUIET, drawing, line, path, rect, text

_LABEL = 150  # room for names, pixels
_BAR = 420
_ROW = 22
_BINS = 55


def class_balance(classes: Sequence[Mapping[str, Any]], pixels: Mapping[str, Sequence[int]]) -> str:
    """Return bars: of each class, its share of the known pixels of each split.

    The bars of a class are to one scale, so that splits compare; the scale is that of the greatest share of all.

    Args:
        classes: id, name, colour.
        pixels: Split to pixels per class id.
    """
    shares = {split: np.asarray(counts, float) / (sum(counts) or 1) for split, counts in pixels.items()}
    top = max((float(share.max()) for share in shares.values()), default=1.0) or 1.0
    pieces: list[str] = []
    y = 4.0
    for entry in classes:
        index = int(entry["id"])
        pieces.append(rect(0, y + 3, 11, 11, entry["colour"], stroke="#00000033"))
        pieces.append(text(18, y + 13, _short(f"{index} {entry['name']}", 20)))
        for split, share in shares.items():
            length = max(share[index] / top * _BAR, 1.0 if pixels[split][index] else 0.0)
            hint = f"{split}: {pixels[split][index]:,} pixels of {entry['name']}"
            pieces.append(text(_LABEL + 22, y + 13, split, "end", QUIET))
            pieces.append(rect(_LABEL + 30, y + 3, length, 13, entry["colour"], hint, stroke="#00000033"))
            missing = "" if pixels[split][index] else "  none"
            pieces.append(text(_LABEL + 36 + length, y + 14, f"{100 * share[index]:.2f} %{missing}", fill=QUIET))
            y += _ROW - 4
        y += 8
    return drawing(_LABEL + _BAR + 130, y, pieces, "share of the classes in each split")


def valid_fractions(fractions: Mapping[str, NDArray[np.float64]], colours: Mapping[str, str]) -> str:
    """Return for each split how many samples hold how much data, in tenths.

    Args:
        fractions: Split to (n,) shares, 0..1.
        colours: Split to colour.
    """
    width, height = 220, 90
    pieces: list[str] = []
    for place, (split, values) in enumerate(fractions.items()):
        left = place * (width + 30)
        counts, _ = np.histogram(values, bins=10, range=(0, 1))
        top = counts.max() or 1
        pieces.append(text(left, 14, f"{split}: {100 * values.mean():.1f} % of the pixels hold data"))
        for number, count in enumerate(counts.tolist()):
            tall = max(count / top * height, 1.5 if count else 0)
            hint = f"{count:,} samples with {10 * number} to {10 * number + 10} %"
            x = left + number * width / 10
            pieces.append(rect(x + 1, 24 + height - tall, width / 10 - 2, tall, colours[split], hint))
        pieces.append(line(left, 24 + height, left + width, 24 + height, QUIET))
        pieces += [text(left, 40 + height, "0 %", fill=QUIET), text(left + width, 40 + height, "100 %", "end", QUIET)]
    return drawing(len(fractions) * (width + 30), height + 46, pieces, "share of valid pixels in the samples")


def histogram(name: str, values: NDArray[Any], statistics: Mapping[str, float], colour: str) -> str:
    """Return the histogram of one band between its 1st and 99th percentile, with its mean.

    Args:
        name: What the band is called.
        values: (n,) some of its valid values.
        statistics: Its mean, std, min, max, p1 and p99.
        colour: Of the area.
    """
    width, height, top = 220.0, 80.0, 22.0
    low, high = float(statistics["p1"]), float(statistics["p99"])
    high = high if high > low else low + 1
    inside = values[(values >= low) & (values <= high)]
    counts, _ = np.histogram(inside.astype(np.float64), bins=_bins(values.dtype, low, high))
    tallest = counts.max() or 1
    step = width / len(counts)
    corners = [(0.0, top + height)]
    for number, count in enumerate(counts.tolist()):
        y = top + height - count / tallest * height
        corners += [(number * step, y), ((number + 1) * step, y)]
    corners.append((width, top + height))
    at = min(max((statistics["mean"] - low) / (high - low), 0), 1) * width
    area = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z"
    pieces = [
        text(0, 14, _short(name, 30)),
        path(
            area,
            colour,
            f"{name}: mean {statistics['mean']:.6g}, deviation {statistics['std']:.6g}",
            fill_opacity="0.75",
        ),
        line(at, top, at, top + height, INK, stroke_dasharray="3 2"),
        line(0, top + height, width, top + height, LINE),
        text(0, top + height + 15, f"{low:.5g}", fill=QUIET),
        text(width, top + height + 15, f"{high:.5g}", "end", QUIET),
    ]
    return drawing(width, top + height + 20, pieces, f"histogram of {name}")


def _bins(dtype: np.dtype[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return the edges of the bins; of whole numbers, each bin holds as many, or the chart would be a comb."""
    if dtype.kind not in "iu" or high - low > 16 * _BINS:
        return np.linspace(low, high, _BINS + 1)
    step = max(1, round((high - low) / _BINS))
    first = np.ceil(low) - 0.5
    return first + step * np.arange(max(1, int((high - first) // step)) + 1)


def _short(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 1] + "…"
