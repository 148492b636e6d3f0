"""From the cells of a row to scenes: folders and patterns become images, {stem} and {band} become names."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from geoseg.data.scene import Scene
from geoseg.data.splitnames import split_named
from geoseg.errors import problem
from geoseg.geo.raster import stem
from geoseg.geo.raster.names import STACK, SUFFIXES, resolve

_STEM, _BAND = "{stem}", "{band}"


def scenes_of_row(folder: Path, where: str, row: Mapping[str, str]) -> tuple[list[Scene], list[str]]:
    """Return the scenes that a row stands for, and what is wrong with it.

    An image that is a folder stands for the rasters in it, a pattern for the files that fit; each becomes a scene.
    ``{stem}`` in the cells labels and aoi is the image's stem. ``{band}`` in the image is each of the row's bands in
    turn: files that make one image.

    Args:
        folder: What relative paths are relative to.
        where: The row, for messages.
        row: Cells by column; right one by one.
    """
    image, bands = row["image"], bands_of(row.get("bands", ""))
    if _BAND in image:
        if not bands:
            return [], [problem(where, f"{_BAND} in the image, but no bands", "bands to put there", "fill in bands")]
        image = STACK.join(image.replace(_BAND, str(band)) for band in bands)
        bands = None
    split = split_named(row["split"])
    assert split is not None  # others were refused before
    images, trouble = expand(resolve(image, folder), where)
    template = Scene(
        image="",
        labels=None,
        attribute=row.get("attribute") or None,
        split=split,
        layer=row.get("layer") or None,
        bands=bands,
        nodata=float(row["nodata"]) if row.get("nodata") else None,
        weight=float(row["weight"]) if row.get("weight") else 1.0,
        where=where,
    )
    scenes = [
        replace(
            template,
            image=found,
            labels=_beside(row.get("labels"), found, folder),
            aoi=_beside(row.get("aoi"), found, folder),
        )
        for found in images
    ]
    if len(scenes) > 1:
        # A pattern may catch the label rasters that lie beside the images.
        labels = {os.fspath(scene.labels) for scene in scenes if scene.labels is not None}
        scenes = [scene for scene in scenes if os.fspath(scene.image) not in labels]
    return scenes, trouble


def bands_of(cell: str) -> tuple[int | str, ...] | None:
    """Return the bands that a cell lists, by number or name, between bars or blanks; None for an empty one."""
    parts = [part.strip() for part in cell.split(STACK if STACK in cell else None)]
    return tuple(int(part) if part.isdecimal() else part for part in parts if part) or None


def expand(image: Path | str, where: str) -> tuple[list[Path | str], list[str]]:
    """Return the images that a path, folder or pattern stands for, in order; or a problem."""
    if not isinstance(image, Path):
        return [image], []
    if image.is_dir():
        inside = [path for path in image.iterdir() if path.is_file() and not path.name.startswith(".")]
        found = sorted(path for path in inside if path.suffix.lower() in SUFFIXES)
        expected = "a folder with rasters (.tif, .vrt, .jp2, .png, ...)"
    elif image.exists() or not glob.has_magic(str(image)):
        return [image], []
    else:
        hits = sorted(Path(name) for name in glob.glob(str(image), recursive=True))  # noqa: PTH207 (absolute)
        found = [path for path in hits if path.is_file() and not path.name.endswith((".aux.xml", ".ovr", ".msk"))]
        expected = "a pattern that fits files"
    if not found:
        return [], [problem(where, f"no raster in {image}", expected, "correct the image")]
    return list(found), []


def _beside(cell: str | None, image: Path | str, folder: Path) -> Path | str | None:
    return resolve(cell.replace(_STEM, stem(image)), folder) if cell else None
