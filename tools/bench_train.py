"""Samples per second of the loader alone, the network alone, and both: python tools/bench_train.py [--device cuda ...].

The samples are noise, 256 x 256 pixels of 4 bands in uint16, in a store of their own. The floor is torch's DataLoader
with as many workers on a dataset that hands out the same tensors again and again: what moving them costs. Times are
those of the clock, so nothing else should run meanwhile; the ratios suffer less than the figures.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from geoseg.data.store import StoreInfo, open_store
from geoseg.learn import runtime
from geoseg.learn.frozen import train_mode
from geoseg.learn.losses import build_loss
from geoseg.learn.prepare import Draws, StoreBatches
from geoseg.learn.stepping import StepOptions, Stepper
from geoseg.models import MODELS, build_model

SIZE, BANDS, CLASSES, IGNORE, SCENE = 256, 4, 5, 255, 256
Batch = tuple[Tensor, Tensor]


class Same(Dataset[Batch]):
    """One sample, again and again."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.item = torch.zeros(BANDS, SIZE, SIZE), torch.zeros(SIZE, SIZE, dtype=torch.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        return self.item


def make_store(folder: Path, count: int) -> None:
    """Write a store of `count` training samples of noise, in shards of SCENE."""
    shards = folder / "samples" / "shards"
    shards.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for start in range(0, count, SCENE):
        name, n = f"scene{start}", min(SCENE, count - start)
        np.save(shards / f"{name}.images.npy", rng.integers(0, 4000, (n, BANDS, SIZE, SIZE), dtype=np.uint16))
        np.save(shards / f"{name}.labels.npy", rng.integers(0, CLASSES, (n, SIZE, SIZE), dtype=np.uint8))
        rows += [{"split": "trn", "scene": name, "position": i, "valid_position": -1} for i in range(n)]
    pd.DataFrame(rows).to_parquet(folder / "samples" / "index.parquet")
    info = StoreInfo(
        classes=tuple({"id": i, "name": str(i), "value": i, "colour": "#000000"} for i in range(CLASSES)),
        num_classes=CLASSES,
        ignore_value=IGNORE,
        samples_size=SIZE,
        stride=SIZE,
        bands=tuple(range(1, BANDS + 1)),
        band_names=(None,) * BANDS,
        dtype="uint16",
        resolution=(1.0, 1.0),
        crs="EPSG:32618",
        statistics=({"mean": 2000.0, "std": 1000.0},) * BANDS,
        class_pixels={"trn": (1,) * CLASSES, "val": (0,) * CLASSES, "tst": (0,) * CLASSES},
        samples={"trn": count, "val": 0, "tst": 0},
        dropped={},
        scenes=(),
    )
    (folder / "samples" / "store.json").write_text(info.to_json(), encoding="utf-8")


def rates(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Return samples per second of each: the median over some runs in turn, after one that warms up."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            found[name].append(run() / (time.perf_counter() - started))
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return samples per second by what was run."""
    place = runtime.setup(0, options.device, options.precision)
    draws = Draws(augmentation=options.augmentation)
    shared = {"seed": 0, "draws": draws, "workers": options.workers}
    batches = StoreBatches(open_store(folder), "trn", options.batch, **shared)
    trained = StoreBatches(open_store(folder), "trn", options.batch, options.batch * options.steps, **shared)
    count = options.samples
    floor: DataLoader[Batch] = DataLoader(
        Same(count),
        options.batch,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        prefetch_factor=4 if options.workers else None,
        pin_memory=place.device == "cuda",
    )
    stepper = Stepper(place, build_model(options.model, BANDS, CLASSES), StepOptions())
    train_mode(stepper.model)
    loss, device = build_loss(), place.fabric.device

    def loss_of(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        image = image.to(device, memory_format=torch.channels_last, non_blocking=True)
        return loss(stepper.model(image), label.to(device, non_blocking=True), IGNORE, None)

    def step(stream: Iterator[Batch]) -> int:
        done = sum(len(batch[0]) for batch in stream if stepper.take([batch], loss_of, 1e-4) is not None)
        if place.device == "cuda":
            torch.cuda.synchronize()
        return done

    first = next(iter(StoreBatches(open_store(folder), "trn", options.batch)))
    ready = tuple(tensor.to(device) for tensor in first)
    runs: dict[str, Callable[[], int]] = {
        "floor": lambda: sum(len(image) for image, _ in floor),
        "loader": lambda: sum(len(image) for image, _ in batches),
        "network": lambda: step(iter([ready] * options.steps)),
        "both": lambda: step(iter(trained)),
    }
    return rates(runs, options.repeats)


def report(found: dict[str, float], options: argparse.Namespace) -> str:
    """Return the figures as Markdown."""
    slower = min(found["loader"], found["network"])
    what = {
        "floor": "bare DataLoader, the same tensors again and again",
        "loader": f"our loader alone, augmentation {options.augmentation}",
        "network": "training steps alone, on one batch again and again",
        "both": "training",
    }
    lines = [
        f"{options.model}, batch {options.batch}, {options.precision} on {options.device}, {options.workers} workers, "
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}",
        "",
        "| | samples/s | ms/sample |",
        "|---|---|---|",
        *(f"| {text} | {found[name]:,.1f} | {1000 / found[name]:.2f} |" for name, text in what.items()),
        "",
        f"Training runs at {found['both'] / slower:.2f} of the slower of its two parts; the loader takes "
        f"{found['floor'] / found['loader']:.1f} times what the floor does.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="unetsmall", choices=MODELS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--augmentation", default="geometric")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256, help="samples in the store, and so in an epoch")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run with the network")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder), options.samples)
        print(report(measure(Path(folder), options), options))


if __name__ == "__main__":
    main()
