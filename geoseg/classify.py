"""`python -m geoseg.classify`: a model file and rasters to class maps.

An image that cannot be classified does not stop the others: they are done, and the command ends with exit code 4 and a
reason for each that failed (2 if all did).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import geoseg
from geoseg.cli import Invocation, Log, Progress, progress, run_command
from geoseg.config import Config
from geoseg.errors import DataError, GeosegError, ScenesFailed
from geoseg.geo.raster import stem
from geoseg.learn.modelfile import ModelSpec, check_matches, model_hash, read_model_spec
from geoseg.predict.images import Image, find_images, refuse_same_stems
from geoseg.predict.loading import load_predictor
from geoseg.predict.output import MapDescription, class_colours, classes_tag, output_path, refuse_input
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, SceneResult, bands_of, check_image, classify_scene, windows_of
from geoseg.settings import said_reading


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("classify", argv, _classify, _add_options, needs_config=_needs_config)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="model file, instead of classification.state_dict_path"
    )
    parser.add_argument("--images", nargs="+", metavar="IMAGE", help="images, folders or patterns to classify")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the maps")
    parser.add_argument("--bands", nargs="+", type=int, metavar="N", help="bands to use, from 1, in the model's order")
    parser.add_argument("--resume", action="store_true", help="go on with what an interrupted run left of its maps")


def _needs_config(options: argparse.Namespace) -> bool:
    return options.model is None or options.images is None


@dataclass(frozen=True)
class _Job:
    """All that is needed to classify any of the images."""

    predictor: Predictor
    spec: ModelSpec
    description: MapDescription
    folder: Path
    options: ClassifyOptions


def _classify(call: Invocation) -> None:
    images = _images(call)
    job = _prepare(call)
    failures = _check_all(images, job, call.log)
    todo = [image for image in images if image not in failures]
    if call.config.classification.overwrite is False:
        todo = _without_existing(todo, job, call.log)
    results = _classify_all(todo, job, failures) if todo else []
    for line in _summary(results, job.spec):
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


def _prepare(call: Invocation) -> _Job:
    config, section = call.config, call.config.classification
    path = (call.options.model or section.state_dict_path).absolute()
    spec = read_model_spec(path)
    bands = _chosen_bands(call, spec)
    _refuse_conflicts(config, spec, path)
    predictor, spec = load_predictor(path, section.device, section.precision)
    tags = {
        "GEOSEG_VERSION": geoseg.__version__,
        "MODEL_NAME": spec.model_name,
        "MODEL_HASH": model_hash(path),
        "MODEL_FILE": str(path),
        "CLASSES": classes_tag(spec.classes),
        "IGNORE_VALUE": str(spec.ignore_value),
        "READING": json.dumps(spec.reading.to_dict()),
    }
    if call.config_path is not None:
        tags |= {"CONFIG_HASH": config.fingerprint(), "CONFIG": config.to_yaml()}
    sliding = SlidingOptions(
        window=section.window if isinstance(section.window, int) else None,
        overlap=section.overlap,
        blending=section.blending,
        batch_size=section.batch_size,
    )
    return _Job(
        predictor=predictor,
        spec=spec,
        description=MapDescription(spec.class_names, class_colours(spec.classes), tags),
        folder=(call.options.output or section.output_path).absolute(),
        options=ClassifyOptions(
            sliding=sliding,
            outputs=tuple(section.outputs),
            bands=bands,
            reading=spec.reading,
            by_name=not _numbered(call),
            resume=call.options.resume,
        ),
    )


def _chosen_bands(call: Invocation, spec: ModelSpec) -> tuple[int, ...] | None:
    """Return bands that the user names, which confirms them for images with more bands than the model."""
    if call.options.bands:
        return tuple(call.options.bands)
    return spec.bands if call.config.global_.bands else None


def _numbered(call: Invocation) -> bool:
    """Tell whether the user gives the bands by number: then they are taken by number, whatever they are called."""
    said = call.options.bands or call.config.global_.bands or ()
    return any(isinstance(band, int) for band in said)


def _refuse_conflicts(config: Config, spec: ModelSpec, path: Path) -> None:
    """Refuse a config that says something else than the model file; what it leaves open is the file's to say."""
    shared = config.global_
    said = shared.model_fields_set
    names = None if shared.classes is None else [entry.name for entry in shared.classes]
    check_matches(
        spec,
        path,
        model_name=shared.model_name if "model_name" in said else None,
        num_classes=shared.num_classes if "num_classes" in said or names else None,
        class_names=names,
        in_channels=shared.number_of_bands,
        bands=_band_numbers(shared.bands, spec),
        ignore_value=shared.ignore_value if "ignore_value" in said else None,
        reading=said_reading(config),
    )


def _band_numbers(bands: Sequence[int | str] | None, spec: ModelSpec) -> list[int | str] | None:
    """Return the config's bands with the names that the model knows replaced by their numbers."""
    if bands is None:
        return None
    numbers = {name: number for name, number in zip(spec.band_names, spec.bands, strict=True) if name}
    return [numbers.get(band, band) if isinstance(band, str) else band for band in bands]


def _check_all(images: Sequence[Image], job: _Job, log: Log) -> dict[Image, tuple[str, ...]]:
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


def _without_existing(images: Sequence[Image], job: _Job, log: Log) -> list[Image]:
    todo = [
        image
        for image in images
        if not all(output_path(job.folder, image, output).exists() for output in job.options.outputs)
    ]
    if len(todo) < len(images):
        log.note(f"{len(images) - len(todo)} images have their maps already and are skipped")
    return todo


def _classify_all(images: Sequence[Image], job: _Job, failures: dict[Image, tuple[str, ...]]) -> list[SceneResult]:
    """Classify images one by one; reasons of those that fail are added to `failures`."""
    results = []
    total = sum(windows_of(image, job.predictor, job.options) for image in images)
    with progress(total, "classifying", "windows") as bar:
        for image in images:
            bar.set_text(stem(image))
            try:
                results.append(_classify_one(image, job, bar))
            except GeosegError as error:
                failures[image] = error.problems
    return results


def _classify_one(image: Image, job: _Job, bar: Progress) -> SceneResult:
    bands = bands_of(image, job.spec, job.options)
    tags = {**job.description.tags, "BANDS": ",".join(map(str, bands)), "SOURCE": str(image)}
    description = MapDescription(job.description.class_names, job.description.colours, tags)
    return classify_scene(image, job.predictor, bands, job.folder, description, job.options, bar.update)


def _summary(results: Sequence[SceneResult], spec: ModelSpec) -> list[str]:
    lines = []
    for result in results:
        if result.already:
            lines.append(f"{result.image}: was done already")
            continue
        known = result.class_pixels.sum()
        shares = ", ".join(
            f"{name} {100 * pixels / known:.1f} %"
            for name, pixels in zip(spec.class_names, result.class_pixels, strict=True)
            if pixels
        )
        speed = f"{result.seconds:.1f} s, {result.megapixels_per_second:.2f} MPix/s"
        lines.append(f"{result.image}: {result.width} x {result.height} pixels, {speed}; {shares or 'no valid pixel'}")
        if result.seam_index is not None:
            lines.append(f"  seam index {result.seam_index:.2f} (1: classes change no more often at window borders)")
        lines += [f"  {path}" for path in result.paths.values()]
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
