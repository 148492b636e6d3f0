"""Made-up scenes: four-band rasters of fields, water, roads and roofs, and the polygons that they were drawn from.

The tests, the benchmarks and the demo's fallback all use this generator. The pixels are a function of the seed alone
and are made strip by strip, so a scene of any size needs little memory::

    python tools/synthetic.py OUT --height 2048 --width 2048 --seed 7
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import geopandas as gpd
import numpy as np
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.enums import ColorInterp
from rasterio.features import rasterize
from rasterio.windows import Window
from shapely.geometry import Polygon

CLASSES = ("background", "field", "water", "road", "building")
"""Class names; the position is the class id. Polygons are drawn, and stored, in this order: later ones win."""

BANDS = ("blue", "green", "red", "nir")

# Reflectance of each class (rows, as CLASSES) in each band (columns, as BANDS).
REFLECTANCE = np.array(
    [
        [0.12, 0.15, 0.18, 0.26],  # bare soil and dry grass
        [0.05, 0.10, 0.07, 0.48],  # crops: dark in red, bright in near infrared
        [0.08, 0.07, 0.05, 0.03],  # water: dark, darkest in near infrared
        [0.20, 0.21, 0.22, 0.23],  # asphalt: grey
        [0.18, 0.20, 0.34, 0.36],  # tiles: red
    ],
    dtype=np.float32,
)

STRIP = 256  # rows generated at a time; part of what a seed means, so that any reading order gives the same pixels
FULL_SCALE = {"uint8": 255.0, "uint16": 10_000.0}


@dataclass(frozen=True)
class SyntheticScene:
    """Polygons and the recipe of the pixels; the pixels themselves are made when they are read."""

    height: int
    width: int
    seed: int
    dtype: str
    transform: Affine
    polygons: gpd.GeoDataFrame
    noise: float = 0.02

    def strips(self) -> Iterator[tuple[int, NDArray[np.generic]]]:
        """Yield (first row, image (4, rows, width)) from top to bottom."""
        tree = shapely.STRtree(self.polygons.geometry.to_numpy())
        for row in range(0, self.height, STRIP):
            yield row, self._strip(row, min(STRIP, self.height - row), tree)

    def image(self) -> NDArray[np.generic]:
        """Return the whole image (4, height, width)."""
        return np.concatenate([strip for _, strip in self.strips()], axis=1)

    def label(self) -> NDArray[np.uint8]:
        """Return the class ids (height, width) that the image was painted from."""
        index = self._polygon_index(0, self.height, shapely.STRtree(self.polygons.geometry.to_numpy()))
        ids = np.concatenate([[0], self.polygons["class_id"].to_numpy()]).astype(np.uint8)
        return ids[index]

    def _polygon_index(self, row: int, rows: int, tree: shapely.STRtree) -> NDArray[np.int32]:
        """Return, per pixel, 1 + the number of the polygon on top, or 0."""
        transform = self.transform * Affine.translation(0, row)
        corners = [transform * corner for corner in ((0, 0), (self.width, rows))]
        (west, north), (east, south) = corners
        hits = np.sort(tree.query(shapely.box(west, south, east, north)))
        shapes = [(self.polygons.geometry.iloc[hit], int(hit) + 1) for hit in hits]
        if not shapes:
            return np.zeros((rows, self.width), np.int32)
        return rasterize(shapes, out_shape=(rows, self.width), transform=transform, dtype="int32")

    def _strip(self, row: int, rows: int, tree: shapely.STRtree) -> NDArray[np.generic]:
        index = self._polygon_index(row, rows, tree)
        ids = np.concatenate([[0], self.polygons["class_id"].to_numpy()])
        gains = np.concatenate([[1.0], self.polygons["gain"].to_numpy()]).astype(np.float32)
        rng = np.random.default_rng([self.seed, row])
        y = np.arange(row, row + rows, dtype=np.float32)[:, None]
        x = np.arange(self.width, dtype=np.float32)[None, :]
        light = 1 + 0.08 * np.sin(y / 97 + self.seed) * np.cos(x / 131 - self.seed)
        image = np.empty((len(BANDS), rows, self.width), self.dtype)
        scale = FULL_SCALE[self.dtype]
        for band in range(len(BANDS)):
            value = REFLECTANCE[ids, band].astype(np.float32)[index] * gains[index] * light
            value += rng.normal(0, self.noise, value.shape).astype(np.float32)
            # 1 is the darkest value, so that 0 stays free for "no data".
            image[band] = np.clip(np.rint(value * scale), 1, scale)
        return image


def make_scene(
    height: int,
    width: int,
    seed: int = 0,
    dtype: str = "uint8",
    pixel: float = 1.0,
    origin: tuple[float, float] = (5e5, 5e6),
) -> SyntheticScene:
    """Invent a scene in EPSG:32633.

    Args:
        height: Rows, at least 64.
        width: Columns, at least 64.
        seed: Everything random follows from it.
        dtype: "uint8" (0..255) or "uint16" (reflectance times 10,000).
        pixel: Side of a pixel in metres.
        origin: Easting and northing of the upper left corner.

    Returns:
        The scene; each class has at least one polygon.
    """
    if dtype not in FULL_SCALE:
        raise ValueError(f"dtype must be one of {', '.join(FULL_SCALE)}, not {dtype!r}")
    if min(height, width) < 64:
        raise ValueError(f"a scene has at least 64 x 64 pixels, not {height} x {width}")
    rng = np.random.default_rng(seed)
    transform = Affine.translation(*origin) * Affine.scale(pixel, -pixel)
    shapes = [
        *((shape, "field") for shape in _fields(rng, height, width)),
        *((shape, "water") for shape in _waters(rng, height, width)),
        *((shape, "road") for shape in _roads(rng, height, width)),
        *((shape, "building") for shape in _roofs(rng, height, width)),
    ]
    names = [name for _, name in shapes]
    polygons = gpd.GeoDataFrame(
        {
            "class": names,
            "class_id": [CLASSES.index(name) for name in names],
            "gain": rng.uniform(0.85, 1.15, len(shapes)),
        },
        geometry=[shapely.affinity.affine_transform(shape, transform.to_shapely()) for shape, _ in shapes],
        crs="EPSG:32633",
    )
    return SyntheticScene(height, width, seed, dtype, transform, polygons)


def _rectangle(centre: tuple[float, float], sides: tuple[float, float], angle: float) -> Polygon:
    x, y = centre
    half_w, half_h = sides[0] / 2, sides[1] / 2
    box = shapely.box(x - half_w, y - half_h, x + half_w, y + half_h)
    return shapely.affinity.rotate(box, angle, origin=(x, y))


def _fields(rng: np.random.Generator, height: int, width: int) -> list[Polygon]:
    """Parcels on a jittered grid: corners are shared by neighbours, some parcels lie fallow (background)."""
    rows, cols = max(2, round(height / 72)), max(2, round(width / 72))
    ys, xs = np.meshgrid(np.linspace(0, height, rows + 1), np.linspace(0, width, cols + 1), indexing="ij")
    xs = xs + rng.uniform(-12, 12, xs.shape)
    ys = ys + rng.uniform(-12, 12, ys.shape)
    parcels = []
    for r in range(rows):
        for c in range(cols):
            corners = [(xs[i, j], ys[i, j]) for i, j in ((r, c), (r, c + 1), (r + 1, c + 1), (r + 1, c))]
            if rng.random() < 0.6 or (r, c) == (0, 0):
                parcels.append(Polygon(corners).buffer(-2))
    return parcels


def _waters(rng: np.random.Generator, height: int, width: int) -> list[Polygon]:
    """Ponds: closed curves of three smooth harmonics."""
    angles = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    ponds = []
    for _ in range(max(1, round(height * width / 90_000))):
        radius = rng.uniform(0.10, 0.18) * min(height, width, 400)
        wave = sum(rng.uniform(0, 0.15) * np.sin(k * angles + rng.uniform(0, 6.3)) for k in (2, 3, 4))
        x, y = rng.uniform(0.15, 0.85) * width, rng.uniform(0.15, 0.85) * height
        ponds.append(
            Polygon(
                np.column_stack([x + radius * (1 + wave) * np.cos(angles), y + radius * (1 + wave) * np.sin(angles)])
            )
        )
    return ponds


def _roads(rng: np.random.Generator, height: int, width: int) -> list[Polygon]:
    """Gently bent lines from edge to edge, 6 to 9 pixels wide."""
    roads = []
    for across in range(max(1, round(height / 300))):
        y = (across + rng.uniform(0.3, 0.7)) * height / max(1, round(height / 300))
        x = np.linspace(-20, width + 20, 24)
        line = shapely.LineString(np.column_stack([x, y + 10 * np.sin(x / 90 + rng.uniform(0, 6.3))]))
        roads.append(line.buffer(rng.uniform(3, 4.5), cap_style="flat"))
    for down in range(max(1, round(width / 300))):
        x = (down + rng.uniform(0.3, 0.7)) * width / max(1, round(width / 300))
        line = shapely.LineString([(x, -20), (x + rng.uniform(-30, 30), height + 20)])
        roads.append(line.buffer(rng.uniform(3, 4.5), cap_style="flat"))
    return roads


def _roofs(rng: np.random.Generator, height: int, width: int) -> list[Polygon]:
    """Rotated rectangles of 10 to 24 pixels, in clusters."""
    roofs = []
    for _ in range(max(2, round(height * width / 25_000))):
        centre = rng.uniform(0.1, 0.9, 2) * (width, height)
        angle = rng.uniform(0, 90)
        for _ in range(rng.integers(2, 6)):
            x, y = centre + rng.uniform(-45, 45, 2)
            roofs.append(_rectangle((float(x), float(y)), tuple(rng.uniform(10, 24, 2)), angle))
    return roofs


def write_image(scene: SyntheticScene, path: Path) -> Path:
    """Write the pixels as a tiled, deflated GeoTIFF, strip by strip."""
    profile = {
        "driver": "GTiff",
        "height": scene.height,
        "width": scene.width,
        "count": len(BANDS),
        "dtype": scene.dtype,
        "crs": scene.polygons.crs,
        "transform": scene.transform,
        "tiled": True,
        "blockxsize": STRIP,
        "blockysize": STRIP,
        "compress": "deflate",
        "photometric": "MINISBLACK",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **profile) as target:
        # Without this GDAL takes the fourth band of four for an alpha band, and near infrared would mean "valid".
        target.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * (len(BANDS) - 1)
        for number, name in enumerate(BANDS, start=1):
            target.set_band_description(number, name)
        for row, strip in scene.strips():
            target.write(strip, window=Window(0, row, scene.width, strip.shape[1]))
    return path


def write_labels(scene: SyntheticScene, path: Path, crs: str | None = "EPSG:4326") -> Path:
    """Write the polygons with the fields `class` and `class_id`, in `crs` or (None) the scene's own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    frame = scene.polygons.drop(columns="gain")
    (frame if crs is None else frame.to_crs(crs)).to_file(path, layer="labels", driver="GPKG")
    return path


