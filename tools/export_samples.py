"""Samples of a store as files for other tools: python tools/export_samples.py data/samples chips --format geotiff.

geotiff   <out>/<split>/images/<sample>.tif and labels/<sample>.tif: the stored pixels, georeferenced as their scene;
          pixels without data are masked, unknown ground is the label's nodata
coco      <out>/<split>/images/<sample>.png (8 bits, for the eye), masks/<sample>.png (class ids, unknown 255 or the
          ignore value) and <out>/<split>.json: COCO instances, one per connected area of a class; a polygon, or run
          lengths where an area has holes

A sample is called <scene>_<row>_<col> after its upper left pixel. Existing files are replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import rasterio
import rasterio.features
from affine import Affine
from numpy.typing import NDArray
from PIL import Image
from rasterio.enums import ColorInterp

from geoseg.console import progress
from geoseg.data.preview import stretched
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store, StoreInfo, open_store
from geoseg.errors import DataError, GeosegError, problem
from geoseg.geo.raster.info import gdal_session

_PLACE = ("scene", "row_off", "col_off", "crs", "transform")


@dataclass(frozen=True)
class Chip:
    """One sample: image (bands, H, W), valid (H, W), label (H, W), and where it lies."""

    name: str
    image: NDArray[Any]
    valid: NDArray[np.bool_]
    label: NDArray[np.uint8]
    crs: str | None
    transform: Affine


def chips(store: Store, split: str) -> Iterator[Chip]:
    """Yield the samples of a split in the store's order.

    Raises:
        DataError: The split has no sample, or a shard cannot be read.
    """
    places = pq.read_table(store.folder / "index.parquet", columns=list(_PLACE), partitioning=None).to_pylist()
    where = {(p["scene"], p["row_off"], p["col_off"]): (p["crs"], Affine(*p["transform"])) for p in places}
    for row in store.samples(split).itertuples():
        label = np.array(store.labels(row.scene)[row.position])
        valid = store.valid(row.scene, int(row.valid_position))
        crs, transform = where[row.scene, row.row_off, row.col_off]
        yield Chip(
            name=f"{row.scene}_{row.row_off}_{row.col_off}",
            image=np.array(store.images(row.scene)[row.position]),
            valid=np.ones(label.shape, bool) if valid is None else valid,
            label=label,
            crs=crs,
            transform=transform,
        )


def write_geotiffs(chip: Chip, info: StoreInfo, folder: Path) -> None:
    """Write a sample as a pair of GeoTIFFs below `folder`."""
    place: dict[str, Any] = {} if chip.transform == Affine.identity() else {"transform": chip.transform}
    if chip.crs:
        place["crs"] = chip.crs
    count, height, width = chip.image.shape
    size = {"driver": "GTiff", "height": height, "width": width, "compress": "deflate", **place}
    with gdal_session(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = folder / "images" / f"{chip.name}.tif"
        # By default GDAL would call four 8-bit bands RGB and alpha.
        profile = {**size, "count": count, "dtype": chip.image.dtype.name, "photometric": "MINISBLACK"}
        with rasterio.open(path, "w", **profile) as out:
            out.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * (count - 1)
            out.write(chip.image)
            for band, name in enumerate(info.band_names, start=1):
                if name:
                    out.set_band_description(band, name)
            if not chip.valid.all():
                out.write_mask(chip.valid)
        path = folder / "labels" / f"{chip.name}.tif"
        with rasterio.open(path, "w", **size, count=1, dtype="uint8", nodata=info.ignore_value) as out:
            out.write_colormap(1, {int(c["id"]): (*_rgb(c["colour"]), 255) for c in info.classes})
            out.write(chip.label, 1)


def write_pngs(chip: Chip, info: StoreInfo, folder: Path) -> None:
    """Write a sample as a picture and a mask below `folder`."""
    names = [str(name).strip().lower() for name in info.band_names]
    shown = [names.index(n) for n in ("red", "green", "blue")] if {"red", "green", "blue"} <= set(names) else [0, 1, 2]
    shown = shown if len(names) >= 3 else [0]
    if chip.image.dtype == np.uint8:
        picture = np.moveaxis(chip.image[shown * (3 // len(shown))], 0, -1)
    else:
        picture = stretched(chip.image[shown], [info.statistics[band] for band in shown], chip.valid)
    Image.fromarray(np.ascontiguousarray(picture)).save(folder / "images" / f"{chip.name}.png")
    mask = Image.fromarray(chip.label, "P")
    palette = np.zeros((256, 3), np.uint8)
    for entry in info.classes:
        palette[int(entry["id"])] = _rgb(entry["colour"])
    palette[info.ignore_value] = 60
    mask.putpalette(palette.ravel().tolist())
    mask.save(folder / "masks" / f"{chip.name}.png")


def instances(label: NDArray[np.uint8], ignore_value: int) -> Iterator[dict[str, Any]]:
    """Yield the connected areas of a label as COCO annotations without ids: category, area, bbox, segmentation."""
    wanted = (label != 0) & (label != ignore_value)
    for shape, value in rasterio.features.shapes(label, mask=wanted, connectivity=4):
        rings = shape["coordinates"]
        columns, rows = np.array(rings[0]).T
        left, top = int(columns.min()), int(rows.min())
        window = (slice(top, int(rows.max())), slice(left, int(columns.max())))
        inside = rasterio.features.rasterize(
            [shape], out_shape=label[window].shape, transform=Affine.translation(left, top), dtype="uint8"
        )
        if len(rings) == 1:
            segmentation: Any = [[float(number) for corner in rings[0][:-1] for number in corner]]
        else:
            whole = np.zeros(label.shape, np.uint8)
            whole[window] = inside
            segmentation = {"size": list(label.shape), "counts": run_lengths(whole)}
        yield {
            "category_id": int(value),
            "area": int(inside.sum()),
            "bbox": [left, top, window[1].stop - left, window[0].stop - top],
            "segmentation": segmentation,
            "iscrowd": 0,
        }


def run_lengths(mask: NDArray[np.uint8]) -> list[int]:
    """Return the lengths of runs of 0, 1, 0, ... down the columns, as COCO counts them; the first may be 0."""
    flat = mask.ravel(order="F")
    ends = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return [0, *lengths] if flat[0] else lengths


def export(store: Store, out: Path, kind: str, splits: Sequence[str]) -> dict[str, int]:
    """Write the samples of some splits; return how many of each.

    Args:
        store: The store.
        out: Folder to write to.
        kind: geotiff or coco.
        splits: Which splits; those without samples are left out.
    """
    written = {}
    for split in (split for split in splits if store.info.samples.get(split, 0)):
        folder = out / split
        for name in ("images", "labels" if kind == "geotiff" else "masks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with progress(store.info.samples[split], f"exporting {split}", "samples") as bar:
            if kind == "geotiff":
                for chip in chips(store, split):
                    write_geotiffs(chip, store.info, folder)
                    bar.update()
            else:
                _export_coco(store, split, out, bar)
        written[split] = store.info.samples[split]
    return written


def _export_coco(store: Store, split: str, out: Path, bar: Any) -> None:
    images, annotations = [], []
    for number, chip in enumerate(chips(store, split), start=1):
        write_pngs(chip, store.info, out / split)
        height, width = chip.label.shape
        images.append({"id": number, "file_name": f"{split}/images/{chip.name}.png", "height": height, "width": width})
        for found in instances(chip.label, store.info.ignore_value):
            annotations.append({"id": len(annotations) + 1, "image_id": number, **found})
        bar.update()
    categories = [{"id": int(c["id"]), "name": c["name"]} for c in store.info.classes[1:]]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (out / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="the sample store, or the data_path that holds it")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--format", choices=("geotiff", "coco"), default="geotiff", help="what to write")
    parser.add_argument("--split", choices=SPLITS, action="append", help="only this split; may be given again")
    chosen = parser.parse_args(argv)
    try:
        store = open_store(chosen.store)
        if chosen.out.resolve() == store.folder.resolve():
            raise DataError(problem(chosen.out, "the store itself", "another folder", "name another one"))
        written = export(store, chosen.out, chosen.format, chosen.split or SPLITS)
        if not written:
            raise DataError(problem(store.folder, "no sample of these splits", "at least one", "choose another split"))
    except GeosegError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return error.exit_code
    print(f"{', '.join(f'{count:,} {split}' for split, count in written.items())}: {chosen.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
