"""A sample of points from class maps, and the areas and accuracies that it leads to once it was filled in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.area import Estimates, allocate, estimate, sample_size
from geoseg.assess.areatables import area_csv, area_json, area_lines, shown_area
from geoseg.assess.design import DesignMap, Strata, count_blocks, draw, overlapping, read_answers, survey, write_design
from geoseg.assess.tables import text_table
from geoseg.cli import Invocation, progress
from geoseg.errors import ConfigError, DataError, problem
from geoseg.evaluate.pairing import Classes, all_facts, listed_maps, named_maps, output_folder, shared_classes
from geoseg.geo.raster import read_info
from geoseg.geo.vector import ClassMapping, LabelRules, read_labels
from geoseg.learn.files import make_folder, replacing
from geoseg.predict.output import class_colours
from geoseg.report.area import area_page


def draw_points(call: Invocation, path: Path) -> None:
    """Draw a stratified random sample from the maps into a new file."""
    section = call.config.evaluation
    if path.suffix.lower() != ".gpkg":
        raise ConfigError(problem("points to draw", str(path), "a GeoPackage (.gpkg)", "give it another name"))
    if path.exists():
        found = "a file, which may hold answers"
        raise DataError(problem(path, found, "no file", "name another with --points FILE, or remove it"))
    maps, classes = _maps(call)
    names = [str(entry["name"]) for entry in classes]
    expected = section.expected_accuracy
    shares = expected if isinstance(expected, tuple) else (expected,) * len(names)
    if len(shares) != len(names):
        found = f"{len(shares)} shares for {len(names)} classes"
        raise ConfigError(problem("evaluation.expected_accuracy", found, "one per class of the maps", "correct it"))
    for first, second in overlapping(maps)[:5]:
        call.log.warn(f"{first} and {second.name} overlap: what they share counts twice; cut one of them, or use --aoi")
    make_folder(path.absolute().parent)
    with progress(2 * count_blocks(maps), "drawing points", "blocks") as bar:
        strata = survey(maps, names, bar.update)
        total = section.sample_points or sample_size(strata.area, shares, section.standard_error)
        wanted = allocate(total, strata.area, strata.pixels, shares, section.allocation, section.min_points)
        points = draw(maps, wanted, call.config.global_.seed or 0, bar.update)
    write_design(path, maps, replace(strata, colours=class_colours(classes)), points)
    for line in _design_lines(strata, wanted):
        call.log.info(line)
    call.log.info()
    call.log.info(f"points     {path}")
    call.log.info("next       fill in the column 'reference' with class names or ids, then")
    call.log.info(f"           python -m geoseg.evaluate --points {path}")


def estimate_areas(call: Invocation, path: Path) -> None:
    """Estimate areas and accuracies from a filled-in sample; write tables and a report."""
    strata, counts, missing = read_answers(path)
    if counts.sum() == 0:
        found = f"no reference in any of {missing} points"
        raise DataError(problem(path, found, "class names or ids in the column 'reference'", "fill it in"))
    if missing:
        call.log.warn(f"{path}: {missing} points without a reference are left out, as if they had never been drawn")
    for number in np.flatnonzero((strata.area > 0) & (counts.sum(axis=1) < 2)):
        points = int(counts[number].sum())
        call.log.warn(f"{path}: {points} point{'' if points == 1 else 's'} in {strata.names[number]}; two are needed")
    result = estimate(counts, strata.area)
    named = call.options.output or call.config_path
    folder = make_folder(output_folder(call) if named else path.absolute().parent)
    _write(folder, path, strata, result, missing)
    for line in area_lines(result, strata.names, strata.unit):
        call.log.info(line)
    call.log.info()
    call.log.info(f"report     {folder / 'areas.html'}")
    call.log.info(f"tables     {folder / 'areas.csv'}, areas.json")


def _write(folder: Path, path: Path, strata: Strata, result: Estimates, missing: int) -> None:
    colours = strata.colours or class_colours([{}] * len(strata.names))
    facts = {"Points": str(path), "Points without a reference": f"{missing:,}"}
    files = {
        "areas.csv": area_csv(result, strata.names, strata.unit),
        "areas.html": area_page(result, strata.names, colours, strata.unit, facts),
        "areas.json": area_json(result, strata.names, strata.unit, {"points": str(path), "missing": missing}),
    }
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write(text.encode())


def _maps(call: Invocation) -> tuple[list[DesignMap], Classes]:
    """Return the maps with their areas of interest, and their classes."""
    named = [(path, call.options.aoi) for path, _ in named_maps(call)]
    listed = named if call.options.maps else listed_maps(call)
    classes = shared_classes(call, all_facts([path for path, _ in listed]))
    rules = LabelRules(assume_crs=call.config.sample.assume_crs)
    maps = []
    for path, area in listed:
        polygons = None
        if area is not None:
            crs = read_info(path, allow_palette=True).crs
            polygons = read_labels(area, None, crs, ClassMapping(num_classes=2), rules=rules, image=path)
        maps.append(DesignMap(path, polygons))
    return maps, classes


def _design_lines(strata: Strata, wanted: NDArray[np.int64]) -> list[str]:
    total = strata.area.sum()
    rows = [
        [name, f"{strata.pixels[i]:,}", shown_area(strata.area[i], strata.unit), f"{strata.area[i] / total:.1%}",
         f"{wanted[i]:,}"]
        for i, name in enumerate(strata.names)
    ]  # fmt: skip
    rows.append(["sum", f"{strata.pixels.sum():,}", shown_area(total, strata.unit), "", f"{wanted.sum():,}"])
    return text_table(("class", "map px", "map area", "share", "points"), rows).splitlines()