def write_project(folder: Path, side: int = 512, seed: int = 0, dtype: str = "uint8", attribute: str = "class") -> Path:
    """Write train, validation and test scenes that share no ground, and the list of them.

    Args:
        folder: Gets images/train.tif, images/val.tif, to_classify/test.tif, labels/*.gpkg and prep.csv.
        side: Side of the validation and test scenes in pixels; the training scene is twice as wide.
        seed: Seed of the first scene; the others follow.
        dtype: "uint8" or "uint16".
        attribute: The field that holds the class: "class" or "class_id".

    Returns:
        The path of prep.csv.
    """
    rows = []
    for number, (name, split, where, width) in enumerate(
        [("train", "trn", "images", 2 * side), ("val", "val", "images", side), ("test", "tst", "to_classify", side)]
    ):
        scene = make_scene(side, width, seed + number, dtype, origin=(5e5 + number * 1e5, 5e6))
        write_image(scene, folder / where / f"{name}.tif")
        write_labels(scene, folder / "labels" / f"{name}.gpkg")
        rows.append([f"{where}/{name}.tif", f"labels/{name}.gpkg", attribute, split])
    return write_scene_list(folder / "prep.csv", rows)


def write_scene_list(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """Write the CSV that `geoseg sample` reads; paths are relative to it."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([["image", "labels", "attribute", "split"], *rows])
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write one scene as OUT/scene.tif and OUT/labels.gpkg."""
    parser = argparse.ArgumentParser(description="Make a synthetic scene and its polygons.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--height", type=int, default=1024)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(FULL_SCALE), default="uint8")
    options = parser.parse_args(argv)
    scene = make_scene(options.height, options.width, options.seed, options.dtype)
    print(write_image(scene, options.out / "scene.tif"))
    print(write_labels(scene, options.out / "labels.gpkg"), f"({len(scene.polygons)} polygons)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
