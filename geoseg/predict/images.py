"""Which images to classify: paths, folders and patterns become a list of files."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from geoseg.data.scenefiles import expand
from geoseg.data.stac import read_stac_images
from geoseg.errors import DataError, problem
from geoseg.geo.raster import stem
from geoseg.geo.raster.names import SUFFIXES, is_gdal_name, members, resolve
from geoseg.predict.former import is_ours
from geoseg.predict.outputs import OUTPUTS

_OWN = tuple(f"_{output}.tif" for output in OUTPUTS)

_LISTS = (".csv", ".json", ".geojson")

Image = str | os.PathLike[str]


class Found(NamedTuple):
    """The images, and those of our own maps that were passed over."""

    images: list[Image]
    maps_passed_over: list[Path]


def find_images(sources: Iterable[Image]) -> Found:
    """Return the images that paths, folders and patterns stand for, in order, each once.

    A folder stands for the rasters directly in it, known by their suffix. Our own maps (``*_classes.tif`` and so on,
    with our tags) are passed over in folders and patterns. Names that GDAL opens (``/vsi...``, ``https://...``), and
    files joined by ``|``, which are one image, are taken as they are. A CSV file stands for the images in its column
    ``image``, or in its first column; STAC JSON for the images of its items.

    Raises:
        DataError: A path that does not exist, a folder or pattern without an image, or nothing at all.
    """
    images: list[Image] = []
    problems: list[str] = []
    passed_over: list[Path] = []
    for source in sources:
        if is_gdal_name(source) or len(members(source)) > 1:
            images.append(source)
            continue
        path = Path(source)
        if path.suffix.lower() in _LISTS and path.is_file():
            images += _listed(path)
            continue
        candidates, expected = _candidates(path)
        maps = [candidate for candidate in candidates if candidate != path and _is_map(candidate)]
        passed_over += maps
        known = set(maps)
        found = [candidate for candidate in candidates if candidate not in known]
        images += found
        if not found:
            nothing = "nothing but maps that geoseg made" if maps else _nothing(path)
            problems.append(problem(path, nothing, expected, "correct classification.images or working_folder"))
    if problems:
        raise DataError(problems)
    return Found(list(dict.fromkeys(images)), list(dict.fromkeys(passed_over)))


def refuse_same_stems(images: Sequence[Image]) -> None:
    """Refuse images whose maps would have the same name.

    Raises:
        DataError: One line per image after the first of its name.
    """
    first: dict[str, Image] = {}
    problems = []
    for image in images:
        other = first.setdefault(stem(image), image)
        if other is not image:
            remedy = "rename one, leave one out, or classify them into different folders"
            problems.append(problem(image, f"the same name as {other}", "a name of its own for each map", remedy))
    if problems:
        raise DataError(problems)


def _is_map(path: Path) -> bool:
    """Tell whether geoseg made a raster; only those with the name of a map are looked at."""
    return path.name.endswith(_OWN) and is_ours(path)


def _candidates(path: Path) -> tuple[list[Path], str]:
    """Return the files that a source may stand for and what was expected of it."""
    if path.is_dir():
        inside = (child for child in path.iterdir() if child.is_file() and not child.name.startswith("."))
        rasters = sorted(child for child in inside if child.suffix.lower() in SUFFIXES)
        return rasters, "a folder with rasters (.tif, .vrt, .jp2, .png, ...)"
    if path.exists():
        return [path], "a raster"
    if glob.has_magic(str(path)):
        hits = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns)
        return [hit for hit in hits if hit.is_file() and not hit.name.endswith(".aux.xml")], "a pattern that fits files"
    return [], "a raster, a folder or a pattern"


def _listed(path: Path) -> list[Image]:
    """Return the images of a CSV list or of STAC items."""
    if path.suffix.lower() != ".csv":
        return list(read_stac_images(path))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row and row[0].strip() and not row[0].startswith("#")]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    place = header.index("image") if "image" in header else 0
    images: list[Image] = []
    problems = []
    for row in rows["image" in header :]:
        cell = row[place].strip() if place < len(row) else ""
        found, trouble = expand(resolve(cell, path.parent), str(path)) if cell else ([], [])
        images += found
        problems += trouble
    if not images and not problems:
        problems = [problem(path, "no image in this list", "a path in each row", "add images")]
    if problems:
        raise DataError(problems)
    return images


def _nothing(path: Path) -> str:
    if path.is_dir():
        return "no raster in this folder"
    return "no file that fits" if glob.has_magic(str(path)) else "no such file or folder"
