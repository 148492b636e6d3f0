"""Metrics: one confusion matrix over the whole set."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from geoseg.learn.metrics import ConfusionMatrix, frequency_weighted_iou, kappa, scores

IGNORE = 255


def confusion(predicted, label, num_classes=3) -> np.ndarray:
    matrix = ConfusionMatrix(num_classes, IGNORE)
    matrix.update(torch.tensor(predicted), torch.tensor(label))
    return matrix.matrix()


def test_rows_are_reference_and_columns_prediction():
    assert confusion([0, 1, 1, 2], [0, 0, 1, 1]).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_scores_worked_out_by_hand():
    result = scores(np.array([[50, 10], [5, 35]]))
    assert result.iou.tolist() == pytest.approx([50 / 65, 35 / 50])
    assert result.precision.tolist() == pytest.approx([50 / 55, 35 / 45])
    assert result.recall.tolist() == pytest.approx([50 / 60, 35 / 40])
    assert result.f1.tolist() == pytest.approx([100 / 115, 70 / 85])
    assert result.overall_accuracy == pytest.approx(0.85)
    assert result.mean_iou == pytest.approx((50 / 65 + 0.7) / 2)
    assert result.mean_f1 == pytest.approx((100 / 115 + 70 / 85) / 2)


def test_a_class_in_neither_has_no_score_and_stays_out_of_the_mean():
    result = scores(confusion([[0, 1], [1, 0]], [[0, 1], [1, 0]]))
    assert result.mean_iou == 1.0
    assert math.isnan(result.iou[2])
    assert result.present.tolist() == [True, True, False]


def test_a_class_that_is_predicted_once_and_never_there_counts_as_zero():
    result = scores(confusion([[0, 1], [1, 2]], [[0, 1], [1, 0]]))
    assert result.iou.tolist() == pytest.approx([0.5, 1.0, 0.0])
    assert result.mean_iou == pytest.approx(0.5)
    assert math.isnan(result.recall[2])
    assert result.precision[2] == 0


def test_a_class_that_is_there_and_never_predicted():
    result = scores(np.array([[3, 0], [2, 0]]))
    assert (result.iou[1], result.recall[1], result.f1[1]) == (0, 0, 0)
    assert math.isnan(result.precision[1])


def test_unknown_pixels_are_left_out():
    matrix = confusion([0, 1, 2, 2], [0, 1, IGNORE, IGNORE])
    assert matrix.sum() == 2
    result = scores(matrix)
    assert (result.overall_accuracy, result.mean_iou, result.mean_f1) == (1.0, 1.0, 1.0)


def test_nothing_known_gives_nan_and_json_null():
    result = scores(confusion([0, 1], [IGNORE, IGNORE]))
    assert math.isnan(result.mean_iou)
    assert math.isnan(result.overall_accuracy)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["mean_iou"] is None
    assert plain["iou"] == [None, None, None]
    assert plain["reference"] == [0, 0, 0]


def test_uint8_predictions_do_not_overflow():
    """Class 20 of 30: 20 * 30 does not fit eight bits."""
    matrix = ConfusionMatrix(30, IGNORE)
    matrix.update(torch.tensor([29], dtype=torch.uint8), torch.tensor([20], dtype=torch.uint8))
    assert matrix.matrix()[20, 29] == 1


def test_agrees_with_torchmetrics():
    from torchmetrics.classification import MulticlassConfusionMatrix

    generator = torch.Generator().manual_seed(0)
    predicted, label = torch.randint(0, 5, (2, 4, 33, 17), generator=generator).unbind(0)
    label = torch.where(torch.rand(label.shape, generator=generator) < 0.3, IGNORE, label)
    oracle = MulticlassConfusionMatrix(num_classes=5, ignore_index=IGNORE)
    oracle.update(predicted, label)
    assert confusion(predicted.tolist(), label.tolist(), 5).tolist() == oracle.compute().tolist()


@given(hnp.arrays(np.int64, (12, 4), elements=st.sampled_from([0, 1, 2, IGNORE])), st.integers(1, 12))
def test_batch_size_changes_nothing(label, batch_size):
    predicted = np.roll(np.where(label == IGNORE, 0, label), 1)
    whole, batched = ConfusionMatrix(3, IGNORE), ConfusionMatrix(3, IGNORE)
    whole.update(torch.tensor(predicted), torch.tensor(label))
    for start in range(0, 12, batch_size):
        part = slice(start, start + batch_size)
        batched.update(torch.tensor(predicted[part]), torch.tensor(label[part]))
    assert (whole.matrix() == batched.matrix()).all()


def test_kappa_by_hand():
    # Cohen 1960's own kind of example: 45 and 15 of 100 agree, chance agreement 0.6 * 0.7 + 0.4 * 0.3 = 0.54.
    assert kappa(np.array([[45, 15], [25, 15]])) == pytest.approx((0.60 - 0.54) / 0.46)
    assert kappa(np.diag([5, 9])) == 1
    assert math.isnan(kappa(np.zeros((2, 2), int)))
    assert math.isnan(kappa(np.array([[7, 0], [0, 0]])))


def test_frequency_weighted_iou_by_hand():
    matrix = np.array([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    assert frequency_weighted_iou(matrix) == pytest.approx((8 * 6 / 9 + 4 * 3 / 6) / 12)
    assert frequency_weighted_iou(np.array([[0, 0], [0, 4]])) == 1
    assert math.isnan(frequency_weighted_iou(np.zeros((2, 2), int)))
