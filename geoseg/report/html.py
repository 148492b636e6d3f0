"""Small HTML pages that hold everything they show: no fonts, no links to other files, no scripts unless given."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
tr.strong td { font-weight: 600; border-top: 2px solid #888; }
img { max-width: 100%; }
figure { margin: 1rem 0; } figcaption, .quiet { color: #666; font-size: .9rem; }
svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
.row { display: flex; flex-wrap: wrap; gap: 1.2rem; align-items: flex-end; }
ul.warnings { padding-left: 0; list-style: none; }
ul.warnings li { border-left: 4px solid #e69f00; background: #fdf6e7; padding: .3rem .7rem; margin: .3rem 0;
  overflow-wrap: anywhere; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .5em; border: 1px solid #0003; }
"""


def page(title: str, sections: Sequence[str], style: str = "", script: str = "") -> str:
    """Return a whole HTML page.

    Args:
        title: Plain text.
        sections: Pieces of HTML, made by the functions below.
        style: Further CSS.
        script: JavaScript that runs when the page is there.
    """
    body = "\n".join(sections)
    end = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n{end}</body>\n</html>\n"
    )


def section(title: str, *pieces: str) -> str:
    """Return a heading with pieces of HTML below it."""
    return "\n".join([f"<h2>{escape(title)}</h2>", *pieces])


def paragraph(text: str, quiet: bool = False) -> str:
    """Return a paragraph of plain text."""
    return f'<p class="quiet">{escape(text)}</p>' if quiet else f"<p>{escape(text)}</p>"


def preformatted(text: str) -> str:
    """Return text with its line breaks and spaces."""
    return f'<div class="wide"><pre>{escape(text)}</pre></div>'


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    swatches: Sequence[str | None] = (),
    strong_last: bool = False,
) -> str:
    """Return a table of plain text.

    Args:
        columns: Headings.
        rows: Cells, as many a row as there are columns.
        swatches: A colour "#rrggbb" shown before the first cell of each row, as far as they go.
        strong_last: Whether the last row is a sum.
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = []
    for number, row in enumerate(rows):
        colour = swatches[number] if number < len(swatches) else None
        cells = [escape(cell) for cell in row]
        if colour:
            cells[0] = f'<span class="swatch" style="background:{escape(colour)}"></span>{cells[0]}'
        kind = ' class="strong"' if strong_last and number == len(rows) - 1 else ""
        body.append(f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    lines = "\n".join(body)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def figure(png: Path, caption: str) -> str:
    """Return a PNG file as part of the page, with a caption."""
    return raw_figure(png.read_bytes(), "image/png", caption)


def raw_figure(content: bytes, kind: str, caption: str) -> str:
    """Return a picture as part of the page, with a caption.

    Args:
        content: The bytes of its file.
        kind: Its media type, such as "image/png".
        caption: Plain text.
    """
    data = base64.b64encode(content).decode()
    words = escape(caption)
    return f'<figure><img src="data:{kind};base64,{data}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def row(pieces: Sequence[str]) -> str:
    """Return pieces of HTML side by side, as many as fit into the page's width."""
    return '<div class="row">' + "\n".join(f"<div>{piece}</div>" for piece in pieces) + "</div>"


def warning_list(warnings: Sequence[str]) -> str:
    """Return a list of warnings, or the words that there are none."""
    if not warnings:
        return paragraph("None.")
    return '<ul class="warnings">' + "".join(f"<li>{escape(line)}</li>" for line in warnings) + "</ul>"


def swatches(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend: names with their colours "#rrggbb"."""
    spans = [f'<span class="swatch" style="background:{escape(c)}"></span>{escape(name)}' for name, c in entries]
    return "<p>" + " &emsp; ".join(spans) + "</p>"
