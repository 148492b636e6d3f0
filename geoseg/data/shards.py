"""From the parts of a scene to its shard: the step after its last block."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from geoseg.data.sampling import REASONS, VALID, BlockTask
from geoseg.data.splits import SPLITS
from geoseg.data.statistics import Moments, merge
from geoseg.errors import DataError
from geoseg.geo.raster import create_geotiff, publish

_COPY_BYTES = 2**24


def finish_scene(tasks: Sequence[BlockTask], folder: Path, entry: Mapping[str, Any]) -> None:
    """Merge the parts of a scene into its shard and label raster, write its record, then remove the parts.

    The parts are taken in the order of the tasks, so the bytes do not depend on who made them. Nothing is held in
    memory but one part's labels. A scene whose record exists is finished; finishing again changes nothing. Several
    processes may finish a scene at once: each file appears by rename, with the same bytes whoever comes first.

    Args:
        tasks: All tasks of the scene, in order; their parts exist.
        folder: The store that is being built.
        entry: What the record says besides.
    """
    record = record_path(folder, tasks[0].facts.scene.scene_id)
    try:
        _finish(tasks, folder, record, entry)
    except (OSError, DataError):
        if not record.is_file():
            raise  # otherwise another process was sooner, and has removed the parts
    shutil.rmtree(tasks[0].part.parent, ignore_errors=True)


def _finish(tasks: Sequence[BlockTask], folder: Path, record: Path, entry: Mapping[str, Any]) -> None:
    if record.is_file():
        return
    parts = [task.part for task in tasks]
    rows = np.concatenate([np.load(part / "rows.npy") for part in parts])
    summaries = [json.loads((part / "summary.json").read_text(encoding="utf-8")) for part in parts]
    _write_shards(tasks, rows, folder / "shards")
    _write_label_raster(tasks, folder / "labels")
    with _renamed(record.with_suffix(".rows.npy")) as temporary:
        _save(temporary, rows)
    step = tasks[0].step
    if step:
        sampled = np.concatenate([np.load(part / "subsample.npy") for part in parts], axis=1)
        if sampled.size:
            with _renamed(record.with_suffix(".subsample.npy")) as temporary:
                _save(temporary, sampled)
    found = {**entry, "step": step, **_summed(summaries)}
    with _renamed(record) as temporary:
        temporary.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _renamed(final: Path) -> Iterator[Path]:
    """Give a name to write to; what was written gets its final name when it is complete."""
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:  # np.save would add a suffix to the name
        np.save(file, array)


def record_path(folder: Path, scene_id: str) -> Path:
    """Return where the record of a finished scene lies; its rows and subsample lie beside it."""
    return folder / "scenes" / f"{scene_id}.json"


def _write_shards(tasks: Sequence[BlockTask], rows: NDArray[np.int64], folder: Path) -> None:
    facts, size = tasks[0].facts, tasks[0].options.size
    count, partly = len(rows), int(np.count_nonzero(rows[:, VALID] < size * size))
    image_shape = (count, len(facts.bands), size, size)
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
    with _renamed(target) as temporary, temporary.open("wb") as out:
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
    final = folder / f"{facts.scene.scene_id}.tif"
    temporary = final.with_name(f".{uuid.uuid4().hex[:8]}.{final.name}")
    colours = {int(c["id"]): c["colour"] for c in options.classes}
    names = [str(c["name"]) for c in options.classes]
    described: dict[str, Any] = {"colours": colours, "names": names, "compress": "packbits"}
    with create_geotiff(temporary, facts.info, 1, "uint8", options.ignore_value, **described) as writer:
        for task in tasks:
            writer.write(np.load(task.part / "label.npy"), task.owned)
    publish(temporary, final)


def _summed(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scene's summary: counts added up, moments merged."""
    total: dict[str, Any] = {
        "dropped": {
            split: {reason: sum(s["dropped"][split][reason] for s in summaries) for reason in REASONS}
            for split in SPLITS
        },
        "class_pixels": np.sum([s["class_pixels"] for s in summaries], axis=0).tolist(),
    }
    if "moments" in summaries[0]:
        bands = zip(*(s["moments"] for s in summaries), strict=True)
        total["moments"] = [asdict(merge(Moments(**found) for found in band)) for band in bands]
    return total
