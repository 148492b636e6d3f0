"""Calibration against a loop over pixels."""

import math

import numpy as np
import pytest
import torch

from geoseg.learn.calibration import BINS, calibration_error, calibration_table, count_confidence

IGNORE = 9


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(6, 3, 8, 5, generator=generator)
    label = torch.randint(0, 3, (6, 8, 5), generator=generator)
    return logits, label.masked_fill(torch.rand(label.shape, generator=generator) < 0.3, IGNORE)


def by_hand(logits: torch.Tensor, label: torch.Tensor) -> float:
    bins: dict[int, list[tuple[float, bool]]] = {}
    shares = torch.softmax(logits.double(), dim=1)
    for sample, row, col in np.ndindex(*label.shape):
        if label[sample, row, col] != IGNORE:
            pixel = shares[sample, :, row, col].tolist()
            best = max(pixel)
            right = pixel.index(best) == label[sample, row, col].item()
            bins.setdefault(min(BINS, math.ceil(best * BINS)), []).append((best, right))
    count = sum(len(entries) for entries in bins.values())
    gaps = [abs(sum(right for _, right in e) - sum(best for best, _ in e)) for e in bins.values()]
    return sum(gaps) / count


def test_error_is_the_one_of_a_loop():
    logits, label = batch()
    found = calibration_error(count_confidence(logits, label, IGNORE).numpy())
    assert found == pytest.approx(by_hand(logits, label), abs=1e-6)
    assert found > 0.1


def test_counts_add_up_to_the_bit_whatever_the_batches():
    logits, label = batch()
    whole = count_confidence(logits, label, IGNORE)
    parts = [count_confidence(logits[i : i + 2], label[i : i + 2], IGNORE) for i in (4, 0, 2)]
    assert torch.equal(sum(parts), whole)
    assert whole[:, 0].sum() == (label != IGNORE).sum()


def test_sure_and_right_is_calibrated_and_sure_and_wrong_is_not():
    label = torch.zeros(1, 4, 4).long()
    sure = torch.tensor([100.0, 0.0]).reshape(1, 2, 1, 1).expand(1, 2, 4, 4)
    assert calibration_error(count_confidence(sure, label, IGNORE).numpy()) == 0
    assert calibration_error(count_confidence(sure, 1 - label, IGNORE).numpy()) == 1


def test_nothing_known():
    sums = count_confidence(batch()[0], torch.full((6, 8, 5), IGNORE), IGNORE).numpy()
    assert math.isnan(calibration_error(sums))
    assert {entry["accuracy"] for entry in calibration_table(sums)} == {None}


def test_the_table_has_accuracy_and_confidence_of_each_bin():
    logits = torch.tensor([0.7, 0.3]).log().reshape(1, 2, 1, 1).expand(1, 2, 1, 4)
    table = calibration_table(count_confidence(logits, torch.tensor([[[0, 0, 1, 0]]]), IGNORE).numpy())
    (entry,) = [entry for entry in table if entry["pixels"]]
    assert (entry["pixels"], entry["accuracy"]) == (4, 0.75)
    assert entry["confidence"] == pytest.approx(0.7, abs=1e-6)
    assert entry["from"] < 0.7 <= entry["to"]
