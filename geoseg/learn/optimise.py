"""Optimisers and learning-rate schedules, by name.

A schedule is a pure function of the step and of the scores so far, so it has no state that a resumed run could get
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from geoseg.learn.frozen import in_encoder

WARM_UP = 0.3  # share of a one-cycle schedule in which the rate rises
FIRST_FACTOR, LAST_FACTOR = 1 / 25, 1e-4 / 25  # of the peak rate, at the start and the end of one cycle
POWER = 0.9  # of the polynomial, as DeepLab has it (Chen et al. 2017, section 4.1)
MOMENTUM = 0.9

Scores = Sequence[float | None]


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves.

    Attributes:
        name: A name in SCHEDULES.
        learning_rate: The highest rate.
        num_epochs: Length of the run, epochs.
        step_size: Epochs between two steps of "step"; validations without a better score before a step of "plateau".
        gamma: Factor of each of them.
        warmup_epochs: Epochs in which the rate rises to what the schedule says; cosine and poly fall after them.
        more_is_better: Which scores "plateau" takes to be better.
    """

    name: str
    learning_rate: float
    num_epochs: int
    step_size: int = 4
    gamma: float = 0.9
    warmup_epochs: int = 0
    more_is_better: bool = True

    def rate(self, epoch: int, done: float, scores: Scores = ()) -> float:
        """Return the learning rate of a step.

        Args:
            epoch: From 0.
            done: Share of the whole run's steps that came before, in [0, 1).
            scores: What the validations so far said, None where they said nothing; only "plateau" looks.
        """
        if self.name == "plateau":
            factor = self.gamma ** _drops(scores, self.step_size, self.more_is_better)
        else:
            factor = SCHEDULES[self.name](self, epoch, done)
        return self.learning_rate * factor * self._ramp(done)

    def _ramp(self, done: float) -> float:
        if done * self.num_epochs >= self.warmup_epochs:
            return 1.0
        return FIRST_FACTOR + (1 - FIRST_FACTOR) * done * self.num_epochs / self.warmup_epochs

    def after_warmup(self, epoch: float) -> float:
        """Return the share of the epochs after the warm-up that have passed, in [0, 1)."""
        return max(0.0, (epoch - self.warmup_epochs) / max(1, self.num_epochs - self.warmup_epochs))


def _step(schedule: Schedule, epoch: int, done: float) -> float:
    return float(schedule.gamma ** (epoch // schedule.step_size))


def _constant(schedule: Schedule, epoch: int, done: float) -> float:
    return 1.0


def _cosine(schedule: Schedule, epoch: int, done: float) -> float:
    # By epoch, as torch's CosineAnnealingLR is stepped.
    return _between(1.0, 0.0, schedule.after_warmup(epoch))


def _poly(schedule: Schedule, epoch: int, done: float) -> float:
    return float((1 - schedule.after_warmup(done * schedule.num_epochs)) ** POWER)


def _one_cycle(schedule: Schedule, epoch: int, done: float) -> float:
    if done < WARM_UP:
        return _between(FIRST_FACTOR, 1.0, done / WARM_UP)
    return _between(1.0, LAST_FACTOR, (done - WARM_UP) / (1 - WARM_UP))


def _between(start: float, stop: float, share: float) -> float:
    """Go from start to stop along half a cosine."""
    return stop + (start - stop) * (1 + math.cos(math.pi * share)) / 2


def _drops(scores: Scores, wait: int, more_is_better: bool) -> int:
    """Count how often the best score was not beaten for `wait` validations in a row; the count starts anew each time.

    Unlike torch's ReduceLROnPlateau, any gain counts, and the drop follows the last of the `wait`, not the next one.
    """
    best, waited, drops = None, 0, 0
    for score in scores:
        if score is not None and (best is None or (score > best if more_is_better else score < best)):
            best, waited = score, 0
            continue
        waited += 1
        if waited == wait:
            waited, drops = 0, drops + 1
    return drops


SCHEDULES: dict[str, Callable[[Schedule, int, float], float]] = {
    "step": _step,
    "cosine": _cosine,
    "poly": _poly,
    "one_cycle": _one_cycle,
    "plateau": _constant,  # times what the scores say, see `Schedule.rate`
    "constant": _constant,
}


def _sgd(parameters: Iterable[Any], lr: float, weight_decay: float) -> optim.Optimizer:
    return optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=weight_decay)


OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {"adam": optim.Adam, "adamw": optim.AdamW, "sgd": _sgd}


def make_optimizer(
    name: str, model: nn.Module, learning_rate: float, weight_decay: float, encoder_factor: float = 1.0
) -> optim.Optimizer:
    """Return the optimiser of the parameters that are not frozen.

    Args:
        name: A name in OPTIMIZERS.
        model: The network.
        learning_rate: Of the first step; see `set_rate`.
        weight_decay: Pull of the weights towards zero.
        encoder_factor: Factor of the learning rate in the network's encoder.
    """
    trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    if encoder_factor == 1:
        groups = [{"params": [parameter for _, parameter in trained], "factor": 1.0}]
    else:
        inside = [parameter for key, parameter in trained if in_encoder(model, key)]
        outside = [parameter for key, parameter in trained if not in_encoder(model, key)]
        pairs = ((inside, encoder_factor), (outside, 1.0))
        groups = [{"params": parameters, "factor": factor} for parameters, factor in pairs if parameters]
    optimizer = OPTIMIZERS[name](groups, lr=learning_rate, weight_decay=weight_decay)
    set_rate(optimizer, learning_rate)
    return optimizer


def set_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate, in each group times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
