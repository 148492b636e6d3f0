"""`python -m geoseg.train`: train a model on the samples."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geoseg.cli import Invocation, progress, run_command
from geoseg.config import Config
from geoseg.config.training import read_augmentation
from geoseg.console import Log
from geoseg.errors import ConfigError, problem
from geoseg.trainjob import advice, make_job, model_options, record_memory

if TYPE_CHECKING:  # torch takes seconds to import; mistakes in the config are answered before that
    from geoseg.learn.checkpoint import Checkpoint
    from geoseg.learn.job import Job
    from geoseg.learn.mlflowrun import MlflowRun

_MEANS = {"mean_iou": "mean IoU", "mean_f1": "mean F1", "accuracy": "accuracy"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command("train", argv, _train, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint of the run")
    parser.add_argument("--overwrite", action="store_true", help="train anew into an existing run folder")


def _train(invocation: Invocation) -> None:
    from geoseg.learn.checkpoint import MEMORY, start_folder
    from geoseg.learn.compiling import compilation_explained
    from geoseg.learn.engine import train
    from geoseg.learn.job import Hooks
    from geoseg.learn.mlflowrun import check_installed, mlflow_run
    from geoseg.learn.outofmemory import explained
    from geoseg.learn.pictures import sample_pictures
    from geoseg.learn.sizing import add_epoch, describe, write_record
    from geoseg.learn.stopping import stop_requests
    from geoseg.report.training import Clock, reported

    config, log, clock = invocation.config, invocation.log, Clock()
    folder = config.training.output_path / str(config.training.run_name)
    saved = _find_start(config, folder, invocation)
    check_installed(config.training.mlflow)
    job = make_job(config, folder, saved, log)
    first = job.runtime.fabric.is_global_zero
    if first:
        if saved is None:
            start_folder(folder)
        _resolved(config, job).save(folder / "config.yaml")
    clock.ended("preparation")
    with explained(lambda: advice(config, job)):
        memory = record_memory(config, job)
    clock.ended("trial of a step")
    _say_what_begins(invocation, job, saved)
    log.note(describe(memory))
    done, rows = saved.epoch if saved else 0, []

    def tell(row: Mapping[str, float]) -> None:
        rows.append(row)
        add_epoch(memory, row)
        if first:
            write_record(folder / MEMORY, memory)
        after_epoch()
        shown.set_text(f"loss {row['trn_loss']:.4f}")
        log.note(_describe(row, job.options.num_epochs))

    work, bar = explained(lambda: advice(config, job)), progress(_count_batches(job, done), "train", "batches")
    known, elsewhere = reported(job, clock, log.note), mlflow_run(lambda: _mlflow_run(config, job, bool(saved), log))
    with stop_requests() as stop, elsewhere as after_epoch, known, work, compilation_explained(), bar as shown:
        best = train(job, saved, Hooks(shown.update, tell, stop, sample_pictures(job)))
    _summary(job, best, rows, invocation)


def _say_what_begins(invocation: Invocation, job: Job, saved: Checkpoint | None) -> None:
    note, hardware = invocation.log.note, job.runtime.facts()["hardware"]
    note(
        f"training {job.spec.model_name} ({_count(job.model)} weights) in {job.folder}: {hardware}, "
        f"{job.runtime.precision}, seed {job.runtime.seed}"
    )
    if saved:
        note(f"going on after epoch {saved.epoch}" + (" and a part of the next" if saved.progress["step"] else ""))
    elif _resumes(invocation):
        note(f"no checkpoint in {job.folder}: starting from the beginning")


def _mlflow_run(config: Config, job: Job, resumed: bool, log: Log) -> MlflowRun | None:
    """Return the run in MLflow; None if there shall be none, and in all processes but the first."""
    from geoseg.learn.mlflowrun import MlflowRun

    target = config.training.mlflow
    if target is None or not job.runtime.fabric.is_global_zero:
        return None
    plain = _resolved(config, job).as_dict()
    params = {f"{name}.{key}": value for name in ("global", "training") for key, value in plain[name].items()}
    return MlflowRun(target, job.folder, resumed, params, log.warn)


def _resumes(invocation: Invocation) -> bool:
    """Tell whether a run shall go on; what the command line says counts more than what the config says."""
    options = invocation.options
    return options.resume or (invocation.config.training.resume and not options.overwrite)


def _find_start(config: Config, folder: Path, invocation: Invocation) -> Checkpoint | None:
    """Return the checkpoint to go on from; refuses an existing run, and one of another model, before data is read."""
    from geoseg.learn.checkpoint import LAST, find_checkpoint
    from geoseg.learn.modelfile import check_matches

    options, training = invocation.options, config.training
    overwrite = options.overwrite or (training.overwrite and not options.resume)
    saved = find_checkpoint(folder, _resumes(invocation), overwrite)
    if saved is None:
        return None
    spec, seed = saved.model_spec(), saved.settings["seed"]
    check_matches(
        spec, folder / LAST, model_name=config.global_.model_name, model_options=model_options(config, as_json=True)
    )
    if config.global_.seed not in (None, seed):
        expected = f"{config.global_.seed} as the config says"
        remedy = "leave global.seed out or set it to the run's, or start a new run"
        raise ConfigError(problem(folder / LAST, f"seed {seed}", expected, remedy))
    return saved


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
