"""Making a sample store: all scenes to parts, parts to shards, shards to the finished store.

The store is built in a hidden folder beside its final name, named by the fingerprint of the options and of the files
that went in. When it is complete it is renamed; a store that was there before stays untouched until then. A run that
is interrupted leaves the hidden folder, and the same call goes on from it; a run that fails removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

import geoseg
from geoseg.data.indexing import write_index
from geoseg.data.preview import write_preview
from geoseg.data.sampling import BlockTask, SampleOptions, plan_scene, run_block
from geoseg.data.shards import finish_scene, record_path
from geoseg.data.statistics import Moments, describe, merge, subsample_step
from geoseg.data.store import SCHEMA_VERSION, SPLITS, Store, StoreInfo, open_store
from geoseg.data.survey import SceneFacts, Survey
from geoseg.errors import DataError, GeosegError, problem

OnProgress = Callable[[int], None]
# Adds to a store that is complete but for its final name (a report, say); must write the same bytes for the same store.
Decorate = Callable[[Store], None]
# Runs a function on tasks and yields each task with its result or exception, in any order.
RunTasks = Callable[[Callable[[BlockTask], Path], Iterable[BlockTask]], Iterator[tuple[BlockTask, Path | Exception]]]


def count_blocks(found: Survey, options: SampleOptions) -> int:
    """Return how many blocks `build_store` reports as progress."""
    return sum(len(plan_scene(facts, options, 0, Path())) for facts in found.facts)


def fingerprint(found: Survey, options: SampleOptions) -> str:
    """Return a short hash of all that decides a store: options, scenes, and the state of their files."""
    scenes = [[f.scene.scene_id, f.scene.split, *f.bands, *_sources(f)] for f in found.facts]
    text = json.dumps([SCHEMA_VERSION, options.to_dict(), scenes], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def existing_store(final: Path, mark: str, overwrite: bool) -> Store | None:
    """Return the store under the final name if it is the one that would be made; None if the name is free to use.

    Raises:
        DataError: Another store is there and must not be replaced, or something that is no store is.
    """
    _recover(final)
    if not final.exists():
        return None
    try:
        store = open_store(final)
    except DataError:
        if not overwrite and any(final.iterdir()):
            remedy = "move it away, or set sample.overwrite (--overwrite) to replace it"
            raise DataError(problem(final, "files, but no complete sample store", "a free name", remedy)) from None
        return None
    if store.info.provenance.get("fingerprint") == mark:
        return store
    if not overwrite:
        found = "a sample store made with other settings, or from files that have changed since"
        remedy = "set sample.overwrite (--overwrite) to replace it, or choose another global.data_path"
        raise DataError(problem(final, found, "none, or the same", remedy))
    return None


def build_store(
    found: Survey,
    options: SampleOptions,
    final: Path,
    run_tasks: RunTasks | None = None,
    on_progress: OnProgress | None = None,
    decorate: Decorate | None = None,
) -> Store:
    """Sample all scenes and put the finished store under its final name, replacing one that is there.

    If any scene fails, the run fails and nothing is left: a store in which scenes are silently missing would be
    trained on.

    Args:
        found: The scenes.
        options: How to cut them.
        final: The store's folder.
        run_tasks: Where blocks are cut (see `geoseg.execution.map_tasks`); None: one after another in this process.
        on_progress: Called with the number of blocks that were finished.
        decorate: Called with the store before it gets its final name.

    Returns:
        The store. Its bytes depend on the sources and options, not on who made the parts.

    Raises:
        DataError: A file cannot be read, or no training sample is left; one line per scene that failed.
    """
    mark = fingerprint(found, options)
    folder = final.with_name(f".{final.name}-{mark}")
    _remove_others(final, folder)
    made = not final.parent.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run(_plans(found, options, folder), folder, run_tasks or run_here, on_progress)
        finish_store(found, options, folder, mark, decorate)
    except GeosegError:
        shutil.rmtree(folder, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # somebody else may have put something there
                final.parent.rmdir()
        raise
    _publish(folder, final)
    return open_store(final)


def _plans(found: Survey, options: SampleOptions, folder: Path) -> list[list[BlockTask]]:
    step = subsample_step(sum(f.info.height * f.info.width for f in found.facts if f.scene.split == "trn"))
    return [
        plan_scene(f, options, step if f.scene.split == "trn" else 0, folder / "parts" / f.scene.scene_id)
        for f in found.facts
    ]


def _run(
    plans: Sequence[Sequence[BlockTask]], folder: Path, run_tasks: RunTasks, on_progress: OnProgress | None
) -> None:
    """Make all parts, and finish each scene when its last part is there."""
    plan_of = {tasks[0].part.parent: tasks for tasks in plans}
    left = {parts: len(tasks) for parts, tasks in plan_of.items()}
    todo: list[BlockTask] = []
    for tasks in plans:
        if not record_path(folder, tasks[0].facts.scene.scene_id).is_file():
            todo += tasks
        elif on_progress:  # finished by a run that was interrupted
            on_progress(len(tasks))
    problems: list[str] = []
    for task, result in run_tasks(run_block, todo):
        scene = task.part.parent
        left[scene] -= 1
        if isinstance(result, GeosegError):
            problems += result.problems
            left[scene] = -1  # never finished
        elif isinstance(result, Exception):
            raise result
        elif left[scene] == 0:
            finish_scene(plan_of[scene], folder)
        if on_progress:
            on_progress(1)
    if problems:
        raise DataError(list(dict.fromkeys(problems)))


def run_here(
    function: Callable[[BlockTask], Path], tasks: Iterable[BlockTask]
) -> Iterator[tuple[BlockTask, Path | Exception]]:
    """Run tasks one after another in this process."""
    for task in tasks:
        try:
            yield task, function(task)
        except GeosegError as error:
            yield task, error


def finish_store(
    found: Survey, options: SampleOptions, folder: Path, mark: str, decorate: Decorate | None = None
) -> None:
    """Write index, description and preview of a store whose scenes are all finished; remove what only building needs.

    Raises:
        DataError: There is no training sample.
    """
    records = []
    for facts in found.facts:
        path = record_path(folder, facts.scene.scene_id)
        records.append(json.loads(path.read_text(encoding="utf-8")))
    rows = [np.load(record_path(folder, f.scene.scene_id).with_suffix(".rows.npy")) for f in found.facts]
    info = _describe_store(found, options, folder, records, rows, mark)
    if not info.samples["trn"]:
        raise DataError(_no_samples(info))
    write_index(folder / "index.parquet", found.facts, rows, options.size)
    (folder / "store.json").write_text(info.to_json(), encoding="utf-8")
    store = open_store(folder)
    write_preview(store, folder / "preview.png")
    if decorate is not None:
        decorate(store)
    shutil.rmtree(folder / "scenes")
    shutil.rmtree(folder / "parts", ignore_errors=True)


def _describe_store(
    found: Survey,
    options: SampleOptions,
    folder: Path,
    records: Sequence[dict[str, Any]],
    rows: Sequence[np.ndarray],
    mark: str,
) -> StoreInfo:
    first = next(f for f in found.facts if f.scene.split == "trn")
    crs = {f.info.crs.to_string() if f.info.crs else None for f in found.facts}
    by_split = {split: [i for i, f in enumerate(found.facts) if f.scene.split == split] for split in SPLITS}
    no_pixels = np.zeros(options.num_classes, np.int64)
    return StoreInfo(
        classes=options.classes,
        num_classes=options.num_classes,
        ignore_value=options.ignore_value,
        samples_size=options.size,
        stride=options.stride,
        bands=first.bands,
        band_names=first.band_names,
        dtype=first.info.dtype,
        resolution=first.info.resolution,
        crs=crs.pop() if len(crs) == 1 else None,
        statistics=tuple(_statistics(found, folder, records)),
        class_pixels={
            split: tuple(sum((rows[i][:, 3:].sum(axis=0) for i in scenes), no_pixels).tolist())
            for split, scenes in by_split.items()
        },
        samples={split: sum(len(rows[i]) for i in scenes) for split, scenes in by_split.items()},
        dropped={
            split: {reason: sum(records[i]["dropped"][reason] for i in scenes) for reason in ("unknown", "background")}
            for split, scenes in by_split.items()
        },
        scenes=tuple(_scene_entry(f, record, len(r)) for f, record, r in zip(found.facts, records, rows, strict=True)),
        provenance=_provenance(options, mark),
    )


def _statistics(found: Survey, folder: Path, records: Sequence[dict[str, Any]]) -> Iterable[Any]:
    training = [(f, r) for f, r in zip(found.facts, records, strict=True) if f.scene.split == "trn"]
    bands = zip(*(record["moments"] for _, record in training), strict=True)
    moments = [merge(Moments(**one) for one in band) for band in bands]
    files = [record_path(folder, f.scene.scene_id).with_suffix(".subsample.npy") for f, _ in training]
    return describe(moments, [path for path in files if path.is_file()])


def _scene_entry(facts: SceneFacts, record: dict[str, Any], samples: int) -> dict[str, Any]:
    scene, info = facts.scene, facts.info
    return {
        "id": scene.scene_id,
        "split": scene.split,
        "image": str(scene.image),
        "labels": str(scene.labels),
        "attribute": scene.attribute,
        "layer": scene.layer,
        "height": info.height,
        "width": info.width,
        "bands": list(facts.bands),
        "crs": info.crs.to_string() if info.crs else None,
        "transform": list(info.transform)[:6],
        "resolution": list(info.resolution),
        "polygons": facts.polygons,
        "samples": samples,
        "dropped": record["dropped"],
        "class_pixels": record["class_pixels"],
        "sources": _sources(facts),
    }


def _provenance(options: SampleOptions, mark: str) -> dict[str, Any]:
    """What made the store. No time of day: the same call makes the same bytes."""
    return {
        "fingerprint": mark,
        "geoseg": geoseg.__version__,
        "rasterio": rasterio.__version__,
        "gdal": rasterio.__gdal_version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "options": json.loads(json.dumps(options.to_dict(), default=str)),
    }


def _sources(facts: SceneFacts) -> list[list[str | int]]:
    """Return path, size in bytes and time of change of a scene's files; only the path of what is no plain file."""
    sources: list[list[str | int]] = []
    for path in (facts.scene.image, facts.scene.labels):
        if path is not None and path.is_file():
            state = path.stat()
            sources.append([str(path), state.st_size, state.st_mtime_ns])
        elif path is not None:
            sources.append([str(path)])
    return sources


