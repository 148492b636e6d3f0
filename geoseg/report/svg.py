"""Small drawings as text: pieces of SVG that stand inside an HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

INK, QUIET, LINE = "#222222", "#666666", "#dddddd"


def drawing(width: float, height: float, pieces: Sequence[str], title: str) -> str:
    """Return an SVG element that shrinks with the page.

    Args:
        width: Pixels.
        height: Pixels.
        pieces: SVG, made by the functions below.
        title: What it shows, for those who do not see it.
    """
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    body = "\n".join(pieces)
    return f'<svg {size} role="img" aria-label="{escape(title)}" font-size="12">\n{body}\n</svg>'


def rect(x: float, y: float, width: float, height: float, fill: str, hint: str = "", **more: str) -> str:
    """Return a rectangle; `hint` shows under the mouse. Names of attributes are given with _ for -."""
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return _element("rect", f'{place} fill="{fill}"', hint, more)


def path(points: str, fill: str, hint: str = "", **more: str) -> str:
    """Return a path from the text of its `d` attribute."""
    return _element("path", f'd="{points}" fill="{fill}"', hint, more)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, **more: str) -> str:
    """Return a straight line."""
    return _element("line", f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" stroke="{stroke}"', "", more)


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = INK, **more: str) -> str:
    """Return words whose baseline begins, ends or is centred (`anchor` start, end, middle) at a point."""
    attributes = _attributes(more)
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" fill="{fill}"{attributes}>{escape(words)}</text>'


def polygon_path(rings: Sequence[Sequence[tuple[float, float]]]) -> str:
    """Return the `d` attribute of rings of points; a pixel is cut into ten."""
    parts = []
    for ring in rings:
        corners = [f"{_n(x)} {_n(y)}" for x, y in ring]
        parts.append("M" + "L".join(dict.fromkeys(corners)) + "Z")
    return "".join(parts)


def round_step(length: float) -> float:
    """Return the greatest of 1, 2, 5, 10, 20, 50, ... (and of their tenths) that is no greater than a length."""
    power = 10.0 ** math.floor(math.log10(length))
    return next(step * power for step in (5, 2, 1) if step * power <= length * (1 + 1e-9))


def _element(name: str, attributes: str, hint: str, more: Mapping[str, str]) -> str:
    attributes += _attributes(more)
    return f"<{name} {attributes}><title>{escape(hint)}</title></{name}>" if hint else f"<{name} {attributes}/>"


def _attributes(more: Mapping[str, str]) -> str:
    return "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())


def _n(number: float) -> str:
    """Return a number with a decimal at most: pages stay small and the same everywhere."""
    return f"{round(float(number), 1):g}" if abs(number) < 1e5 else str(round(number))
