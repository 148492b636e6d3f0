"""Class weights: from a list, or from counts by the formulas of their papers."""

import math

import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.learn.classweights import CLASS_WEIGHTS, class_weights


def test_auto_weights_share_the_loss_equally_and_skip_absent_classes():
    weights = class_weights("auto", [80, 20, 0])
    assert weights.tolist() == pytest.approx([100 / (2 * 80), 100 / (2 * 20), 0.0])
    assert 80 * weights[0] == pytest.approx((20 * weights[1]).item())


def test_no_weights():
    assert class_weights(False, [1, 2]) is None


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ([1.0, 2.0], "2 weights"),
        ([1, 2, 3, 4], "4 weights"),
        ([1, -1, 1], "-1"),
        ([1, math.nan, 1], "nan"),
        ([0, 0, 0], "0"),
        (True, "True"),
        ("balanced", "'balanced'"),
    ],
)
def test_wrong_weights_are_refused(setting, found):
    with pytest.raises(ConfigError, match=r"training\.class_weights: found .*" + found):
        class_weights(setting, [1, 1, 1])


@pytest.mark.parametrize("name", CLASS_WEIGHTS)
def test_the_mean_weight_of_a_pixel_is_one_and_absent_classes_have_none(name):
    pixels = [900, 90, 0, 10]
    weights = class_weights(name, pixels, [1000, 500, 0, 100])
    assert (weights * torch.tensor(pixels)).sum().item() == pytest.approx(1000, rel=1e-6)
    assert weights[2] == 0
    assert weights[0] < weights[1] < weights[3]
    assert class_weights(name, [0, 0]).tolist() == [0, 0]


def test_effective_numbers_are_those_of_the_paper():
    """Counts 30 and 10: N is 20, beta 0.95; (1 - beta) / (1 - beta ** n), scaled to 40 in all."""
    plain = [0.05 / (1 - 0.95**30), 0.05 / (1 - 0.95**10)]
    scale = 40 / (30 * plain[0] + 10 * plain[1])
    assert class_weights("effective_number", [30, 10]).tolist() == pytest.approx([scale * w for w in plain], rel=1e-6)


def test_median_frequency_looks_at_the_samples_that_hold_the_class():
    """Frequencies 60/100, 30/60 and 10/20: both rare classes fill half of the samples they are in."""
    weights = class_weights("median", [60, 30, 10], [100, 60, 20])
    assert (weights / weights[1]).tolist() == pytest.approx([0.5 / 0.6, 1, 1], rel=1e-6)
    everywhere = class_weights("median", [60, 30, 10])
    assert (everywhere / everywhere[1]).tolist() == pytest.approx([0.5, 1, 3], rel=1e-6)
