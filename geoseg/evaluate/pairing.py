"""Which maps are measured against which labels, and what their classes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from geoseg.assess.pairs import MapFacts, Pair, common_classes, leaves_open, read_map_facts
from geoseg.cli import Invocation
from geoseg.data.classes import class_table
from geoseg.data.scene import Scene
from geoseg.data.scenes import read_scenes
from geoseg.errors import ConfigError, DataError, problem
from geoseg.geo.ground import GroundSource
from geoseg.geo.raster import key_of
from geoseg.predict.images import refuse_same_stems
from geoseg.predict.output import class_colours, output_path
from geoseg.report.quicklook import Legend

Classes = Sequence[Mapping[str, Any]]


def all_pairs(call: Invocation) -> list[Pair]:
    """Return the maps that the command line names, or those of the CSV's scenes, with their labels.

    Raises:
        ConfigError: The command line does not fit together.
        DataError: A list of scenes that is wrong, or scenes without labels.
    """
    return _named_pairs(call) if call.options.maps else _listed_pairs(call)


def listed_maps(call: Invocation) -> list[tuple[Path, Path | str | None]]:
    """Return the maps of the CSV's scenes with their areas of interest; they need no labels."""
    scenes = _listed_scenes(call)
    folder = call.config.evaluation.maps
    found = {output_path(folder, scene.image): scene.aoi for scene in scenes}
    return list(found.items())


def named_maps(call: Invocation) -> list[tuple[Path, Path | None]]:
    """Return the maps of the command line, each once, with their images if those are named.

    Raises:
        ConfigError: There are as many images as maps, or none.
    """
    maps = call.options.maps or []
    images = call.options.images or [None] * len(maps)
    if len(images) != len(maps):
        found = f"{len(images)} images for {len(maps)} maps"
        raise ConfigError(problem("command line", found, "one for each map, in the same order", "correct --images"))
    first: dict[Path, tuple[Path, Path | None]] = {}
    for path, image in zip(maps, images, strict=True):
        if first.setdefault(path.resolve(), (path, image))[0] is not path:
            call.log.warn(f"{path}: named more than once; it counts once")
    return list(first.values())


def _named_pairs(call: Invocation) -> list[Pair]:
    options = call.options
    if options.references is None:
        raise ConfigError("command line: --maps without --references; name the file with the reference polygons")
    return [
        Pair(path, GroundSource(options.references, options.attribute, options.layer, options.aoi, path), image)
        for path, image in named_maps(call)
    ]


def _listed_scenes(call: Invocation) -> list[Scene]:
    section = call.config.evaluation
    scenes = [scene for scene in read_scenes(section.prep_csv_file) if scene.split == section.split]
    if not scenes:
        remedy = "add one, or set evaluation.split"
        raise DataError(problem(section.prep_csv_file, f"no {section.split} scene", "at least one", remedy))
    refuse_same_stems(list({key_of(scene.image): scene.image for scene in scenes}.values()))
    return scenes


def _listed_pairs(call: Invocation) -> list[Pair]:
    section, scenes = call.config.evaluation, _listed_scenes(call)
    without = [scene.where for scene in scenes if scene.labels is None]
    if without:
        raise DataError([problem(where, "no labels", "reference polygons", "add them") for where in without])
    return [
        Pair(output_path(section.maps, s.image), replace(s.ground, image=s.image), s.image, s.nodata, s.where)
        for s in scenes
        if s.labels is not None
    ]


def all_facts(paths: Iterable[Path]) -> dict[Path, MapFacts]:
    """Read what all maps say about themselves; all that are missing are reported together."""
    facts: dict[Path, MapFacts] = {}
    problems: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            facts[path] = read_map_facts(path)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return facts


def shared_classes(call: Invocation, facts: Mapping[Path, MapFacts]) -> Classes:
    """Return the classes of the maps, or, if they do not say, those of the config, which must not contradict.

    Where maps leave pixels open, the last one is "uncertain", of which a config knows nothing.
    """
    shared = call.config.global_
    entries = None if shared.classes is None else [entry.model_dump() for entry in shared.classes]
    said = class_table(int(shared.num_classes or 2), entries)
    found = common_classes(facts)
    if found is None:
        return said
    known = found[:-1] if leaves_open(found) else found
    names, said_names = [c["name"] for c in known], [c["name"] for c in said]
    if (entries and names != said_names) or ("num_classes" in shared.model_fields_set and len(names) != len(said)):
        expected = f"{len(said)} ({', '.join(said_names)}) as the config says"
        found_text = f"{len(names)} classes ({', '.join(names)})"
        raise DataError(problem(next(iter(facts)), found_text, expected, "classify again, or correct the config"))
    return found


def output_folder(call: Invocation) -> Path:
    """Return the folder of tables and report: as named, else beside the maps."""
    if call.options.output:
        return Path(call.options.output).absolute()
    if call.options.maps:
        return Path(call.options.maps[0]).absolute().parent / "evaluation"
    return Path(call.config.evaluation.output_path)


def unique_names(pairs: Sequence[Pair]) -> list[str]:
    """Return a name per pair; where an image has several label files, the later ones are numbered."""
    seen: dict[str, int] = {}
    names = []
    for pair in pairs:
        seen[pair.name] = seen.get(pair.name, 0) + 1
        names.append(pair.name if seen[pair.name] == 1 else f"{pair.name}-{seen[pair.name]}")
    return names


def legend_of(classes: Classes) -> Legend:
    """Return names and colours of the classes."""
    return Legend(tuple(entry["name"] for entry in classes), class_colours(classes))
