"""From the config to the job of a training: samples, processes, network, batches, options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geoseg.config import Config
from geoseg.config.training import read_augmentation
from geoseg.console import Log

if TYPE_CHECKING:  # torch takes seconds to import; mistakes in the config are answered before that
    from torch import Tensor, nn

    from geoseg.data.store import Store
    from geoseg.learn.checkpoint import Checkpoint
    from geoseg.learn.job import Job, TrainOptions
    from geoseg.learn.modelfile import ModelSpec
    from geoseg.learn.prepare import StoreBatches
    from geoseg.learn.runtime import Runtime
    from geoseg.learn.sizing import StepWork

MAX_WORKERS = 8  # more loading processes than that wait for the disk


def make_job(config: Config, folder: Path, saved: Checkpoint | None, log: Log) -> Job:
    """Read the samples, start the processes, build the network: everything that a training works on.

    Args:
        config: The settings.
        folder: The run folder, which is not touched.
        saved: Checkpoint of the run that goes on, or None.
        log: Told what was decided; silent from then on in all processes but the first.

    Raises:
        GeosegError: What the config asks for cannot be had, or contradicts the samples or the checkpoint.
    """
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
    spec = make_spec(store.info, config.global_.model_name, model_options(config, as_json=True))
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

    options = model_options(config)
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


def step_settings(config: Config) -> dict[str, Any]:
    """Return what of `training` decides the memory of a step, by the names that `StepWork` has for it."""
    training = config.training
    return {
        "loss": training.loss,
        "label_smoothing": training.label_smoothing,
        "hard_examples": training.hard_examples,
        "optimizer": training.optimizer,
    }


def _step_work(config: Config, spec: ModelSpec, runtime: Runtime) -> StepWork:
    from geoseg.learn import processes
    from geoseg.learn.sizing import StepWork

    return StepWork(
        size=spec.samples_size,
        channels=spec.in_channels,
        classes=spec.num_classes,
        precision=runtime.precision,
        **step_settings(config),
        accumulation=config.training.accumulate,
        processes=processes.count(),
    )


def advice(config: Config, job: Job) -> str:
    """Return what would help a training that ran out of memory: the batch that fits, and what needs less."""
    from geoseg.learn import outofmemory

    return outofmemory.advice(job, _step_work(config, job.spec, job.runtime), config.training.accumulate)


def _batch_size(
    config: Config, model: nn.Module, work: StepWork, runtime: Runtime, samples: int, warn: Callable[[str], None]
) -> int:
    """Return the batch size: the config's, or the largest that fits, and never more than there are samples."""
    from geoseg.learn import processes
    from geoseg.learn.capacity import parse_memory
    from geoseg.learn.sizing import auto_batch_size

    training = config.training
    samples = max(1, min(samples, training.num_trn_samples or samples))
    if training.batch_size != "auto":
        return min(training.batch_size, samples)
    memory = parse_memory(training.memory, "training.memory") if training.memory else None
    found = auto_batch_size(model, work, runtime, samples, memory, warn)
    return processes.least(found, runtime.fabric.device)  # else they would take another number of steps


def record_memory(config: Config, job: Job) -> dict[str, Any]:
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


def model_options(config: Config, as_json: bool = False) -> dict[str, Any]:
    """Return the options of the model that is chosen, with paths as text if they are to be written down."""
    if not as_json:
        return config.model_options()
    options: dict[str, Any] = getattr(config.models, config.global_.model_name).as_kwargs()
    return options
