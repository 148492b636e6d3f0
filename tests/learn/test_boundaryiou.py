"""Boundary IoU against a look at every pixel's neighbours."""

import numpy as np
import pytest
import torch

from geoseg.learn.boundaryiou import boundary_iou, count_boundaries

IGNORE, CLASSES = 255, 4


def boundary_of(ids: np.ndarray, known: np.ndarray, number: int, distance: int) -> np.ndarray:
    out = np.zeros(ids.shape, bool)
    for row, col in np.argwhere(known & (ids == number)):
        near = np.s_[max(0, row - distance) : row + distance + 1, max(0, col - distance) : col + distance + 1]
        out[row, col] = (known[near] & (ids[near] != number)).any()
    return out


@pytest.mark.parametrize("distance", [1, 2])
def test_counts_are_those_of_every_pixel_s_neighbours(distance):
    rng = np.random.default_rng(4)
    label = np.kron(rng.integers(0, 3, (3, 4, 4)), np.ones((1, 5, 5), int))
    predicted = np.where(rng.random(label.shape) < 0.1, rng.integers(0, CLASSES, label.shape), label)
    label[rng.random(label.shape) < 0.1] = IGNORE
    counts = count_boundaries(torch.tensor(predicted), torch.tensor(label), IGNORE, CLASSES, distance).numpy()
    for number in range(CLASSES):
        expected = np.zeros(3, int)
        for ids, guess in zip(label, predicted, strict=True):
            known = ids != IGNORE
            wanted, found = (boundary_of(a, known, number, distance) for a in (ids, guess))
            expected += [(wanted & found).sum(), wanted.sum(), found.sum()]
        assert counts[number].tolist() == expected.tolist()


def test_a_shifted_edge_costs_more_than_in_iou():
    label = torch.zeros(1, 40, 40).long()
    label[:, :, 20:] = 1
    predicted = label.roll(1, dims=2)
    predicted[:, :, 0] = 0
    found = boundary_iou(count_boundaries(predicted, label, IGNORE, 2, 2).numpy())
    # Columns 18 and 19 against 19 and 20; 20 and 21 against 21 and 22.
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3])


def test_edges_of_the_sample_and_of_the_unknown_are_no_boundary():
    label = torch.zeros(1, 9, 9).long()
    label[0, 3:6] = IGNORE
    counts = count_boundaries(torch.zeros_like(label), label, IGNORE, 2, 2).numpy()
    assert not counts.any()
    assert np.isnan(boundary_iou(counts)).all()
