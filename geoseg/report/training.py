"""The report of a training: how it went, what the model does with the validation samples, what it needed."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from geoseg import __version__
from geoseg.assess.review import Review, review
from geoseg.data.dataset import SampleDataset
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store
from geoseg.learn.checkpoint import BEST, CONFIG, MEMORY, METRICS, REPORT
from geoseg.learn.files import replacing
from geoseg.learn.job import Job
from geoseg.learn.modelfile import load_model_file, read_model_spec
from geoseg.learn.prepare import StoreBatches
from geoseg.learn.records import read_metrics
from geoseg.report.charts import class_balance
from geoseg.report.curves import bars, curves
from geoseg.report.html import page, paragraph, preformatted, row, section, table
from geoseg.report.review import review_sections

_REVIEW_BATCH = 16
_LIBRARIES = ("torch", "lightning-fabric", "numpy", "rasterio", "albumentations", "safetensors")
_MIB = 2**20
_MEANS = {"mean_iou": "mean IoU", "mean_f1": "mean F1", "accuracy": "accuracy"}
_MORE = {"fw_iou": "IoU weighted by frequency", "kappa": "Cohen's kappa", "boundary_iou": "boundary IoU"}
_TERMS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "state of the optimiser",
    "saved": "kept between forward and backward",
    "peak": "peak of forward and backward",
    "exchange": "exchange between processes",
    "allocated": "allocated on the GPU in all",
    "reserved": "reserved on the GPU",
    "used": "in use on the GPU, driver and others included",
}


@dataclass(frozen=True)
class Run:
    """What is known of a run besides the files in its folder.

    Attributes:
        folder: The run folder.
        store: Its samples.
        facts: About model, device and seed: heading and text.
        best: Facts about the best epoch, as in the model file's `trained`; empty if there is none.
        seconds: Time by phase of the command.
        ended: Why it ended early; empty if it did not.
    """

    folder: Path
    store: Store
    facts: Mapping[str, str]
    best: Mapping[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)
    ended: str = ""


def report_run(
    job: Job,
    seconds: Mapping[str, float],
    ended: str = "",
) -> Path:
    """Look at the validation samples with the best weights and write the report of a run; returns its path.

    Args:
        job: What was trained; its validation batches are those of a sample store.
        seconds: Time by phase of the command.
        ended: Why training ended early, in a sentence. The samples are then not looked at, which could take long.
    """
    dataset, runtime = cast(StoreBatches, job.val).dataset, job.runtime
    weights = sum(parameter.numel() for parameter in job.model.parameters())
    facts = {"model": job.spec.model_name, "weights": f"{weights:,}", "batch size": str(job.batch_size)}
    facts |= {name.replace("_", " "): str(value) for name, value in runtime.facts().items() if name != "torch"}
    looked, best = None, _best(job.folder / BEST)
    if best and not ended:
        started = time.perf_counter()
        model, _ = load_model_file(job.folder / BEST)
        batch = min(job.batch_size, _REVIEW_BATCH)
        looked = review(model, dataset, runtime.fabric.device, runtime.precision, batch)
        seconds = {**seconds, "validation once more": time.perf_counter() - started}
    run = Run(job.folder, dataset.store, facts, best, seconds, ended)
    return write_training_report(run, looked, dataset)


class Clock:
    """Measures the phases of a command, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def ended(self, phase: str) -> None:
        """Count the time since the phase before under a name."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


@contextmanager
def reported(job: Job, clock: Clock, note: Callable[[str], None]) -> Iterator[None]:
    """Surround a training: when it has ended, or was stopped, the first process writes the report of the run.

    Args:
        job: What is trained.
        clock: Of the command; the training is its next phase.
        note: Told what takes time.
    """
    first = job.runtime.fabric.is_global_zero
    try:
        yield
    except KeyboardInterrupt:
        clock.ended("training")
        if first:
            report_run(job, clock.seconds, "Stopped before the end; --resume goes on.")
        raise
    clock.ended("training")
    if first:
        note("report: looking at the validation samples with the best weights")
        report_run(job, clock.seconds)


def _best(path: Path) -> Mapping[str, Any]:
    """Return facts about the best epoch; nothing if there is none."""
    return read_model_spec(path).trained if path.is_file() else {}


def write_training_report(run: Run, looked: Review | None = None, dataset: SampleDataset | None = None) -> Path:
    """Write `report.html` into a run folder, whole or not at all; returns its path.

    Args:
        run: The run.
        looked: What the best weights do with the validation samples; None leaves that out.
        dataset: The samples that were reviewed.
    """
    rows = read_metrics(run.folder / METRICS)
    sections = [_summary(run, rows), section("Curves", *_curves(rows))]
    if looked is not None and dataset is not None and looked.scenes:
        sections += review_sections(looked, dataset)
    sections += [
        section("Data", *_data(run.store)),
        section("Memory of a training step", *_memory(run.folder / MEMORY)),
        section("Time", *_time(run, rows)),
        section("Environment", table(("item", "value"), list({**run.facts, **_environment()}.items()))),
        section("Config", preformatted(_text(run.folder / CONFIG))),
    ]
    path = run.folder / REPORT
    with replacing(path) as file:
        file.write(page(f"Training of {run.facts.get('model', 'a model')}", sections).encode())
    return path


def _summary(run: Run, rows: Sequence[Mapping[str, float]]) -> str:
    best = run.best
    if not best:
        text = f"{len(rows)} epochs, none with a score."
    else:
        more = {key: name for key, name in _MORE.items() if best.get(key) is not None}
        scores = ", ".join(f"{name} {_share(best.get(key))}" for key, name in (_MEANS | more).items())
        text = (
            f"Best epoch {best['epoch']} of {best['num_epochs']} by {best['monitor']}. On the validation samples: "
            f"{scores}."
        )
    return paragraph(f"{text} {run.ended}".strip())


def _curves(rows: Sequence[Mapping[str, float]]) -> list[str]:
    def points(name: str) -> list[tuple[float, float]]:
        return [(entry["epoch"], entry.get(name, math.nan)) for entry in rows]

    losses = {"training": points("trn_loss"), "validation": points("val_loss")}
    end = _cut([value for line in losses.values() for _, value in line])
    drawn = [
        curves("loss" if end is None else f"loss, cut at {end:.3g}", losses, end=end),
        curves("scores of validation", {name: points(f"val_{key}") for key, name in _MEANS.items()}, 0.0, 1.0),
        curves("learning rate", {"learning rate": points("learning_rate")}, start=0.0),
        curves("seconds of an epoch", {"training": points("seconds"), "validation": points("val_seconds")}, start=0.0),
    ]
    return [row([chart for chart in drawn if chart])] if any(drawn) else [paragraph("No epoch was finished.")]


def _cut(values: Sequence[float]) -> float | None:
    """Return where to cut an axis so that a few high values do not hide all others; None where there are none such."""
    finite = [value for value in values if math.isfinite(value)]
    usual = float(np.quantile(finite, 0.8)) if finite else 0.0
    return 1.25 * usual if usual > 0 and max(finite) > 3 * usual else None


def _data(store: Store) -> list[str]:
    info = store.info
    splits = [split for split in SPLITS if info.samples.get(split, 0)]
    counts = ", ".join(f"{info.samples[split]:,} {split}" for split in splits)
    known = {split: info.class_pixels[split] for split in splits}
    rows = [[f"{c['id']} {c['name']}", *(f"{known[s][int(c['id'])]:,}" for s in splits)] for c in info.classes]
    return [
        paragraph(
            f"{sum(info.samples.values()):,} samples ({counts}) of {info.samples_size} x {info.samples_size} pixels, "
            f"{len(info.bands)} bands of {info.dtype}, from {len(info.scenes)} scene{'s' * (len(info.scenes) != 1)}."
        ),
        class_balance(info.classes, known),
        table(["known pixels", *splits], rows, [str(entry["colour"]) for entry in info.classes]),
    ]


def _memory(path: Path) -> list[str]:
    if not path.is_file():
        return [paragraph("Not recorded.")]
    record = json.loads(_text(path))
    predicted, measured = record["predicted"], record["measured"]
    rows = []
    for term, name in _TERMS.items():
        found = {"foreseen": predicted.get(term), "measured": measured.get(term)}
        values = {kind: value / _MIB for kind, value in found.items() if value}
        if values:
            rows.append((name, values))
    peaks = [entry["peak_memory_mb"] for entry in record["epochs"] if entry.get("peak_memory_mb")]
    if peaks:
        what = "allocated on the GPU" if record["device"] == "cuda" else "of the whole process"
        rows.append((f"most {what}, epochs", {"measured": max(peaks)}))
    note = f"Of {record['batch_size']} samples in {record['precision']} on {record['device']}."
    return [bars("memory of a training step, MiB", rows, "MiB"), paragraph(note, quiet=True)]


def _time(run: Run, rows: Sequence[Mapping[str, float]]) -> list[str]:
    phases = {f"command: {name}": seconds for name, seconds in run.seconds.items()}
    for name, title in (("seconds", "epochs: training"), ("val_seconds", "epochs: validation")):
        total = sum(entry[name] for entry in rows if math.isfinite(entry.get(name, math.nan)))
        phases |= {title: total} if total else {}
    if not phases:
        return [paragraph("Not recorded.")]
    speeds = [entry["samples_per_second"] for entry in rows if math.isfinite(entry.get("samples_per_second", math.nan))]
    note = f"{np.mean(speeds):.1f} training samples per second. " if speeds else ""
    note += "The times of the command are those since it was last started; the epochs are all of the run's."
    chart = bars("time by phase, seconds", [(name, {"": seconds}) for name, seconds in phases.items()], "s")
    return [chart, paragraph(note, quiet=True)]


def _environment() -> dict[str, str]:
    found = {"geoseg": __version__, "Python": platform.python_version(), "system": platform.platform()}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _share(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"
