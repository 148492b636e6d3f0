"""Pictures of samples with their predictions."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sample_store import make_store
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from geoseg.data.dataset import SampleDataset
from geoseg.data.store import open_store
from geoseg.learn.pictures import GAP, RIGHT, WRONG, SampleImages, errors, sample_picture
from geoseg.learn.runtime import setup

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


def test_tensorboard_shows_the_same_samples_at_each_step(tmp_path: Path) -> None:
    dataset = SampleDataset(open_store(make_store(tmp_path, val=9)), "val")
    images = SampleImages(tmp_path, dataset, setup(1, "cpu", "32-true"))
    assert images.items == [1, 3, 5, 7]
    model = nn.Conv2d(2, 2, 1)
    with torch.no_grad():  # roof where the first band is above its mean
        model.weight[:] = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[..., None, None]
        model.bias[:] = 0
    for step in (10, 20, 20):  # the last one again, as after a resume
        images.add(model.train(), step)
    assert not model.training
    events = EventAccumulator(str(tmp_path / "tensorboard" / "samples"))
    events.Reload()
    assert events.Tags()["images"] == [f"validation/{item}" for item in images.items]
    shown = events.Images("validation/3")
    assert [event.step for event in shown] == [10, 20]
    picture = np.asarray(Image.open(io.BytesIO(shown[0].encoded_image_string)))
    expected = sample_picture(dataset, 3, (dataset.read(3)[0][0] > 0).astype(int), 32, across=True)
    assert np.array_equal(picture, expected)
