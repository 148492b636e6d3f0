"""From one image file to its maps: what must fit the model is checked, then windows slide and maps are written."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.errors import DataError, problem
from geoseg.geo.grid import bounding
from geoseg.geo.raster import (
    Raster,
    RasterInfo,
    Reading,
    contradicting,
    key_of,
    local_files,
    numbers_by_name,
    open_raster,
    read_info,
    read_tags,
    stem,
)
from geoseg.geo.vector.reproject import as_pyproj
from geoseg.learn.modelfile import ModelSpec
from geoseg.predict.area import Area, AreaSource
from geoseg.predict.budget import plan_within
from geoseg.predict.counting import MapCounter, MapCounts
from geoseg.predict.output import MapDescription, output_path, publish_maps, refuse_input
from geoseg.predict.outputs import map_outputs, needs_probabilities
from geoseg.predict.partstore import PartStore, as_record
from geoseg.predict.plan import Plan, SlidingOptions, count_windows, parts, runs
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import plan_windows, predict_blocks

_RUN, _RUN_DIGITS = "RUN", 16  # the tag that tells whether a map is that of the run which is resumed
_RESOLUTION_FACTOR = 1.5  # ground pixels that differ by more look different to the network


@dataclass(frozen=True)
class ClassifyOptions:
    """How scenes are classified and what is written.

    Attributes:
        sliding: Windows, overlap, blending, batch size.
        outputs: Some of `geoseg.predict.outputs.OUTPUTS`.
        bands: Band numbers, from 1, to use instead of those the model recorded; they must mean the same.
        by_name: Whether bands are taken by name from images that have all of the model's by name.
        reading: What is done to the values of the images.
        scaled: Whether fractions (probabilities and so on) are written as uint8.
        resume: Whether to go on with the parts that an interrupted run left.
        thresholds: The least probability of each class; pixels below are given one further class, uncertain.
        aoi: A vector file; what lies outside its polygons is not classified.
        bounds: (left, bottom, right, top) in the image's CRS; the same.
        max_memory: Bytes that the process may hold; window and batch are chosen to keep that.
    """

    sliding: SlidingOptions = field(default_factory=SlidingOptions)
    outputs: tuple[str, ...] = ("classes",)
    bands: tuple[int, ...] | None = None
    reading: Reading = field(default_factory=Reading)
    by_name: bool = True
    scaled: bool = False
    resume: bool = False
    thresholds: tuple[float, ...] | None = None
    aoi: str | os.PathLike[str] | None = None
    bounds: tuple[float, float, float, float] | None = None
    max_memory: int | None = None


@dataclass(frozen=True)
class SceneResult:
    """What classifying one scene gave.

    Attributes:
        image: The image.
        paths: The files written, by output.
        height: Rows.
        width: Columns.
        seconds: Wall time, finishing of the files included.
        class_pixels: Pixels of each class, in the order of the description's names.
        seam_index: How much more often neighbouring pixels differ across the borders of windows than inside them.
        already: Whether the maps were there from the run that was resumed; then nothing was counted.
    """

    image: str
    paths: dict[str, Path]
    height: int
    width: int
    seconds: float
    class_pixels: NDArray[np.int64]
    seam_index: float | None = None
    already: bool = False

    @property
    def megapixels_per_second(self) -> float:
        """Speed."""
        return self.height * self.width / 1e6 / max(self.seconds, 1e-9)


def check_image(image: str | os.PathLike[str], spec: ModelSpec, options: ClassifyOptions | None = None) -> list[str]:
    """Check that an image is one the model can classify, without reading pixels.

    Args:
        image: The image.
        spec: The model's metadata.
        options: Which bands are to be used.

    Returns:
        Warnings.

    Raises:
        DataError: Another number of bands or data type than the model was trained on, or an unreadable file.
    """
    options = options or ClassifyOptions()
    info = read_info(image, reading=spec.reading)
    named = _named_bands(info, spec, options)
    if named is None:
        _check_bands(info, spec, options.bands)
    if info.dtype != spec.dtype:
        found = f"{info.dtype} values"
        remedy = (
            f"convert the image without scaling: gdal_translate -ot {_gdal_type(spec.dtype)}, if its units are the same"
        )
        raise DataError(problem(image, found, f"{spec.dtype} as in the model's training images", remedy))
    notes = [] if named else _name_warnings(info, spec, options.bands or spec.bands)
    return [*notes, *_resolution_warnings(info, spec)]


def bands_of(image: str | os.PathLike[str], spec: ModelSpec, options: ClassifyOptions) -> tuple[int, ...]:
    """Return the numbers, from 1, of an image's bands in the order of the model's: by name where it has all by name."""
    info = read_info(image, reading=spec.reading)
    return _named_bands(info, spec, options) or options.bands or spec.bands


def classify_scene(
    image: str | os.PathLike[str],
    predictor: Predictor,
    bands: Sequence[int],
    folder: Path,
    description: MapDescription,
    options: ClassifyOptions,
    on_progress: Callable[[int], None] | None = None,
) -> SceneResult:
    """Classify one image and write its maps; nothing is left behind unless all went well.

    Args:
        image: The image.
        predictor: The network.
        bands: Band numbers, from 1, in the network's order.
        folder: Where the maps go.
        description: What the maps say about themselves; with thresholds, "uncertain" is its last class.
        options: How to classify and what to write.
        on_progress: Called with the number of windows just done.

    Raises:
        DataError: The image cannot be read, or the maps cannot be written.
    """
    start = time.perf_counter()
    paths = {output: output_path(folder, image, output) for output in options.outputs}
    refuse_input(image, paths.values())
    outputs = map_outputs(options.outputs, predictor.num_classes, description.values, options.scaled)
    num_classes = len(description.class_names)
    with open_raster(image, bands, reading=options.reading) as raster:
        plan = _plan(predictor, raster.info, options)
        made_of = _made_of(raster, plan, description, options)
        run = hashlib.sha256(made_of.encode()).hexdigest()[:_RUN_DIGITS]
        if options.resume and all(_made_by(path) == run for path in paths.values()):
            if on_progress is not None:
                on_progress(count_windows(plan))
            counts, already = MapCounts.zero(num_classes), True
        else:
            described = replace(description, tags={**description.tags, _RUN: run})
            store = PartStore(_parts_folder(folder, image), outputs, (plan.height, plan.width), num_classes)
            counts, already = (
                _make_maps(predictor, raster, plan, store, (made_of, described, options), on_progress),
                False,
            )
    return SceneResult(
        image=os.fspath(image),
        paths=paths,
        height=plan.height,
        width=plan.width,
        seconds=time.perf_counter() - start,
        class_pixels=counts.classes,
        seam_index=counts.seam_index,
        already=already,
    )


def _make_maps(
    predictor: Predictor,
    raster: Raster,
    plan: Plan,
    store: PartStore,
    how: tuple[str, MapDescription, ClassifyOptions],
    on_progress: Callable[[int], None] | None,
) -> MapCounts:
    """Make parts and maps; where it fails, parts that are complete stay, to be resumed from."""
    made_of, description, options = how
    store.begin(made_of, options.resume)
    try:
        counts = _make_parts(predictor, raster, plan, store, options, on_progress)
        publish_maps(store, parts(plan), store.folder.parent, raster.info, description)
    except BaseException:
        if store.is_empty():
            store.remove()
        raise
    store.remove()
    return counts


def _parts_folder(folder: Path, image: str | os.PathLike[str]) -> Path:
    return folder / f".{stem(image)}_parts"


def _made_by(path: Path) -> str | None:
    """Return what run a map was made by, or None where there is no map."""
    return read_tags(path).get(_RUN) if path.is_file() else None


def _plan(predictor: Predictor, info: RasterInfo, options: ClassifyOptions) -> Plan:
    pixel_bytes = np.dtype(info.dtype).itemsize * len(info.image_bands)
    shape, sliding = (info.height, info.width), options.sliding
    if options.max_memory is None:
        return plan_windows(predictor, *shape, sliding, pixel_bytes)
    likelihood = needs_probabilities(options.outputs) or options.thresholds is not None
    pixel = predictor.bands or len(info.image_bands), pixel_bytes
    return plan_within(predictor, shape, sliding, pixel, options.max_memory, likelihood)


def _make_parts(
    predictor: Predictor,
    raster: Raster,
    plan: Plan,
    store: PartStore,
    options: ClassifyOptions,
    on_progress: Callable[[int], None] | None,
) -> MapCounts:
    """Compute the parts that are missing; return the counts of all."""
    everything = parts(plan)
    missing = [part for part in everything if not store.has(part)]
    step = on_progress or (lambda _: None)
    step(count_windows(plan) - count_windows(plan, missing))
    likelihood = needs_probabilities([output.name for output in store.outputs])
    area = None if options.aoi is None and options.bounds is None else Area(raster.info, options.aoi, options.bounds)
    source = raster if area is None else AreaSource(raster, area)
    for run in runs(missing):
        region = bounding(run)
        counter = MapCounter(store.num_classes, region)
        with store.writing(run, counter.counts) as writer:
            for block in predict_blocks(predictor, source, plan, region, likelihood, step, options.thresholds):
                known = block if area is None else area.cut(block)
                counter.add(known)
                writer.write(known)
    return store.counts(everything)


def _made_of(raster: Raster, plan: Plan, description: MapDescription, options: ClassifyOptions) -> str:
    """Return all that decides the bytes of a scene's parts."""
    image, bands = raster.info.path, raster.bands
    files = [_stamp(path) for path in local_files(image)]
    facts = {"image": key_of(image), "files": files, "plan": asdict(plan), "tags": dict(description.tags)}
    chosen = {"outputs": options.outputs, "bands": bands, "scaled": options.scaled, "thresholds": options.thresholds}
    chosen |= {"aoi": None if options.aoi is None else _stamp(Path(options.aoi)), "bounds": options.bounds}
    return as_record({**facts, **chosen, "reading": options.reading.to_dict(), "values": description.values})


