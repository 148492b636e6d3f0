"""The training loop, on one page.

`train` reads from top to bottom: for each epoch, train, validate, keep the best, save. Fabric places the model and
applies the precision; nothing else happens behind the page. Everything random in an epoch is drawn from (seed, epoch).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from geoseg.errors import ConfigError, problem
from geoseg.learn.checkpoint import BEST, LAST, Checkpoint
from geoseg.learn.losses import LossSetting, build_loss, mean
from geoseg.learn.metrics import ConfusionMatrix, Scores, scores
from geoseg.learn.modelfile import ModelSpec, load_weights, save_model_file
from geoseg.learn.optimise import Schedule, make_optimizer
from geoseg.learn.records import Records
from geoseg.learn.runtime import Runtime

# Figure of the validation -> whether more is better.
MONITORS = {"mean_iou": True, "mean_f1": True, "accuracy": True, "loss": False}


class Batches(Protocol):
    """What the loop asks of a loader: batches of images (N, B, H, W) float32 and labels (N, H, W) int64."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order and augmentations are drawn."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class TrainOptions:
    """How to train; see the config's section `training` for the meaning of each."""

    num_epochs: int
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    optimizer: str = "adam"
    scheduler: str = "step"
    step_size: int = 4
    gamma: float = 0.9
    loss: LossSetting = "cross_entropy"
    label_smoothing: float = 0.0
    hard_examples: float = 1.0
    monitor: str = "mean_iou"
    val_every: int = 1
    log_every: int = 10


@dataclass
class Job:
    """Everything that a training works on.

    Attributes:
        runtime: Device, precision and seed.
        model: The network; it is trained in place.
        spec: What its weights will mean.
        trn: Training batches.
        val: Validation batches, the same every epoch.
        options: How to train.
        folder: The run folder.
        class_weights: (C,) weights of the loss, or None.
        batch_size: Samples per step at most, as decided; kept in the checkpoint for the run that goes on from it.
    """

    runtime: Runtime
    model: nn.Module
    spec: ModelSpec
    trn: Batches
    val: Batches
    options: TrainOptions
    folder: Path
    class_weights: Tensor | None = None
    batch_size: int = 0


@dataclass(frozen=True)
class Hooks:
    """Called by the loop as it goes on: after each batch, and with the metrics of each epoch."""

    on_batch: Callable[[], None] = lambda: None
    on_epoch: Callable[[Mapping[str, float]], None] = lambda row: None


def train(job: Job, saved: Checkpoint | None = None, hooks: Hooks | None = None) -> Mapping[str, Any]:
    """Train a network; leaves metrics.csv, tensorboard/, last.ckpt and best.safetensors in the run folder.

    Args:
        job: What to train, on what, how.
        saved: Checkpoint to go on from; None starts anew (see `checkpoint.start_folder`).
        hooks: Who wants to know.

    Returns:
        Facts about the best epoch, as in the model file's `trained`: epoch, score, iou, ...; empty if none had a score.

    Raises:
        ConfigError: The loss became infinite or NaN; the files of the epoch before stay.
    """
    options, hooks = job.options, hooks or Hooks()
    loop = _Loop(job, hooks)
    done, best = (saved.epoch, saved.best) if saved else (0, {})
    if saved:
        loop.restore(saved)
    with Records(job.folder, epoch=done, step=done * len(job.trn)) as records:
        for epoch in range(done, options.num_epochs):
            row = {"epoch": epoch + 1, **loop.train_epoch(epoch, records)}
            if (epoch + 1) % options.val_every == 0 or epoch + 1 == options.num_epochs:
                val_loss, result = loop.validate()
                row |= _validation_row(val_loss, result, job.spec)
                facts = _facts(epoch + 1, val_loss, result, job)
                if is_better(facts["score"], best.get("score"), options.monitor):
                    best = facts
                    save_model_file(job.folder / BEST, job.model, replace(job.spec, trained=best))
            records.add_epoch((epoch + 1) * len(job.trn), row)
            loop.checkpoint(epoch + 1, best).save(job.folder / LAST)
            hooks.on_epoch(row)
    return best


