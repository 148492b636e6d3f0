"""`python -m geoseg.train`: train a model on the samples."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geoseg.cli import Invocation, progress, run_command
from geoseg.config import Config
from geoseg.config.training import read_augmentation
from geoseg.console import Log
from geoseg.errors import ConfigError, problem

if TYPE_CHECKING:  # torch takes seconds to import; mistakes in the config are answered before that
    from torch import Tensor, nn

    from geoseg.data.store import Store
    from geoseg.learn.checkpoint import Checkpoint
    from geoseg.learn.engine import Job, TrainOptions
    from geoseg.learn.modelfile import ModelSpec
    from geoseg.learn.prepare import StoreBatches
    from geoseg.learn.runtime import Runtime
    from geoseg.learn.sizing import StepWork

MAX_WORKERS = 8  # more loading processes than that wait for the disk

_MEANS = {"mean_iou": "mean IoU", "mean_f1": "mean F1", "accuracy": "accuracy"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command("train", argv, _train, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint of the run")
    parser.add_argument("--overwrite", action="store_true", help="train anew into an existing run folder")


def _train(invocation: Invocation) -> None:
    from geoseg.learn.checkpoint import MEMORY, start_folder
    from geoseg.learn.engine import train
    from geoseg.learn.job import Hooks
    from geoseg.learn.outofmemory import explained
    from geoseg.learn.pictures import sample_pictures
    from geoseg.learn.sizing import add_epoch, describe, write_record
    from geoseg.learn.stopping import stop_requests
    from geoseg.report.training import Clock, reported

    config, log, clock = invocation.config, invocation.log, Clock()
    folder = config.training.output_path / str(config.training.run_name)
    saved = _find_start(config, folder, invocation)
    job = _make_job(config, folder, saved, log)
    first = job.runtime.fabric.is_global_zero
    if first:
        if saved is None:
            start_folder(folder)
        _resolved(config, job).save(folder / "config.yaml")
    clock.ended("preparation")
    with explained(lambda: _advice(config, job)):
        memory = _record_memory(config, job)
    clock.ended("trial of a step")
    facts = job.runtime.facts()
    log.note(
        f"training {job.spec.model_name} ({_count(job.model)} weights) in {folder}: {facts['hardware']}, "
        f"{job.runtime.precision}, seed {job.runtime.seed}"
    )
    if saved:
        log.note(f"going on after epoch {saved.epoch}" + (" and a part of the next" if saved.progress["step"] else ""))
    log.note(describe(memory))
    done, rows = saved.epoch if saved else 0, []

    def tell(row: Mapping[str, float]) -> None:
        rows.append(row)
        add_epoch(memory, row)
        if first:
            write_record(folder / MEMORY, memory)
        shown.set_text(f"loss {row['trn_loss']:.4f}")
        log.note(_describe(row, job.options.num_epochs))

    work, bar = explained(lambda: _advice(config, job)), progress(_count_batches(job, done), "train", "batches")
    with stop_requests() as stop, reported(job, clock, log.note), work, bar as shown:
        best = train(job, saved, Hooks(shown.update, tell, stop, sample_pictures(job)))
    _summary(job, best, rows, invocation)


def _find_start(config: Config, folder: Path, invocation: Invocation) -> Checkpoint | None:
    """Return the checkpoint to go on from; refuses an existing run, and one of another model, before data is read."""
    from geoseg.learn.checkpoint import LAST, find_checkpoint
    from geoseg.learn.modelfile import check_matches

    options, training = invocation.options, config.training
    # What is said on the command line counts more than what the config says.
    resume = options.resume or (training.resume and not options.overwrite)
    overwrite = options.overwrite or (training.overwrite and not options.resume)
    saved = find_checkpoint(folder, resume, overwrite)
    if saved is None:
        if resume:
            invocation.log.note(f"no checkpoint in {folder}: starting from the beginning")
        return None
    spec, seed = saved.model_spec(), saved.settings["seed"]
    check_matches(
        spec, folder / LAST, model_name=config.global_.model_name, model_options=_model_options(config, as_json=True)
    )
    if config.global_.seed not in (None, seed):
        expected = f"{config.global_.seed} as the config says"
        remedy = "leave global.seed out or set it to the run's, or start a new run"
        raise ConfigError(problem(folder / LAST, f"seed {seed}", expected, remedy))
    return saved


def _make_job(config: Config, folder: Path, saved: Checkpoint | None, log: Log) -> Job:
    from geoseg.data.store import open_store
    from geoseg.learn.checkpoint import LAST
    from geoseg.learn.engine import Job
    from geoseg.learn.frozen import freeze
    from geoseg.learn.prepare import check_same_samples, make_spec
    from geoseg.learn.runtime import setup, synchronised
    from geoseg.learn.validation import check_monitor

    training = config.training
    store = open_store(config.global_.data_path)
    _check_store(config, store)
    spec = make_spec(store.info, config.global_.model_name, _model_options(config, as_json=True))
    if saved:
        check_same_samples(saved.model_spec(), spec, folder / LAST)
    check_monitor(training.monitor, spec.class_names, training.boundary_iou)
    weights = _class_weights(config, store)
    seed = saved.settings["seed"] if saved else config.global_.seed
    places = (training.device, training.precision, training.devices, training.num_nodes)
    runtime = setup(seed, *places, deterministic=training.deterministic)
    if not runtime.fabric.is_global_zero:
        log.silence()
    model = _build(config, spec, saved is not None, log)
    if training.freeze:
        log.note(f"{freeze(model, training.freeze):,} weights are frozen: {', '.join(training.freeze)}")
    if training.sync_batchnorm:
        model = synchronised(model, runtime)
    if saved and training.batch_size == "auto":
        batch_size = int(saved.settings["batch_size"])
    else:
        work = _step_work(config, spec, runtime)
        batch_size = _batch_size(config, model, work, runtime, store.info.samples["trn"], log.warn)
    trn, val = (_batches(config, store, split, runtime, batch_size) for split in ("trn", "val"))
    job = Job(runtime, model, spec, trn, val, _train_options(config), folder, weights, batch_size)
    if training.learning_rate == "auto":
        job.options = replace(job.options, learning_rate=_learning_rate(job, saved, log))
    return job


def _class_weights(config: Config, store: Store) -> Tensor | None:
    from geoseg.data.frequency import pixels_around
    from geoseg.learn.classweights import class_weights

    setting = config.training.class_weights
    around = pixels_around(store, "trn") if setting == "median" else None
    return class_weights(setting, store.info.class_pixels["trn"], around)


def _learning_rate(job: Job, saved: Checkpoint | None, log: Log) -> float:
    """Return the learning rate that a range test finds, or that it found for the run that goes on."""
    from geoseg.learn.rangetest import range_test

    if saved:
        return float(saved.settings["learning_rate"])
    found = range_test(job)
    log.note(
        f"learning_rate auto: {found.rate:.2g}, where the loss fell fastest in a test of {found.steps} steps up to "
        f"{found.high:.2g}; it was {found.first:.4g} at first and lowest, {found.lowest:.4g}, at {found.lowest_at:.2g}"
    )
    return found.rate


def _build(config: Config, spec: ModelSpec, resumed: bool, log: Log) -> nn.Module:
    from geoseg.models import build_model
    from geoseg.models.pretrained import load_pretrained

    options = _model_options(config)
    pretrained = options.pop("pretrained", False)
    model = build_model(spec.model_name, spec.in_channels, spec.num_classes, **options)
    if pretrained and not resumed:  # a checkpoint has all the weights
        log.note(str(load_pretrained(model, pretrained)))
    return model


def _check_store(config: Config, store: Store) -> None:
    from geoseg.learn.prepare import check_store
    from geoseg.settings import said_reading

    shared, bands, classes = config.global_, config.global_.bands or (), config.global_.classes or ()
    reading = said_reading(config)
    check_store(
        store.info,
        store.folder,
        samples_size=shared.samples_size,
        num_classes=shared.num_classes,
        number_of_bands=shared.number_of_bands,
        bands=[band if isinstance(band, int) else None for band in bands] or None,
        band_names=[band if isinstance(band, str) else None for band in bands] or None,
        ignore_value=shared.ignore_value,
        class_names=[entry.name for entry in classes] or None,
        class_values=[entry.value for entry in classes] or None,
        reading=None if reading is None else reading.to_dict(),
    )


def _step_work(config: Config, spec: ModelSpec, runtime: Runtime) -> StepWork:
    from geoseg.learn import processes
    from geoseg.learn.sizing import StepWork

    training = config.training
    return StepWork(
        size=spec.samples_size,
        channels=spec.in_channels,
        classes=spec.num_classes,
        precision=runtime.precision,
        loss=training.loss,
        label_smoothing=training.label_smoothing,
        hard_examples=training.hard_examples,
        optimizer=training.optimizer,
        accumulation=training.accumulate,
        processes=processes.count(),
    )


def _advice(config: Config, job: Job) -> str:
    """Return what would help a training that ran out of memory: the batch that fits, and what needs less."""
    from geoseg.learn.outofmemory import advice

    return advice(job, _step_work(config, job.spec, job.runtime), config.training.accumulate)


def _batch_size(
    config: Config, model: nn.Module, work: StepWork, runtime: Runtime, samples: int, warn: Callable[[str], None]
) -> int:
    """Return the batch size: the config's, or the largest that fits, and never more than there are samples."""
    from geoseg.learn.capacity import parse_memory
    from geoseg.learn.sizing import auto_batch_size

    training = config.training
    samples = max(1, min(samples, training.num_trn_samples or samples))
    if training.batch_size != "auto":
        return min(training.batch_size, samples)
    memory = parse_memory(training.memory) if training.memory else None
    return auto_batch_size(model, work, runtime, samples, memory, warn)


