"""The work of the command: which images, with what, on which processes, and what is said in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import geoseg
from geoseg.classify.model import chosen_bands, map_classes, numbered, refuse_conflicts, thresholds_of
from geoseg.cli import Invocation, Log, Progress, progress
from geoseg.errors import ConfigError, DataError, GeosegError, ScenesFailed, problem
from geoseg.execution import InlineExecutor, map_tasks, resolve_workers, share_of_work
from geoseg.geo.raster import stem
from geoseg.learn.capacity import parse_memory
from geoseg.learn.modelfile import ModelSpec, model_hash, read_model_spec
from geoseg.predict.combine import Combination
from geoseg.predict.images import Image, find_images, refuse_same_stems
from geoseg.predict.loading import load_predictor, refuse_strangers
from geoseg.predict.output import MapDescription, classes_tag, output_path, refuse_input
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, SceneResult, bands_of, check_image, classify_scene, windows_of
from geoseg.predict.styles import write_classes, write_style
from geoseg.report.quicklook import Legend, draw_quicklook
from geoseg.settings import executor_of


@dataclass(frozen=True)
class Job:
    """All that is needed to classify any of the images, in this process or another.

    Attributes:
        models: Model files; several are averaged.
        device: Where to compute.
        precision: Number type.
        combination: Looks at every window.
        spec: What the first model file says.
        classes: The classes of the maps: id, name, colour, value.
        description: What every map says about itself.
        folder: Where maps go.
        options: How to classify and what to write.
        quicklook: Whether to draw a picture of every map.
        threads: Threads of a process; None leaves them as they are.
    """

    models: tuple[Path, ...]
    device: str
    precision: str
    combination: Combination
    spec: ModelSpec
    classes: tuple[dict[str, Any], ...]
    description: MapDescription
    folder: Path
    options: ClassifyOptions
    quicklook: bool
    threads: int | None = None

    @property
    def predictor(self) -> Predictor:
        """The network, loaded once in each process."""
        return _loaded(self.models, self.device, self.precision, self.combination)


@lru_cache(maxsize=1)
def _loaded(models: tuple[Path, ...], device: str, precision: str, combination: Combination) -> Predictor:
    return load_predictor(models, device, precision, combination)[0]


def classify_images(call: Invocation) -> None:
    """Classify what the config and the command line say.

    Raises:
        ScenesFailed: Some images failed, the others are done.
        DataError: All failed.
    """
    _loaded.cache_clear()  # the files may have changed since a former call in this process
    images = _share(_images(call), call)
    job = _prepare(call)
    failures = _check_all(images, job, call.log)
    todo = [image for image in images if image not in failures]
    if call.config.classification.overwrite is False:
        todo = _without_existing(todo, job, call.log)
    results = _classify_all(todo, job, call, failures) if todo else []
    if results:
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
        call.log.note(f"{found.maps_passed_over} maps made by geoseg are passed over")
    refuse_same_stems(found.images)
    return found.images


def _share(images: list[Image], call: Invocation) -> list[Image]:
    """Return the images of this share of the work: every n-th."""
    try:
        place, count = share_of_work(call.options.shard)
    except ValueError as error:
        raise ConfigError(problem("--shard", str(error), "i/n, such as 3/10", "correct it")) from error
    mine = images[place - 1 :: count]
    if count > 1:
        call.log.info(f"share {place} of {count}: {len(mine)} of {len(images)} images")
    return mine


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
            max_memory=parse_memory(call.options.max_memory) if call.options.max_memory else None,
        ),
        quicklook=section.quicklook,
    )


def _description(
    call: Invocation, models: Sequence[Path], spec: ModelSpec, classes: Sequence[dict[str, Any]]
) -> MapDescription:
    section = call.config.classification
    known = list(spec.classes) + [dict(entry) for entry in classes[spec.num_classes :]]
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
    if call.config_path is not None:
        tags |= {"CONFIG_HASH": call.config.fingerprint(), "CONFIG": call.config.to_yaml()}
    values = tuple(entry["value"] for entry in classes) if section.values == "attribute" else None
    names, colours = tuple(entry["name"] for entry in classes), tuple(entry["colour"] for entry in classes)
    return MapDescription(names, colours, tags, values)


def _check_all(images: Sequence[Image], job: Job, log: Log) -> dict[Image, tuple[str, ...]]:
    """Look at every image before the first window; return what is wrong, by image."""
    failures: dict[Image, tuple[str, ...]] = {}
    for image in images:
        try:
            refuse_input(image, [output_path(job.folder, image, output) for output in job.options.outputs])
            for warning in check_image(image, job.spec, job.options):
                log.warn(warning)
        except GeosegError as error:
            failures[image] = error.problems
    return failures


def _without_existing(images: Sequence[Image], job: Job, log: Log) -> list[Image]:
    todo = [
        image
        for image in images
        if not all(output_path(job.folder, image, output).exists() for output in job.options.outputs)
    ]
    if len(todo) < len(images):
        log.note(f"{len(images) - len(todo)} images have their maps already and are skipped")
    return todo


def _classify_all(
    images: Sequence[Image], job: Job, call: Invocation, failures: dict[Image, tuple[str, ...]]
) -> list[SceneResult]:
    """Classify images; reasons of those that fail are added to `failures`."""
    workers = min(resolve_workers(call.config.classification.workers), len(images))
    with executor_of(call.options.scheduler, call.options.dask_local, workers, (__name__,)) as executor:
        if isinstance(executor, InlineExecutor):
            return _one_by_one(images, job, failures)
        if call.options.scheduler is None:
            job = replace(job, threads=max(1, resolve_workers("auto") // max(1, workers)))
        results: dict[Image, SceneResult] = {}
        with progress(len(images), "classifying", "images") as bar:
            for image, outcome in map_tasks(executor, partial(_classify_task, job), images):
                bar.update(1)
                if isinstance(outcome, GeosegError):
                    failures[image] = outcome.problems
                elif isinstance(outcome, Exception):
                    raise outcome
                else:
                    results[image] = outcome
    return [results[image] for image in images if image in results]


def _one_by_one(images: Sequence[Image], job: Job, failures: dict[Image, tuple[str, ...]]) -> list[SceneResult]:
    results = []
    predictor = job.predictor
    with progress(sum(windows_of(image, predictor, job.options) for image in images), "classifying", "windows") as bar:
        for image in images:
            bar.set_text(stem(image))
            try:
                results.append(_classify_one(image, job, bar))
            except GeosegError as error:
                failures[image] = error.problems
    return results


def _classify_task(job: Job, image: Image) -> SceneResult:
    """Classify an image in a process of its own."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    return _classify_one(image, job, None)


def _classify_one(image: Image, job: Job, bar: Progress | None) -> SceneResult:
    bands = bands_of(image, job.spec, job.options)
    tags = {**job.description.tags, "BANDS": ",".join(map(str, bands)), "SOURCE": str(image)}
    description = replace(job.description, tags=tags)
    step = None if bar is None else bar.update
    result = classify_scene(image, job.predictor, bands, job.folder, description, job.options, step)
    class_map = result.paths.get("classes")
    if class_map is not None and not result.already:
        write_style(class_map, job.classes)
        if job.quicklook and description.values is None:
            picture = class_map.with_suffix(".png")
            draw_quicklook(picture, None, class_map, Legend(description.class_names, description.colours))
    return result


def _summary(results: Sequence[SceneResult], names: Sequence[str]) -> Iterator[str]:
    for result in results:
        if result.already:
            yield f"{result.image}: was done already"
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
