"""Several looks: probabilities averaged, turned back to their places."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from geoseg.predict.combine import VIEWS, Combination, Combined


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Conv2d(2, 3, 3, padding=1).double().requires_grad_(False)


def test_one_look_is_the_network_divided_by_the_temperature():
    batch = torch.randn(2, 2, 6, 9, dtype=torch.float64)
    net = network(0)
    torch.testing.assert_close(Combined([net], Combination(temperature=2.0))(batch), net(batch) / 2)


def test_several_networks_are_the_mean_of_their_probabilities():
    batch = torch.randn(2, 2, 6, 9, dtype=torch.float64)
    nets = [network(0), network(1)]
    expected = (nets[0](batch).softmax(1) + nets[1](batch).softmax(1)) / 2
    torch.testing.assert_close(Combined(nets, Combination())(batch).softmax(1), expected)


@pytest.mark.parametrize("views", ["flips", "all"])
def test_views_are_turned_back_to_their_places(views: str):
    """Turning the kernel is turning the image: each view is worked out by hand with a turned kernel."""
    batch = torch.randn(1, 2, 7, 10, dtype=torch.float64)
    net = network(0)
    shares = []
    for turns, mirrored in VIEWS[views]:
        kernel = torch.rot90(net.weight, -turns, (-2, -1))
        kernel = kernel.flip(-1) if mirrored else kernel
        shares.append(nn.functional.conv2d(batch, kernel, net.bias, padding=1).softmax(1))
    found = Combined([net], Combination(views))(batch).softmax(1)
    torch.testing.assert_close(found, torch.stack(shares).mean(0))
    assert not torch.allclose(found, shares[0])
    assert len({(turns, mirrored) for turns, mirrored in VIEWS[views]}) == {"flips": 4, "all": 8}[views]


def test_an_impossible_class_stays_finite():
    def sure(batch: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.0, -1e4]).view(1, 2, 1, 1).expand(len(batch), 2, *batch.shape[2:])

    assert torch.isfinite(Combined([sure, sure], Combination())(torch.zeros(1, 1, 4, 4))).all()


@pytest.mark.parametrize("wrong", [{"views": "twice"}, {"temperature": 0.0}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        Combination(**wrong)
