"""Cost of sampling against the cost of reading: python tools/bench_sample.py [--repeat 3] [--part ratio|shapes|...].

The scene is made here: a tiled uint8 GeoTIFF of four bands in UTM, and polygons in EPSG:4326. Figures are CPU
seconds of the process, so that a busy machine changes them little (but for `processes`: by the clock), and each ratio
comes from runs that alternate in one process each. "Reading" is one pass over the raster in the blocks that sampling
reads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import geopandas
import numpy as np
import rasterio
import shapely
from affine import Affine
from rasterio.windows import Window as RasterWindow

ROOT = Path(__file__).resolve().parents[1]
PIXEL = 0.5
TRANSFORM = Affine(PIXEL, 0, 600_000, 0, -PIXEL, 5_000_000)
UTM = "EPSG:32618"
BLOCK = 2048


def make_image(path: Path, height: int, width: int, sparse: bool = False, compress: str | None = None) -> None:
    """Write four bands of uint8, smooth with some noise; a sparse file holds no pixel and reads as zeros."""
    profile = {"driver": "GTiff", "height": height, "width": width, "count": 4, "dtype": "uint8", "crs": UTM}
    tiling = {"tiled": True, "blockxsize": 512, "blockysize": 512, "photometric": "MINISBLACK", "bigtiff": "IF_SAFER"}
    packing = {} if compress is None else {"compress": compress, "predictor": 2}
    with rasterio.open(path, "w", transform=TRANSFORM, sparse_ok=True, **profile, **tiling, **packing) as dataset:
        if sparse:
            return
        pattern = _pattern()
        for number, (row, col) in enumerate(_corners(height, width)):
            shape = min(BLOCK, height - row), min(BLOCK, width - col)
            shift = number % 64
            part = pattern[:, shift : shift + shape[0], shift : shift + shape[1]]
            dataset.write(part, window=RasterWindow(col, row, shape[1], shape[0]))


def _pattern() -> np.ndarray:
    rng = np.random.default_rng(1)
    coarse = rng.integers(20, 220, (4, 66, 66)).astype(np.float32)
    smooth = np.stack([cv2.resize(band, (BLOCK + 64, BLOCK + 64), interpolation=cv2.INTER_CUBIC) for band in coarse])
    noisy = smooth + rng.normal(0, 3, smooth.shape)
    return noisy.clip(0, 255).astype(np.uint8)


def make_labels(path: Path, height: int, width: int, count: int, classes: int = 4) -> None:
    """Write irregular octagons of 20 to 80 pixels across, in EPSG:4326."""
    rng = np.random.default_rng(2)
    angles = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    radius = rng.uniform(10, 40, (count, 1)) * rng.uniform(0.7, 1.0, (count, 8))
    cols = rng.uniform(0, width, (count, 1)) + radius * np.cos(angles)
    rows = rng.uniform(0, height, (count, 1)) + radius * np.sin(angles)
    x, y = TRANSFORM.a * cols + TRANSFORM.c, TRANSFORM.e * rows + TRANSFORM.f
    values = {"class": rng.integers(1, classes + 1, count)}
    frame = geopandas.GeoDataFrame(values, geometry=shapely.polygons(np.stack([x, y], 2)), crs=UTM)
    frame.to_crs("EPSG:4326").to_file(path)


def _corners(height: int, width: int) -> list[tuple[int, int]]:
    return [(row, col) for row in range(0, height, BLOCK) for col in range(0, width, BLOCK)]


def read_pass(folder: Path, **_: object) -> None:
    """Read every pixel once, in blocks."""
    from geoseg.geo.grid import Window
    from geoseg.geo.raster import open_raster

    with open_raster(folder / "image.tif") as raster:
        height, width = raster.info.height, raster.info.width
        for row, col in _corners(height, width):
            raster.read(Window(row, col, min(BLOCK, height - row), min(BLOCK, width - col)))


def sample_pass(folder: Path, stride: int = 256, workers: int = 1, **_: object) -> None:
    """Make the sample store, all of it."""
    from geoseg.sample import main

    words = [str(folder / "config.yaml"), f"sample.samples_dist={stride}", f"sample.workers={workers}"]
    if main(words):
        raise SystemExit(1)


def pairs_pass(folder: Path, **_: object) -> None:
    """Write the samples of the finished store as GeoTIFF pairs."""
    from geoseg.data.store import open_store

    target = folder / "pairs"
    target.mkdir()
    store = open_store(folder / "data")
    size = store.info.samples_size
    for row in store.index.itertuples():
        transform = TRANSFORM * Affine.translation(row.col_off, row.row_off)
        common = {"driver": "GTiff", "height": size, "width": size, "dtype": "uint8", "crs": UTM}
        for kind, array in (("image", store.images(row.scene)), ("label", store.labels(row.scene)[:, None])):
            bands = array[row.position]
            name = target / f"{row.position}_{kind}.tif"
            with rasterio.open(name, "w", count=len(bands), transform=transform, **common) as out:
                out.write(bands)


def epoch_pass(folder: Path, **_: object) -> None:
    """Read every sample of the finished store once, as training does."""
    from geoseg.data.dataset import SampleDataset
    from geoseg.data.store import open_store

    dataset = SampleDataset(open_store(folder / "data"), "trn")
    for number in range(len(dataset)):
        dataset[number]


PASSES: dict[str, Callable[..., None]] = {
    "read": read_pass,
    "sample": sample_pass,
    "pairs": pairs_pass,
    "epoch": epoch_pass,
}


_IMPORTS = ("geopandas", "PIL.Image", "pyarrow.parquet", "pyogrio", "geoseg.sample")


def run_pass(name: str, folder: Path, stride: int, workers: int) -> None:
    """Run a pass in this process and print its CPU seconds, seconds and memory above imports as JSON."""
    for module in _IMPORTS + (("geoseg.data.dataset",) if name == "epoch" else ()):
        importlib.import_module(module)  # imports are not what is measured

    def cpu() -> float:
        return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, _WHO))

    before, base, started = cpu(), _resident("VmRSS"), time.monotonic()
    PASSES[name](folder, stride=stride, workers=workers)
    spent = {"cpu": cpu() - before, "seconds": time.monotonic() - started}
    print("RESULT " + json.dumps(spent | {"mb": (_resident("VmHWM") - base) / 1024}))


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def measured(name: str, folder: Path, stride: int = 256, workers: int = 1) -> dict[str, float]:
    """Run a pass in a fresh process and return its figures."""
    for made in ("pairs", *(("data",) if name == "sample" else ())):  # of an earlier pass
        shutil.rmtree(folder / made, ignore_errors=True)
    return run([sys.executable, __file__, "--pass", name, folder, stride, workers])


def run(words: Sequence[object]) -> dict[str, float]:
    """Run a program that prints its figures, and return them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return dict(json.loads(line.removeprefix("RESULT ")))


