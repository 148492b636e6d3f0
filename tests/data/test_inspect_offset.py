"""The shift of labels against the edges that an image shows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from geoseg.data.inspect.offset import Offset, label_offset


def _scene(rng: np.random.Generator, rows: int = 0, cols: int = 0) -> tuple[NDArray, NDArray, NDArray]:
    """Return (image, valid, label) of bright boxes in noise; the labels are moved down by rows and right by cols."""
    image = rng.normal(100, 12, (3, 300, 320))
    label = np.zeros((300, 320), np.uint8)
    for row in range(30, 260, 45):
        for col in range(30, 280, 45):
            height, width = rng.integers(12, 30, 2)
            image[:, row : row + height, col : col + width] += 40
            label[row + rows : row + rows + height, col + cols : col + cols + width] = 1
    return image.astype(np.float32), np.ones((300, 320), bool), label


def test_labels_that_fit_are_not_shifted(rng: np.random.Generator) -> None:
    found = label_offset([_scene(rng)])

    assert found is not None
    assert (found.columns, found.rows) == (0, 0)
    assert found.clear
    assert not found.shifted


@pytest.mark.parametrize(("cols", "rows"), [(5, -3), (-12, 0), (0, 20), (3, 0)])
def test_a_shift_is_found(rng: np.random.Generator, cols: int, rows: int) -> None:
    found = label_offset([_scene(rng, rows, cols)])

    assert found is not None
    assert (found.columns, found.rows) == (cols, rows)
    assert found.shifted


@pytest.mark.parametrize(("cols", "rows"), [(1, 0), (0, 2)])
def test_what_hands_do_is_no_shift(rng: np.random.Generator, cols: int, rows: int) -> None:
    found = label_offset([_scene(rng, rows, cols)])

    assert found is not None
    assert found.clear
    assert not found.shifted


def test_parts_of_a_scene_add_up(rng: np.random.Generator) -> None:
    one = label_offset([_scene(rng, 4, 4)])
    three = label_offset([_scene(rng, 4, 4) for _ in range(3)])

    assert one is not None
    assert three is not None
    assert three.score > one.score


@pytest.mark.parametrize("seed", range(8))
def test_labels_of_something_else_say_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image, valid, _ = _scene(rng)
    label = np.kron(rng.integers(0, 2, (10, 10)), np.ones((30, 32))).astype(np.uint8)

    found = label_offset([(rng.permuted(image, axis=1), valid, label)])

    assert found is not None
    assert not found.clear


def test_an_image_without_edges_and_a_label_without_edges_say_nothing() -> None:
    flat, valid = np.full((1, 200, 200), 7, np.uint8), np.ones((200, 200), bool)
    label = np.zeros((200, 200), np.uint8)
    assert label_offset([(flat, valid, label)]) is None
    label[50:150, 50:150] = 1
    assert label_offset([(flat, valid, label)]) is None
    assert label_offset([(flat, ~valid, label)]) is None
    assert label_offset([]) is None


def test_the_border_of_missing_data_is_no_edge(rng: np.random.Generator) -> None:
    # A collar of zeros shifted against the labels would be by far the strongest edge of all.
    image, valid, label = _scene(rng)
    image[:, :40], valid[:40] = 0, False
    label[:45] = 1

    found = label_offset([(image, valid, label)])

    assert found is not None
    assert (found.columns, found.rows) == (0, 0)


def test_at_the_end_of_its_reach_a_peak_means_nothing() -> None:
    assert not Offset(32, 0, 50.0, 9.0).clear
    assert Offset(31, 0, 50.0, 9.0).shifted
    assert not Offset(31, 0, 50.0, 1.1).shifted
