"""Checking a finished store: that every file is what was written, and that the numbers agree with the pixels."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geoseg.data.counting import count_classes
from geoseg.data.finishing import file_hash
from geoseg.data.records import read_rows
from geoseg.data.sampling import COUNTS, CRC_IMAGE, CRC_LABEL, CRC_VALID, VALID
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store
from geoseg.errors import DataError, problem

_REMEDY = "restore it from a copy, or make the scene again: --append --replace SCENE"
_SHOWN = 5


def verify_store(store: Store, on_progress: Callable[[int], None] | None = None) -> list[str]:
    """Return what is wrong with a store, one line per file; nothing if all is well.

    Every byte is read. A store of schema version 1 has no checksums: its counts alone are checked.

    Args:
        store: The store.
        on_progress: Called with the number of scenes that were checked.
    """
    problems = list(_files(store)) + list(_totals(store))
    for scene, rows in store.index.groupby("scene", sort=False):
        try:
            problems += _scene(store, str(scene), rows.reset_index(drop=True))
        except DataError as error:
            problems += error.problems
        if on_progress:
            on_progress(1)
    return problems


def _files(store: Store) -> Iterator[str]:
    for name, (size, digest) in store.info.files.items():
        path = store.folder / name
        if not path.is_file():
            yield problem(path, "no file", f"{size} bytes", _REMEDY)
        elif path.stat().st_size != size:
            yield problem(path, f"{path.stat().st_size} bytes", f"{size}", _REMEDY)
        elif file_hash(path) != digest:
            yield problem(path, "other bytes than were written", f"SHA-256 {digest[:16]}...", _REMEDY)


def _totals(store: Store) -> Iterator[str]:
    index, info = store.index, store.info
    for split in SPLITS:
        rows = index[index["split"] == split]
        if len(rows) != info.samples.get(split, 0):
            yield _differs(store.folder, f"{len(rows)} {split} rows in the index", f"{info.samples.get(split, 0)}")
        counts = tuple(int(rows[f"class_{i}"].sum()) for i in range(info.num_classes))
        if counts != tuple(info.class_pixels.get(split, ())):
            yield _differs(store.folder, f"{counts} {split} pixels per class", str(info.class_pixels.get(split)))


def _differs(folder: Path, found: str, expected: str) -> str:
    return problem(folder, found, expected + " (store.json)", "sample again with --overwrite")


def _scene(store: Store, scene: str, rows: pd.DataFrame) -> list[str]:
    images, labels = store.images(scene), store.labels(scene)
    sums = read_rows(store.folder, scene) if store.info.schema_version > 1 else None
    if sums is not None and len(sums) != len(rows):
        path = store.folder / "scenes" / f"{scene}.rows.npy"
        return [problem(path, f"{len(sums)} samples", f"{len(rows)}, as in the index", _REMEDY)]
    bad: dict[str, list[int]] = {"images": [], "labels": [], "valid": [], "counts": []}
    wanted = rows[[f"class_{i}" for i in range(store.info.num_classes)]].to_numpy()
    for number, position in enumerate(rows["position"]):
        label = np.asarray(labels[position])
        if count_classes(label, store.info.num_classes) != wanted[number].tolist():
            bad["counts"].append(number)
        if sums is not None:
            if _crc(images[position]) != sums[position, CRC_IMAGE]:
                bad["images"].append(number)
            if _crc(label) != sums[position, CRC_LABEL]:
                bad["labels"].append(number)
    if sums is not None:
        bad["valid"] = _bad_validity(store, scene, sums, rows)
        if not (sums[rows["position"], COUNTS:] == wanted).all():
            bad["counts"] += np.flatnonzero((sums[rows["position"], COUNTS:] != wanted).any(axis=1)).tolist()
    return [_damaged(store, scene, kind, numbers) for kind, numbers in bad.items() if numbers]


def _bad_validity(store: Store, scene: str, sums: Any, rows: pd.DataFrame) -> list[int]:
    bad = []
    for number, (position, place) in enumerate(zip(rows["position"], rows["valid_position"], strict=True)):
        valid = store.valid(scene, int(place))
        if valid is None:
            if sums[position, VALID] != store.info.samples_size**2:
                bad.append(number)
        elif _crc(np.packbits(valid)) != sums[position, CRC_VALID] or valid.sum() != sums[position, VALID]:
            bad.append(number)
    return bad


def _crc(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B"))


def _damaged(store: Store, scene: str, kind: str, numbers: list[int]) -> str:
    shown = ", ".join(map(str, sorted(set(numbers))[:_SHOWN])) + (" ..." if len(set(numbers)) > _SHOWN else "")
    if kind == "counts":
        path = store.folder / "shards" / f"{scene}.labels.npy"
        return problem(path, f"samples {shown} with other classes", "the counts of the index", _REMEDY)
    path = store.folder / "shards" / f"{scene}.{kind}.npy"
    return problem(path, f"samples {shown} with other bytes than were written", "their checksums", _REMEDY)
