"""Losses: averaged by known pixel, never NaN."""

import math

import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.learn.losses import class_weights, cross_entropy, mean

IGNORE = 255


def logits_of(*probabilities: tuple[float, ...]) -> torch.Tensor:
    """One row of pixels with these class probabilities, (1, C, 1, pixels)."""
    return torch.tensor(probabilities, dtype=torch.float64).log().T[None, :, None, :].requires_grad_()


def test_mean_is_over_known_pixels_only():
    logits = logits_of((0.5, 0.5), (0.9, 0.1), (0.25, 0.75))
    total, weight = cross_entropy(logits, torch.tensor([[[0, IGNORE, 1]]]), IGNORE)
    assert weight == 2
    assert mean(total, weight).item() == pytest.approx(-(math.log(0.5) + math.log(0.75)) / 2, rel=1e-6)


def test_unknown_pixels_get_no_gradient():
    logits = logits_of((0.5, 0.5), (0.9, 0.1))
    mean(*cross_entropy(logits, torch.tensor([[[0, IGNORE]]]), IGNORE)).backward()
    assert logits.grad[0, :, 0, 1].tolist() == [0, 0]
    assert logits.grad[0, :, 0, 0].abs().min() > 0


def test_a_batch_without_known_pixels_gives_zero_and_zero_gradient():
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    for weights in (None, torch.tensor([1.0, 2.0, 3.0])):
        loss = mean(*cross_entropy(logits, torch.full((2, 4, 4), IGNORE), IGNORE, weights))
        logits.grad = None
        loss.backward()
        assert loss.item() == 0
        assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_unequal_batches_add_up_by_pixels_not_by_batches():
    """100 pixels with mean 1 and 10 with mean 4 give 140 / 110, not 2.5."""
    pairs = [(torch.tensor(100.0), torch.tensor(100.0)), (torch.tensor(40.0), torch.tensor(10.0))]
    total, weight = (torch.stack(column).sum() for column in zip(*pairs, strict=True))
    assert mean(total, weight).item() == pytest.approx(1.2727, abs=1e-4)


def test_weights_follow_the_class_ids_and_zero_leaves_a_class_out():
    weights = class_weights([1, 1, 0], [5, 5, 5])
    logits = torch.randn(1, 3, 1, 4, requires_grad=True)
    loss = mean(*cross_entropy(logits, torch.tensor([[[0, 1, 2, 2]]]), IGNORE, weights))
    loss.backward()
    expected = torch.nn.functional.cross_entropy(logits[..., :2], torch.tensor([[[0, 1]]]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert logits.grad[..., 2:].abs().max() == 0


def test_weighted_mean_is_the_one_of_torch():
    logits, label = torch.randn(2, 3, 5, 5), torch.randint(0, 3, (2, 5, 5))
    label[0, :2] = IGNORE
    weights = torch.tensor([0.2, 1.0, 5.0])
    expected = torch.nn.functional.cross_entropy(logits, label, weight=weights, ignore_index=IGNORE)
    assert mean(*cross_entropy(logits, label, IGNORE, weights)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_half_precision_logits_are_summed_in_float32():
    """65,536 pixels with a loss of log 2 each: 45,426, which bfloat16 would round by up to 128."""
    total, _ = cross_entropy(torch.zeros(1, 2, 256, 256, dtype=torch.bfloat16), torch.zeros(1, 256, 256).long(), IGNORE)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(65536 * math.log(2), rel=1e-5)


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
