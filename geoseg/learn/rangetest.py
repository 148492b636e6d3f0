"""A range test: the learning rate at which the loss falls fastest before it rises (Smith 2017, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
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
WINDOW = 9  # steps that are averaged before slopes are taken; odd, so that it is centred
GIVE_UP = 4.0  # times the lowest loss: from there on the network is lost
LEAST_FALL = 0.01  # share of the first loss


@dataclass(frozen=True)
class Found:
    """What a range test found.

    Attributes:
        rate: The learning rate to train with.
        steps: Number of steps.
        high: The last rate that was tried.
        first: Smoothed loss at the start.
        lowest: Smoothed loss where it was lowest.
        lowest_at: The rate there.
    """

    rate: float
    steps: int
    high: float
    first: float
    lowest: float
    lowest_at: float


def range_test(job: Job) -> Found:
    """Try learning rates from low to high, one per step, on the training batches; the network is left as it was.

    Weights, buffers and random numbers are put back. The answer is the rate at which the smoothed loss falls fastest,
    at most a tenth of the one at which it is lowest: there it has begun to overshoot. With several processes the first
    one tries, and all take its answer.

    Raises:
        ConfigError: The loss does not fall at any rate.
    """
    device = job.runtime.fabric.device
    job.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = None
    if processes.rank() == 0:
        with left_as_it_was(job.model):
            train_mode(job.model)
            found = suggestion(_losses(job, device))
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


def _tried(losses: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return rates and losses up to where the loss, averaged over the steps so far, leaves its lowest far behind."""
    kept, smooth, lowest = [], 0.0, math.inf
    for rate, loss in losses:
        smooth = SMOOTHING * smooth + (1 - SMOOTHING) * loss
        value = smooth / (1 - SMOOTHING ** (len(kept) + 1))
        if not math.isfinite(value) or value > GIVE_UP * lowest:
            break
        lowest = min(lowest, value)
        kept.append((rate, loss))
    return kept


def suggestion(losses: Iterator[tuple[float, float]]) -> Found | None:
    """Return the learning rate that losses at rising rates speak for; None if they do not fall."""
    kept = _tried(losses)
    if len(kept) <= WINDOW:
        return None
    rates = np.array([rate for rate, _ in kept])[WINDOW // 2 : -(WINDOW // 2)]
    smooth = np.convolve([loss for _, loss in kept], np.full(WINDOW, 1 / WINDOW), mode="valid")
    lowest = int(smooth.argmin())
    if not smooth[lowest] < (1 - LEAST_FALL) * smooth[0]:
        return None
    steepest = int(np.diff(smooth[: lowest + 1]).argmin())
    rate = min(float(rates[steepest]), float(rates[lowest]) / 10)
    return Found(rate, len(kept), kept[-1][0], float(smooth[0]), float(smooth[lowest]), float(rates[lowest]))
