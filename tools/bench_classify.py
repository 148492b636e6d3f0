"""Cost of classifying a large raster: python tools/bench_classify.py [--repeat 3] [--part stream|memory|overhead].

The raster is made here: 10,000 x 10,000 pixels, four bands of uint8, tiled. The network of the first two parts is a
single 3 x 3 convolution to 5 classes, so that what is measured is the pipeline around it. CPU seconds of the process
on one thread, so that a busy machine changes them little; "loop" is the plainest program that does the work without
overlap (windows of 512, batch 1, no context, a tiled GeoTIFF), run in alternation in the same process. The finishing
pass (overviews and the Cloud Optimized GeoTIFF's layout) is given apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import bench_sample

ROOT = Path(__file__).resolve().parents[1]
SIDE = 10_000
CLASSES = 5
WINDOW = 512
#: Context on each side, so that neighbours share a quarter of a window of 512 + 2 * 86 = 684 pixels.
QUARTER = 86


def predictor(model: str) -> Any:
    """Return a predictor of one convolution, or of unetsmall, with fixed weights."""
    import torch

    from geoseg.data.normalise import Normalisation
    from geoseg.models import build_model
    from geoseg.predict.predictor import Predictor

    torch.manual_seed(0)
    if model == "conv":
        network: Any = torch.nn.Conv2d(4, CLASSES, 3, padding=1)
        divisor, radius = 1, 1
    else:
        network = build_model(model, in_channels=4, num_classes=CLASSES)
        divisor, radius = network.size_divisor, network.receptive_radius
    network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    normalisation = Normalisation((110.0,) * 4, (40.0,) * 4)
    return Predictor(network, CLASSES, normalisation, divisor, radius, channels_last=True)


def classify(image: Path, folder: Path, model: str, **sliding: Any) -> None:
    """Classify an image as the command does."""
    from geoseg.predict.output import MapDescription
    from geoseg.predict.plan import SlidingOptions
    from geoseg.predict.scene import ClassifyOptions, classify_scene

    names = tuple("abcde")
    colours = ("#000000", "#ff0000", "#00ff00", "#0000ff", "#ffff00")
    options = ClassifyOptions(SlidingOptions(**sliding))
    classify_scene(image, predictor(model), (1, 2, 3, 4), folder, MapDescription(names, colours), options)


def loop(image: Path, folder: Path) -> None:
    """Classify without overlap in the plainest way; no finishing pass."""
    import rasterio
    import torch
    from rasterio.windows import Window

    network = predictor("conv").network
    profile = {"count": 1, "tiled": True, "blockxsize": WINDOW, "blockysize": WINDOW, "compress": "deflate"}
    target = folder / "loop.tif"
    with rasterio.open(image) as source, torch.inference_mode():
        profile = source.profile | profile | {"predictor": 1, "nodata": 255, "photometric": "MINISBLACK"}
        with rasterio.open(target, "w", **profile) as out:
            for row in range(0, source.height, WINDOW):
                for col in range(0, source.width, WINDOW):
                    window = Window(col, row, min(WINDOW, source.width - col), min(WINDOW, source.height - row))
                    batch = torch.from_numpy((source.read(window=window).astype(np.float32) - 110) / 40)[None]
                    best = network(batch).max(1).indices[0].to(torch.uint8)
                    out.write(best.numpy(), 1, window=window)
    target.unlink()


def timed_finish() -> list[float]:
    """Replace the functions of the finishing pass by timed ones; return the list of their CPU seconds."""
    from geoseg.predict import output, partstore

    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent.append(time.process_time() - start)

        return call

    partstore.finish_part = timed(partstore.finish_part)
    output.publish_cog = timed(output.publish_cog)
    return spent


VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"blending": "none", "overlap": 1, "window": WINDOW},
    "hann": {"blending": "hann", "overlap": QUARTER, "window": WINDOW},
}


def run_stream(image: Path, names: Sequence[str], repeat: int) -> dict[str, Any]:
    """Run the variants (and "loop") in alternation in this process; return CPU seconds per MPix and memory."""
    import torch

    from geoseg.learn.runtime import keep_freed_memory
    from geoseg.predict import scene  # noqa: F401  (imports are not what is measured)

    torch.set_num_threads(1)
    keep_freed_memory()
    finishing = timed_finish()
    base, pixels = bench_sample._resident("VmRSS"), _megapixels(image)
    spent: dict[str, list[float]] = {f"{name}{end}": [] for name in names for end in ("", " finish")}
    with tempfile.TemporaryDirectory(dir=image.parent) as folder:
        for _ in range(repeat):
            for name in names:
                finishing.clear()
                start = time.process_time()
                if name == "loop":
                    loop(image, Path(folder))
                else:
                    classify(image, Path(folder), "conv", **VARIANTS[name])
                total, finish = time.process_time() - start, sum(finishing)
                spent[name].append((total - finish) / pixels)
                spent[f"{name} finish"].append(finish / pixels)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.tif")) / 1e6
    return {"cpu": spent, "mb": (bench_sample._resident("VmHWM") - base) / 1024, "map_mb": size}


def run_overhead(image: Path, repeat: int) -> dict[str, Any]:
    """Alternate unetsmall through the pipeline with the bare forward passes that it needs."""
    import torch

    from geoseg.geo.raster import open_raster
    from geoseg.learn.runtime import keep_freed_memory
    from geoseg.predict import sliding

    torch.set_num_threads(1)
    keep_freed_memory()
    net = predictor("unetsmall")
    with open_raster(image) as raster:
        plan = sliding.plan_windows(net, raster.info.height, raster.info.width, sliding.SlidingOptions())
        reads = [tile.read for tile in sliding.region_tiles(plan, raster.info.window)]
    inputs = {shape: torch.randn(1, 4, *shape) for shape in {window.shape for window in reads}}
    inputs = {k: v.contiguous(memory_format=torch.channels_last) for k, v in inputs.items()}
    bare: list[float] = []
    whole: list[float] = []
    with tempfile.TemporaryDirectory(dir=image.parent) as folder, torch.inference_mode():
        for _ in range(repeat):
            start = time.process_time()
            for window in reads:
                net.network(inputs[window.shape])
            bare.append(time.process_time() - start)
            start = time.process_time()
            classify(image, Path(folder), "unetsmall")
            whole.append(time.process_time() - start)
    return {"bare": bare, "whole": whole, "megapixels": _megapixels(image)}


def _megapixels(image: Path) -> float:
    from geoseg.geo.raster import read_info

    info = read_info(image)
    return info.height * info.width / 1e6


def in_process(words: Sequence[str]) -> dict[str, Any]:
    """Run this tool in a fresh process and return its figures."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, __file__, *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    (found,) = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    return dict(json.loads(found.removeprefix("RESULT ")))


