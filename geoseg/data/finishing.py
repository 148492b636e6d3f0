"""From the records of finished scenes to a finished store: statistics, index, description, preview."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray

import geoseg
from geoseg.data.footprints import Frame, distances, sharing, smallest
from geoseg.data.indexing import write_index
from geoseg.data.preview import write_preview
from geoseg.data.records import Record, read_record, read_rows
from geoseg.data.sampling import COL, COUNTS, REASONS, ROW, SPLIT, SampleOptions
from geoseg.data.shards import record_path
from geoseg.data.splitnames import SPLITS
from geoseg.data.statistics import Moments, describe, merge
from geoseg.data.store import Store, StoreInfo, open_store
from geoseg.errors import DataError, problem

# Adds to a store that is complete but for its final name (a report, say); must write the same bytes for the same store.
Decorate = Callable[[Store], None]
_LEFT_OUT_OF_INFO = ("moments", "step", "ground", "band_names", "dtype")


def finish_store(
    folder: Path, scenes: Sequence[str], options: SampleOptions, marks: Mapping[str, str], decorate: Decorate | None
) -> None:
    """Write index, description and preview of a store whose scenes are all finished.

    Doing so again, or in two processes at once, changes nothing.

    Args:
        folder: The store that is being built.
        scenes: Ids, in the store's order.
        options: How the scenes were cut.
        marks: Fingerprint and options, for the provenance.
        decorate: Called with the store at the end.

    Raises:
        DataError: There is no training sample.
    """
    for kind in ("shards", "labels", "scenes"):
        for leftover in (folder / kind).glob(".*"):  # of a process that was killed, or that is too late
            leftover.unlink(missing_ok=True)
    records = [read_record(folder, scene) for scene in scenes]
    rows = [read_rows(folder, scene) for scene in scenes]
    if not any((found[:, SPLIT] == 0).any() for found in rows):
        raise DataError(_no_samples(records, rows))
    write_index(folder / "index.parquet", records, rows, options.size)
    info = describe_store(folder, options, records, rows, marks)
    (folder / "store.json").write_text(info.to_json(), encoding="utf-8")
    store = open_store(folder)
    write_preview(store, folder / "preview.png")
    if decorate is not None:
        decorate(store)
    for leftover in ("parts", "looks"):
        shutil.rmtree(folder / leftover, ignore_errors=True)


def describe_store(
    folder: Path,
    options: SampleOptions,
    records: Sequence[Record],
    rows: Sequence[NDArray[np.int64]],
    marks: Mapping[str, str],
) -> StoreInfo:
    """Return what the samples mean."""
    training = [(record, found) for record, found in zip(records, rows, strict=True) if "moments" in record]
    first = training[0][0]
    crs = {record["crs"] for record in records}
    every = np.concatenate(list(rows))
    return StoreInfo(
        classes=options.classes,
        num_classes=options.num_classes,
        ignore_value=options.ignore_value,
        samples_size=options.size,
        stride=options.stride,
        bands=tuple(first["bands"]),
        band_names=tuple(first["band_names"]),
        dtype=first["dtype"],
        resolution=tuple(first["resolution"]),
        crs=crs.pop() if len(crs) == 1 else None,
        statistics=tuple(_statistics(folder, [record for record, _ in training])),
        class_pixels={
            split: tuple(every[every[:, SPLIT] == number, COUNTS:].sum(axis=0).tolist())
            for number, split in enumerate(SPLITS)
        },
        samples={split: int((every[:, SPLIT] == number).sum()) for number, split in enumerate(SPLITS)},
        dropped={
            split: {reason: sum(record["dropped"][split][reason] for record in records) for reason in REASONS}
            for split in SPLITS
        },
        scenes=tuple(_scene(record, found) for record, found in zip(records, rows, strict=True)),
        provenance=_provenance(options, marks),
        splitting=_splitting(options, records, rows),
        reading=options.survey.reading.to_dict(),
        files=_files(folder, records),
    )


def _statistics(folder: Path, records: Sequence[Record]) -> Iterable[Mapping[str, float]]:
    bands = zip(*(record["moments"] for record in records), strict=True)
    moments = [merge(Moments(**one) for one in band) for band in bands]
    files = [(record_path(folder, record["id"]).with_suffix(".subsample.npy"), record["step"]) for record in records]
    there = [(path, step) for path, step in files if path.is_file()]
    return describe(moments, [path for path, _ in there], [step for _, step in there])


def _scene(record: Record, rows: NDArray[np.int64]) -> dict[str, Any]:
    entry = {key: value for key, value in record.items() if key not in _LEFT_OUT_OF_INFO}
    by_split = {split: int((rows[:, SPLIT] == number).sum()) for number, split in enumerate(SPLITS)}
    return {**entry, "samples": len(rows), "samples_by_split": by_split}


def _splitting(options: SampleOptions, records: Sequence[Record], rows: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """Say how splits were made and, measured on the footprints of the samples kept, how far they are apart."""
    frame = Frame([(Affine(*r["transform"]), r["crs"], (r["height"], r["width"])) for r in records])
    placed, names = [], []
    metres: list[dict[str, float]] = []
    pixels: list[dict[str, float]] = []
    shared: dict[str, int] = {}
    several = len({split for found in rows for split in np.unique(found[:, SPLIT])}) > 1
    for number, found in enumerate(rows):
        if not len(found) or not several:
            continue
        windows = np.hstack([found[:, [ROW, COL]], np.full((len(found), 2), options.size)])
        splits = np.array(SPLITS, object)[found[:, SPLIT]]
        if frame.placed(number):
            placed.append(frame.footprints(number, windows))
            names.append(splits)
        else:
            pixels.append(distances(frame.footprints(number, windows), splits))
    if placed:
        factor = frame.factor()
        together = distances(np.concatenate(placed), np.concatenate(names))
        metres.append({pair: round(found * factor, 3) for pair, found in together.items()})
        if 0.0 in together.values():
            shared = _shared(np.concatenate(placed), np.concatenate(names))
    return {
        "method": options.splits.method,
        "distance_m": smallest(metres),
        "distance_px": smallest(pixels),
        "shared": shared,
        "apart": sum(record["apart"] for record in records),
    }


def _shared(footprints: NDArray[Any], splits: NDArray[Any]) -> dict[str, int]:
    """Return how many samples of a split lie, in part or whole, on ground of an earlier one: {"trn-val": 4}."""
    counts: Counter[str] = Counter()
    for first, second in {(splits[one], other) for one, other in sharing(footprints, splits)}:
        counts[f"{first}-{splits[second]}"] += 1
    return dict(sorted(counts.items()))


def _files(folder: Path, records: Sequence[Record]) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of the files but the shards, whose every sample has a checksum in its scene's rows."""
    names = ["index.parquet"]
    for record in records:
        names += [f"labels/{record['id']}.tif", f"scenes/{record['id']}.json", f"scenes/{record['id']}.rows.npy"]
        subsample = f"scenes/{record['id']}.subsample.npy"
        names += [subsample] if (folder / subsample).is_file() else []
    return {name: (int((folder / name).stat().st_size), file_hash(folder / name)) for name in names}


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _provenance(options: SampleOptions, marks: Mapping[str, str]) -> dict[str, Any]:
    """What made the store. No time of day: the same call makes the same bytes."""
    return {
        **marks,
        "geoseg": geoseg.__version__,
        "rasterio": rasterio.__version__,
        "gdal": rasterio.__gdal_version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "options": json.loads(json.dumps(options.to_dict(), default=str)),
    }


def _no_samples(records: Sequence[Record], rows: Sequence[NDArray[np.int64]]) -> str:
    every = np.concatenate(list(rows)) if rows else np.zeros((0, COUNTS))
    counts = ", ".join(f"{split} {(every[:, SPLIT] == number).sum()}" for number, split in enumerate(SPLITS))
    dropped = {reason: sum(record["dropped"]["trn"][reason] for record in records) for reason in REASONS}
    found = (
        f"samples per split {counts}; of the trn windows {dropped['background']} hold background alone and "
        f"{dropped['unknown']} no known pixel"
    )
    little = dropped["invalid"] + dropped["unannotated"]
    if little:
        found += f", and {little} too little that is valid or annotated"
    remedy = "set sample.remove_background: false, or check labels and nodata of the trn scenes"
    return problem("samples", found, "at least one trn sample", remedy)
