"""Files of earlier runs in a folder of maps: which of them geoseg made, known by their tags and not by their names."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from geoseg.errors import DataError, problem
from geoseg.geo.raster import local_files, read_tags
from geoseg.geo.vector.writing import FORMATS, read_polygon_tags
from geoseg.predict.finishing import polygons_path
from geoseg.predict.output import output_path
from geoseg.predict.outputs import OUTPUTS

#: The tag that tells which run made a map.
RUN = "RUN"
_MARKS = frozenset(("MODEL_HASH", "GEOSEG_VERSION"))
_RUN_TEXT = re.compile(r"[0-9a-f]{16}")
_SHOWN = 5

FileId = tuple[int, int]
Name = str | os.PathLike[str]


def made_by(path: Path) -> str | None:
    """Return what run a map or a file of polygons was made by, or None where there is none."""
    return _tags(path).get(RUN)


def is_ours(path: Path) -> bool:
    """Tell whether geoseg made a map, a file of polygons or a `classes.json`; not where it cannot be read."""
    tags = _tags(path)
    return not _MARKS.isdisjoint(tags) or _RUN_TEXT.fullmatch(tags.get(RUN, "")) is not None


def file_ids(names: Iterable[Name]) -> set[FileId]:
    """Return what tells the files on this machine apart that images stand for, whatever they are called."""
    return {file_id(path) for name in names for path in local_files(name)}


def file_id(path: Path) -> FileId:
    """Return what tells a file apart from others, whatever it is called."""
    found = path.stat()
    return found.st_dev, found.st_ino


def refuse_foreign(targets: Iterable[Path]) -> None:
    """Refuse to write over files that geoseg did not make.

    Raises:
        DataError: One line for each.
    """
    found = "a file that geoseg did not make, where it is to write its own"
    expected, remedy = "a free name, or a file that geoseg made", "move or rename it, or choose another output folder"
    problems = [problem(path, found, expected, remedy) for path in targets if path.exists() and not is_ours(path)]
    if problems:
        raise DataError(problems)


def refuse_inputs(targets: Iterable[Path], inputs: Collection[FileId]) -> None:
    """Refuse to write over files that are read in the same call.

    Args:
        targets: What is to be written.
        inputs: From `file_ids`.

    Raises:
        DataError: One line for each.
    """
    problems = [
        problem(path, "an output that is an input of the same call", "another place", "choose another output folder")
        for path in targets
        if path.exists() and file_id(path) in inputs
    ]
    if problems:
        raise DataError(problems)


def side_products(folder: Path, image: Name, kept: Collection[Path]) -> list[Path]:
    """Return what lies beside the class map of an image, was made by geoseg and will not be written anew.

    Another run made it, so it describes another map than the one that comes. The class map itself is none of these.

    Args:
        folder: The folder of the maps.
        image: The image.
        kept: What is written now.
    """
    maps = [output_path(folder, image, output) for output in OUTPUTS if output != "classes"]
    polygons = [polygons_path(folder, image, suffix.removeprefix(".")) for suffix in FORMATS]
    return [path for path in [*maps, *polygons] if path not in kept and path.is_file() and is_ours(path)]


def remove_products(paths: Iterable[Path]) -> list[Path]:
    """Remove files of earlier runs, with what GDAL keeps beside them; return those that are gone."""
    gone = []
    for path in paths:
        with contextlib.suppress(OSError):  # also where another process that made the same maps was sooner
            path.unlink()
            gone.append(path)
            path.with_name(f"{path.name}.aux.xml").unlink(missing_ok=True)
    return gone


def some_names(paths: Collection[Path]) -> str:
    """Return the names of the first few files, and how many more there are."""
    shown = ", ".join(path.name for path in list(paths)[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"


def _tags(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    if path.suffix in FORMATS:
        return read_polygon_tags(path)
    try:
        return _facts(path) if path.suffix == ".json" else read_tags(path)
    except (DataError, OSError, ValueError):
        return {}


def _facts(path: Path) -> dict[str, str]:
    said = json.loads(path.read_text(encoding="utf-8"))
    return {name.upper(): str(fact) for name, fact in said.items()} if isinstance(said, dict) else {}
