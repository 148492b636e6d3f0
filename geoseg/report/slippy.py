"""A map to drag and zoom inside a page: pictures cut into tiles at several zoom levels, all held by the page."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from geoseg.report.html import swatches

TILE = 256
#: Sides of the pictures at the finest level, in pixels.
MAX_SIDE = 4096
#: Bytes of tiles in one page, before they become text (a third more).
MAX_BYTES = 24 * 2**20

STYLE = """
#slippy { max-width: 100%; }
#slippy .view { position: relative; height: 36rem; max-height: 80vh; overflow: hidden; background: #e8e8e8;
  border: 1px solid #bbb; cursor: grab; touch-action: none; }
#slippy .view:active { cursor: grabbing; }
#slippy .pane { position: absolute; inset: 0; isolation: isolate; pointer-events: none; }
#slippy .pane img { position: absolute; max-width: none; user-select: none; }
#slippy .bar { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: center; margin: .4rem 0; }
#slippy .layers { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; }
#slippy .layers label { display: inline-flex; align-items: center; gap: .3rem; }
#slippy .layers input[type=range] { width: 6rem; }
#slippy button { min-width: 2rem; font: inherit; }
#slippy .readout { color: #666; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class MapLayer:
    """One layer of a scene.

    Attributes:
        name: What it is called.
        picture: (H, W, 3) uint8, or (H, W) uint8 numbers of colours.
        colours: "#rrggbb" by number, for numbers; those beyond are transparent.
        shown: Whether it is switched on at first.
        opacity: Its opacity at first, 0 to 1.
    """

    name: str
    picture: NDArray[np.uint8]
    colours: Sequence[str] = ()
    shown: bool = True
    opacity: float = 1.0


@dataclass(frozen=True)
class MapScene:
    """One scene: its name, its size in pixels of the raster (height, width), and its layers, the lowest first."""

    name: str
    size: tuple[int, int]
    layers: Sequence[MapLayer]


def slippy_map(
    scenes: Iterable[MapScene], count: int, legend: Sequence[tuple[str, str]], max_bytes: int = MAX_BYTES
) -> tuple[str, str]:
    """Return the map as a piece of HTML, and the script that the page needs at its end.

    Args:
        scenes: At least one, taken one by one; all layers of a scene have pictures of one size, which may be thinned.
        count: How many they are.
        legend: Names with their colours "#rrggbb".
        max_bytes: Tiles of all scenes take no more; levels that would, from the finest on, are left out.
    """
    content = [_scene(scene, max_bytes // count) for scene in scenes]
    text = json.dumps({"scenes": content}, separators=(",", ":")).replace("</", "<\\/")
    html = (
        '<div id="slippy">\n<div class="bar"><span><button class="in" aria-label="zoom in">+</button> '
        '<button class="out" aria-label="zoom out">&minus;</button> <button class="fit">all</button></span>'
        '<label>scene <select></select></label><span class="readout"></span></div>\n'
        '<div class="view" tabindex="0" aria-label="map: drag to move, wheel to zoom"></div>\n'
        f'<div class="bar"><span class="layers"></span></div>\n{swatches(list(legend))}\n'
        f'<script type="application/json" id="slippy-data">{text}</script>\n</div>'
    )
    return html, files("geoseg.report").joinpath("slippy.js").read_text(encoding="utf-8")


def _scene(scene: MapScene, max_bytes: int) -> dict[str, Any]:
    """Return a scene as the script wants it: levels and tiles, the finest first."""
    height, width = scene.layers[0].picture.shape[:2]
    if any(layer.picture.shape[:2] != (height, width) for layer in scene.layers):
        raise ValueError(f"layers of {scene.name} have pictures of several sizes")
    halvings = 0
    while max(height, width) / 2**halvings > TILE:
        halvings += 1
    made: list[tuple[dict[str, Any], list[list[str]]]] = []
    spent = 0
    for number in range(halvings, -1, -1):
        size = (-(-height // 2**number), -(-width // 2**number))
        contents = [_tiles(_reduced(layer, size), layer) for layer in scene.layers]
        spent += sum(len(tile) * 3 // 4 for tiles in contents for tile in tiles)
        if made and spent > max_bytes:
            break
        level = {
            "factor": max(scene.size) / max(height, width) * 2**number,
            "rows": -(-size[0] // TILE),
            "columns": -(-size[1] // TILE),
            "side": TILE,
        }
        made.insert(0, (level, contents))
    layers = [
        {
            "name": layer.name,
            "shown": layer.shown,
            "opacity": layer.opacity,
            "exact": bool(layer.colours),
            "prefix": f"data:image/{'png' if layer.colours else 'webp'};base64,",
            "tiles": [contents[number] for _, contents in made],
        }
        for number, layer in enumerate(scene.layers)
    ]
    return {
        "name": scene.name,
        "height": scene.size[0],
        "width": scene.size[1],
        "levels": [level for level, _ in made],
        "layers": layers,
    }


def _reduced(layer: MapLayer, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a layer's picture at a size: numbers are picked, colours averaged."""
    if layer.picture.shape[:2] == size:
        return layer.picture
    how = Image.Resampling.NEAREST if layer.colours else Image.Resampling.BOX
    return np.asarray(Image.fromarray(layer.picture).resize(size[::-1], how))


def _tiles(picture: NDArray[np.uint8], layer: MapLayer) -> list[str]:
    """Return the tiles of a picture row by row as base64 text; "" for one without anything to see."""
    made = []
    for row in range(0, picture.shape[0], TILE):
        for col in range(0, picture.shape[1], TILE):
            tile = picture[row : row + TILE, col : col + TILE]
            empty = bool(layer.colours) and bool((tile >= len(layer.colours)).all())
            made.append("" if empty else base64.b64encode(_encoded(tile, layer.colours)).decode())
    return made


def _encoded(tile: NDArray[np.uint8], colours: Sequence[str]) -> bytes:
    out = io.BytesIO()
    if not colours:
        Image.fromarray(np.ascontiguousarray(tile)).save(out, "WEBP", quality=80, method=2)
        return out.getvalue()
    # One entry more than there are colours, for what is transparent; few entries make few bits a pixel.
    picture = Image.fromarray(np.minimum(tile, len(colours)).astype(np.uint8))
    picture.putpalette(b"".join(bytes.fromhex(colour[1:]) for colour in colours) + b"\0\0\0")
    picture.save(out, "PNG", compress_level=6, transparency=len(colours))
    return out.getvalue()
