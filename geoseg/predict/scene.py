"""From one image file to its maps: windows slide, parts are made, maps are put together from them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.errors import DataError, GeosegError, problem
from geoseg.geo.grid import Window, bounding
from geoseg.geo.raster import (
    Raster,
    RasterInfo,
    Reading,
    Resampled,
    key_of,
    local_files,
    open_raster,
    read_info,
    resampled_info,
)
from geoseg.predict.area import Area, AreaSource
from geoseg.predict.budget import plan_within
from geoseg.predict.counting import MapCounter, MapCounts
from geoseg.predict.finishing import ClassNames, FinishOptions, finish_classes, polygons_path
from geoseg.predict.former import RUN, made_by, refuse_foreign
from geoseg.predict.output import MapDescription, output_path, parts_folder, publish_maps, refuse_input
from geoseg.predict.outputs import map_outputs, needs_probabilities
from geoseg.predict.partstore import PartStore, as_record
from geoseg.predict.plan import Plan, SlidingOptions, count_windows, parts, pieces, runs, share_of
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import plan_windows, predict_blocks

POLYGONS = "polygons"  # among the files of a scene


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
        convert: Whether images of another number type are taken, if all of their values fit the model's.
        resample: Whether images whose pixels have another size than the training's are read in that size.
        shape: (rows, columns) that an image is resampled to, and its maps have; None: its own.
        finish: What is done to the class map: small regions, polygons.
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
    convert: bool = False
    resample: bool = False
    shape: tuple[int, int] | None = None
    finish: FinishOptions = field(default_factory=FinishOptions)

    def paths(self, folder: Path, image: str | os.PathLike[str]) -> dict[str, Path]:
        """Return the files that are written for an image, by output; the class map's polygons are "polygons"."""
        found = {output: output_path(folder, image, output) for output in self.outputs}
        if self.finish.polygons is not None:
            found[POLYGONS] = polygons_path(folder, image, self.finish.polygons)
        return found


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


@dataclass(frozen=True)
class SceneWork:
    """All that decides the maps of one image; it may be sent to other processes, to make parts of them.

    Attributes:
        image: The image.
        bands: Band numbers, from 1, in the network's order.
        folder: Where the maps go.
        description: What the maps say about themselves; with thresholds, "uncertain" is its last class.
        options: How to classify and what to write.
        plan: The windows.
        made_of: All that decides the bytes of the maps, as text.
        share: (i, n), i from 1: the i-th of n shares of the parts is to be made here; (1, 1): all.
    """

    image: str
    bands: tuple[int, ...]
    folder: Path
    description: MapDescription
    options: ClassifyOptions
    plan: Plan
    made_of: str
    share: tuple[int, int] = (1, 1)

    @property
    def paths(self) -> dict[str, Path]:
        """The files of the maps, by output."""
        return self.options.paths(self.folder, self.image)

    @property
    def parts(self) -> list[Window]:
        """The parts that are to be made here."""
        return share_of(parts(self.plan), self.share)

    @property
    def windows(self) -> int:
        """How many windows those take."""
        return sum(count_windows(self.plan, piece) for piece in pieces(self.plan, self.parts))

    @property
    def keep(self) -> bool:
        """Whether parts that are there already are used: those of an interrupted run, or of other shares."""
        return self.options.resume or self.share != (1, 1)

    @property
    def store(self) -> PartStore:
        """Where the parts lie."""
        classes, values = len(self.description.class_names), self.description.values
        count = classes - (self.options.thresholds is not None)
        outputs = map_outputs(self.options.outputs, count, values, self.options.scaled)
        home = parts_folder(self.folder, self.image)
        return PartStore(home, self.made_of, outputs, (self.plan.height, self.plan.width), classes)

    def is_done(self) -> bool:
        """Tell whether all maps are there and were made like this."""
        run = self.store.run
        return all(made_by(path) == run for path in self.paths.values())

    def result(self, counts: MapCounts | None, seconds: float) -> SceneResult:
        """Return the outcome; without counts the maps were there already."""
        found = counts or MapCounts.zero(len(self.description.class_names))
        return SceneResult(
            image=self.image,
            paths=self.paths,
            height=self.plan.height,
            width=self.plan.width,
            seconds=seconds,
            class_pixels=found.classes,
            seam_index=found.seam_index,
            already=counts is None,
        )


def plan_scene(
    image: str | os.PathLike[str],
    predictor: Predictor,
    bands: Sequence[int],
    folder: Path,
    description: MapDescription,
    options: ClassifyOptions,
) -> SceneWork:
    """Return the work on one image, before a pixel is read; arguments as those of `classify_scene`.

    Raises:
        DataError: The image cannot be read or is one of its own maps, or a file that geoseg did not make lies where a
            map is to be written.
        CapacityError: No window fits into the memory that is allowed.
    """
    targets = options.paths(folder, image).values()
    refuse_input(image, targets)
    refuse_foreign(targets)
    with _opened(image, bands, options) as raster:
        plan = _plan(predictor, raster.info, options)
        made_of = _made_of(raster, plan, description, options)
        return SceneWork(os.fspath(image), raster.bands, folder, description, options, plan, made_of)


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
    result = do_scene(plan_scene(image, predictor, bands, folder, description, options), predictor, on_progress)
    assert result is not None, "this was no share"
    return result