def _no_samples(info: StoreInfo) -> str:
    counts = ", ".join(f"{split} {info.samples[split]}" for split in SPLITS)
    dropped = info.dropped["trn"]
    found = (
        f"samples per split {counts}; of the trn windows {dropped['background']} hold background alone and "
        f"{dropped['unknown']} no known pixel"
    )
    remedy = "set sample.remove_background: false, or check labels and nodata of the trn scenes"
    return problem("samples", found, "at least one trn sample", remedy)


def _remove_others(final: Path, folder: Path) -> None:
    """Remove what interrupted runs with other options or files have left."""
    if final.parent.is_dir():
        for other in final.parent.glob(f".{final.name}-*"):
            if other != folder and re.fullmatch(r".*-[0-9a-f]{16}", other.name):
                shutil.rmtree(other, ignore_errors=True)


def _former(final: Path) -> Path:
    return final.with_name(f".{final.name}-former")


def _publish(folder: Path, final: Path) -> None:
    former = _former(final)
    shutil.rmtree(former, ignore_errors=True)
    if final.exists():
        final.rename(former)
    folder.rename(final)
    shutil.rmtree(former, ignore_errors=True)


def _recover(final: Path) -> None:
    """Bring back the former store if a run died between the two renames that replace it."""
    if not final.exists() and _former(final).is_dir():
        _former(final).rename(final)