def _stamp(path: Path) -> tuple[str, int, int]:
    return str(path), path.stat().st_size, path.stat().st_mtime_ns


def windows_of(image: str | os.PathLike[str], predictor: Predictor, options: ClassifyOptions) -> int:
    """Return how many windows `classify_scene` will compute for an image."""
    info = read_info(image, reading=options.reading)
    return count_windows(_plan(predictor, info, options))


def _named_bands(info: RasterInfo, spec: ModelSpec, options: ClassifyOptions) -> tuple[int, ...] | None:
    return numbers_by_name(spec.band_names, info.band_names) if options.by_name else None


def _check_bands(info: RasterInfo, spec: ModelSpec, bands: Sequence[int] | None) -> None:
    chosen = tuple(bands or spec.bands)
    here = len(info.image_bands)
    if len(chosen) != spec.in_channels:
        found = f"{len(chosen)} chosen bands {list(chosen)}"
        raise DataError(problem(info.path, found, f"{spec.in_channels} as the model has", "choose as many"))
    if max(chosen) > info.count:
        found = f"{info.count} bands"
        expected = f"at least {max(chosen)}: the model has {spec.in_channels} bands, numbers {list(chosen)}"
        raise DataError(problem(info.path, found, expected, "give an image with the bands of the training images"))
    # Bands 1..n were most likely all the bands there were; taking the first n of more could pair wrong ones silently.
    if bands is None and chosen == tuple(range(1, len(chosen) + 1)) and here > len(chosen):
        remedy = f"name the ones to use: --bands {' '.join(map(str, chosen))} or global.bands"
        raise DataError(problem(info.path, f"{here} bands", f"{spec.in_channels} as the model has", remedy))


