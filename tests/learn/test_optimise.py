"""Schedules and optimisers."""

from itertools import pairwise

import pytest
import torch

from geoseg.learn.optimise import OPTIMIZERS, Schedule, make_optimizer


def rates(name: str, epochs: int = 10, steps: int = 4, **options) -> list[float]:
    schedule = Schedule(name, 0.1, epochs, **options)
    return [schedule.rate(i // steps, i / (epochs * steps)) for i in range(epochs * steps)]


def torch_rates(kind, epochs: int, steps: int, per_step: bool = False, **options) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, found = kind(optimizer, **options), []
    for _ in range(epochs):
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if per_step:
                scheduler.step()
        if not per_step:
            scheduler.step()
    return found


def test_step_is_the_one_of_torch():
    expected = torch_rates(torch.optim.lr_scheduler.StepLR, 10, 4, step_size=3, gamma=0.9)
    assert rates("step", step_size=3, gamma=0.9) == pytest.approx(expected)


def test_cosine_is_the_one_of_torch():
    expected = torch_rates(torch.optim.lr_scheduler.CosineAnnealingLR, 10, 4, T_max=10)
    assert rates("cosine") == pytest.approx(expected)


def test_one_cycle_rises_to_the_peak_then_falls_to_almost_nothing():
    found = rates("one_cycle")
    assert found[0] == pytest.approx(0.1 / 25)
    assert found[12] == pytest.approx(0.1)
    assert found[:13] == sorted(found[:13])
    assert found[12:] == sorted(found[12:], reverse=True)
    assert found[-1] < 0.1 / 100


def test_poly_falls_as_the_power_says():
    assert rates("poly") == pytest.approx([0.1 * (1 - i / 40) ** 0.9 for i in range(40)])


@pytest.mark.parametrize(("name", "epochs"), [("cosine", 8), ("poly", 8), ("constant", 8)])
def test_after_the_warm_up_comes_the_schedule_of_the_epochs_that_are_left(name, epochs):
    found = rates(name, warmup_epochs=2)
    assert found[8:] == pytest.approx(rates(name, epochs))
    assert found[0] == pytest.approx(0.1 / 25)
    rise = [after - before for before, after in pairwise(found[:9])]
    assert rise == pytest.approx([0.1 * (1 - 1 / 25) / 8] * 8)


def test_plateau_drops_when_the_score_has_not_risen_for_so_long():
    """Best 0.5, then twice nothing better: a drop, and the count starts anew; None is nothing better either."""
    schedule = Schedule("plateau", 1.0, 10, step_size=2, gamma=0.5)
    scores = [0.4, 0.5, 0.5, 0.3, 0.2, None, 0.6, 0.1]
    found = [schedule.rate(i, i / 10, scores[:i]) for i in range(9)]
    assert found == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25]
    losses = Schedule("plateau", 1.0, 10, step_size=2, gamma=0.5, more_is_better=False)
    assert losses.rate(4, 0.4, [0.4, 0.5, 0.6]) == 0.5
    assert losses.rate(4, 0.4, [0.4, 0.3, 0.2]) == 1


def test_constant():
    assert set(rates("constant")) == {0.1}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_rate_and_decay_and_leaves_frozen_parameters_out(name):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.Conv2d(1, 1, 1))
    model[0].requires_grad_(False)
    optimizer = make_optimizer(name, model, 0.1, 0.01)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (0.1, 0.01, 2)