def do_scene(
    work: SceneWork, predictor: Predictor, on_progress: Callable[[int], None] | None = None
) -> SceneResult | None:
    """Make the parts of a scene one after another in this process, then its maps; None if parts of others are missing.

    Where it fails, parts that are complete stay, to be resumed from.

    Raises:
        DataError: The image cannot be read, the maps cannot be written, or another process makes others of their name.
    """
    start = time.perf_counter()
    step = on_progress or (lambda _: None)
    if work.keep and work.is_done():
        step(work.windows)
        return work.result(None, time.perf_counter() - start)
    with work.store.at_work(work.keep) as alone:
        todo = pieces(work.plan, work.parts)
        try:
            for piece in todo if alone else reversed(todo):  # to meet whoever is making the same
                make_parts(work, predictor, piece, step)
            counts = finish_scene(work)
        except (GeosegError, OSError):
            if not work.is_done():
                raise
            counts = None  # somebody else was sooner, and took the parts from under us
    if counts is None and not work.is_done():
        return None
    return work.result(counts, time.perf_counter() - start)


def make_parts(
    work: SceneWork, predictor: Predictor, wanted: Sequence[Window], on_progress: Callable[[int], None] | None = None
) -> None:
    """Compute those of some parts of a scene that are not there yet.

    Args:
        work: The scene.
        predictor: The network.
        wanted: Parts, in the order of `geoseg.predict.plan.parts`.
        on_progress: Called with the number of windows just done, those that need not be computed included.

    Raises:
        DataError: The image cannot be read, or a part cannot be written.
    """
    step, store = on_progress or (lambda _: None), work.store
    missing = [part for part in wanted if not store.has(part)]
    step(count_windows(work.plan, wanted) - count_windows(work.plan, missing))
    if not missing:
        return
    options = work.options
    likelihood = needs_probabilities(options.outputs)
    with _opened(work.image, work.bands, options) as raster:
        everywhere = options.aoi is None and options.bounds is None
        area = None if everywhere else Area(raster.info, options.aoi, options.bounds)
        source = raster if area is None else AreaSource(raster, area)
        for run in runs(missing):
            region = bounding(run)
            counter = MapCounter(store.num_classes, region)
            with store.writing(run, counter.counts) as writer:
                blocks = predict_blocks(predictor, source, work.plan, region, likelihood, step, options.thresholds)
                for block in blocks:
                    known = block if area is None else area.cut(block)
                    counter.add(known)
                    writer.write(known)


def finish_scene(work: SceneWork) -> MapCounts | None:
    """Put the maps of a scene together if all its parts are there; None if some are missing.

    Raises:
        DataError: A map cannot be written.
    """
    everything, store = parts(work.plan), work.store
    if not all(store.has(part) for part in everything):
        return None
    with store.finishing(everything) as whole:
        if not whole:
            return None
        counts = store.counts(everything)
        description = replace(work.description, tags={**work.description.tags, RUN: store.run})
        like = read_info(work.image, reading=work.options.reading)
        if work.options.shape is not None:
            like = resampled_info(like, *work.options.shape)
        names = ClassNames(description.values or range(len(description.class_names)), description.class_names)
        finished = finish_classes(store, everything, like, names, work.options.finish, description.tags)
        publish_maps(store, everything, work.folder, like, description, finished and finished.levels)
        if finished is not None and finished.class_pixels is not None:
            counts.classes[:] = finished.class_pixels
    return counts


@contextlib.contextmanager
def _opened(image: str | os.PathLike[str], bands: Sequence[int], options: ClassifyOptions) -> Iterator[Raster]:
    """Open an image as its maps shall be: with its own pixels, or resampled."""
    with open_raster(image, bands, reading=options.reading) as raster:
        yield raster if options.shape is None else Resampled(raster, *options.shape)


def _plan(predictor: Predictor, info: RasterInfo, options: ClassifyOptions) -> Plan:
    pixel_bytes = np.dtype(info.dtype).itemsize * len(info.image_bands)
    shape, sliding = (info.height, info.width), options.sliding
    if options.max_memory is None:
        return plan_windows(predictor, *shape, sliding, pixel_bytes)
    likelihood = needs_probabilities(options.outputs) or options.thresholds is not None
    pixel = predictor.bands or len(info.image_bands), pixel_bytes
    return plan_within(predictor, shape, sliding, pixel, options.max_memory, likelihood)


def _made_of(raster: Raster, plan: Plan, description: MapDescription, options: ClassifyOptions) -> str:
    """Return all that decides the bytes of a scene's parts."""
    image, bands = raster.info.path, raster.bands
    files = [_stamp(path) for path in local_files(image)]
    facts = {"image": key_of(image), "files": files, "plan": asdict(plan), "tags": dict(description.tags)}
    chosen = {"outputs": options.outputs, "bands": bands, "scaled": options.scaled, "thresholds": options.thresholds}
    chosen |= {"aoi": None if options.aoi is None else _stamp(Path(options.aoi)), "bounds": options.bounds}
    chosen["finish"] = asdict(options.finish)
    return as_record({**facts, **chosen, "reading": options.reading.to_dict(), "values": description.values})


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(problem(path, f"no such file ({error.strerror})", "a file", "correct the path")) from error
    return str(path), found.st_size, found.st_mtime_ns
