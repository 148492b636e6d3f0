"""A step over several batches is the step over all of them at once."""

import pytest
import torch
from torch import nn

from geoseg.learn import runtime
from geoseg.learn.losses import build_loss
from geoseg.learn.stepping import StepOptions, Stepper, windows

IGNORE = 255


def make_stepper(seed=0, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    return Stepper(runtime.setup(seed=3, device="cpu", precision="32-true"), net, StepOptions("sgd", 0.1, **options))


def batches(*sizes):
    """Batches with many, few and no known pixels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(sum(sizes), 2, 8, 8, generator=generator)
    labels = torch.randint(0, 3, (sum(sizes), 8, 8), generator=generator)
    labels[0] = IGNORE
    labels[5, 1:] = IGNORE
    return list(zip(images.split(list(sizes)), labels.split(list(sizes)), strict=True))


def gradients(stepper, window, setting="cross_entropy", weights=None):
    loss = build_loss(setting)
    sums = stepper.take(window, lambda image, label: loss(stepper.model(image), label, IGNORE, weights), 1e-12)
    return [parameter.grad.clone() for parameter in stepper.network.parameters()], sums


@pytest.mark.parametrize("setting", ["cross_entropy", "focal"])
@pytest.mark.parametrize("sizes", [(4, 4, 2), (1, 9), (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_gradients_of_parts_are_those_of_the_whole(setting, sizes):
    """10 samples in batches of 4, the last one short, and one batch without a known pixel at the start."""
    weights = torch.tensor([0.2, 1.0, 3.0])
    parts, part_sums = gradients(make_stepper(), batches(*sizes), setting, weights)
    whole, sums = gradients(make_stepper(), batches(10), setting, weights)
    for one, other in zip(parts, whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    assert part_sums.tolist() == pytest.approx(sums.tolist(), rel=1e-6)
    assert sums[2] == 10


def test_unequal_losses_are_averaged_by_weight_not_by_batch():
    """Losses 1, 1, 4 over 4, 4 and 2 samples: 16 / 10, where the mean of the means is 2."""
    stepper = make_stepper()
    totals = iter([(4.0, 4.0), (4.0, 4.0), (8.0, 2.0)])

    def loss(image, label):
        total, weight = next(totals)
        return stepper.model(image).sum() * 0 + total, torch.tensor(weight)

    total, weight, _ = stepper.take(batches(4, 4, 2), loss, 0.1).tolist()
    assert total / weight == pytest.approx(1.6)


def test_nothing_known_anywhere_gives_gradients_of_zero():
    window = [(image, torch.full_like(label, IGNORE)) for image, label in batches(4, 4)]
    found, sums = gradients(make_stepper(), window)
    assert all((gradient == 0).all() for gradient in found)
    assert sums.tolist() == [0, 0, 8]


def test_clipping_shortens_long_gradients_and_leaves_short_ones():
    long, _ = gradients(make_stepper(), batches(10))
    norm = torch.stack([gradient.norm() for gradient in long]).norm()
    clipped, _ = gradients(make_stepper(clip_norm=norm.item() / 4), batches(10))
    for one, other in zip(clipped, long, strict=True):
        assert torch.allclose(one, other / 4, rtol=1e-4)
    short, _ = gradients(make_stepper(clip_norm=norm.item() * 4), batches(10))
    assert all(torch.equal(one, other) for one, other in zip(short, long, strict=True))


def test_windows_end_with_what_is_left():
    assert [len(window) for window in windows(iter(range(7)), 3)] == [3, 3, 1]
    assert list(windows(iter(()), 3)) == []
