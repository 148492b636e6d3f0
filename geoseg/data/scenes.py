"""The list of scenes: a CSV file, or a STAC item, collection or item collection on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geoseg.data.scene import Scene, Split
from geoseg.data.scenetable import COLUMNS, read_table
from geoseg.data.splitnames import SPLITS
from geoseg.data.stac import read_stac
from geoseg.errors import DataError, problem

__all__ = ["COLUMNS", "SPLITS", "Scene", "Split", "read_scenes"]

_STAC_SUFFIXES = (".json", ".geojson")


def read_scenes(path: str | Path) -> list[Scene]:
    """Read the list of scenes, in the file's order.

    Files that are named need not exist; who opens them says so.

    Args:
        path: A CSV file (see `geoseg.data.scenetable`), or STAC JSON (see `geoseg.data.stac`), known by its suffix.

    Raises:
        DataError: The file is missing, of no such kind, or empty; one line per row or item that is wrong.
    """
    path = Path(path)
    scenes, problems = (read_stac if path.suffix.lower() in _STAC_SUFFIXES else read_table)(path)
    problems += _repeated(scenes)
    if problems:
        raise DataError(problems)
    return scenes


def _repeated(scenes: Sequence[Scene]) -> list[str]:
    """The same image with the same labels twice would count twice, or lie in two splits."""
    first: dict[str, Scene] = {}
    problems = []
    for scene in scenes:
        other = first.setdefault(scene.scene_id, scene)
        if other is not scene:
            found = f"the scene of {other.where.rpartition(', ')[2]} again"
            problems.append(problem(scene.where, found, "each scene once", "remove one of the two"))
    return problems
