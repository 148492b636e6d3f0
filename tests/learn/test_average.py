"""The running average of the weights."""

import pytest
import torch
from torch import nn

from geoseg.learn.average import Average


def small_net():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
    return net


def test_it_is_the_recursion_by_hand():
    """Decay min(0.9, (1 + n) / (10 + n)): 2/11, 3/12, ... from 1, with the weights 2 and then 3."""
    net = small_net()
    average = Average(net, 0.9)
    for value in (2.0, 3.0):
        with torch.no_grad():
            net[0].weight.fill_(value)
            net[1].running_mean.fill_(10 * value)
            net[1].num_batches_tracked.add_(1)
        average.update()
    first = 2 / 11 * 1 + 9 / 11 * 2
    assert average.values["0.weight"].item() == pytest.approx(3 / 12 * first + 9 / 12 * 3)
    first = 2 / 11 * 0 + 9 / 11 * 20
    assert average.values["1.running_mean"].item() == pytest.approx(3 / 12 * first + 9 / 12 * 30)
    assert average.values["1.num_batches_tracked"].item() == 2


def test_late_updates_weigh_as_the_decay_says():
    net = small_net()
    average = Average(net, 0.9)
    average.count = 10_000
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    average.update()
    assert average.values["0.weight"].item() == pytest.approx(1.1)


def test_applied_and_taken_back_to_the_bit():
    net = small_net()
    average = Average(net, 0.5)
    with torch.no_grad():
        net[0].weight.fill_(1 / 3)
    average.update()
    own, mean = net[0].weight.clone(), average.values["0.weight"].clone()
    with average.applied():
        assert torch.equal(net[0].weight, mean)
    assert torch.equal(net[0].weight, own)
    assert torch.equal(average.values["0.weight"], mean)
