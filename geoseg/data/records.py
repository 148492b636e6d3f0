"""What a store knows of each scene, and the marks by which it tells whether something has changed.

The record of a scene (`scenes/<scene>.json`, with its rows and subsample beside it) says all that index and statistics
need. So a store can be finished again with more scenes, or fewer, without touching those that stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoseg.data.commonground import Standing
from geoseg.data.sampling import COL, ROW, SPLIT, SampleOptions, ScenePlan
from geoseg.data.shards import record_path
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import SCHEMA_VERSION
from geoseg.data.survey import SceneFacts, Survey

Record = Mapping[str, Any]


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that are equal for equal parts."""
    text = json.dumps([SCHEMA_VERSION, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def options_mark(options: SampleOptions) -> str:
    """Return the mark of how scenes are cut, the state of the file of split polygons included."""
    return digest(options.to_dict(), source_state(options.splits.file))


def scene_mark(facts: SceneFacts) -> str:
    """Return the mark of a scene: what it is, and the state of its files."""
    scene = facts.scene
    return digest(scene.scene_id, scene.split, facts.bands, scene.nodata, scene.weight, sources(facts))


def store_mark(how: str, scenes: Sequence[tuple[str, str]]) -> str:
    """Return the mark of a store: of its options and, in order, (id, mark) of its scenes."""
    return digest(how, [list(scene) for scene in scenes])


def fingerprint(found: Survey, options: SampleOptions) -> str:
    """Return a short hash of all that decides a store: options, scenes, and the state of their files."""
    return store_mark(options_mark(options), [(f.scene.scene_id, scene_mark(f)) for f in found.facts])


def sources(facts: SceneFacts) -> list[list[str | int]]:
    """Return path, size in bytes and time of change of a scene's files; only the path of what is no plain file."""
    return [source_state(path) for path in facts.scene.files()]


def source_state(path: Path | str | None) -> list[str | int]:
    """Return path, size in bytes and time of change of a file; only the path of what is no plain file."""
    if path is None:
        return []
    if Path(path).is_file():
        state = Path(path).stat()
        return [str(path), state.st_size, state.st_mtime_ns]
    return [str(path)]


def scene_entry(facts: SceneFacts, plan: ScenePlan | None) -> dict[str, Any]:
    """Return what the record of a scene says before any of its pixels is read."""
    scene, info = facts.scene, facts.info
    return {
        "id": scene.scene_id,
        "split": scene.split,
        "image": str(scene.image),
        "labels": str(scene.labels),
        "attribute": scene.attribute,
        "layer": scene.layer,
        "aoi": None if scene.aoi is None else str(scene.aoi),
        "weight": scene.weight,
        "height": info.height,
        "width": info.width,
        "bands": list(facts.bands),
        "band_names": list(facts.band_names),
        "dtype": info.dtype,
        "crs": info.crs.to_string() if info.crs else None,
        "transform": list(info.transform)[:6],
        "resolution": list(info.resolution),
        "polygons": facts.polygons,
        "warnings": list(facts.warnings),
        "mark": scene_mark(facts),
        "sources": sources(facts),
        "ground": [list(region) for region in plan.ground] if plan else [],
        "apart": plan.apart if plan else 0,
    }


def read_record(folder: Path, scene_id: str) -> dict[str, Any]:
    """Return the record of a finished scene."""
    return dict(json.loads(record_path(folder, scene_id).read_text(encoding="utf-8")))


def standing_scene(folder: Path, record: Record, size: int) -> Standing:
    """Return a finished scene as one that new scenes must not share ground with.

    Args:
        folder: The store.
        record: The scene's.
        size: Side of a sample, pixels.
    """
    rows = read_rows(folder, record["id"])
    windows = np.hstack([rows[:, [ROW, COL]], np.full((len(rows), 2), size)])
    place = Affine(*record["transform"]), record["crs"], (record["height"], record["width"])
    ground = [(*region[:4], region[4]) for region in record["ground"]]
    return Standing(record["image"], place, windows, np.array(SPLITS, object)[rows[:, SPLIT]], ground)


def read_rows(folder: Path, scene_id: str) -> NDArray[np.int64]:
    """Return a row per sample of a finished scene, see `geoseg.data.sampling`."""
    rows: NDArray[np.int64] = np.load(record_path(folder, scene_id).with_suffix(".rows.npy"))
    return rows
