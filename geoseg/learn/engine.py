"""The training loop, on one page.

`train` reads from top to bottom: for each epoch, train, validate, keep the best, save. Fabric places the model and
applies the precision; nothing else happens behind the page. Everything random in a step is drawn from (seed, epoch,
step), so a run can be taken up again after any step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from geoseg.errors import ConfigError, problem
from geoseg.learn import processes
from geoseg.learn.checkpoint import BEST, LAST, VALIDATION, Checkpoint, Progress
from geoseg.learn.files import write_json
from geoseg.learn.frozen import train_mode
from geoseg.learn.job import Hooks, Job, TrainOptions
from geoseg.learn.losses import build_loss, mean
from geoseg.learn.modelfile import load_weights, save_model_file
from geoseg.learn.optimise import Schedule
from geoseg.learn.records import Records
from geoseg.learn.runtime import peak_memory, reset_peak_memory
from geoseg.learn.stepping import StepOptions, Stepper, windows
from geoseg.learn.validation import CLASS_MONITORS, Findings, Validation, more_is_better


def train(job: Job, saved: Checkpoint | None = None, hooks: Hooks | None = None) -> Mapping[str, Any]:
    """Train a network; leaves metrics.csv, tensorboard/, last.ckpt, best.safetensors and validation.json in the folder.

    Args:
        job: What to train, on what, how.
        saved: Checkpoint to go on from; None starts anew (see `checkpoint.start_folder`).
        hooks: Who wants to know.

    Returns:
        Facts about the best epoch, as in the model file's `trained`: epoch, score, iou, ...; empty if none had a score.

    Raises:
        ConfigError: The loss became infinite or NaN; the files of the epoch before stay.
        KeyboardInterrupt: `hooks.stop` said so; the checkpoint holds all that was done.
    """
    options, hooks = job.options, hooks or Hooks()
    loop = _Loop(job, hooks)
    state = loop.restore(saved) if saved else Progress()
    with Records(job.folder, state.epoch, state.epoch * job.steps + state.step, processes.rank() == 0) as records:
        while state.epoch < options.num_epochs and not exhausted(state, options):
            epoch = state.epoch + 1
            row = {"epoch": epoch, **loop.train_epoch(state, records)}
            if epoch % options.val_every == 0 or epoch == options.num_epochs:
                with loop.evaluated(state):
                    started = time.perf_counter()
                    found = loop.validate()
                    row |= found.row(job.spec.class_names)
                    facts = _facts(epoch, found, job)
                    best = is_better(facts["score"], state.best.get("score"), options.monitor)
                    if best:
                        loop.save_best(facts, found)
                    row["val_seconds"] = time.perf_counter() - started
                    hooks.on_validated(epoch * job.steps)
                state.take_score(facts, best)
            state.finish_epoch()
            records.add_epoch(epoch * job.steps, row)
            loop.save(state)
            hooks.on_epoch(row)
    return state.best


class _Loop:
    """Network and optimiser where they are trained, and what one pass over a set does with them."""

    def __init__(self, job: Job, hooks: Hooks) -> None:
        self.job, self.hooks, self.fabric = job, hooks, job.runtime.fabric
        self.schedule = _schedule(job.options)
        self.stepper = Stepper(job.runtime, job.model, _step_options(job.options))
        self.loss = build_loss(job.options.loss, job.options.label_smoothing, job.options.hard_examples)
        self.weights = None if job.class_weights is None else job.class_weights.to(self.fabric.device)
        self.stopping = processes.Agreement(hooks.stop, self.fabric.device)
        self._saved = time.monotonic()

    def train_epoch(self, state: Progress, records: Records) -> dict[str, float]:
        """Do one pass over the training batches, or what is left of it; returns its loss, rate, speed and memory."""
        job, options, started = self.job, self.job.options, time.perf_counter() - state.seconds
        reset_peak_memory(self.fabric.device)
        train_mode(self.stepper.model)
        job.trn.set_epoch(state.epoch, state.step * options.accumulate)
        sums = torch.tensor(state.sums, dtype=torch.float64, device=self.fabric.device)
        # A run that was stopped after the last batch has nothing left to load.
        for window in windows(job.trn, options.accumulate) if state.step < job.steps else ():
            number = state.epoch * job.steps + state.step
            # After the batches were loaded, which may draw from the same generator or not; dropout is what uses it.
            torch.manual_seed(_seed_of(job.runtime.seed, number, processes.rank()))
            found = self.stepper.take(window, self._train_loss, self._rate(state, state.step))
            sums += found
            state.step += 1
            if (number + 1) % options.log_every == 0:
                records.add_step(number + 1, {"step_loss": mean(*found[:2]).item()})
            self._between_steps(state, sums, started)
        state.measure(sums, started)
        if not math.isfinite(state.loss):
            raise ConfigError(_diverged(state.epoch + 1, state.loss, job))
        return {
            "learning_rate": self._rate(state, job.steps - 1),
            "trn_loss": state.loss,
            "seconds": state.seconds,
            "samples_per_second": state.sums[2] / state.seconds,
            "peak_memory_mb": peak_memory(self.fabric.device) / 2**20,
            **_inverse_error(job.model),
        }

    def _rate(self, state: Progress, step: int) -> float:
        done = (state.epoch + step / self.job.steps) / self.job.options.num_epochs
        return self.schedule.rate(state.epoch, done, state.scores)

    def _between_steps(self, state: Progress, sums: Tensor, started: float) -> None:
        """Save in the middle of an epoch if it is time, or if the run shall stop."""
        stop = self.stopping.reached()
        if stop or time.monotonic() - self._saved > 60 * self.job.options.checkpoint_minutes:
            state.measure(sums, started)
            if math.isfinite(state.loss):  # else the checkpoint before is the one to go back to
                self.save(state)
        if stop:
            raise KeyboardInterrupt

    @contextmanager
    def evaluated(self, state: Progress) -> Iterator[None]:
        """Surround a validation: the network has its averaged weights, if there are any; a stop loses no step."""
        try:
            with self.stepper.average.applied() if self.stepper.average else nullcontext():
                processes.share_buffers(self.job.model)
                yield
        except KeyboardInterrupt:
            self.save(state)
            raise

    @torch.no_grad()
    def validate(self) -> Findings:
        """Do one pass over the validation batches; returns the loss over known pixels, the scores and more."""
        spec, boundary = self.job.spec, self.job.options.boundary_iou
        self.job.model.eval()
        places = getattr(self.job.val, "scenes", (None, ()))
        seen = Validation(spec.num_classes, spec.ignore_value, self.fabric.device, *places, boundary=boundary)
        for image, label in self.job.val:
            if self.hooks.stop():
                raise KeyboardInterrupt
            total, weight, logits, label_there = self._loss(image, label, self._alone)
            seen.update(logits, label_there, total, weight)
            self.hooks.on_batch()
        seen.sums = {name: processes.summed(sums) for name, sums in seen.sums.items()}
        return seen.findings()

    def _train_loss(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        self.hooks.on_batch()
        return self._loss(image, label, self.stepper.model)[:2]

    def _alone(self, image: Tensor) -> Tensor:
        """Call the network without the wrapper for several processes: others may have fewer batches to validate."""
        with self.fabric.autocast():
            logits: Tensor = self.job.model(image)
        return logits.float()

    def _loss(
        self, image: Tensor, label: Tensor, model: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return total and weight of the loss, the logits, and the label, all on the device."""
        image = image.to(self.fabric.device, memory_format=torch.channels_last, non_blocking=True)
        label = label.to(self.fabric.device, non_blocking=True)
        logits = model(image)
        total, weight = self.loss(logits, label, self.job.spec.ignore_value, self.weights)
        return total, weight, logits, label

    def save_best(self, facts: Mapping[str, Any], found: Findings) -> None:
        """Write the model file, with the weights that were evaluated, and what was found in full."""
        if processes.rank() == 0:
            names = self.job.spec.class_names
            write_json(self.job.folder / VALIDATION, {"epoch": facts["epoch"], **found.to_dict(names)})
            save_model_file(self.job.folder / BEST, self.job.model, replace(self.job.spec, trained=facts))

    def save(self, state: Progress) -> None:
        """Write the checkpoint."""
        self._saved = time.monotonic()
        if processes.rank() == 0:
            job, options = self.job, self.job.options
            settings = {"optimizer": options.optimizer, "learning_rate": options.learning_rate, "steps": job.steps}
            settings |= {"seed": job.runtime.seed, "batch_size": job.batch_size}
            saved = Checkpoint(job.spec.to_json(), settings, **self.stepper.state(), progress=state.to_dict())
            saved.save(job.folder / LAST)

    def restore(self, saved: Checkpoint) -> Progress:
        """Take up the state of a checkpoint; returns how far the run has come."""
        job, where, state = self.job, self.job.folder / LAST, Progress.from_dict(saved.progress)
        if saved.settings["optimizer"] != job.options.optimizer:
            found = f"the state of optimizer {saved.settings['optimizer']}"
            remedy = "resume with the same training.optimizer, or start a new run"
            raise ConfigError(problem(where, found, job.options.optimizer, remedy))
        load_weights(job.model, saved.model, where, job.spec.model_name)
        self.stepper.load(saved, where)
        # Another batch size or number of processes cuts the epoch into other steps.
        state.step = round(state.step * job.steps / saved.settings["steps"])
        return state


