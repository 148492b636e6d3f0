"""From the parts of a scene to its shard: the step after its last block."""

from __future__ import annotations

import contextlib
import errno
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

from geoseg.data.locks import locked
from geoseg.data.rawfiles import array_header
from geoseg.data.sampling import REASONS, VALID, BlockTask
from geoseg.data.splitnames import SPLITS
from geoseg.data.statistics import Moments, merge
from geoseg.errors import DataError
from geoseg.geo.raster import create_geotiff, publish

_COPY_BYTES = 2**24


def finish_scene(tasks: Sequence[BlockTask], folder: Path, entry: Mapping[str, Any]) -> None:
    """Merge the parts of a scene into its shard and label raster, write its record, then remove the parts.

    The parts are taken in the order of the tasks, so the bytes do not depend on who made them. Nothing is held in
    memory but one part's labels. A scene whose record exists is finished; finishing again changes nothing. Of several
    processes that want to finish a scene one does, while the others wait. Where there are no locks, each file appears
    by rename, with the same bytes whoever comes first.

    Args:
        tasks: All tasks of the scene, in order; their parts exist.
        folder: The store that is being built.
        entry: What the record says besides.
    """
    record = record_path(folder, tasks[0].facts.scene.scene_id)
    parts = tasks[0].part.parent
    with locked(parts, wait=True):
        try:
            _finish(tasks, folder, record, entry)
        except (OSError, DataError):
            if not record.is_file():
                raise  # otherwise another process was sooner, and has removed the parts
        shutil.rmtree(parts, ignore_errors=True)


def _finish(tasks: Sequence[BlockTask], folder: Path, record: Path, entry: Mapping[str, Any]) -> None:
    if record.is_file():
        return
    parts = [task.part for task in tasks]
    by_part = [np.load(part / "rows.npy") for part in parts]
    rows = np.concatenate(by_part)
    summaries = [json.loads((part / "summary.json").read_text(encoding="utf-8")) for part in parts]
    _write_shards(tasks, rows, [len(found) for found in by_part], folder / "shards")
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


def _write_shards(tasks: Sequence[BlockTask], rows: NDArray[np.int64], kept: Sequence[int], folder: Path) -> None:
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
            target = folder / f"{facts.scene.scene_id}.{name}.npy"
            _write_shard(tasks, name, kept, target, array_header(shape, dtype))


def _write_shard(tasks: Sequence[BlockTask], name: str, kept: Sequence[int], target: Path, header: bytes) -> None:
    """Write one array of a scene, or put the file in its place that holds it already."""
    raw = {place.path.stem: place.path for place in tasks[0].raw}.get(name)
    sources = [_source(task, name, count) for task, count in zip(tasks, kept, strict=True)]
    whole = all(count == len(task.block.windows) for task, count in zip(tasks, kept, strict=True))
    if raw is not None and whole and all(path == raw for path, _, _ in sources):
        if not raw.is_file() and target.is_file():
            return  # it was put there by another process, or by a run that was killed next
        with raw.open("r+b") as file:
            file.write(header)
        raw.replace(target)
        return
    with _renamed(target) as temporary, temporary.open("wb") as out:
        out.write(header)
        for path, offset, length in sources:
            if length:
                _append(path, offset, length, out)


def _source(task: BlockTask, name: str, kept: int) -> tuple[Path, int, int]:
    """Return file, offset and number of bytes of a block's samples."""
    own = task.part / f"{name}.bin"
    if own.is_file():
        return own, 0, own.stat().st_size
    if not task.part.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(task.part))
    place = next(place for place in task.raw if place.path.stem == name)
    return place.path, place.offset, kept * place.sample


def _append(source: Path, offset: int, length: int, out: BinaryIO) -> None:
    """Copy a part of a file to the end of another, inside the kernel where it can."""
    end = out.seek(0, os.SEEK_END) + length
    with source.open("rb") as file:
        out.flush()
        done = 0
        try:
            while done < length:
                sent = os.sendfile(out.fileno(), file.fileno(), offset + done, min(_COPY_BYTES, length - done))
                if not sent:
                    break
                done += sent
        except (AttributeError, OSError):  # not this system, or not these file systems
            pass
        out.seek(0, os.SEEK_END)
        file.seek(offset + done)
        while done < length and (data := file.read(min(_COPY_BYTES, length - done))):
            out.write(data)
            done += len(data)
    assert out.seek(0, os.SEEK_END) == end, f"{source}: {end - out.tell()} bytes are missing"


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
