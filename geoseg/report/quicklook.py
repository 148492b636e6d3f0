"""Pictures to look at: an image, its labels and its class map side by side, with a legend."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from geoseg.assess.blocks import Reference, on_grid_of
from geoseg.assess.classmap import open_class_map
from geoseg.geo.raster import Pixels, RasterInfo, open_raster, read_info

MAX_SIDE = 800
_MIN_SIDE = 320  # smaller scenes are enlarged by a whole factor
_STRETCH = (2, 98)  # percentiles that become black and white
_MARGIN, _LINE, _SWATCH, _FONT = 16, 24, 14, 14
_INK, _PAPER = (34, 34, 34), (255, 255, 255)

Rgb = NDArray[np.uint8]


@dataclass(frozen=True)
class Legend:
    """Names and colours ("#rrggbb") by class id."""

    names: tuple[str, ...]
    colours: tuple[str, ...]


def draw_quicklook(
    path: Path,
    image: str | os.PathLike[str] | None,
    class_map: Path,
    legend: Legend,
    reference: Reference | None = None,
) -> None:
    """Write a PNG with the whole scene, thinned to at most `MAX_SIDE` pixels a side: image, labels and class map.

    Args:
        path: The PNG, replaced if it exists.
        image: The image; None leaves it out.
        class_map: The class map.
        legend: Names and colours of the classes.
        reference: The labels; None leaves them out. Its bands, if any, are those to choose from for the picture.

    Raises:
        DataError: A file cannot be read.
    """
    panels: list[tuple[str, Rgb]] = []
    with open_class_map(class_map) as raster:
        info = raster.info
        classes, classified = raster.thumbnail(MAX_SIDE)
    classified = classified & (classes[0] < len(legend.names))  # the rest is where the map is not certain
    shape = classified.shape
    seen = np.ones(shape, dtype=bool)
    if image is not None:
        reading = reference.reading if reference else None
        chosen = shown_bands(read_info(image, reading=reading), reference.bands if reference else None)
        with open_raster(image, chosen, reading=reading) as raster:
            pixels = (on_grid_of(info, raster, reference) if reference else raster).thumbnail(MAX_SIDE)
        panels.append(("image", stretched(pixels)))
        seen = pixels.valid if pixels.valid.shape == shape else seen
    if reference is not None:
        label = reference.ground.thinned(info, shape)
        panels.append(("labels", coloured(label, seen & (label != reference.ground.ignore_value), legend.colours)))
    panels.append(("class map", coloured(classes[0], classified, legend.colours)))
    _save(_sheet(panels, legend), path)


def shown_bands(info: RasterInfo, bands: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the bands to show as a picture: those named red, green and blue, else the first three, else one.

    Args:
        info: The image.
        bands: The bands to choose from, by default all but alpha.
    """
    choice = tuple(bands or info.image_bands)
    named = {str(info.band_names[band - 1]).strip().lower(): band for band in choice if band <= info.count}
    if {"red", "green", "blue"} <= set(named):
        return named["red"], named["green"], named["blue"]
    return choice[:3] if len(choice) >= 3 else choice[:1]


def stretched(pixels: Pixels) -> Rgb:
    """Return (H, W, 3) uint8 of three bands, or of one as grey, each between its percentiles.

    Where the image is invalid there is a checkerboard.
    """
    count = len(pixels.image)
    picture = np.zeros((*pixels.valid.shape, 3), dtype=np.uint8)
    for number in range(3):
        band = pixels.image[number % count].astype(np.float64)
        values = band[pixels.valid]
        low, high = np.percentile(values, _STRETCH) if values.size else (0.0, 0.0)
        share = (band - low) / (high - low) if high > low else np.full(band.shape, 0.5)
        picture[..., number] = np.round(255 * np.clip(share, 0, 1))
    return np.where(pixels.valid[..., None], picture, checkerboard(pixels.valid.shape))


def coloured(classes: NDArray[np.integer], known: NDArray[np.bool_], colours: Sequence[str]) -> Rgb:
    """Return (H, W, 3) uint8 with each class in its colour, a checkerboard where it is not known."""
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(colours)] = [_rgb(colour) for colour in colours]
    return np.where(known[..., None], table[classes], checkerboard(known.shape))


def checkerboard(shape: tuple[int, int]) -> Rgb:
    """Return the pattern that stands for no data: (H, W, 3) uint8."""
    rows, columns = np.indices(shape)
    shade = np.where((rows // 8 + columns // 8) % 2, 170, 250).astype(np.uint8)
    return np.repeat(shade[..., None], 3, axis=2)


def _sheet(panels: Sequence[tuple[str, Rgb]], legend: Legend) -> Image.Image:
    height, width = panels[0][1].shape[:2]
    factor = max(1, _MIN_SIDE // max(height, width))
    height, width = height * factor, width * factor
    stacked = width > 1.6 * height
    down, across = (len(panels), 1) if stacked else (1, len(panels))
    font = ImageFont.load_default(size=_FONT)
    total_width = max(_MARGIN + across * (width + _MARGIN), 480)
    rows = _legend_rows(legend, font, total_width - 2 * _MARGIN)
    top = down * (height + _LINE + _MARGIN)
    sheet = Image.new("RGB", (total_width, top + (len(rows) + 1) * _LINE), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (title, picture) in enumerate(panels):
        x = _MARGIN + (0 if stacked else number * (width + _MARGIN))
        y = number * (height + _LINE + _MARGIN) if stacked else 0
        draw.text((x, y + 5), title, fill=_INK, font=font)
        sheet.paste(Image.fromarray(picture).resize((width, height), Image.Resampling.NEAREST), (x, y + _LINE))
    for number, row in enumerate(rows):
        _draw_legend_row(sheet, row, top + number * _LINE, font)
    return sheet


def _legend_rows(
    legend: Legend, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> list[list[tuple[int, str, str | None]]]:
    """Break the legend into rows of (x, name, colour)."""
    rows: list[list[tuple[int, str, str | None]]] = [[]]
    x = 0
    for name, colour in [*zip(legend.names, legend.colours, strict=True), ("unknown or no data", None)]:
        length = _SWATCH + 8 + round(font.getlength(name)) + 24
        if x and x + length > width:
            rows.append([])
            x = 0
        rows[-1].append((x, name, colour))
        x += length
    return rows


def _draw_legend_row(
    sheet: Image.Image,
    row: Sequence[tuple[int, str, str | None]],
    top: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    draw = ImageDraw.Draw(sheet)
    for x, name, colour in row:
        left, upper = _MARGIN + x, top + 5
        if colour is None:
            sheet.paste(Image.fromarray(checkerboard((_SWATCH, _SWATCH))), (left, upper))
        box = (left, upper, left + _SWATCH, upper + _SWATCH)
        draw.rectangle(box, fill=colour, outline=(120, 120, 120))
        draw.text((left + _SWATCH + 8, top + 3), name, fill=_INK, font=font)


def _save(sheet: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        sheet.save(temporary, format="PNG", optimize=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _rgb(colour: str) -> tuple[int, int, int]:
    digits = colour.removeprefix("#")
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)
