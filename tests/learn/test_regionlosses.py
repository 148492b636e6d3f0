"""Losses of regions against their definitions, worked out pixel by pixel in float64."""

import itertools
import math

import numpy as np
import pytest
import torch

from geoseg.learn.regionlosses import boundary, dice, jaccard, lovasz, signed_distance, tversky

IGNORE = 255
CLASSES = 4


def batch(seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Two samples of 5 x 4 pixels; class 3 is absent, some pixels are unknown."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, CLASSES, 5, 4, dtype=torch.float64, generator=generator)
    label = torch.randint(0, CLASSES - 1, (2, 5, 4), generator=generator)
    return logits, label.masked_fill(torch.rand(label.shape, generator=generator) < 0.2, IGNORE)


def known_pixels(logits: torch.Tensor, label: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, C) and classes (n,) of the known pixels."""
    shares = np.exp(logits.permute(0, 2, 3, 1).reshape(-1, CLASSES).numpy())
    ids = label.flatten().numpy()
    return (shares / shares.sum(axis=1, keepdims=True))[ids != IGNORE], ids[ids != IGNORE]


def value_of(loss, logits, label, weights=None, **options) -> float:
    total, weight = loss(logits, label, IGNORE, weights, **options)
    return (total / weight).item()


def by_definition(name: str, shares: np.ndarray, inside: np.ndarray) -> float:
    right, wrong, missed = shares[inside].sum(), shares[~inside].sum(), (1 - shares[inside]).sum()
    return {
        "dice": 1 - 2 * right / (shares.sum() + inside.sum()),
        "jaccard": 1 - right / (shares.sum() + inside.sum() - right),
        "tversky": 1 - right / (right + 0.2 * wrong + 0.9 * missed),
    }[name]


OVERLAPS = {"dice": (dice, {}), "jaccard": (jaccard, {}), "tversky": (tversky, {"alpha": 0.2, "beta": 0.9})}


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5, 7.0]])
def test_overlaps_are_meaned_over_the_classes_present(name, weights):
    logits, label = batch()
    shares, ids = known_pixels(logits, label)
    terms = [by_definition(name, shares[:, c], ids == c) for c in range(3)]
    loss, options = OVERLAPS[name]
    found = value_of(loss, logits, label, None if weights is None else torch.tensor(weights), **options)
    assert found == pytest.approx(np.average(terms, weights=weights and weights[:3]), rel=1e-12)


@pytest.mark.parametrize("loss", [dice, jaccard, tversky, lovasz])
def test_an_absent_class_is_left_out(loss):
    """All pixels are class 0 with probability 0.9: the loss is that of class 0, whatever class 1 would say."""
    logits = torch.tensor([0.9, 0.1], dtype=torch.float64).log().reshape(1, 2, 1, 1).expand(1, 2, 8, 8)
    found = value_of(loss, logits, torch.zeros(1, 8, 8).long())
    expected = {dice: 1 - 1.8 / 1.9, jaccard: 0.1, tversky: 1 - 0.9 / (0.9 + 0.7 * 0.1), lovasz: 0.1}
    assert found == pytest.approx(expected[loss], rel=1e-9)


@pytest.mark.parametrize("loss", [dice, jaccard, tversky, lovasz])
def test_a_perfect_prediction_costs_nothing_and_a_wrong_one_all(loss):
    _, label = batch()
    index = label.masked_fill(label == IGNORE, 3)
    sure = 200.0 * torch.nn.functional.one_hot(index, CLASSES).permute(0, 3, 1, 2)
    assert value_of(loss, sure, label) == pytest.approx(0, abs=1e-6)
    assert value_of(loss, sure.roll(1, dims=1), label) == pytest.approx(1, abs=1e-6)


def set_loss(missed: set[int], inside: set[int]) -> float:
    """1 - IoU of a class whose pixels `inside` are predicted except for the errors `missed`."""
    return len(missed) / len(inside | missed)


def lovasz_by_definition(errors: np.ndarray, inside: set[int]) -> float:
    """Equation 8 of the paper: the extension of a set function, the sum over errors in descending order."""
    order = np.argsort(-errors, kind="stable").tolist()
    steps = [
        set_loss(set(order[: i + 1]), inside) - (set_loss(set(order[:i]), inside) if i else 0)
        for i in range(len(order))
    ]
    return float(sum(errors[pixel] * step for pixel, step in zip(order, steps, strict=True)))


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5, 7.0]])
def test_lovasz_is_the_extension_of_the_jaccard_loss(weights):
    logits, label = batch()
    shares, ids = known_pixels(logits, label)
    terms = []
    for number in range(3):
        errors = np.where(ids == number, 1 - shares[:, number], shares[:, number])
        terms.append(lovasz_by_definition(errors, set(np.flatnonzero(ids == number).tolist())))
    found = value_of(lovasz, logits, label, None if weights is None else torch.tensor(weights))
    assert found == pytest.approx(np.average(terms, weights=weights and weights[:3]), rel=1e-12)


def test_lovasz_of_hard_predictions_is_one_minus_iou():
    label = torch.tensor([[[0, 0, 0, 1, 1, 1, 1, IGNORE]]])
    predicted = torch.tensor([[[0, 0, 1, 1, 1, 0, 1, 0]]])
    logits = 200.0 * torch.nn.functional.one_hot(predicted, 2).permute(0, 3, 1, 2)
    assert value_of(lovasz, logits, label) == pytest.approx(1 - (2 / 4 + 3 / 5) / 2, abs=1e-6)


def nearest(ids: np.ndarray, row: int, col: int, wanted) -> float:
    rows, cols = ids.shape
    places = [(r, c) for r, c in itertools.product(range(rows), range(cols)) if wanted(ids[r, c])]
    return min((math.hypot(r - row, c - col) for r, c in places), default=math.inf)


def test_distances_to_borders_by_looking_at_all_pixels():
    rng = np.random.default_rng(2)
    ids = np.repeat(np.repeat(rng.choice([0, 1, 2, -1], (2, 4, 4)), 3, axis=1), 3, axis=2)
    label = torch.from_numpy(ids)
    found = signed_distance(label.clamp(min=0), label >= 0, CLASSES, 4.0).numpy()
    for sample, number, row, col in np.ndindex(2, CLASSES, 12, 12):
        own, expected = ids[sample, row, col], 0.0
        if own >= 0 and (ids[sample] == number).any():
            if own == number:
                expected = -nearest(ids[sample], row, col, lambda v, n=number: v not in (n, -1)) + 0.5
            else:
                expected = nearest(ids[sample], row, col, lambda v, n=number: v == n) - 0.5
        assert found[sample, number, row, col] == pytest.approx(np.clip(expected / 4, -1, 1), abs=1e-5)


def test_a_sample_of_one_class_has_no_border():
    assert not signed_distance(torch.zeros(1, 5, 5).long(), torch.ones(1, 5, 5).bool(), 2, 4.0).any()


def test_boundary_is_the_mean_of_probability_times_distance():
    logits, label = batch()
    known = label != IGNORE
    distance = signed_distance(label.masked_fill(~known, 0), known, CLASSES, 20.0).double()
    products = (torch.softmax(logits, dim=1) * distance).transpose(0, 1)[:, known]
    assert value_of(boundary, logits, label) == pytest.approx(products[:3].mean(dim=1).mean().item(), rel=1e-6)


def test_boundary_is_lowest_at_the_reference():
    label = torch.zeros(1, 16, 16).long()
    label[0, 4:12, 5:13] = 1
    losses = []
    for shift in (0, 1, 3):
        sure = 50.0 * torch.nn.functional.one_hot(label.roll(shift, dims=1), 2).permute(0, 3, 1, 2)
        losses.append(value_of(boundary, sure, label))
    assert losses[0] < losses[1] < losses[2]
    assert losses[0] < 0


@pytest.mark.parametrize("loss", [dice, lovasz])
def test_parts_of_a_batch_are_not_the_whole(loss):
    """Stated in the docs: were it otherwise, the text would be wrong."""
    logits, label = batch()
    parts = [loss(logits[i : i + 1], label[i : i + 1], IGNORE) for i in (0, 1)]
    joined = sum(total for total, _ in parts) / sum(weight for _, weight in parts)
    assert joined.item() != pytest.approx(value_of(loss, logits, label), rel=1e-3)


def test_sums_are_exact_beyond_16_million_pixels():
    from geoseg.learn.regionlosses import _sum_by_class

    ones = torch.ones(1, dtype=torch.float32).expand(2**24 + 2)
    assert _sum_by_class(torch.zeros(1, dtype=torch.int64).expand(2**24 + 2), ones, 1).item() == 2**24 + 2


@pytest.mark.parametrize("options", [{"alpha": -0.1, "beta": 1}, {"alpha": 0.5, "beta": 0}])
def test_tversky_without_a_bound_is_refused(options):
    with pytest.raises(ValueError, match="alpha must be at least 0 and beta above 0"):
        tversky(*batch(), IGNORE, **options)
