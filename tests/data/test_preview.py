from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scenery import CLASSES, make_options, make_scene, make_store

from geoseg.data.preview import coloured, stretched

STATISTICS = [{"p2": 100.0, "p98": 300.0}] * 4


def test_stretch_runs_from_the_low_to_the_high_percentile() -> None:
    image = np.array([[[0, 100, 200, 300, 9999]]], np.uint16).repeat(3, axis=0)
    image[2] = 100

    picture = stretched(image, STATISTICS, np.array([[True, True, True, True, False]]))

    assert picture[0, :, 0].tolist() == [0, 0, 127, 255, 0]
    assert picture[0, :, 2].tolist() == [0] * 5


@pytest.mark.parametrize("bands", [1, 2])
def test_one_or_two_bands_are_grey(bands: int) -> None:
    picture = stretched(np.full((bands, 2, 2), 200), STATISTICS)

    assert picture.shape == (2, 2, 3)
    assert (picture == 127).all()


def test_constant_band_does_not_divide_by_zero() -> None:
    assert stretched(np.ones((1, 2, 2)), [{"p2": 1.0, "p98": 1.0}]).max() == 0


def test_label_in_the_colours_of_its_classes() -> None:
    picture = coloured(np.array([[1, 255]], np.uint8), CLASSES)

    assert picture[0, 0].tolist() == [0xD5, 0x5E, 0x00]
    assert picture[0, 1].tolist() == [60, 60, 60]


def test_sheet_shows_labels_of_all_splits(tmp_path: Path) -> None:
    image = np.full((1, 16, 16), 50, np.uint8)
    scenes = [make_scene(tmp_path, s, s, image, boxes=[(0, 0, 16, 16, i)]) for i, s in enumerate(("trn", "val"), 1)]

    store = make_store(tmp_path / "data", scenes, make_options())

    sheet = np.asarray(Image.open(store.folder / "preview.png").convert("RGB")).reshape(-1, 3)
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        # A legend entry alone would be a few hundred pixels.
        assert (sheet == colour).all(axis=1).sum() > 30_000
