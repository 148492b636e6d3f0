"""Maps against reference labels: counting, tables, pictures and the report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import geoseg
from geoseg.assess.confusion import Reference, SceneConfusion, confusion_of, count_blocks, whole_set
from geoseg.assess.details import DetailOptions, Details, detail_measures, whole_details
from geoseg.assess.detailtables import DETAIL_COLUMNS, detail_rows, details_csv, details_plain, reliability_csv
from geoseg.assess.difference import COLOURS, KINDS
from geoseg.assess.pairs import MapFacts, Pair, leaves_open, read_reference
from geoseg.assess.tables import confusion_csv, score_lines, scores_csv, scores_json, text_table
from geoseg.cli import Invocation, progress
from geoseg.data.classes import background_doubts, class_mapping
from geoseg.errors import DataError, GeosegError, ScenesFailed
from geoseg.evaluate.pairing import (
    Classes,
    all_facts,
    all_pairs,
    legend_of,
    output_folder,
    shared_classes,
    unique_names,
)
from geoseg.geo.raster import read_tags
from geoseg.geo.vector import LabelSet
from geoseg.learn.files import make_folder, replacing
from geoseg.report.evaluation import MOST_PICTURES, evaluation_page
from geoseg.report.quicklook import Legend, draw_quicklook
from geoseg.report.scenemap import UNKNOWN_COLOUR, scene_layers
from geoseg.report.slippy import MapScene, slippy_map
from geoseg.settings import label_rules


@dataclass
class _Results:
    """What has been found out so far, scene by scene."""

    scenes: list[SceneConfusion] = field(default_factory=list)
    details: dict[str, Details] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)
    failures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mapped: list[Callable[[], MapScene]] = field(default_factory=list)


def compare_maps(call: Invocation) -> None:
    """Compare all maps with their labels; write tables, pictures and the report.

    Raises:
        ScenesFailed: Some scenes failed; the results of the others are written.
    """
    pairs = all_pairs(call)
    facts = all_facts(pair.class_map for pair in pairs)
    classes = shared_classes(call, facts)
    if leaves_open(classes):
        classes = classes[:-1]
    folder = make_folder(output_folder(call))
    results = _compare_all(call, pairs, facts, classes, folder)
    if not results.scenes:
        raise DataError([line for lines in results.failures.values() for line in lines])
    _write(call, pairs, classes, results, folder)
    _say(call, pairs, classes, results, folder)
    if results.failures:
        raise ScenesFailed([line for lines in results.failures.values() for line in lines])


def _compare_all(
    call: Invocation, pairs: Sequence[Pair], facts: Mapping[Path, MapFacts], classes: Classes, folder: Path
) -> _Results:
    results = _Results()
    with progress(sum(count_blocks(pair.class_map) for pair in pairs), "comparing", "blocks") as bar:
        for name, pair in zip(unique_names(pairs), pairs, strict=True):
            try:
                reference = _reference(call, pair, facts[pair.class_map], classes)
                difference = folder / f"{name}_difference.tif" if call.config.evaluation.difference_map else None
                with detail_measures(pair.class_map, len(classes), _options(call), difference) as more:
                    for warning in more.warnings:
                        call.log.warn(warning)
                    counted = more.measures
                    scene = confusion_of(pair.class_map, reference, len(classes), name, bar.update, counted)
                picture = folder / f"{name}_quicklook.png"
                draw_quicklook(picture, pair.image, pair.class_map, legend_of(classes), reference)
            except GeosegError as error:
                results.failures[name] = tuple(
                    f"{pair.where}: {line}" if pair.where else line for line in error.problems
                )
                continue
            results.scenes.append(scene)
            results.details[name] = more.made()
            results.pictures[name] = picture
            if len(results.mapped) < MOST_PICTURES:
                layers = (name, pair.class_map, legend_of(classes), reference, difference)
                results.mapped.append(functools.partial(scene_layers, *layers))
    return results


def _map(call: Invocation, results: _Results, legend: Legend) -> tuple[str, str]:
    entries = [*zip(legend.names[1:], legend.colours[1:], strict=True), ("unknown", UNKNOWN_COLOUR)]
    if call.config.evaluation.difference_map:
        entries += [(f"difference: {kind}", colour) for kind, colour in zip(KINDS[1:], COLOURS[1:], strict=True)]
    return slippy_map((load() for load in results.mapped), len(results.mapped), entries)


def _options(call: Invocation) -> DetailOptions:
    return DetailOptions(call.config.evaluation.boundary_width, call.config.evaluation.object_iou)


def _reference(call: Invocation, pair: Pair, facts: MapFacts, classes: Classes) -> Reference:
    """Read the reference labels by the rules of `sample`."""
    sample = call.config.sample
    ignore = call.config.global_.ignore_value if facts.ignore_value is None else facts.ignore_value
    mapping = class_mapping(classes, ignore, sample.ignore_values, sample.unmapped)  # type: ignore[arg-type]
    reference, warnings = read_reference(pair, facts, mapping, label_rules(call.config))
    for warning in warnings:
        call.log.warn(warning)
    if isinstance(reference.ground.labels, LabelSet) and not sample.mask_input_image:
        then = "; where such ground was unknown to the samples, add sample.mask_input_image=true"
        for warning in background_doubts(classes, "classes of the maps", then):
            call.log.warn(warning)
    return reference


def _write(call: Invocation, pairs: Sequence[Pair], classes: Classes, results: _Results, folder: Path) -> None:
    legend = legend_of(classes)
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
        "details": details_plain(results.details, legend.names),
    }
    slippy = _map(call, results, legend)
    files = {
        "scores.csv": scores_csv(results.scenes, legend.names),
        "details.csv": details_csv(results.details, legend.names),
        "confusion.csv": confusion_csv(whole_set(results.scenes), legend.names),
        "report.html": evaluation_page(results.scenes, legend, results.pictures, about, results.details, slippy),
        "scores.json": scores_json(results.scenes, legend.names, facts),
    }
    reliability = whole_details(list(results.details.values())).reliability
    if reliability is not None:
        files["calibration.csv"] = reliability_csv(reliability)
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write(text.encode())
    if call.config_path is not None:
        call.config.save(folder / "config.yaml")


def _say(call: Invocation, pairs: Sequence[Pair], classes: Classes, results: _Results, folder: Path) -> None:
    names = legend_of(classes).names
    lines = score_lines(results.scenes, names)
    whole = whole_details(list(results.details.values()))
    more = [text_table(DETAIL_COLUMNS, detail_rows(whole, names)), ""]
    if whole.reliability is not None:
        lines.append(f"expected calibration error {whole.reliability.expected_error:.3f}")
    for line in [*more, *lines]:
        call.log.info(line)
    call.log.info()
    for pair, name in zip(pairs, unique_names(pairs), strict=True):
        if name in results.pictures:
            call.log.info(f"class map  {pair.class_map}")
            call.log.info(f"quicklook  {results.pictures[name]}")
    call.log.info(f"report     {folder / 'report.html'}")
    call.log.info(f"tables     {folder / 'scores.csv'}, details.csv, confusion.csv, scores.json")
