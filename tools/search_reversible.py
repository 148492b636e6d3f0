"""Search for shapes of `reversible_unet`: accuracy, time and memory of candidates under one small budget.

    python -m geoseg.sample config/demo.yaml
    python tools/search_reversible.py run --store demo/data/samples --seeds 0 1 2 small accurate unetsmall
    python tools/search_reversible.py run --store demo/data/samples --try width=80 "depth=[2,1,1]" preset=small
    python tools/search_reversible.py table results.jsonl
    python tools/search_reversible.py plot results.jsonl frontier.png

Every candidate is trained for the same number of steps on the same random crops, then scored on whole samples of the
other splits by IoU per class. Memory is counted under fake tensors at batch 8 of 256 x 256, and needs no time. Results
are appended to a file of JSON lines, so that a search can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from geoseg.data.augment import build_augmentation
from geoseg.data.dataset import SampleDataset
from geoseg.data.store import Store, open_store
from geoseg.learn.metrics import ConfusionMatrix, scores
from geoseg.memory import LiveBytes
from geoseg.models import MODELS, build_model

MIB = 2**20
Change = Callable[[NDArray[Any], NDArray[Any], int], tuple[NDArray[Any], NDArray[Any]]]
PRESETS = ("small", "balanced", "accurate")
_KEPT = ("steps", "batch", "side", "lr", "bf16", "rebuild", "augment", "own_scale")


def candidate(name: str, extra: list[str]) -> tuple[str, dict[str, Any]]:
    """Return model name and options of a candidate's name: a model, or a preset of the reversible U-Net.

    Args:
        name: In MODELS or PRESETS.
        extra: Options as `key=value`, values in YAML.
    """
    options = {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in extra)}
    if name in PRESETS:
        return "reversible_unet", {"preset": name, **options}
    if name in MODELS:
        return name, options
    raise SystemExit(f"{name}: expected one of {', '.join((*MODELS, *PRESETS))}")


def count_memory(model: str, options: dict[str, Any], bands: int, classes: int, batch: int = 8) -> dict[str, float]:
    """Return MiB per 256 x 256 sample, saved and at the peak, without computing."""
    with FakeTensorMode():
        net = build_model(model, bands, classes, **options)
        images, labels = torch.randn(batch, bands, 256, 256), torch.zeros(batch, 256, 256, dtype=torch.int64)
        with LiveBytes() as live:
            loss = F.cross_entropy(net(images), labels)
            saved = live.now()
            loss.backward()
        gradients = sum(p.numel() * p.element_size() for p in net.parameters())
        return {"saved": saved / MIB / batch, "peak": (live.peak - gradients) / MIB / batch}


def batches(data: SampleDataset, steps: int, batch: int, side: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random crops of random samples."""
    draw = np.random.default_rng(seed)
    for number in range(steps):
        data.set_epoch(number)
        images, labels = [], []
        for item in draw.integers(len(data), size=batch):
            image, label = data[int(item)]
            row, col = (int(draw.integers(size - side + 1)) for size in label.shape)
            images.append(image[:, row : row + side, col : col + side])
            labels.append(label[row : row + side, col : col + side])
        yield torch.stack(images).contiguous(memory_format=torch.channels_last), torch.stack(labels)


