"""The range test: a sensible rate, nothing left behind."""

import copy

import numpy as np
import pytest
import torch
import toys

from geoseg.errors import ConfigError
from geoseg.learn.rangetest import LOW, range_test, suggestion


def curve(function):
    rates = np.logspace(-7, 0, 100)
    return iter([(rate, function(np.log10(rate))) for rate in rates])


def test_the_steepest_fall_is_found():
    """A logistic fall around 1e-4 that ends long before the losses rise at 1e-1."""
    found = suggestion(curve(lambda x: 1 / (1 + np.exp(6 * (x + 4))) + 0.1 + max(0.0, x + 1) * 50))
    assert 5e-5 < found.rate < 2e-4
    assert found.high < 1
    assert found.first == pytest.approx(1.1, abs=0.01)
    assert found.lowest == pytest.approx(0.1, abs=0.01)


def test_never_more_than_a_tenth_of_the_rate_of_the_lowest_loss():
    """The loss falls ever faster until it explodes at 1e-2."""
    found = suggestion(curve(lambda x: 1 - 1e-3 * np.exp(3 * (x + 4.1)) if x < -2 else 100.0))
    assert found.rate <= found.lowest_at / 10 * (1 + 1e-9)


@pytest.mark.parametrize("function", [lambda x: 1.0, lambda x: 1 + x + 7, lambda x: float("nan")])
def test_a_loss_that_does_not_fall_has_no_answer(function):
    assert suggestion(curve(function)) is None


def test_the_network_and_the_random_numbers_are_left_as_they_were(tmp_path):
    job = toys.make_job(tmp_path)
    before, random = copy.deepcopy(job.model.state_dict()), torch.get_rng_state()
    found = range_test(job)
    assert LOW < found.rate < 1
    assert all(torch.equal(value, job.model.state_dict()[name]) for name, value in before.items())
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in job.model.parameters())


def test_labels_that_cannot_be_learnt_are_an_error_that_asks_for_a_number(tmp_path):
    job = toys.make_job(tmp_path)
    job.trn.labels.fill_(toys.IGNORE)
    with pytest.raises(ConfigError, match=r"training\.learning_rate: found auto, and a loss that does not fall"):
        range_test(job)
