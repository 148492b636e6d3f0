"""Running the work: images and parts of them, one after another here or side by side on other processes."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from geoseg.cli import Invocation, progress
from geoseg.errors import CapacityError, GeosegError
from geoseg.execution import InlineExecutor, map_tasks, resolve_workers, worker_number
from geoseg.geo.grid import Window
from geoseg.geo.raster import read_info, stem
from geoseg.learn.modelfile import ModelSpec
from geoseg.learn.runtime import resolve_device
from geoseg.predict.combine import Combination
from geoseg.predict.counting import MapCounts
from geoseg.predict.fitting import fitted
from geoseg.predict.images import Image
from geoseg.predict.loading import load_predictor
from geoseg.predict.output import RESAMPLED, MapDescription
from geoseg.predict.plan import PART, pieces
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import (
    ClassifyOptions,
    SceneResult,
    SceneWork,
    do_scene,
    finish_scene,
    make_parts,
    plan_scene,
)
from geoseg.predict.styles import write_style
from geoseg.report.quicklook import Legend, draw_quicklook
from geoseg.settings import executor_of

Failures = dict[Image, tuple[str, ...]]
_LOADING = threading.Lock()  # workers of a cluster may have several threads


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
        share: (i, n), i from 1: the i-th of n shares of each image's parts is to be made.
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
    share: tuple[int, int] = (1, 1)

    @property
    def predictor(self) -> Predictor:
        """The network, loaded once in each process: by path, so that no weights travel with tasks."""
        model_hash = self.description.tags["MODEL_HASH"]  # workers of a cluster outlive the files that they have read
        with _LOADING:
            return _loaded(self.models, model_hash, self.device, self.precision, self.combination)


@lru_cache(maxsize=1)
def _loaded(
    models: tuple[Path, ...], model_hash: str, device: str, precision: str, combination: Combination
) -> Predictor:
    return load_predictor(models, device, precision, combination, worker_number())[0]


def forget_models() -> None:
    """Forget networks that a former call in this process has loaded: their files may have changed."""
    _loaded.cache_clear()


@dataclass(frozen=True)
class _Task:
    """Some parts of a scene; whoever finds all there puts the maps together."""

    work: SceneWork
    piece: Sequence[Window]


@dataclass
class _Making:
    """A scene whose parts are being made."""

    work: SceneWork
    pieces: list[list[Window]]
    left: int
    start: float = field(default_factory=time.perf_counter)
    counts: MapCounts | None = None
    hold: ExitStack = field(default_factory=ExitStack)


def run_all(images: Sequence[Image], job: Job, call: Invocation, failures: Failures) -> list[SceneResult]:
    """Classify images; reasons of those that fail are added to `failures`.

    Returns:
        The outcome of each image whose maps are there; of shares, that is of those whose last part was made here.
    """
    options, wanted = call.options, _wanted_workers(call.config.classification.workers, job.device)
    workers = min(wanted, _most_parts(images, wanted))
    results: dict[str, SceneResult | None] = {}
    with ExitStack() as holds, executor_of(options.scheduler, options.dask_local, workers, (__name__,)) as executor:
        if options.scheduler is None and not isinstance(executor, InlineExecutor):
            job = replace(job, threads=max(1, resolve_workers("auto") // (options.dask_local or workers)))
        works = _planned(images, job, executor, failures)
        if isinstance(executor, InlineExecutor):
            results = _one_by_one(works, job, failures)
        else:
            side_by_side = _SideBySide(works, job, getattr(executor, "workers", None) or 1, failures, holds)
            side_by_side.run(executor)
            results = side_by_side.results
    for work in works:
        if work.image in results and results[work.image] is None:
            call.log.info(f"{work.image}: {len(work.parts)} parts are there; the map needs those of other shares")
    return [found for work in works if (found := results.get(work.image)) is not None]


def _wanted_workers(workers: int | Literal["auto"], device: str) -> int:
    """Return how many processes there may be; "auto" is one for each GPU, or for each CPU that may be used."""
    if workers == "auto" and resolve_device(device, section="classification") == "cuda":
        return torch.cuda.device_count()
    return resolve_workers(workers)


def _most_parts(images: Sequence[Image], enough: int) -> int:
    """Return how many processes could have work; no more than are enough."""
    total = 0
    for image in images:
        if total >= enough:
            break
        info = read_info(image, allow_palette=True)
        total += math.ceil(info.height / PART) * math.ceil(info.width / PART)
    return min(total, enough)


def _planned(images: Sequence[Image], job: Job, executor: Executor, failures: Failures) -> list[SceneWork]:
    """Plan all images, where the network is: windows depend on it, and on the memory that the process has."""
    works: dict[Image, SceneWork] = {}
    for image, outcome in map_tasks(executor, partial(_plan_task, job), images):
        if isinstance(outcome, GeosegError) and not isinstance(outcome, CapacityError):
            failures[image] = outcome.problems
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            works[image] = outcome
    return [works[image] for image in images if image in works]


def _plan_task(job: Job, image: Image) -> SceneWork:
    _set_threads(job)
    options = fitted(image, job.spec, job.options)
    bands = options.bands or ()
    own = {"BANDS": ",".join(map(str, bands)), "SOURCE": str(image), "READING": json.dumps(options.reading.to_dict())}
    if options.shape is not None:
        own[RESAMPLED] = "to the size of the training's pixels"
    description = replace(job.description, tags={**job.description.tags, **own})
    work = plan_scene(image, job.predictor, bands, job.folder, description, options)
    return replace(work, share=job.share)


def _one_by_one(works: Sequence[SceneWork], job: Job, failures: Failures) -> dict[str, SceneResult | None]:
    results: dict[str, SceneResult | None] = {}
    with progress(sum(work.windows for work in works), "classifying", "windows") as bar:
        for work in works:
            bar.set_text(stem(work.image))
            try:
                result = do_scene(work, job.predictor, bar.update)
                if result is not None and not result.already:
                    _decorate(work, job)
                results[work.image] = result
            except GeosegError as error:
                failures[work.image] = error.problems
    return results


class _SideBySide:
    """Scenes whose parts are made by other processes. The folders of their parts are held from here meanwhile.

    Args:
        works: The scenes.
        job: What is the same for all.
        workers: How many processes there are.
        failures: Reasons of scenes that fail are added to it.
        holds: What is still held when it is closed is let go.
    """

    def __init__(
        self, works: Sequence[SceneWork], job: Job, workers: int, failures: Failures, holds: ExitStack
    ) -> None:
        self.results: dict[str, SceneResult | None] = {}
        self._job, self._failures, self._holds = job, failures, holds
        cut = [pieces(work.plan, work.parts, workers) or [[]] for work in works]
        self._making = {w.image: _Making(w, todo, len(todo)) for w, todo in zip(works, cut, strict=True)}

    def run(self, executor: Executor) -> None:
        """Make all parts."""
        states = self._making
        with progress(sum(state.left for state in states.values()), "classifying", "parts") as bar:
            for task, outcome in map_tasks(executor, partial(_do_task, self._job), self._tasks()):
                state = states[task.work.image]
                if isinstance(outcome, GeosegError):
                    self._failures[task.work.image] = outcome.problems
                elif isinstance(outcome, Exception):
                    raise outcome
                else:
                    state.counts = state.counts or outcome
                bar.update(1)
                self._returned(state)

    def _tasks(self) -> Iterator[_Task]:
        for state in self._making.values():
            state.start = time.perf_counter()
            if state.work.keep and state.work.is_done():
                self._returned(state, state.left)
                continue
            self._holds.callback(state.hold.close)
            try:
                state.hold.enter_context(state.work.store.at_work(state.work.keep))
            except GeosegError as error:
                self._failures[state.work.image] = error.problems
            for number, piece in enumerate(state.pieces):
                if state.work.image in self._failures:
                    self._returned(state, len(state.pieces) - number)
                    break
                yield _Task(state.work, piece)

    def _returned(self, state: _Making, tasks: int = 1) -> None:
        """Take note that tasks are done, and after the last one of what became of the scene."""
        state.left -= tasks
        if state.left:
            return
        image = state.work.image
        try:
            if image not in self._failures:
                self.results[image] = _outcome(state, self._job)
        except GeosegError as error:
            self._failures[image] = error.problems
        state.hold.close()


def _outcome(state: _Making, job: Job) -> SceneResult | None:
    """Return what became of a scene; maps of which all parts are there by now are put together."""
    work = state.work
    if state.counts is None and not work.is_done():
        state.counts = finish_scene(work)
        if state.counts is None:
            return None
        _decorate(work, job)
    return work.result(state.counts, time.perf_counter() - state.start)


def _do_task(job: Job, task: _Task) -> MapCounts | None:
    """Make parts in a process of its own; return what was counted if they were the last."""
    _set_threads(job)
    try:
        make_parts(task.work, job.predictor, task.piece)
        counts = finish_scene(task.work)
    except (GeosegError, OSError):
        if task.work.is_done():  # somebody else was sooner, and took the parts from under us
            return None
        raise
    if counts is not None:
        _decorate(task.work, job)
    return counts


def _set_threads(job: Job) -> None:
    if job.threads is not None:
        torch.set_num_threads(job.threads)


def _decorate(work: SceneWork, job: Job) -> None:
    """Write what lies beside a class map: its style and, if wanted, a picture."""
    class_map, description = work.paths.get("classes"), work.description
    if class_map is None:
        return
    write_style(class_map, job.classes)
    if job.quicklook:
        picture = class_map.with_suffix(".png")
        draw_quicklook(picture, None, class_map, Legend(description.class_names, description.colours))