def _record_memory(config: Config, job: Job) -> dict[str, Any]:
    """Measure one step and write `memory.json`; returns what it says."""
    from geoseg.learn.checkpoint import MEMORY
    from geoseg.learn.sizing import memory_record, write_record

    record = memory_record(job.model, _step_work(config, job.spec, job.runtime), job.runtime, job.batch_size)
    if job.runtime.fabric.is_global_zero:
        write_record(job.folder / MEMORY, record)
    return record


def _batches(config: Config, store: Store, split: str, runtime: Runtime, batch_size: int) -> StoreBatches:
    from geoseg.execution import usable_cpus
    from geoseg.learn.prepare import Draws, StoreBatches

    training, workers = config.training, config.training.workers
    if workers == "auto":
        # A CPU is better used by the network itself; a GPU must not wait for samples.
        workers = min(MAX_WORKERS, usable_cpus()) if runtime.device == "cuda" else 0
    return StoreBatches(
        store,
        split,
        batch_size=batch_size,
        limit=training.num_trn_samples if split == "trn" else training.num_val_samples,
        seed=runtime.seed,
        draws=Draws(
            augmentation=read_augmentation(training.augmentation),
            cutmix=training.cutmix,
            sampling=training.batch_sampling,
            epoch_samples=training.epoch_samples,
        ),
        workers=workers,
    )


