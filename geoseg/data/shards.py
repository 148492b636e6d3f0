"""From the parts of a scene to its shard: the step after its last block."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from geoseg.data.sampling import BlockTask
from geoseg.data.statistics import Moments, merge
from geoseg.geo.raster import create_geotiff, publish

_COPY_BYTES = 2**24


def finish_scene(tasks: Sequence[BlockTask], folder: Path) -> None:
    """Merge the parts of a scene into its shard and label raster, then remove the parts.

    The parts are taken in the order of the tasks, so the bytes do not depend on who made them. Nothing is held in
    memory but one part's labels. A scene whose record exists is finished; finishing again changes nothing.

    Args:
        tasks: All tasks of the scene, in order; their parts exist.
        folder: The store that is being built.
    """
    scene_id = tasks[0].facts.scene.scene_id
    record = record_path(folder, scene_id)
    if record.is_file():
        return
    parts = [task.part for task in tasks]
    rows = np.concatenate([np.load(part / "rows.npy") for part in parts])
    summaries = [json.loads((part / "summary.json").read_text(encoding="utf-8")) for part in parts]
    _write_shards(tasks, rows, folder / "shards")
    _write_label_raster(tasks, folder / "labels")
    record.parent.mkdir(parents=True, exist_ok=True)
    np.save(record.with_suffix(".rows.npy"), rows)
    if tasks[0].step:
        sampled = np.concatenate([np.load(part / "subsample.npy") for part in parts], axis=1)
        if sampled.size:
            np.save(record.with_suffix(".subsample.npy"), sampled)
    temporary = record.with_suffix(".tmp")
    temporary.write_text(json.dumps(_summed(summaries)), encoding="utf-8")
    temporary.replace(record)
    shutil.rmtree(parts[0].parent)


def record_path(folder: Path, scene_id: str) -> Path:
    """Return where the summary of a finished scene lies while the store is being built."""
    return folder / "scenes" / f"{scene_id}.json"


def _write_shards(tasks: Sequence[BlockTask], rows: NDArray[np.int64], folder: Path) -> None:
    facts, size = tasks[0].facts, tasks[0].options.size
    count, partly = len(rows), int(np.count_nonzero(rows[:, 2] < size * size))
    image_shape = (count, len(facts.bands), size, size)
    folder.mkdir(parents=True, exist_ok=True)
    shards: Mapping[str, tuple[tuple[int, ...], Any]] = {
        "images": (image_shape, facts.info.dtype),
        "labels": ((count, size, size), "uint8"),
        "valid": ((partly, -(-size * size // 8)), "uint8"),
    }
    for name, (shape, dtype) in shards.items():
        if shape[0]:  # an empty file cannot be mapped, and nobody looks for it
            sources = [task.part / f"{name}.bin" for task in tasks]
            _concatenate(sources, folder / f"{facts.scene.scene_id}.{name}.npy", shape, np.dtype(dtype))


def _concatenate(sources: Sequence[Path], target: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write raw files one after another as one .npy array."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with target.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, header)
        start = out.tell()
        for source in sources:
            _append(source, out)
        written, wanted = out.tell() - start, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    assert written == wanted, f"{target}: {written} bytes for shape {shape} of {dtype}"


def _append(source: Path, out: BinaryIO) -> None:
    """Copy a file to the end of another, inside the kernel where it can."""
    with source.open("rb") as file:
        out.flush()
        try:
            while os.sendfile(out.fileno(), file.fileno(), None, _COPY_BYTES):
                pass
        except (AttributeError, OSError):  # not this system, or not these file systems
            shutil.copyfileobj(file, out, _COPY_BYTES)
        out.seek(0, os.SEEK_END)


def _write_label_raster(tasks: Sequence[BlockTask], folder: Path) -> None:
    facts, options = tasks[0].facts, tasks[0].options
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{facts.scene.scene_id}.tif"
    temporary = final.with_name(f".{final.name}")
    colours = {int(c["id"]): c["colour"] for c in options.classes}
    names = [str(c["name"]) for c in options.classes]
    described: dict[str, Any] = {"colours": colours, "names": names}
    with create_geotiff(temporary, facts.info, 1, "uint8", options.ignore_value, **described) as writer:
        for task in tasks:
            writer.write(np.load(task.part / "label.npy"), task.owned)
    publish(temporary, final)


def _summed(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scene's summary: counts added up, moments merged."""
    total: dict[str, Any] = {
        "dropped": {reason: sum(s["dropped"][reason] for s in summaries) for reason in summaries[0]["dropped"]},
        "class_pixels": np.sum([s["class_pixels"] for s in summaries], axis=0).tolist(),
    }
    if "moments" in summaries[0]:
        bands = zip(*(s["moments"] for s in summaries), strict=True)
        total["moments"] = [asdict(merge(Moments(**found) for found in band)) for band in bands]
    return total