def _name_warnings(info: RasterInfo, spec: ModelSpec, chosen: tuple[int, ...]) -> list[str]:
    """Say where bands are taken by number although the image has one of the model's names at another place."""
    here = tuple(info.band_names[band - 1] for band in chosen)
    if not contradicting(spec.band_names, here):
        return []
    found = f"bands {', '.join(str(name) for name in here)} where the model had {', '.join(map(str, spec.band_names))}"
    right = numbers_by_name(spec.band_names, info.band_names)
    return [f"{info.path}: {found}" + (f"; here those are --bands {' '.join(map(str, right))}" if right else "")]


def _resolution_warnings(info: RasterInfo, spec: ModelSpec) -> list[str]:
    if spec.resolution is None or not info.georeferenced:
        return []
    try:
        here_in, trained_in = as_pyproj(info.crs, info.path), as_pyproj(spec.crs, "model")
    except DataError:
        return []
    # Metres and degrees cannot be compared; without a CRS on either side the units are taken to be the same.
    if (here_in is None) != (trained_in is None) or (
        here_in is not None and trained_in is not None and here_in.is_geographic != trained_in.is_geographic
    ):
        return []
    here, trained = (math.sqrt(side[0] * side[1]) for side in (info.resolution, spec.resolution))
    factor = here / trained if trained else 1.0
    if 1 / _RESOLUTION_FACTOR <= factor <= _RESOLUTION_FACTOR:
        return []
    return [
        f"{info.path}: pixels of {here:g} units, the model was trained on {trained:g}; "
        "expect worse results, or resample the image"
    ]


def _gdal_type(dtype: str) -> str:
    names = {"uint8": "Byte", "int8": "Int8", "float32": "Float32", "float64": "Float64"}
    return names.get(dtype, dtype.replace("uint", "UInt").replace("int", "Int"))
