"""A range test: the learning rate at which the loss falls fastest before it rises (Smith 2017, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from geoseg.errors import ConfigError, problem
from geoseg.learn import processes
from geoseg.learn.capacity import left_as_it_was
from geoseg.learn.frozen import train_mode
from geoseg.learn.job import Job
from geoseg.learn.losses import build_loss, mean
from geoseg.learn.optimise import make_optimizer, set_rate

LOW, HIGH, STEPS = 1e-7, 1.0, 100
SMOOTHING = 0.9
GIVE_UP = 4.0  # times the lowest loss: from there on the network is lost
LEAST_FALL = 0.01  # share of the first loss


@dataclass(frozen=True)
class Found:
    """What a range test found.

    Attributes:
        rate: The learning rate to train with.
        low: The first rate that was tried.
        high: The last one.
        steps: Number of steps.
        first: Smoothed loss at the start.
        lowest: Smoothed loss where it was lowest.
    """

    rate: float
    low: float
    high: float
    steps: int
    first: float
    lowest: float


def range_test(job: Job) -> Found:
    """Try learning rates from low to high, one per step, on the training batches; the network is left as it was.

    Weights, buffers and random numbers are put back. The rate is a tenth of the one at which the smoothed loss was
    lowest: there it has begun to overshoot. With several processes the first one tries, and all take its answer.

    Raises:
        ConfigError: The loss does not fall at any rate.
    """
    device = job.runtime.fabric.device
    job.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = None
    if processes.rank() == 0:
        with left_as_it_was(job.model):
            train_mode(job.model)
            found = _suggestion(_losses(job, device))
    # All processes must hear of a failure too, else they would wait for this one.
    found = job.runtime.fabric.broadcast(found)
    if found is None:
        found_text = f"a loss that does not fall at rates from {LOW:g} to {HIGH:g}"
        remedy = "give a number, such as 0.0001, and look at samples and labels (report.html of the store)"
        raise ConfigError(problem("training.learning_rate", f"auto, and {found_text}", "a loss that falls", remedy))
    return found


def _losses(job: Job, device: torch.device) -> Iterator[tuple[float, float]]:
    """Yield rate and loss of each step."""
    options, ignore = job.options, job.spec.ignore_value
    loss_of = build_loss(options.loss, options.label_smoothing, options.hard_examples)
    weights = None if job.class_weights is None else job.class_weights.to(device)
    optimizer = make_optimizer(options.optimizer, job.model, LOW, options.weight_decay, options.encoder_learning_rate)
    torch.manual_seed(job.runtime.seed)
    for step, (image, label) in zip(range(STEPS), _endless(job), strict=False):
        rate = LOW * (HIGH / LOW) ** (step / (STEPS - 1))
        set_rate(optimizer, rate)
        with job.runtime.fabric.autocast():
            logits = job.model(image.to(device, memory_format=torch.channels_last))
        loss = mean(*loss_of(logits.float(), label.to(device), ignore, weights))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield rate, loss.item()


def _endless(job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        job.trn.set_epoch(epoch)
        yield from job.trn
        epoch += 1


def _suggestion(losses: Iterator[tuple[float, float]]) -> Found | None:
    smooth, first, lowest, best, rate, steps = 0.0, math.nan, math.inf, math.nan, LOW, 0
    for steps, (rate, loss) in enumerate(losses, start=1):
        smooth = SMOOTHING * smooth + (1 - SMOOTHING) * loss
        value = smooth / (1 - SMOOTHING**steps)
        if steps == 1:
            first = value
        if not math.isfinite(value) or value > GIVE_UP * lowest:
            break
        if value < lowest:
            lowest, best = value, rate
    if not lowest < (1 - LEAST_FALL) * first:
        return None
    return Found(best / 10, LOW, rate, steps, first, lowest)