def make_scene(folder: Path, height: int, width: int, polygons: int, **image: Any) -> Path:
    """Write image, labels, list and config; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    make_image(folder / "image.tif", height, width, **image)
    make_labels(folder / "labels.gpkg", height, width, polygons)
    (folder / "prep.csv").write_text("image.tif,labels.gpkg,class,trn\n")
    keys = "global: {num_classes: 5, samples_size: 256}\nsample: {remove_background: false, overwrite: true}\n"
    (folder / "config.yaml").write_text(keys)
    return folder


def ratios(folder: Path, repeat: int, polygons: int, compress: str | None) -> None:
    """Print sampling against reading, stride 128 against 256, and GeoTIFF pairs against sampling."""
    scene = make_scene(folder / "ratio", 10_000, 10_000, polygons, compress=compress)
    print(f"10,000 x 10,000 x 4 uint8, {compress or 'not compressed'}; {polygons:,} polygons")
    runs: dict[str, list[dict[str, float]]] = {"read": [], "256": [], "128": [], "pairs": []}
    for _ in range(repeat):
        runs["read"].append(measured("read", scene))
        runs["256"].append(measured("sample", scene, 256))
        runs["pairs"].append(measured("pairs", scene))
        runs["128"].append(measured("sample", scene, 128))
    cpu = {name: median(run["cpu"] for run in found) for name, found in runs.items()}
    memory = {name: max(run["mb"] for run in found) for name, found in runs.items()}

    def each(top: str, bottom: str) -> str:
        values = sorted(a["cpu"] / b["cpu"] for a, b in zip(runs[top], runs[bottom], strict=True))
        return f"{median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"

    print(f"reading                {cpu['read']:6.2f} CPU s  {memory['read']:5.0f} MB above imports")
    print(f"sampling, stride 256   {cpu['256']:6.2f} CPU s  {memory['256']:5.0f} MB   x reading {each('256', 'read')}")
    print(
        f"sampling, stride 128   {cpu['128']:6.2f} CPU s  {memory['128']:5.0f} MB   x stride 256 {each('128', '256')}"
    )
    print(f"GeoTIFF pairs alone    {cpu['pairs']:6.2f} CPU s                      x sampling {each('pairs', '256')}")
    shutil.rmtree(scene)


def shapes(folder: Path) -> None:
    """Print the memory of sampling sparse scenes of other shapes."""
    for height, width in ((10_000, 10_000), (5_000, 100_000), (100_000, 5_000), (40_000, 40_000)):
        scene = make_scene(folder / "shape", height, width, 20_000, sparse=True)
        found = measured("sample", scene, 256)
        print(f"{width:7} x {height:<7} {found['cpu']:7.2f} CPU s  {found['mb']:5.0f} MB above imports")
        shutil.rmtree(scene)


def processes(folder: Path, repeat: int) -> None:
    """Print how much sooner two processes are done than one, by the clock: on a machine that does nothing else."""
    for side in (10_000, 30_000):
        scene = make_scene(folder / "two", side, side, 20_000, compress="deflate")
        for _ in range(repeat):
            one, two = (measured("sample", scene, 256, workers)["seconds"] for workers in (1, 2))
            print(
                f"{side:,} x {side:,}: 1 process {one:.1f} s, 2 processes {two:.1f} s: {one / two:.2f} x sooner; "
                f"{os.getloadavg()[0]:.1f} processes wanted {os.cpu_count()} cores"
            )
        shutil.rmtree(scene)


def peers(folder: Path, repeat: int, polygons: int, python: str) -> None:
    """Print what sampling once and an epoch from the store cost against an epoch of TorchGeo's sampling on the fly."""
    scene = make_scene(folder / "peer", 10_000, 10_000, polygons, compress="deflate")
    runs: dict[str, list[float]] = {"sampling once": [], "epoch, store": []}
    for _ in range(repeat):
        runs["sampling once"].append(measured("sample", scene)["cpu"])
        runs["epoch, store"].append(measured("epoch", scene)["cpu"])
        (raster,) = (scene / "data" / "samples" / "labels").glob("*.tif")
        for kind, labels, count in (("label raster", raster, 1_600), ("polygons", scene / "labels.gpkg", 100)):
            found = run([python, str(ROOT / "tools" / "peer_torchgeo.py"), scene / "image.tif", labels, count])
            runs.setdefault(f"epoch, TorchGeo, {kind}", []).append(found["cpu"] * found["windows"])
    for name, spent in runs.items():
        print(f"{name:30} {median(spent):7.2f} CPU s ({min(spent):.2f} to {max(spent):.2f})")
    shutil.rmtree(scene)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for; return the exit code."""
    parser = argparse.ArgumentParser(description="Cost of sampling against the cost of reading.")
    parser.add_argument("--pass", dest="inner", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("ratio", "shapes", "processes", "none"), action="append")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--polygons", type=int, default=20_000)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has TorchGeo (tools/peer_torchgeo.py)")
    parser.add_argument("--folder", type=Path, help="where the scene goes (default: a temporary folder)")
    options = parser.parse_args(argv)
    if options.inner:
        name, folder, stride, workers = options.inner
        run_pass(name, Path(folder), int(stride), int(workers))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for part in options.part or ("ratio", "shapes", "processes"):
            if part == "ratio":
                for compress in (None, "deflate"):
                    ratios(Path(name), options.repeat, options.polygons, compress)
            elif part == "shapes":
                shapes(Path(name))
            elif part == "processes":
                processes(Path(name), options.repeat)
        if options.peer:
            peers(Path(name), options.repeat, options.polygons, options.peer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