def is_better(score: float | None, best: float | None, monitor: str) -> bool:
    """Whether a score beats the best one so far; None and NaN never do, equal ones do not."""
    if score is None or not math.isfinite(score):
        return False
    return best is None or (score > best if more_is_better(monitor) else score < best)


def exhausted(state: Progress, options: TrainOptions) -> bool:
    """Whether the best epoch is so long ago that training stops early."""
    return options.patience is not None and state.epoch - int(state.best.get("epoch", 0)) >= options.patience


def _schedule(options: TrainOptions) -> Schedule:
    names = ("learning_rate", "num_epochs", "step_size", "gamma", "warmup_epochs")
    values = {name: getattr(options, name) for name in names}
    return Schedule(options.scheduler, more_is_better=more_is_better(options.monitor), **values)


def _step_options(options: TrainOptions) -> StepOptions:
    names = ("optimizer", "learning_rate", "weight_decay", "clip_norm", "ema")
    values = {name: getattr(options, name) for name in names}
    return StepOptions(**values, encoder_factor=options.encoder_learning_rate, compiled=options.compile)


def _facts(epoch: int, found: Findings, job: Job) -> dict[str, Any]:
    """Return what the model file says of an epoch; None for what is undefined."""
    plain, monitor = found.to_dict(job.spec.class_names), job.options.monitor
    score = found.value(monitor, job.spec.class_names)
    facts: dict[str, Any] = {"epoch": epoch, "num_epochs": job.options.num_epochs, "monitor": monitor}
    facts["score"] = score if math.isfinite(score) else None
    facts |= {name: plain[name] for name in (*found.figures(), *CLASS_MONITORS)}
    facts["class_weights"] = None if job.class_weights is None else job.class_weights.tolist()
    return facts | job.runtime.facts()


def _diverged(epoch: int, loss: float, job: Job) -> str:
    kept = f"{job.folder} keeps the epochs before" if epoch > 1 else "nothing was kept"
    return problem(
        "training",
        f"a loss of {loss} in epoch {epoch} at a learning rate of {job.options.learning_rate:g}",
        "a finite loss",
        f"lower training.learning_rate or set training.precision to 32-true ({kept})",
    )


def _seed_of(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def _inverse_error(model: nn.Module) -> dict[str, float]:
    """Return the largest error that the monitors of reversible parts saw last; nothing where none looked."""
    seen = [getattr(module, "inverse_error", None) for module in model.modules()]
    errors = [float(error) for error in seen if error is not None]
    return {"inverse_error": max(errors)} if errors else {}