class _Loop:
    """Network and optimiser where they are trained, and what one pass over a set does with them."""

    def __init__(self, job: Job, hooks: Hooks) -> None:
        self.job, self.hooks, self.fabric = job, hooks, job.runtime.fabric
        options = job.options
        self.schedule = Schedule(
            options.scheduler, options.learning_rate, options.num_epochs, options.step_size, options.gamma
        )
        job.model.to(memory_format=torch.channels_last)
        optimizer = make_optimizer(options.optimizer, job.model, options.learning_rate, options.weight_decay)
        self.model, self.optimizer = self.fabric.setup(job.model, optimizer)
        self.loss = build_loss(options.loss, options.label_smoothing, options.hard_examples)
        self.weights = None if job.class_weights is None else job.class_weights.to(self.fabric.device)
        self.scaling = self.fabric.strategy.precision  # holds the loss scaling of 16-mixed

    def train_epoch(self, epoch: int, records: Records) -> dict[str, float]:
        """Do one pass over the training batches; returns the epoch's loss, rate, speed and memory."""
        job, steps, samples, started = self.job, len(self.job.trn), 0, time.perf_counter()
        sums = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        _reset_peak_memory(self.fabric.device)
        train_mode(self.model)
        job.trn.set_epoch(epoch)
        batches = iter(job.trn)
        # After `iter`, which may or may not draw from the same generator; dropout is what uses it.
        torch.manual_seed(_epoch_seed(job.runtime.seed, epoch))
        for number, (image, label) in enumerate(batches):
            step = epoch * steps + number
            rate = self.schedule.rate(epoch, step / (steps * job.options.num_epochs))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            total, weight = self._loss(image, label)[:2]
            loss = mean(total, weight)
            self.optimizer.zero_grad(set_to_none=True)
            self.fabric.backward(loss)
            self.optimizer.step()
            sums += torch.stack([total.detach(), weight])
            samples += len(image)
            if (step + 1) % job.options.log_every == 0:
                records.add_step(step + 1, {"step_loss": loss.item()})
            self.hooks.on_batch()
        trn_loss, seconds = mean(*sums).item(), time.perf_counter() - started
        if not math.isfinite(trn_loss):
            raise ConfigError(_diverged(epoch + 1, trn_loss, job))
        return {
            "learning_rate": rate,
            "trn_loss": trn_loss,
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "peak_memory_mb": _peak_memory(self.fabric.device) / 2**20,
            **_inverse_error(self.model),
        }

    @torch.no_grad()
    def validate(self) -> tuple[float, Scores]:
        """Do one pass over the validation batches; returns the loss over known pixels and the scores."""
        spec = self.job.spec
        self.model.eval()
        matrix = ConfusionMatrix(spec.num_classes, spec.ignore_value, self.fabric.device)
        sums = torch.zeros(2, dtype=torch.float64, device=self.fabric.device)
        for image, label in self.job.val:
            total, weight, logits, label_there = self._loss(image, label)
            sums += torch.stack([total, weight])
            # Not argmax, which is ten times slower over a strided dimension.
            matrix.update(logits.max(dim=1)[1], label_there)
            self.hooks.on_batch()
        return mean(*sums).item(), scores(matrix.matrix())

    def _loss(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return total and weight of the loss, the logits, and the label, all on the device."""
        image = image.to(self.fabric.device, memory_format=torch.channels_last, non_blocking=True)
        label = label.to(self.fabric.device, non_blocking=True)
        logits = self.model(image)
        total, weight = self.loss(logits, label, self.job.spec.ignore_value, self.weights)
        return total, weight, logits, label

    def checkpoint(self, epoch: int, best: Mapping[str, Any]) -> Checkpoint:
        """Return the state after `epoch` finished epochs."""
        return Checkpoint(
            spec=self.job.spec.to_json(),
            settings={
                "seed": self.job.runtime.seed,
                "optimizer": self.job.options.optimizer,
                "batch_size": self.job.batch_size,
            },
            model=self.job.model.state_dict(),
            optimizer=self.optimizer.optimizer.state_dict(),
            scaler=self.scaling.state_dict(),
            epoch=epoch,
            best=dict(best),
        )

    def restore(self, saved: Checkpoint) -> None:
        """Take up the state of a checkpoint; learning rate and weight decay are the options'."""
        where, optimizer = self.job.folder / LAST, self.job.options.optimizer
        if saved.settings["optimizer"] != optimizer:
            found = f"the state of optimizer {saved.settings['optimizer']}"
            remedy = "resume with the same training.optimizer, or start a new run"
            raise ConfigError(problem(where, found, optimizer, remedy))
        load_weights(self.job.model, saved.model, where, self.job.spec.model_name)
        groups = self.optimizer.optimizer.state_dict()["param_groups"]
        self.optimizer.optimizer.load_state_dict({**saved.optimizer, "param_groups": groups})
        if saved.scaler:
            self.scaling.load_state_dict(dict(saved.scaler))


def train_mode(model: nn.Module) -> None:
    """Put a network into training mode, except modules whose parameters are all frozen.

    A frozen batch norm in training mode would go on moving its statistics.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def is_better(score: float | None, best: float | None, monitor: str) -> bool:
    """Whether a score beats the best one so far; None and NaN never do, equal ones do not."""
    if score is None or not math.isfinite(score):
        return False
    return best is None or (score > best if MONITORS[monitor] else score < best)


def _facts(epoch: int, val_loss: float, result: Scores, job: Job) -> dict[str, Any]:
    figures = {"accuracy": result.overall_accuracy, "mean_iou": result.mean_iou, "mean_f1": result.mean_f1}
    plain = {name: value if math.isfinite(value) else None for name, value in {"loss": val_loss, **figures}.items()}
    monitor = job.options.monitor
    facts = {"epoch": epoch, "num_epochs": job.options.num_epochs, "monitor": monitor, "score": plain[monitor]}
    return facts | plain | {"iou": result.to_dict()["iou"]} | job.runtime.facts()


def _validation_row(val_loss: float, result: Scores, spec: ModelSpec) -> dict[str, float]:
    figures = {
        "val_loss": val_loss,
        "val_mean_iou": result.mean_iou,
        "val_mean_f1": result.mean_f1,
        "val_accuracy": result.overall_accuracy,
    }
    return figures | {f"val_iou_{name}": iou for name, iou in zip(spec.class_names, result.iou.tolist(), strict=True)}


def _diverged(epoch: int, loss: float, job: Job) -> str:
    kept = f"{job.folder} keeps the epochs before" if epoch > 1 else "nothing was kept"
    return problem(
        "training",
        f"a loss of {loss} in epoch {epoch} at a learning rate of {job.options.learning_rate:g}",
        "a finite loss",
        f"lower training.learning_rate or set training.precision to 32-true ({kept})",
    )


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


def _inverse_error(model: nn.Module) -> dict[str, float]:
    """Return the largest error that the monitors of reversible parts saw last; nothing where none looked."""
    seen = [getattr(module, "inverse_error", None) for module in model.modules()]
    errors = [float(error) for error in seen if error is not None]
    return {"inverse_error": max(errors)} if errors else {}


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> float:
    """Return the most bytes: on a GPU of tensors in this epoch (a driver's figure would count the cache as well), on a
    CPU of the whole process so far, NaN where the system does not tell.
    """
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)
