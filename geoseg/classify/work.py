"""The work of the command: which images, with what, on which processes, and what is said in the end."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import geoseg
from geoseg.classify.model import chosen_bands, finish_options, map_classes, numbered, refuse_conflicts, thresholds_of
from geoseg.classify.running import Job, forget_models, run_all
from geoseg.cli import Invocation, Log
from geoseg.errors import ConfigError, DataError, GeosegError, ScenesFailed, problem
from geoseg.execution import share_of_work
from geoseg.geo.raster import read_info
from geoseg.learn.capacity import parse_memory
from geoseg.learn.modelfile import ModelSpec, model_hash, read_model_spec
from geoseg.predict.combine import Combination
from geoseg.predict.fitting import check_image
from geoseg.predict.former import (
    FileId,
    file_id,
    file_ids,
    refuse_foreign,
    refuse_inputs,
    remove_products,
    side_products,
    some_names,
)
from geoseg.predict.images import Image, find_images, refuse_same_stems
from geoseg.predict.loading import refuse_strangers
from geoseg.predict.output import MapDescription, classes_tag, refuse_input
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.resolution import resampling_note
from geoseg.predict.scene import ClassifyOptions, SceneResult
from geoseg.predict.styles import write_classes

_OF_POLYGONS = ("polygon_min_area", "polygon_fill_holes", "polygon_simplify", "polygon_background")


def classify_images(call: Invocation) -> None:
    """Classify what the config and the command line say.

    Raises:
        ScenesFailed: Some images failed, the others are done.
        DataError: All failed.
    """
    forget_models()
    everything = _images(call)
    images, share = _share(everything, call)
    job = replace(_prepare(call), share=share)
    failures = _check_all(images, job, call.log)
    todo = [image for image in images if image not in failures]
    if call.config.classification.overwrite is False:
        todo = _without_existing(todo, job, call.log)
    inputs = file_ids([*everything, *([job.options.aoi] if job.options.aoi else [])])
    failures |= _check_targets(todo, inputs, job)
    todo = [image for image in todo if image not in failures]
    stale = _stale(todo, inputs, job)
    results = run_all(todo, job, call, failures) if todo else []
    if results:
        _remove(stale, results, call.log)
        facts = {key: job.description.tags[key] for key in ("MODEL_NAME", "MODEL_HASH", "GEOSEG_VERSION")}
        write_classes(job.folder, job.classes, {key.lower(): value for key, value in facts.items()})
    for line in _summary(results, job.description.class_names):
        call.log.info(line)
    if failures:
        reasons = [line for lines in failures.values() for line in lines]
        raise (DataError if len(failures) == len(images) else ScenesFailed)(reasons)


def _images(call: Invocation) -> list[Image]:
    section = call.config.classification
    sources = call.options.images or section.images or [section.working_folder]
    found = find_images(sources)
    if found.maps_passed_over:
        maps = found.maps_passed_over
        call.log.note(f"{len(maps)} maps made by geoseg are passed over: {some_names(maps)}")
    refuse_same_stems(found.images)
    return found.images


def _share(images: list[Image], call: Invocation) -> tuple[list[Image], tuple[int, int]]:
    """Return the images of this share of the work, every n-th, and which share of their parts: where shares are more
    than images, all of them have some parts of each.
    """
    try:
        place, count = share_of_work(call.options.shard)
    except ValueError as error:
        raise ConfigError(problem("--shard", str(error), "i/n, such as 3/10", "correct it")) from error
    if count == 1:
        return images, (1, 1)
    if count > len(images):
        _refuse_open_plan(call)
        call.log.info(f"share {place} of {count}: the parts of {len(images)} images are shared out")
        return images, (place, count)
    mine = images[place - 1 :: count]
    call.log.info(f"share {place} of {count}: {len(mine)} of {len(images)} images")
    return mine, (1, 1)


def _refuse_open_plan(call: Invocation) -> None:
    """Refuse shares of one image whose windows each share would choose for itself."""
    section = call.config.classification
    if call.options.max_memory and (not isinstance(section.window, int) or section.batch_size is None):
        found = "windows that each share of an image would choose for itself (--max-memory)"
        remedy = "set classification.window and classification.batch_size"
        raise ConfigError(problem("--shard", found, "the same windows in all shares", remedy))


def _prepare(call: Invocation) -> Job:
    config, section = call.config, call.config.classification
    said = call.options.model or [section.state_dict_path, *section.ensemble]
    models = tuple(path.absolute() for path in said)
    specs = [read_model_spec(path) for path in models]
    spec = specs[0]
    refuse_strangers(models, specs)
    refuse_conflicts(config, spec, models[0])
    thresholds = thresholds_of(section.uncertain_below, spec)
    classes = map_classes(spec, thresholds is not None, section.values == "attribute")
    if section.polygons is None and (idle := [name for name in _OF_POLYGONS if getattr(section, name)]):
        call.log.warn(f"{', '.join(f'classification.{name}' for name in idle)}: no use without classification.polygons")
    if section.polygons is not None and "confidence" not in section.outputs:
        call.log.note("polygons say nothing of confidence; with confidence among classification.outputs they do")
    sliding = SlidingOptions(
        window=section.window if isinstance(section.window, int) else None,
        overlap=section.overlap,
        blending=section.blending,
        batch_size=section.batch_size,
    )
    return Job(
        models=models,
        device=section.device,
        precision=section.precision,
        combination=Combination(section.test_time_augmentation, section.temperature),
        spec=spec,
        classes=tuple(classes),
        description=_description(call, models, spec, classes),
        folder=(call.options.output or section.output_path).absolute(),
        options=ClassifyOptions(
            sliding=sliding,
            outputs=tuple(section.outputs),
            bands=chosen_bands(call, spec),
            reading=spec.reading,
            by_name=not numbered(call),
            scaled=section.fractions == "uint8",
            resume=call.options.resume,
            thresholds=thresholds,
            aoi=section.aoi,
            bounds=section.bounds,
            convert=section.convert_dtype,
            resample=section.resample or call.options.resample,
            max_memory=parse_memory(call.options.max_memory, "--max-memory") if call.options.max_memory else None,
            finish=finish_options(section),
        ),
        quicklook=section.quicklook,
    )


def _description(
    call: Invocation, models: Sequence[Path], spec: ModelSpec, classes: Sequence[dict[str, Any]]
) -> MapDescription:
    section = call.config.classification
    known = list(spec.classes) + [{**entry, "value": entry["id"]} for entry in classes[spec.num_classes :]]
    tags = {
        "GEOSEG_VERSION": geoseg.__version__,
        "MODEL_NAME": spec.model_name,
        "MODEL_HASH": "+".join(model_hash(path) for path in models),
        "MODEL_FILE": "|".join(map(str, models)),
        "CLASSES": classes_tag(known),
        "IGNORE_VALUE": str(spec.ignore_value),
        "READING": json.dumps(spec.reading.to_dict()),
    }
    if section.test_time_augmentation != "none" or section.temperature != 1:
        tags["LOOKS"] = f"{section.test_time_augmentation}, temperature {section.temperature:g}"
    if (unit := section.minimum_mapping_unit) is not None:
        tags["MINIMUM_MAPPING_UNIT"] = f"{unit:g} pixels" if isinstance(unit, float) else unit
    if call.config_path is not None:
        tags |= {"CONFIG_HASH": call.config.fingerprint(), "CONFIG": call.config.to_yaml()}
    values = tuple(entry["value"] for entry in classes) if section.values == "attribute" else None
    if values is not None:
        tags["VALUES"] = json.dumps(values)
    names, colours = tuple(entry["name"] for entry in classes), tuple(entry["colour"] for entry in classes)
    return MapDescription(names, colours, tags, values)


def _check_all(images: Sequence[Image], job: Job, log: Log) -> dict[Image, tuple[str, ...]]:
    """Look at every image before the first window; return what is wrong, by image."""
    failures: dict[Image, tuple[str, ...]] = {}
    for image in images:
        try:
            refuse_input(image, job.options.paths(job.folder, image).values())
            for warning in check_image(image, job.spec, job.options):
                log.warn(warning)
            note = (
                resampling_note(read_info(image, reading=job.spec.reading), job.spec) if job.options.resample else None
            )
            if note is not None:
                log.info(note)
        except GeosegError as error:
            failures[image] = error.problems
    return failures


def _without_existing(images: Sequence[Image], job: Job, log: Log) -> list[Image]:
    todo = [
        image for image in images if not all(path.exists() for path in job.options.paths(job.folder, image).values())
    ]
    if len(todo) < len(images):
        log.note(f"{len(images) - len(todo)} images have their maps already and are skipped")
    return todo


def _check_targets(images: Sequence[Image], inputs: Collection[FileId], job: Job) -> dict[Image, tuple[str, ...]]:
    """Look at what lies where maps are to be written; return what is wrong, by image."""
    if images:
        refuse_foreign([job.folder / "classes.json"])
    failures: dict[Image, tuple[str, ...]] = {}
    for image in images:
        paths = job.options.paths(job.folder, image)
        pictures = [paths["classes"].with_suffix(".png")] if job.quicklook and "classes" in paths else []
        try:
            refuse_inputs([*paths.values(), *pictures], inputs)
            refuse_foreign(paths.values())
        except GeosegError as error:
            failures[image] = error.problems
    return failures


def _stale(images: Sequence[Image], inputs: Collection[FileId], job: Job) -> dict[str, dict[Path, FileId]]:
    """Return, by image, what earlier runs left beside its maps that will not be written anew; inputs are left alone."""
    found: dict[str, dict[Path, FileId]] = {}
    for image in images:
        kept = list(job.options.paths(job.folder, image).values())
        known = {path: file_id(path) for path in side_products(job.folder, image, kept)}
        found[str(image)] = {path: number for path, number in known.items() if number not in inputs}
    return found


def _remove(stale: Mapping[str, Mapping[Path, FileId]], results: Sequence[SceneResult], log: Log) -> None:
    """Remove what describes other maps than those that are there now."""
    old = [(path, number) for result in results for path, number in stale[result.image].items()]
    # Another run may have put its own there meanwhile.
    old_paths = [path for path, number in old if path.exists() and file_id(path) == number]
    if gone := remove_products(old_paths):
        log.note(f"{len(gone)} files of earlier runs are removed, which describe other maps: {some_names(gone)}")
    if left := [path for path in old_paths if path.exists()]:
        log.warn(f"{len(left)} files of earlier runs cannot be removed, which describe other maps: {some_names(left)}")


def _summary(results: Sequence[SceneResult], names: Sequence[str]) -> Iterator[str]:
    for result in results:
        if result.already:
            yield f"{result.image}: was done already, by an earlier run or by another at the same time"
            continue
        known = result.class_pixels.sum()
        shares = ", ".join(
            f"{name} {100 * pixels / known:.1f} %"
            for name, pixels in zip(names, result.class_pixels, strict=True)
            if pixels
        )
        speed = f"{result.seconds:.1f} s, {result.megapixels_per_second:.2f} MPix/s"
        yield f"{result.image}: {result.width} x {result.height} pixels, {speed}; {shares or 'no valid pixel'}"
        if result.seam_index is not None:
            yield f"  seam index {result.seam_index:.2f} (1: classes change no more often at window borders)"
        yield from (f"  {path}" for path in result.paths.values())
