"""Optimisers and learning-rate schedules, by name.

A schedule is a pure function of the step, so it has no state that a resumed run could get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn, optim

WARM_UP = 0.3  # share of a one-cycle schedule in which the rate rises
FIRST_FACTOR, LAST_FACTOR = 1 / 25, 1e-4 / 25  # of the peak rate, at the start and the end of one cycle
MOMENTUM = 0.9


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves.

    Attributes:
        name: A name in SCHEDULES.
        learning_rate: The highest rate.
        num_epochs: Length of the run, epochs.
        step_size: Epochs between two steps of "step".
        gamma: Factor of each of them.
    """

    name: str
    learning_rate: float
    num_epochs: int
    step_size: int = 4
    gamma: float = 0.9

    def rate(self, epoch: int, done: float) -> float:
        """Return the learning rate of a batch.

        Args:
            epoch: From 0.
            done: Share of the whole run's batches that came before, in [0, 1).
        """
        return self.learning_rate * SCHEDULES[self.name](self, epoch, done)


def _step(schedule: Schedule, epoch: int, done: float) -> float:
    return float(schedule.gamma ** (epoch // schedule.step_size))


def _constant(schedule: Schedule, epoch: int, done: float) -> float:
    return 1.0


def _cosine(schedule: Schedule, epoch: int, done: float) -> float:
    # By epoch, as torch's CosineAnnealingLR is stepped.
    return _between(1.0, 0.0, epoch / schedule.num_epochs)


def _one_cycle(schedule: Schedule, epoch: int, done: float) -> float:
    if done < WARM_UP:
        return _between(FIRST_FACTOR, 1.0, done / WARM_UP)
    return _between(1.0, LAST_FACTOR, (done - WARM_UP) / (1 - WARM_UP))


def _between(start: float, stop: float, share: float) -> float:
    """Go from start to stop along half a cosine."""
    return stop + (start - stop) * (1 + math.cos(math.pi * share)) / 2


SCHEDULES: dict[str, Callable[[Schedule, int, float], float]] = {
    "step": _step,
    "cosine": _cosine,
    "one_cycle": _one_cycle,
    "constant": _constant,
}


def _sgd(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> optim.Optimizer:
    return optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=weight_decay)


OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {"adam": optim.Adam, "adamw": optim.AdamW, "sgd": _sgd}


def make_optimizer(name: str, model: nn.Module, learning_rate: float, weight_decay: float) -> optim.Optimizer:
    """Return the optimiser of the parameters that are not frozen."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return OPTIMIZERS[name](parameters, lr=learning_rate, weight_decay=weight_decay)
