"""Losses: averaged by known pixel, never NaN."""

import math

import pytest
import torch
import toys

from geoseg.learn.classweights import class_weights
from geoseg.learn.losses import LOSSES, build_loss, cross_entropy, dice, focal, mean

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


def batch(seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Two samples of 6 x 5 pixels, a quarter of them unknown; the last class is absent."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, classes, 6, 5, dtype=torch.float64, generator=generator).requires_grad_()
    label = torch.randint(0, classes - 1, (2, 6, 5), generator=generator)
    return logits, label.masked_fill(torch.rand(label.shape, generator=generator) < 0.25, IGNORE)


SETTINGS = [*LOSSES, {"cross_entropy": 1.0, "dice": 0.5}, {"focal": {"weight": 2.0, "gamma": 1.5}, "boundary": 0.1}]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "weights", [None, torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)], ids=["", "weights"]
)
def test_every_loss_has_the_gradient_of_its_value_and_none_where_unknown(setting, weights):
    logits, label = batch()
    loss = build_loss(setting)
    assert torch.autograd.gradcheck(lambda x: mean(*loss(x, label, IGNORE, weights)), logits, eps=1e-7, atol=1e-5)
    mean(*loss(logits, label, IGNORE, weights)).backward()
    left_out = (label == IGNORE) | ((label == 2) & (weights is not None))
    assert logits.grad.transpose(0, 1)[:, left_out].abs().max() == 0
    assert (logits.grad.transpose(0, 1)[:, ~left_out].abs().amax(dim=0) > 0).all()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_nothing_known_gives_zero_with_a_gradient_of_zero(setting):
    logits, label = batch()
    loss = mean(*build_loss(setting, 0.1, 0.5)(logits, torch.full_like(label, IGNORE), IGNORE, None))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_what_is_predicted_where_nothing_is_known_changes_nothing(setting):
    logits, label = batch()
    loss = build_loss(setting, 0.1, 0.5)
    value = mean(*loss(logits, label, IGNORE, None))
    wild = torch.where((label == IGNORE)[:, None], 50 * torch.randn_like(logits), logits)
    assert mean(*loss(wild, label, IGNORE, None)).item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_extreme_logits_in_half_precision_stay_finite(setting):
    logits, label = batch()
    logits = (1000 * logits).to(torch.bfloat16).detach().requires_grad_()
    loss = mean(*build_loss(setting, 0.1, 0.5)(logits, label, IGNORE, None))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("setting", ["cross_entropy", "focal", {"cross_entropy": 0.7, "focal": 0.3}], ids=str)
def test_pixel_losses_of_parts_add_up_to_the_whole(setting):
    logits, label = batch()
    weights = torch.tensor([0.5, 2.0, 1.0, 1.0])
    loss = build_loss(setting, label_smoothing=0.1)
    parts = [loss(logits[i : i + 1], label[i : i + 1], IGNORE, weights) for i in (0, 1)]
    whole = loss(logits, label, IGNORE, weights)
    for number in (0, 1):
        assert (parts[0][number] + parts[1][number]).item() == pytest.approx(whole[number].item(), rel=1e-12)


def test_a_sum_is_the_weighted_sum_of_the_means():
    logits, label = batch()
    weights = torch.tensor([0.5, 2.0, 1.0, 1.0])
    apart = [mean(*loss(logits, label, IGNORE, weights)).item() for loss in (cross_entropy, dice)]
    assert apart[0] != pytest.approx(apart[1])
    joined = mean(*build_loss({"cross_entropy": 1, "dice": 0.5})(logits, label, IGNORE, weights))
    assert joined.item() == pytest.approx(apart[0] + 0.5 * apart[1], rel=1e-12)


def test_options_reach_the_loss():
    logits, label = batch()
    built = build_loss({"focal": {"weight": 3.0, "gamma": 1.5}})(logits, label, IGNORE, None)
    assert built[0].item() == pytest.approx(3 * focal(logits, label, IGNORE, gamma=1.5)[0].item(), rel=1e-12)
    smooth = build_loss("cross_entropy", label_smoothing=0.2)(logits, label, IGNORE, None)
    assert smooth[0].item() == pytest.approx(cross_entropy(logits, label, IGNORE, smoothing=0.2)[0].item(), rel=1e-12)


def test_an_unknown_loss_lists_the_choices():
    with pytest.raises(ValueError, match="no loss 'bce'; choose from cross_entropy, focal, dice"):
        build_loss("bce")
    with pytest.raises(ValueError, match="no loss is named"):
        build_loss({})


@pytest.mark.parametrize(
    "setting", [name for name in LOSSES if name != "boundary"] + [{"dice": 1.0, "boundary": 0.1}], ids=str
)
def test_every_loss_teaches_a_rule_that_one_convolution_can_express(setting):
    """Class 1 is where the first band is positive; boundary in a sum alone."""
    batches, net, loss = toys.ToyBatches(), toys.toy_net().eval(), build_loss(setting)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        mean(*loss(net(batches.images), batches.labels, IGNORE, None)).backward()
        optimizer.step()
    right = net(batches.images).max(dim=1)[1] == batches.labels
    assert right[batches.labels != IGNORE].float().mean() > 0.9