def train(net: nn.Module, data: SampleDataset, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Train under the budget; return seconds per step (the processor's, this process's) and the last losses' mean."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.steps)
    ignore, seconds, losses = data.store.info.ignore_value, [], []
    net.train()
    for images, labels in batches(data, options.steps, options.batch, options.side, seed):
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            logits = net(images)
        loss = F.cross_entropy(logits.float(), labels, ignore_index=ignore)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seconds.append(time.process_time() - start)
        losses.append(float(loss.detach()))
    return statistics.median(seconds), statistics.fmean(losses[-20:])


class OwnScale:
    """Samples of one split with each band shifted and scaled to mean 0 and deviation 1 over that split.

    For scenes of another sensor, whose values mean something else than those that the store's statistics are of.
    """

    def __init__(self, store: Store, split: str, then: Change | None) -> None:
        data = SampleDataset(store, split)
        images = torch.stack([data[item][0] for item in range(len(data))]).transpose(0, 1).flatten(1)
        self.mean, self.std = (value.numpy()[:, None, None] for value in (images.mean(1), images.std(1)))
        self.then = then

    def __call__(self, image: NDArray[Any], label: NDArray[Any], seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
        scaled = ((image - self.mean) / self.std).astype(np.float32)
        return self.then(scaled, label, seed) if self.then else (scaled, label)


def augmentation(store: Store, split: str, options: argparse.Namespace) -> Change | None:
    """Return what is done to the samples of a split."""
    chosen = build_augmentation(options.augment if split == "trn" else "none", store.info.ignore_value)
    return OwnScale(store, split, chosen) if options.own_scale else chosen


def score(net: nn.Module, store: Store, split: str, options: argparse.Namespace) -> list[float]:
    """Return the IoU of every class over a split's samples."""
    data, info = SampleDataset(store, split, augmentation(store, split, options)), store.info
    counts = ConfusionMatrix(info.num_classes, info.ignore_value)
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
        for item in range(len(data)):
            image, label = data[item]
            counts.update(net(image[None]).float().max(1)[1][0], label)
    return [float(value) for value in scores(counts.matrix()).iou]


def run(options: argparse.Namespace) -> None:
    """Train and score every candidate with every seed; append to the results."""
    torch.set_num_threads(options.threads)
    store = open_store(options.store)
    info = store.info
    augment = augmentation(store, "trn", options)
    for seed in options.seeds:
        for name in options.names:
            model, given = candidate(name, options.extra if name in PRESETS else [])
            # The oracle is quicker, and its numbers are the same.
            quick = {**given, "save_memory": options.rebuild} if model == "reversible_unet" else given
            torch.manual_seed(seed)
            net = build_model(model, len(info.bands), info.num_classes, **quick).to(memory_format=torch.channels_last)
            data = SampleDataset(store, "trn", augment, seed=seed)
            seconds, loss = train(net, data, options, seed)
            result = {
                "name": " ".join((name, *(options.extra if name in PRESETS else []))),
                "seed": seed,
                "parameters": sum(p.numel() for p in net.parameters()),
                "seconds": seconds,
                "loss": loss,
                **{split: score(net, store, split, options) for split in options.splits},
                **count_memory(model, given, len(info.bands), info.num_classes),
                **{key: getattr(options, key) for key in _KEPT},
            }
            print(json.dumps(result), flush=True)
            with options.results.open("a") as file:
                file.write(json.dumps(result) + "\n")


def summary(path: Path) -> list[dict[str, Any]]:
    """Return the results by candidate: means over seeds, of IoUs as mean IoU in percent."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        result = json.loads(line)
        found[result["name"]].append(result)
    rows = []
    for name, results in found.items():
        row = {"name": name, "seeds": len(results)}
        for key in ("parameters", "seconds", "saved", "peak", "loss"):
            row[key] = statistics.fmean(result[key] for result in results)
        for split in ("val", "tst"):
            if all(split in result for result in results):
                means = [100 * float(np.nanmean(result[split])) for result in results]
                row[split], row[f"{split}_spread"] = statistics.fmean(means), max(means) - min(means)
        rows.append(row)
    return rows


def table(options: argparse.Namespace) -> None:
    """Print the results as a Markdown table."""
    print("| network | M parameters | s/step | saved MiB | peak MiB | loss | mIoU val | mIoU tst | seeds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in summary(options.results):
        cells = [row["name"], f"{row['parameters'] / 1e6:.2f}", f"{row['seconds']:.3f}", f"{row['saved']:.1f}"]
        cells += [f"{row['peak']:.1f}", f"{row['loss']:.3f}"]
        for split in ("val", "tst"):
            cells.append(f"{row[split]:.1f} ({row[f'{split}_spread']:.1f})" if split in row else "-")
        print("| " + " | ".join([*cells, str(row["seeds"])]) + " |")


def plot(options: argparse.Namespace) -> None:
    """Draw mean IoU, with its range around it, over peak memory; the area of a dot is the time of a step."""
    rows = [row for row in summary(options.results) if "tst" in row]
    width, height, margin = 900, 560, 60
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    most = 1.1 * max(row["peak"] for row in rows)
    low = min(row["tst"] - row["tst_spread"] / 2 for row in rows) - 0.5
    high = max(row["tst"] + row["tst_spread"] / 2 for row in rows) + 0.5
    slowest = max(row["seconds"] for row in rows)
    draw.line([(margin, margin // 2), (margin, height - margin), (width - margin // 2, height - margin)], fill="black")
    for row in rows:
        x = margin + row["peak"] / most * (width - 2 * margin)
        y, top, bottom = (
            height - margin - (row["tst"] + part * row["tst_spread"] - low) / (high - low) * (height - 2 * margin)
            for part in (0, 0.5, -0.5)
        )
        draw.line([(x, top), (x, bottom)], fill="#9db8d2", width=2)
        r = 14 * (row["seconds"] / slowest) ** 0.5
        draw.ellipse([x - r, y - r, x + r, y + r], outline="#1f4e79", width=2)
        draw.text((x + r + 3, y - 6), row["name"], fill="black")
    for value in range(0, int(most) + 1, 20 if most > 80 else 5):
        draw.text((margin + value / most * (width - 2 * margin), height - margin + 6), str(value), fill="black")
    for value in range(int(low) + 1, int(high) + 1):
        draw.text(
            (24, height - margin - (value - low) / (high - low) * (height - 2 * margin) - 6), str(value), fill="black"
        )
    draw.text((width // 3, height - 24), "peak memory of a training step, MiB per 256 x 256 sample", fill="black")
    title = "mean IoU of the test split, %, and its range over the seeds; area of a dot: time of a step"
    draw.text((8, 8), title, fill="black")
    picture.save(options.picture)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    search = commands.add_parser("run")
    search.add_argument("names", nargs="*", default=["small"])
    search.add_argument("--store", type=Path, required=True)
    search.add_argument("--try", dest="extra", nargs="+", default=[], help="options of the reversible candidates")
    search.add_argument("--results", type=Path, default=Path("results.jsonl"))
    search.add_argument("--seeds", type=int, nargs="+", default=[0])
    search.add_argument("--splits", nargs="+", default=["val", "tst"])
    for key, default in (("steps", 200), ("batch", 8), ("side", 128), ("threads", 1)):
        search.add_argument(f"--{key}", type=int, default=default)
    search.add_argument("--lr", type=float, default=2e-3)
    search.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    search.add_argument("--augment", default="geometric")
    search.add_argument("--own-scale", action="store_true", help="scale each split's bands by its own statistics")
    search.add_argument("--rebuild", action="store_true", help="train the memory-saving network, to time it")
    search.set_defaults(action=run)
    show = commands.add_parser("table")
    show.add_argument("results", type=Path)
    show.set_defaults(action=table)
    draw = commands.add_parser("plot")
    draw.add_argument("results", type=Path)
    draw.add_argument("picture", type=Path)
    draw.set_defaults(action=plot)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
