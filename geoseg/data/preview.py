"""A contact sheet of samples: image beside label, a few of each split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store

_PER_SPLIT = 6
_CELL = 192  # side of a shown sample, pixels of the sheet
_GAP = 6
_TEXT = 16
UNKNOWN = (60, 60, 60)
_PAPER = (255, 255, 255)


def write_preview(store: Store, path: Path) -> None:
    """Write the contact sheet of a store as PNG: one row of samples per split, evenly spread over its scenes.

    Bands 1, 2, 3 are shown as red, green, blue (one or two bands: the first as grey), each stretched from its 2nd to
    its 98th percentile. Unknown pixels of a label are dark grey, invalid pixels of an image black.
    """
    rows = [(split, _chosen(store, split)) for split in SPLITS if store.info.samples.get(split, 0)]
    width = max(len(samples) for _, samples in rows) * (2 * _CELL + 2 * _GAP) + _GAP
    legend = _TEXT + 2 * _GAP
    sheet = Image.new("RGB", (width, legend + len(rows) * (_CELL + _TEXT + 2 * _GAP) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _draw_legend(draw, store.info.classes)
    for number, (split, samples) in enumerate(rows):
        top = legend + number * (_CELL + _TEXT + 2 * _GAP)
        draw.text((_GAP, top), f"{split}: {len(samples)} of {store.info.samples[split]} samples", fill=(0, 0, 0))
        for column, (image, label) in enumerate(samples):
            left = _GAP + column * (2 * _CELL + 2 * _GAP)
            sheet.paste(_resized(image, Image.Resampling.BILINEAR), (left, top + _TEXT))
            sheet.paste(_resized(label, Image.Resampling.NEAREST), (left + _CELL + 1, top + _TEXT))
    sheet.save(path, "PNG", compress_level=3)  # half the time, hardly more bytes


def stretched(
    image: NDArray[Any], statistics: Sequence[Mapping[str, float]], valid: NDArray[np.bool_] | None = None
) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8 for the eye: three bands or one, each from its 2nd to its 98th percentile.

    Args:
        image: (bands, H, W).
        statistics: Of each band, with p2 and p98.
        valid: (H, W); what is not valid becomes black.
    """
    shown = (0, 1, 2) if len(image) >= 3 else (0, 0, 0)
    planes = []
    for band in shown:
        low, high = statistics[band]["p2"], statistics[band]["p98"]
        scaled = (image[band].astype(np.float64) - low) / ((high - low) or 1.0)
        planes.append((scaled.clip(0, 1) * 255).astype(np.uint8))
    picture = np.stack(planes, axis=-1)
    if valid is not None:
        picture[~valid] = 0
    return picture


def shown_bands(band_names: Sequence[str | None]) -> list[int]:
    """Return the places of the bands to show: those named red, green and blue, else the first three, else one."""
    names = [str(name).strip().lower() for name in band_names]
    if {"red", "green", "blue"} <= set(names):
        return [names.index(name) for name in ("red", "green", "blue")]
    return [0, 1, 2] if len(names) >= 3 else [0]


def coloured(label: NDArray[np.uint8], classes: Sequence[Mapping[str, Any]]) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8: a label in the colours of its classes, unknown pixels dark grey."""
    table = np.full((256, 3), UNKNOWN, np.uint8)
    for entry in classes:
        table[int(entry["id"])] = _rgb(entry["colour"])
    return table[label]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _chosen(store: Store, split: str) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    samples = store.samples(split)
    count = min(_PER_SPLIT, len(samples))
    pictures = []
    # The middles of equal shares: never only the corners of the scenes.
    for index in ((2 * i + 1) * len(samples) // (2 * count) for i in range(count)):
        row = samples.iloc[index]
        valid = store.valid(row["scene"], int(row["valid_position"]))
        image = store.images(row["scene"])[row["position"]]
        label = np.asarray(store.labels(row["scene"])[row["position"]])
        pictures.append((stretched(image, store.info.statistics, valid), coloured(label, store.info.classes)))
    store.release()
    return pictures


def _draw_legend(draw: ImageDraw.ImageDraw, classes: Sequence[Mapping[str, Any]]) -> None:
    left = _GAP
    for text, colour in [*((c["name"], _rgb(c["colour"])) for c in classes[:12]), ("unknown", UNKNOWN)]:
        draw.rectangle((left, _GAP, left + _TEXT - 4, _GAP + _TEXT - 4), fill=colour, outline=(0, 0, 0))
        draw.text((left + _TEXT, _GAP), str(text), fill=(0, 0, 0))
        left += _TEXT + 3 * _GAP + int(draw.textlength(str(text)))


def _resized(picture: NDArray[np.uint8], how: Image.Resampling) -> Image.Image:
    return Image.fromarray(picture).resize((_CELL, _CELL), how)
