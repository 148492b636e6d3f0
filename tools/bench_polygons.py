"""Cost of small regions and polygons: python tools/bench_polygons.py [--side 20000] [--unit 20] [--simplify 1.5].

The class map is made here: five classes with winding borders, nodata, and 0.2 % of all pixels a random class, which
is more small regions than most maps have. The minimum mapping unit is applied to it, then polygons are made of the map
before and after (one GeoPackage each, and one of simplified polygons). Each step is a process of its own, on one
thread; given are CPU seconds, and the most memory that the process held above what it held after its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyproj
import rasterio
import shapely

from geoseg.geo.grid import Window, tiles
from geoseg.geo.raster.info import gdal_session
from geoseg.geo.vector.writing import create_polygons
from geoseg.predict.polygons import Sources, Tracing, batches, outlines
from geoseg.predict.sieve import sieve

ROOT = Path(__file__).resolve().parents[1]
NODATA = 255
PROFILE = {
    "driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "tiled": True, "blockxsize": 512,
    "blockysize": 512, "compress": "deflate", "crs": "EPSG:32618",
    "transform": rasterio.Affine(0.5, 0, 4e5, 0, -0.5, 5e6),
}  # fmt: skip


def make_map(path: Path, side: int) -> None:
    """Write the class map."""
    with rasterio.open(path, "w", height=side, width=side, **PROFILE) as out:
        for tile in tiles(side, side, 2048, 0):
            window = tile.write
            rng = np.random.default_rng([window.row_off, window.col_off])
            height = 35 * cv2.GaussianBlur(rng.normal(size=window.shape).astype(np.float32), (0, 0), 10)
            rows, cols = np.mgrid[window.row_off : window.row_stop, window.col_off : window.col_stop]
            height += np.sin(rows / 300) + np.cos(cols / 400)
            classes = np.digitize(height, [-1.2, -0.2, 0.8, 1.6]).astype(np.uint8)
            speckle = rng.random(window.shape) < 0.002
            classes[speckle] = rng.integers(0, 5, speckle.sum())
            classes[height > 2.2] = NODATA
            out.write(classes, 1, window=_slices(window))


def remove_small(source: Path, target: Path, unit: int) -> dict[str, Any]:
    """Apply the minimum mapping unit."""
    changed = 0
    with rasterio.open(source) as dataset, rasterio.open(target, "w", **dataset.profile) as out:

        def read(window: Window) -> Any:
            return dataset.read(1, window=_slices(window))

        for window, block in sieve(read, dataset.shape, unit, NODATA, "uint8"):
            changed += int((block != read(window)).sum())
            out.write(block, 1, window=_slices(window))
    return {"changed": changed}


def make_polygons(source: Path, target: Path, simplify: float) -> dict[str, Any]:
    """Write the polygons of all classes but the first."""
    polygons = corners = largest = 0
    with rasterio.open(source) as dataset:
        sources = Sources(lambda window: dataset.read(1, window=_slices(window)), lambda window: np.full((1, 1), 0.25))
        found = outlines(sources, dataset.shape, Tracing(frozenset({0, NODATA}), tolerance=simplify))
        crs = pyproj.CRS(dataset.crs.to_wkt())
        with create_polygons(target, crs, {"class": "whole", "area_m2": "number"}) as writer:
            for shapes, fields in batches(found, dataset.transform):
                writer.write(shapes, {"class": fields["value"], "area_m2": fields["area"]})
                counts = shapely.get_num_coordinates(shapes)
                polygons, corners = polygons + len(shapes), corners + int(counts.sum())
                largest = max(largest, int(counts.max()))
    return {"polygons": polygons, "corners": corners, "largest": largest}


def _slices(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    return (window.row_off, window.row_stop), (window.col_off, window.col_stop)


def _most_memory() -> float:
    """Return the most memory that this process has held, in MB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def _step(name: str, arguments: Sequence[str]) -> None:
    source, target, number = Path(arguments[0]), Path(arguments[1]), float(arguments[2])
    held, start = _most_memory(), time.process_time()
    with gdal_session():
        found = remove_small(source, target, int(number)) if name == "sieve" else make_polygons(source, target, number)
    print(json.dumps({"cpu": time.process_time() - start, "memory": _most_memory() - held, **found}))


def main() -> None:
    """Make a map, run every step, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=20_000)
    parser.add_argument("--unit", type=int, default=20)
    parser.add_argument("--simplify", type=float, default=1.5)
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        _step(options.step[0], options.step[1:])
        return
    with tempfile.TemporaryDirectory() as folder:
        plain, sieved = Path(folder, "plain.tif"), Path(folder, "sieved.tif")
        make_map(plain, options.side)
        for name, source, target, number in (
            ("sieve", plain, sieved, options.unit),
            ("polygons", sieved, Path(folder, "sieved.gpkg"), 0.0),
            ("polygons", sieved, Path(folder, "simple.gpkg"), options.simplify),
            ("polygons", plain, Path(folder, "plain.gpkg"), 0.0),
        ):
            words = [sys.executable, __file__, "--step", name, str(source), str(target), str(number)]
            done = subprocess.run(
                words, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT, capture_output=True, text=True
            )
            print(f"{name} {number:g} of {source.stem}:", done.stdout.strip() or done.stderr, flush=True)


if __name__ == "__main__":
    main()
