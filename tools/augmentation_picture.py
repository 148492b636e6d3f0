"""Draw docs/images/augmentation.png: what the presets of `training.augmentation`, and cutmix, do to samples.

python tools/augmentation_picture.py [DATA]    DATA: the data_path of a config; without it samples are made up
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from geoseg.data.augment import AUGMENTATIONS, build_augmentation, paste
from geoseg.data.dataset import SampleDataset
from geoseg.data.store import open_store

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "augmentation.png"
SIDE, GAP, HEAD, COLUMNS = 160, 6, 22, 6
IGNORE = 255
COLOURS = np.array([[225, 225, 220], [200, 60, 50], [60, 130, 200]], np.uint8)
UNKNOWN = np.array([40, 40, 40], np.uint8)

Pair = tuple[NDArray[np.float32], NDArray[np.uint8]]


def made_up(seed: int) -> Pair:
    """Return a normalised sample of three bands with a road, houses and a field; two classes beside background."""
    rng = np.random.default_rng(seed)
    rows, cols = np.mgrid[:SIDE, :SIDE]
    label = np.zeros((SIDE, SIDE), np.uint8)
    bend = SIDE * (0.35 + 0.2 * np.sin(cols / SIDE * 3 + seed)) + 10 * rng.random()
    label[np.abs(rows - bend) < 7] = 2
    for _ in range(7):
        top, left, height, width = (*rng.integers(5, SIDE - 40, 2), *rng.integers(14, 34, 2))
        place = np.s_[top : top + height, left : left + width]
        if not label[place].any():
            label[place] = 1
    ground = np.array([[-0.4, 0.2, -0.6], [1.6, -0.3, -0.4], [0.9, 0.9, 1.0]])[label]
    waves = 0.25 * np.sin(rows / 9 + cols / 17)[..., None]
    image = ground + waves + rng.normal(0, 0.15, (SIDE, SIDE, 3))
    return np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32), label


def from_store(path: Path) -> list[Pair]:
    """Return two training samples of a store, cut to the size of a picture, with the most classes."""
    store = open_store(path)
    dataset = SampleDataset(store, "trn")
    pairs = [dataset.read(item) for item in range(min(len(dataset), 200))]
    pairs.sort(key=lambda pair: -np.bincount(pair[1][pair[1] != store.info.ignore_value], minlength=2)[1:].sum())
    cut = [
        (image[:3, :SIDE, :SIDE], np.where(label == store.info.ignore_value, IGNORE, label)) for image, label in pairs
    ]
    return [(np.ascontiguousarray(image), label[:SIDE, :SIDE].astype(np.uint8)) for image, label in cut[:2]]


def drawn(pair: Pair) -> Image.Image:
    """Return image above label; unknown is dark."""
    image, label = pair
    pixels = np.clip((image.transpose(1, 2, 0) + 2) / 4 * 255, 0, 255).astype(np.uint8)
    shown = np.where((label == IGNORE)[..., None], UNKNOWN, COLOURS[np.minimum(label, len(COLOURS) - 1)])
    return Image.fromarray(np.concatenate([pixels, np.full((2, SIDE, 3), 255, np.uint8), shown]))


def rows_of(samples: list[Pair]) -> dict[str, Callable[[int], Pair]]:
    """Return what makes the pictures of each row, by a number."""

    def mixed(number: int) -> Pair:
        image, label = (array.copy() for array in samples[0])
        paste(image, label, samples[1], number + 3)
        return image, label

    rows: dict[str, Callable[[int], Pair]] = {}
    for name in AUGMENTATIONS:
        augment = build_augmentation(name, IGNORE)
        rows[name] = samples.__getitem__ if augment is None else (lambda n, a=augment: a(*samples[0], n))
    return rows | {"cutmix": mixed}


def main() -> None:
    """Write the picture."""
    samples = from_store(Path(sys.argv[1])) if len(sys.argv) > 1 else [made_up(1), made_up(2)]
    rows = rows_of(samples)
    height = 2 * SIDE + 2 + HEAD + GAP
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP) + GAP, len(rows) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row, (name, make) in enumerate(rows.items()):
        draw.text((GAP, row * height + 4), name, fill="black", font=font)
        for column in range(len(samples) if name == "none" else COLUMNS):
            sheet.paste(drawn(make(column)), (GAP + column * (SIDE + GAP), row * height + HEAD))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(128).save(TARGET, optimize=True)
    print(f"wrote {TARGET}, {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
