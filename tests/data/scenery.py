"""Small scenes on disk, for the tests of sampling."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from conftest import make_polygons, make_raster, pixel_box
from numpy.typing import NDArray

from geoseg.data.building import build_store
from geoseg.data.classes import class_mapping, class_table
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import Scene
from geoseg.data.store import Store
from geoseg.data.survey import SurveyOptions, survey
from geoseg.geo.vector import LabelRules

CLASSES = class_table(3)


def make_scene(
    folder: Path,
    name: str = "scene",
    split: Any = "trn",
    image: NDArray[Any] | None = None,
    boxes: Any = ((2, 3, 10, 10, 1), (8, 8, 6, 6, 2)),
    **raster: Any,
) -> Scene:
    """Write a raster and boxes (row, col, height, width, class) over it; return the scene."""
    if image is None:
        image = np.random.default_rng(len(name)).integers(1, 200, (2, 40, 50)).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    path = make_raster(folder / f"{name}.tif", image, **raster)
    polygons = [pixel_box(*box[:4]) for box in boxes]
    labels = make_polygons(folder / f"{name}.gpkg", polygons, {"cls": [int(box[4]) for box in boxes]})
    return Scene(path, labels, "cls", split)


def make_options(
    size: int = 16, stride: int = 16, remove_background: bool = False, **survey_options: Any
) -> SampleOptions:
    """Return options for samples of 16 pixels and three classes; label rules are taken by their names."""
    survey_options.setdefault("mapping", class_mapping(CLASSES))
    rules = {f.name: survey_options.pop(f.name) for f in fields(LabelRules) if f.name in survey_options}
    survey_options.setdefault("rules", LabelRules(**rules))
    return SampleOptions(SurveyOptions(**survey_options), CLASSES, size, stride, remove_background)


def make_store(folder: Path, scenes: list[Scene], options: SampleOptions | None = None, **how: Any) -> Store:
    """Sample scenes into folder/samples."""
    options = options or make_options()
    store = build_store(survey(scenes, options.survey), options, folder / "samples", **how)
    assert store is not None
    return store


def file_hashes(folder: Path) -> dict[str, str]:
    """Return relative path -> hash of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