def report_stream(folder: Path, repeat: int) -> None:
    """Print CPU seconds per MPix of the variants."""
    for compress in (None, "deflate"):
        image = folder / f"image_{compress}.tif"
        bench_sample.make_image(image, SIDE, SIDE, compress=compress)
        found = in_process(["--child", "stream", str(image), str(repeat), "loop", *VARIANTS])
        print(f"{SIDE:,} x {SIDE:,} x 4 uint8, {compress or 'not compressed'}: CPU s/MPix, median (lowest to highest)")
        for name, values in found["cpu"].items():
            if any(values):
                print(f"  {name:12} {median(values):.4f} ({min(values):.4f} to {max(values):.4f})")
        image.unlink()


def report_peers(folder: Path, repeat: int, python: str) -> None:
    """Print CPU seconds per MPix and memory of our two variants and of others, in alternation."""
    image, target = folder / "peers.tif", folder / "map.tif"
    bench_sample.make_image(image, SIDE, SIDE)
    runs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeat):
        for name in VARIANTS:
            found = in_process(["--child", "stream", str(image), "1", name])
            runs.setdefault(f"geoseg, {name}", []).append((found["cpu"][name][0], found["mb"]))
        for name in ("monai", "monai-overlap", "torchgeo"):
            words = [python, ROOT / "tools" / "peer_sliding.py", name, image, target]
            other = bench_sample.run(words)
            runs.setdefault(name, []).append((other["cpu"], other["mb"]))
    for name, values in runs.items():
        cpu = sorted(value for value, _ in values)
        print(f"{name:16} {median(cpu):.4f} ({cpu[0]:.4f} to {cpu[-1]:.4f}) CPU s/MPix, {values[0][1]:,.0f} MB")
    image.unlink()


def report_memory(folder: Path) -> None:
    """Print resident memory above imports for two shapes."""
    for height, width in ((SIDE, SIDE), (20_000, 100_000)):
        image = folder / "sparse.tif"
        bench_sample.make_image(image, height, width, sparse=True)
        for name in VARIANTS:
            found = in_process(["--child", "stream", str(image), "1", name])
            print(f"{width:,} x {height:,} sparse, {name}: {found['mb']:.0f} MB above imports")
        image.unlink()


def report_overhead(folder: Path, repeat: int) -> None:
    """Print the pipeline's overhead over bare forward passes of unetsmall."""
    image = folder / "small.tif"
    bench_sample.make_image(image, 2048, 2048)
    found = in_process(["--child", "overhead", str(image), str(repeat)])
    ratios = [whole / bare for whole, bare in zip(found["whole"], found["bare"], strict=True)]
    per = median(found["bare"]) / found["megapixels"]
    print(f"unetsmall, 2,048 x 2,048: bare {per:.2f} CPU s/MPix; whole / bare {median(ratios):.3f}", end=" ")
    print(f"({min(ratios):.3f} to {max(ratios):.3f})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are wanted, or, as a child, one pass."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--child"]:
        image = Path(words[2])
        found = (
            run_stream(image, words[4:], int(words[3])) if words[1] == "stream" else run_overhead(image, int(words[3]))
        )
        print("RESULT " + json.dumps(found))
        return 0
    parser = argparse.ArgumentParser(description="Cost of classifying a large raster.")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--part", choices=("stream", "memory", "overhead"), action="append")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has MONAI and TorchGeo")
    parser.add_argument("--folder", type=Path, help="where the rasters go for the time being (needs 500 MB)")
    options = parser.parse_args(words)
    parts = options.part or ([] if options.peer else ["stream", "memory", "overhead"])
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        if "stream" in parts:
            report_stream(folder, options.repeat)
        if "memory" in parts:
            report_memory(folder)
        if "overhead" in parts:
            report_overhead(folder, options.repeat)
        if options.peer:
            report_peers(folder, options.repeat, options.peer)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
