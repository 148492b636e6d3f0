"""`python -m geoseg.evaluate`: class maps against reference labels.

Classes and attribute values are those that the maps carry from the samples; what counts as unknown is what `sample`
takes as unknown.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import geoseg
from geoseg.assess.confusion import Reference, SceneConfusion, confusion_of, count_blocks, whole_set
from geoseg.assess.pairs import MapFacts, Pair, common_classes, read_map_facts, read_reference
from geoseg.assess.tables import confusion_csv, score_lines, scores_csv, scores_json
from geoseg.cli import Invocation, progress, run_command
from geoseg.data.classes import class_mapping, class_table
from geoseg.data.scenes import read_scenes
from geoseg.errors import ConfigError, DataError, GeosegError, ScenesFailed, problem
from geoseg.geo.ground import GroundSource
from geoseg.geo.raster import read_tags
from geoseg.learn.files import replacing
from geoseg.predict.output import class_colours, output_path
from geoseg.report.evaluation import evaluation_page
from geoseg.report.quicklook import Legend, draw_quicklook
from geoseg.settings import label_rules

Classes = Sequence[Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("evaluate", argv, _evaluate, _add_options, needs_config=lambda options: not options.maps)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--maps", nargs="+", type=Path, metavar="MAP", help="class maps, instead of the CSV's scenes")
    parser.add_argument("--references", type=Path, metavar="FILE", help="with --maps: the reference labels")
    parser.add_argument("--attribute", metavar="NAME", help="with --maps: the attribute that holds the class")
    parser.add_argument("--aoi", type=Path, metavar="FILE", help="with --maps: the area of interest")
    parser.add_argument("--layer", metavar="NAME", help="with --maps: the layer of the file")
    parser.add_argument("--images", nargs="+", type=Path, metavar="IMAGE", help="with --maps: the image of each map")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the tables and the report")


@dataclass
class _Results:
    """What has been found out so far, scene by scene."""

    scenes: list[SceneConfusion]
    pictures: dict[str, Path]
    failures: dict[str, tuple[str, ...]]


def _evaluate(call: Invocation) -> None:
    pairs = _named_pairs(call.options) if call.options.maps else _listed_pairs(call)
    facts = _all_facts(pairs)
    classes = _classes(call, facts)
    folder = _output_folder(call)
    results = _compare_all(call, pairs, facts, classes, folder)
    if not results.scenes:
        raise DataError([line for lines in results.failures.values() for line in lines])
    _write(call, pairs, classes, results, folder)
    _say(call, pairs, classes, results, folder)
    if results.failures:
        raise ScenesFailed([line for lines in results.failures.values() for line in lines])


def _named_pairs(options: argparse.Namespace) -> list[Pair]:
    if options.references is None:
        raise ConfigError("command line: --maps without --references; name the file with the reference polygons")
    images = options.images or [None] * len(options.maps)
    if len(images) != len(options.maps):
        found = f"{len(images)} images for {len(options.maps)} maps"
        raise ConfigError(problem("command line", found, "one for each map, in the same order", "correct --images"))
    return [
        Pair(path, GroundSource(options.references, options.attribute, options.layer, options.aoi, path), image)
        for path, image in zip(options.maps, images, strict=True)
    ]


def _listed_pairs(call: Invocation) -> list[Pair]:
    section = call.config.evaluation
    scenes = [scene for scene in read_scenes(section.prep_csv_file) if scene.split == section.split]
    if not scenes:
        remedy = "add one, or set evaluation.split"
        raise DataError(problem(section.prep_csv_file, f"no {section.split} scene", "at least one", remedy))
    without = [scene.where for scene in scenes if scene.labels is None]
    if without:
        raise DataError([problem(where, "no labels", "reference polygons", "add them") for where in without])
    return [
        Pair(output_path(section.maps, s.image), replace(s.ground, image=s.image), s.image, s.nodata, s.where)
        for s in scenes
        if s.labels is not None
    ]


def _all_facts(pairs: Sequence[Pair]) -> dict[Path, MapFacts]:
    """Read what all maps say about themselves; all that are missing are reported together."""
    facts: dict[Path, MapFacts] = {}
    problems: list[str] = []
    for path in dict.fromkeys(pair.class_map for pair in pairs):
        try:
            facts[path] = read_map_facts(path)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return facts


def _classes(call: Invocation, facts: Mapping[Path, MapFacts]) -> Classes:
    """Return the classes of the maps, or, if they do not say, those of the config, which must not contradict."""
    shared = call.config.global_
    entries = None if shared.classes is None else [entry.model_dump() for entry in shared.classes]
    said = class_table(int(shared.num_classes or 2), entries)
    found = common_classes(facts)
    if found is None:
        return said
    names, said_names = [c["name"] for c in found], [c["name"] for c in said]
    if (entries and names != said_names) or ("num_classes" in shared.model_fields_set and len(names) != len(said)):
        expected = f"{len(said)} ({', '.join(said_names)}) as the config says"
        found_text = f"{len(names)} classes ({', '.join(names)})"
        raise DataError(problem(next(iter(facts)), found_text, expected, "classify again, or correct the config"))
    return found


def _output_folder(call: Invocation) -> Path:
    if call.options.output:
        return Path(call.options.output).absolute()
    if call.options.maps:
        return Path(call.options.maps[0]).absolute().parent / "evaluation"
    return Path(call.config.evaluation.output_path)


def _compare_all(
    call: Invocation, pairs: Sequence[Pair], facts: Mapping[Path, MapFacts], classes: Classes, folder: Path
) -> _Results:
    results = _Results([], {}, {})
    with progress(sum(count_blocks(pair.class_map) for pair in pairs), "comparing", "blocks") as bar:
        for name, pair in zip(_unique_names(pairs), pairs, strict=True):
            try:
                reference = _reference(call, pair, facts[pair.class_map], classes)
                scene = confusion_of(pair.class_map, reference, len(classes), name, bar.update)
                picture = folder / f"{name}_quicklook.png"
                draw_quicklook(picture, pair.image, pair.class_map, _legend(classes), reference)
            except GeosegError as error:
                results.failures[name] = tuple(
                    f"{pair.where}: {line}" if pair.where else line for line in error.problems
                )
                continue
            results.scenes.append(scene)
            results.pictures[name] = picture
    return results


def _reference(call: Invocation, pair: Pair, facts: MapFacts, classes: Classes) -> Reference:
    """Read the reference labels by the rules of `sample`."""
    sample = call.config.sample
    ignore = call.config.global_.ignore_value if facts.ignore_value is None else facts.ignore_value
    mapping = class_mapping(classes, ignore, sample.ignore_values, sample.unmapped)  # type: ignore[arg-type]
    reference, warnings = read_reference(pair, facts, mapping, label_rules(call.config))
    for warning in warnings:
        call.log.warn(warning)
    return reference


def _unique_names(pairs: Sequence[Pair]) -> list[str]:
    """Return a name per pair; where an image has several label files, the later ones are numbered."""
    seen: dict[str, int] = {}
    names = []
    for pair in pairs:
        seen[pair.name] = seen.get(pair.name, 0) + 1
        names.append(pair.name if seen[pair.name] == 1 else f"{pair.name}-{seen[pair.name]}")
    return names


def _legend(classes: Classes) -> Legend:
    return Legend(tuple(entry["name"] for entry in classes), class_colours(classes))


def _write(call: Invocation, pairs: Sequence[Pair], classes: Classes, results: _Results, folder: Path) -> None:
    legend = _legend(classes)
    tags = read_tags(pairs[0].class_map)
    about = {
        "Model": f"{tags.get('MODEL_NAME', 'unknown')}, {tags.get('MODEL_HASH', 'unknown')[:12]}",
        "Maps": str(pairs[0].class_map.parent),
        "References": ", ".join(dict.fromkeys(str(pair.ground.labels) for pair in pairs)),
        "geoseg": geoseg.__version__,
    }
    facts = {
        "geoseg_version": geoseg.__version__,
        "model_hash": tags.get("MODEL_HASH"),
        "maps": [str(pair.class_map) for pair in pairs],
        "references": [str(pair.ground.labels) for pair in pairs],
        "failed": sorted(results.failures),
    }
    files = {
        "scores.csv": scores_csv(results.scenes, legend.names),
        "confusion.csv": confusion_csv(whole_set(results.scenes), legend.names),
        "report.html": evaluation_page(results.scenes, legend, results.pictures, about),
        "scores.json": scores_json(results.scenes, legend.names, facts),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write(text.encode())
    if call.config_path is not None:
        call.config.save(folder / "config.yaml")


def _say(call: Invocation, pairs: Sequence[Pair], classes: Classes, results: _Results, folder: Path) -> None:
    for line in score_lines(results.scenes, _legend(classes).names):
        call.log.info(line)
    call.log.info()
    for pair, name in zip(pairs, _unique_names(pairs), strict=True):
        if name in results.pictures:
            call.log.info(f"class map  {pair.class_map}")
            call.log.info(f"quicklook  {results.pictures[name]}")
    call.log.info(f"report     {folder / 'report.html'}")
    call.log.info(f"tables     {folder / 'scores.csv'}, confusion.csv, scores.json")


if __name__ == "__main__":
    raise SystemExit(main())
