"""The figures of a validation: added up over batches, told apart by scene, chosen by name."""

import json
import math

import numpy as np
import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.learn.metrics import scores
from geoseg.learn.validation import CLASS_MONITORS, MONITORS, Validation, check_monitor, more_is_better

IGNORE, NAMES = 255, ("background", "roof", "road")


def samples(n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    label = torch.randint(0, 2, (n, 6, 6), generator=generator)
    logits = torch.randn(n, 3, 6, 6, generator=generator)
    logits[:, 2] -= 100  # road is in neither
    return logits, label.masked_fill(torch.rand(label.shape, generator=generator) < 0.3, IGNORE)


def validated(logits, label, size: int, **options):
    seen = Validation(3, IGNORE, **options)
    for start in range(0, len(label), size):
        part = slice(start, start + size)
        known = (label[part] != IGNORE).sum().double()
        seen.update(logits[part], label[part], logits[part, 0].double().sum(), known)
    return seen


def test_batches_and_processes_change_nothing():
    logits, label = samples()
    options = {"names": ("a", "b"), "boundary": 1}
    whole = validated(logits, label, 5, scenes=[0, 0, 1, 1, 1], **options)
    apart = [
        validated(logits[rank::2], label[rank::2], 2, scenes=[[0, 1, 1], [0, 1]][rank], **options) for rank in (0, 1)
    ]
    for name, sums in whole.sums.items():
        together = apart[0].sums[name] + apart[1].sums[name]
        assert torch.equal(together, sums) or (name == "loss" and torch.allclose(together, sums, rtol=1e-12)), name


def test_every_scene_has_its_own_matrix():
    logits, label = samples()
    found = validated(logits, label, 2, scenes=[0, 1, 0, 1, 1], names=("a", "b")).findings()
    for name, chosen in (("a", [0, 2]), ("b", [1, 3, 4])):
        own = validated(logits[chosen], label[chosen], 9).findings().confusion
        assert found.scenes[name].tolist() == own.tolist()
    assert (found.scenes["a"] + found.scenes["b"] == found.confusion).all()
    table = found.to_dict(NAMES)["scenes"]
    assert [entry["scene"] for entry in table] == ["a", "b"]
    assert table[0]["pixels"] == (label[[0, 2]] != IGNORE).sum()
    assert table[1]["mean_iou"] == pytest.approx(scores(found.scenes["b"]).mean_iou)


def test_figures_have_names_and_values():
    found = validated(*samples(), 2, boundary=1).findings()
    assert set(found.figures()) == set(MONITORS)
    assert found.value("mean_iou", NAMES) == found.scores.mean_iou
    for name in CLASS_MONITORS:
        assert found.value(f"{name}:roof", NAMES) == getattr(found.scores, name)[1]
    assert math.isnan(found.value("iou:road", NAMES))
    row = found.row(NAMES)
    assert row["val_loss"] == found.loss
    assert row["val_recall_roof"] == found.scores.recall[1]
    assert row["val_boundary_iou_roof"] == found.boundary[1]
    plain = json.loads(json.dumps(found.to_dict(NAMES), allow_nan=False))
    assert plain["iou"][2] is None
    assert plain["confusion"] == found.confusion.tolist()


def test_without_a_width_there_is_no_boundary_iou():
    found = validated(*samples(), 2).findings()
    assert "boundary_iou" not in found.figures()
    assert not [name for name in found.row(NAMES) if "boundary" in name]


def test_nothing_known_is_nan_throughout_and_null_in_json():
    logits, label = samples()
    found = validated(logits, torch.full_like(label, IGNORE), 2, boundary=1).findings()
    assert all(math.isnan(value) for value in found.figures().values())
    assert found.to_dict(NAMES)["kappa"] is None


def test_which_way_is_better():
    assert [name for name in MONITORS if not more_is_better(name)] == ["ece", "loss"]
    assert more_is_better("iou:roof")


def test_a_figure_that_will_not_be_there_is_refused_before_training():
    check_monitor("iou:roof", NAMES, 0)
    check_monitor("boundary_iou", NAMES, 2)
    with pytest.raises(ConfigError, match=r"iou:rof, expected iou: and one of background, roof, road"):
        check_monitor("iou:rof", NAMES, 0)
    with pytest.raises(ConfigError, match=r"training\.boundary_iou"):
        check_monitor("boundary_iou", NAMES, 0)


def test_kappa_and_weighted_means_by_hand():
    result = scores(np.array([[50, 10, 0], [5, 35, 0], [0, 0, 0]]))
    assert result.kappa == pytest.approx((0.85 - (0.6 * 0.55 + 0.4 * 0.45)) / (1 - (0.6 * 0.55 + 0.4 * 0.45)))
    assert result.fw_iou == pytest.approx(0.6 * 50 / 65 + 0.4 * 35 / 50)
    assert result.mean_precision == pytest.approx((50 / 55 + 35 / 45) / 2)
    assert result.mean_recall == pytest.approx((50 / 60 + 35 / 40) / 2)


def test_means_over_present_classes_count_what_was_never_predicted_or_never_there():
    missed = scores(np.array([[3, 0], [2, 0]]))
    assert missed.mean_precision == pytest.approx((3 / 5 + 0) / 2)
    invented = scores(np.array([[3, 2], [0, 0]]))
    assert invented.mean_recall == pytest.approx((3 / 5 + 0) / 2)
    assert (missed.kappa, invented.kappa) == (0, 0)
    alone = scores(np.array([[5, 0], [0, 0]]))
    assert math.isnan(alone.kappa)
    assert (alone.mean_precision, alone.fw_iou) == (1, 1)


def test_agrees_with_torchmetrics():
    from torchmetrics import functional as oracle

    logits, label = samples(9)
    found = validated(logits, label, 4).findings()
    known = label != IGNORE
    shares, ids = torch.softmax(logits, dim=1).transpose(0, 1)[:, known].T, label[known]
    settings = {"num_classes": 3}
    assert found.scores.kappa == pytest.approx(
        oracle.cohen_kappa(shares, ids, "multiclass", **settings).item(), abs=1e-6
    )
    expected = oracle.calibration_error(shares, ids, "multiclass", n_bins=15, norm="l1", **settings).item()
    assert found.ece == pytest.approx(expected, abs=1e-5)