def _train_options(config: Config) -> TrainOptions:
    from dataclasses import fields

    from geoseg.learn.job import TrainOptions

    values = {entry.name: getattr(config.training, entry.name) for entry in fields(TrainOptions)}
    if values["learning_rate"] == "auto":
        values["learning_rate"] = 1e-4  # for the moment; see `_learning_rate`
    return TrainOptions(**values)


def _model_options(config: Config, as_json: bool = False) -> dict[str, Any]:
    if not as_json:
        return config.model_options()
    options: dict[str, Any] = getattr(config.models, config.global_.model_name).as_kwargs()
    return options


def _resolved(config: Config, job: Job) -> Config:
    """Return the config with what was decided for it: seed, device, precision, batch size, weights, a pipeline."""
    runtime = job.runtime
    decided: dict[str, Any] = {"device": runtime.device, "precision": runtime.precision, "batch_size": job.batch_size}
    decided["learning_rate"] = job.options.learning_rate
    decided["augmentation"] = read_augmentation(config.training.augmentation)
    if job.class_weights is not None:
        decided["class_weights"] = tuple(float(f"{weight:.9g}") for weight in job.class_weights.tolist())
    training = config.training.model_copy(update=decided)
    shared = config.global_.model_copy(update={"seed": runtime.seed})
    return config.model_copy(update={"training": training, "global_": shared})


def _count_batches(job: Job, done: int) -> int:
    """Return how many batches of training and validation are left after `done` epochs."""
    options, left = job.options, range(done + 1, job.options.num_epochs + 1)
    validations = sum(epoch % options.val_every == 0 or epoch == options.num_epochs for epoch in left)
    return len(left) * len(job.trn) + validations * len(job.val)


def _describe(row: Mapping[str, float], num_epochs: int) -> str:
    """Return the line about an epoch."""
    figures = [f"loss {row['trn_loss']:.4f}"]
    if "val_loss" in row:
        figures.append(f"validation loss {row['val_loss']:.4f}, mean IoU {row['val_mean_iou']:.4f}")
    figures += [f"{row['seconds']:.1f} s", f"{row['samples_per_second']:.1f} samples/s"]
    if not math.isnan(row["peak_memory_mb"]):
        figures.append(f"peak memory {row['peak_memory_mb']:.0f} MB")
    return f"epoch {row['epoch']}/{num_epochs}: {', '.join(figures)}"


def _summary(job: Job, best: Mapping[str, Any], rows: Sequence[Mapping[str, float]], invocation: Invocation) -> None:
    from geoseg.learn.checkpoint import BEST, LAST, METRICS, REPORT

    log = invocation.log
    if not best:
        log.warn(f"no epoch had a finite {job.options.monitor}: no {BEST} was written")
        return
    if rows and rows[-1]["epoch"] < job.options.num_epochs:
        log.info(f"stopped after epoch {rows[-1]['epoch']}: no better {best['monitor']} since epoch {best['epoch']}")
    means = ", ".join(f"{name} {_number(best[key])}" for key, name in _MEANS.items())
    log.info(
        f"best epoch {best['epoch']} of {best['num_epochs']} by {best['monitor']}; on the validation samples: {means}"
    )
    width = max(len(name) for name in job.spec.class_names)
    for name, iou in zip(job.spec.class_names, best["iou"], strict=True):
        log.info(f"  {name:<{width}}  IoU {_number(iou)}")
    if rows:
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        speed = sum(row["samples_per_second"] for row in rows) / len(rows)
        log.info(f"{seconds:.1f} s of training per epoch, {speed:.1f} samples/s")
    log.info(f"model file  {job.folder / BEST}")
    log.info(f"curves      {job.folder / METRICS} (and tensorboard --logdir {job.folder})")
    log.info(f"checkpoint  {job.folder / LAST}")
    log.info(f"report      {job.folder / REPORT}")


def _number(value: float | None) -> str:
    return "not present" if value is None else f"{value:.4f}"


def _count(model: Any) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"


if __name__ == "__main__":
    raise SystemExit(main())
