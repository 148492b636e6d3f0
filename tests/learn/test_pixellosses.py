"""Pixel losses against sums written pixel by pixel in float64."""

import math

import pytest
import torch

from geoseg.learn.pixellosses import cross_entropy, focal, keep_hardest

IGNORE = 9


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=generator)
    label = torch.randint(0, 3, (2, 4, 5), generator=generator)
    label[0, 1] = IGNORE
    return logits, label


def pixels(logits: torch.Tensor, label: torch.Tensor):
    """Yield (probabilities, class) of each known pixel as plain numbers."""
    for image, ids in zip(logits.tolist(), label.tolist(), strict=True):
        for row in range(len(ids)):
            for col in range(len(ids[0])):
                if ids[row][col] != IGNORE:
                    powers = [math.exp(plane[row][col]) for plane in image]
                    yield [power / sum(powers) for power in powers], ids[row][col]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    logits, label = batch()
    weights = [0.5, 1.0, 3.0]
    losses = [
        weights[own] * -sum((smoothing / 3 + (1 - smoothing) * (c == own)) * math.log(p[c]) for c in range(3))
        for p, own in pixels(logits, label)
    ]
    total, weight = cross_entropy(logits, label, IGNORE, torch.tensor(weights), smoothing)
    assert total.item() == pytest.approx(sum(losses), rel=1e-12)
    assert weight.item() == pytest.approx(sum(weights[own] for _, own in pixels(logits, label)), rel=1e-12)


def test_smoothing_without_weights_is_the_one_of_torch():
    logits, label = batch()
    expected = torch.nn.functional.cross_entropy(
        logits, label, ignore_index=IGNORE, label_smoothing=0.2, reduction="sum"
    )
    assert cross_entropy(logits, label, IGNORE, smoothing=0.2)[0].item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 3.5])
def test_focal(gamma):
    logits, label = batch()
    expected = sum(-((1 - p[own]) ** gamma) * math.log(p[own]) for p, own in pixels(logits, label))
    assert focal(logits, label, IGNORE, gamma=gamma)[0].item() == pytest.approx(expected, rel=1e-12)


def test_focal_of_a_certain_pixel_has_a_finite_gradient():
    logits = torch.tensor([200.0, 0.0]).reshape(1, 2, 1, 1).requires_grad_()
    focal(logits, torch.zeros(1, 1, 1).long(), IGNORE, gamma=1.0)[0].backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize("gamma", [-1, 0.5])
def test_a_gamma_without_a_gradient_is_refused(gamma):
    with pytest.raises(ValueError, match="gamma must be 0 or at least 1"):
        focal(*batch(), IGNORE, gamma=gamma)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.99])
@pytest.mark.parametrize("loss", [cross_entropy, focal])
def test_of_the_hardest_pixels_the_mean_is_taken(loss, share):
    logits, label = batch()
    logits.requires_grad_()
    gamma = 2.0 if loss is focal else 0.0
    losses = sorted(((1 - p[own]) ** gamma * -math.log(p[own]) for p, own in pixels(logits, label)), reverse=True)
    kept = losses[: math.ceil(share * len(losses))]
    total, weight = loss(logits, label, IGNORE, hardest=share)
    assert weight == len(losses)
    assert (total / weight).item() == pytest.approx(sum(kept) / len(kept), rel=1e-12)
    total.backward()
    assert (logits.grad.abs().amax(dim=1) > 0).sum() == len(kept)


def test_equal_losses_keep_the_exact_number():
    known = torch.tensor([[True, False, True, True, True]])
    assert keep_hardest(torch.ones(1, 5), known, 0.5).tolist() == [[True, False, True, False, False]]
    assert keep_hardest(torch.zeros(1, 5), known, 0.26).sum() == 2
    assert not keep_hardest(torch.ones(1, 5), torch.zeros_like(known), 0.5).any()


def test_one_map_of_logits_is_kept_and_one_more_made_on_the_way_back():
    from geoseg.memory.measure import LiveBytes

    logits, label = torch.randn(2, 16, 64, 64, requires_grad=True), torch.randint(0, 16, (2, 64, 64))
    with LiveBytes() as counter:
        total = cross_entropy(logits, label, IGNORE, smoothing=0.1)[0]
        kept = counter.now()
        total.backward()
    size = logits.numel() * 4
    assert kept < 1.4 * size  # 16 classes: a map of float32 is a sixteenth, one of int64 an eighth
    assert counter.peak < 2.6 * size
