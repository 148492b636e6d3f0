"""Pictures of samples with their predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sample_store import make_store

from geoseg.data.dataset import SampleDataset
from geoseg.data.store import open_store
from geoseg.learn.pictures import GAP, RIGHT, WRONG, errors, sample_picture

UNKNOWN, BLACK, RED = (60, 60, 60), (0, 0, 0), (255, 0, 0)


def test_errors_are_where_known_pixels_are_wrong() -> None:
    label, predicted = np.array([[0, 1], [255, 1]]), np.array([[0, 0], [1, 1]])
    assert errors(label, predicted, 255).tolist() == [[[*RIGHT], [*WRONG]], [[*UNKNOWN], [*RIGHT]]]


def test_image_label_prediction_and_errors_in_a_row_or_a_column(tmp_path: Path) -> None:
    dataset = SampleDataset(open_store(make_store(tmp_path)), "val")
    predicted = np.zeros((32, 32), np.uint8)
    predicted[31] = 1
    below = sample_picture(dataset, 1, predicted, 32)
    beside = sample_picture(dataset, 1, predicted, 32, across=True)
    assert below.shape == (4 * 32 + 3 * GAP, 32, 3)
    assert beside.shape == (32, 4 * 32 + 3 * GAP, 3)
    step = 32 + GAP
    for number in range(4):
        assert np.array_equal(below[number * step :][:32], beside[:, number * step :][:, :32])
    image, label, result, wrong = (below[number * step :][:32] for number in range(4))
    truth = dataset.stored(1)[1]
    assert (label[truth == 1] == RED).all()
    assert (label[truth == 0] == BLACK).all()
    assert (label[0] == UNKNOWN).all()
    assert (result[31] == RED).all()
    assert (result[:31] == BLACK).all()
    assert np.array_equal((wrong == WRONG).all(axis=-1), (truth != predicted) & (truth != 255))
    # The rectangle of the label is the bright part of the first band, which is all that is shown of two.
    assert image[truth == 1].mean() > image[truth == 0].mean() + 30
    assert (below[32 : 32 + GAP] == 255).all()


def test_pictures_have_the_side_that_is_asked_for(tmp_path: Path) -> None:
    dataset = SampleDataset(open_store(make_store(tmp_path)), "val")
    assert sample_picture(dataset, 0, np.zeros((32, 32), int), 20).shape == (4 * 20 + 3 * GAP, 20, 3)
