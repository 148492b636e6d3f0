"""Making a sample store: all scenes to parts, parts to shards, shards to the finished store.

The store is built in a hidden folder beside its final name, named by the fingerprint of the options and of the files
that went in. When it is complete it is renamed; a store that was there before stays untouched until then. A run that
is interrupted leaves the hidden folder, and the same call goes on from it; a run that fails removes it.

Any number of processes, on any number of machines with a common file system, may make the same store at once. Each
part is made whole and renamed; whoever finds all parts of a scene finishes the scene, and whoever finds all scenes
finished finishes the store. Doing so twice changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geoseg.data.blockpixels import close_raster
from geoseg.data.finishing import Decorate, finish_store
from geoseg.data.locks import in_use, locked
from geoseg.data.placing import publish_store, recover, remove_leftovers
from geoseg.data.planning import count_looks, plan_store
from geoseg.data.records import (
    Record,
    fingerprint,
    options_mark,
    scene_entry,
    scene_mark,
    standing_scene,
    store_mark,
)
from geoseg.data.sampling import BlockTask, SampleOptions, ScenePlan, plan_scene, run_block
from geoseg.data.shards import finish_scene, record_path
from geoseg.data.statistics import subsample_step
from geoseg.data.store import Store, open_store
from geoseg.data.survey import SceneFacts, Survey, forget_labels
from geoseg.errors import DataError, GeosegError, problem

__all__ = ["Kept", "build_store", "count_blocks", "existing_store", "fingerprint", "run_here"]

OnProgress = Callable[[int], None]
# Runs a function on tasks and yields each task with its result or exception, in any order.
RunTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class Kept:
    """Scenes of a finished store that go into the new one as they are.

    Attributes:
        folder: The finished store.
        records: Their records by id.
        order: Ids of all scenes of the new store.
    """

    folder: Path
    records: Mapping[str, Record]
    order: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """How a store is made.

    Attributes:
        run: Where tasks are run (see `geoseg.execution.map_tasks`); None: one after another in this process.
        on_progress: Called with the number of tasks that were finished.
        decorate: Called with the store before it gets its final name.
        on_warning: Called with what the user should know.
        share: (i, n), i from 1: make the i-th of n shares of the parts; (1, 1): all.
        in_place: Write samples where they belong in their shard; not for machines that share a network file system.
    """

    run: RunTasks | None = None
    on_progress: OnProgress | None = None
    decorate: Decorate | None = None
    on_warning: Callable[[str], None] | None = None
    share: tuple[int, int] = (1, 1)
    in_place: bool = False

    def advance(self, tasks: int) -> None:
        """Report progress."""
        if self.on_progress:
            self.on_progress(tasks)


def count_blocks(found: Survey, options: SampleOptions) -> int:
    """Return how many tasks `build_store` reports as progress."""
    blocks = 0
    for facts in found.facts:
        plan = None if options.plain else ScenePlan({})
        blocks += len(plan_scene(facts, options, 0, Path(), plan))
    return blocks + count_looks(found.facts, options)


def existing_store(final: Path, mark: str, overwrite: bool) -> Store | None:
    """Return the store under the final name if it is the one that would be made; None if the name is free to use.

    Raises:
        DataError: Another store is there and must not be replaced, or something that is no store is.
    """
    recover(final)
    if not final.exists():
        return None
    try:
        store = open_store(final)
    except DataError:
        if not overwrite and any(final.iterdir()):
            remedy = "move it away, or set sample.overwrite (--overwrite) to replace it"
            raise DataError(problem(final, "files, but no complete sample store", "a free name", remedy)) from None
        return None
    if store.info.provenance.get("fingerprint") == mark:
        return store
    if not overwrite:
        found = "a sample store made with other settings, or from files that have changed since"
        remedy = "set sample.overwrite (--overwrite) to replace it, or choose another global.data_path"
        raise DataError(problem(final, found, "none, or the same", remedy))
    return None


def build_store(
    found: Survey, options: SampleOptions, final: Path, how: Build | None = None, kept: Kept | None = None
) -> Store | None:
    """Sample all scenes and put the finished store under its final name, replacing one that is there.

    If any scene fails, the run fails and nothing is left: a store in which scenes are silently missing would be
    trained on.

    Args:
        found: The scenes to sample.
        options: How to cut them.
        final: The store's folder.
        how: Where, and who is told.
        kept: Scenes of the store that is there.

    Returns:
        The store; None if this was a share and others are missing. Its bytes depend on the sources and options, not on
        who made the parts.

    Raises:
        DataError: A file cannot be read, or no training sample is left; one line per scene that failed.
    """
    how = how or Build()
    records = kept.records if kept else {}
    scenes = kept.order if kept else [f.scene.scene_id for f in found.facts]
    marks = {f.scene.scene_id: scene_mark(f) for f in found.facts}
    marks |= {scene: str(record["mark"]) for scene, record in records.items()}
    made_by = options_mark(options)
    mark = store_mark(made_by, [(scene, marks[scene]) for scene in scenes])
    folder = final.with_name(f".{final.name}-{mark}")
    remove_leftovers(final, folder)
    made = not final.parent.exists()
    for name in ("parts", "scenes", "shards", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    try:
        with in_use(folder):
            if kept:
                _link(kept, folder)
            _run(found, options, folder, how, records)
            if not all(record_path(folder, scene).is_file() for scene in scenes):
                return None
            # One at a time, up to the new name: nobody writes into a folder that readers already see.
            with locked(folder / "scenes", wait=True):
                _let_go()
                finish_store(folder, scenes, options, {"fingerprint": mark, "options_mark": made_by}, how.decorate)
                publish_store(folder, final)
    except OSError:
        done = _done_by_others(final, mark)
        if done is None:
            raise
        return done
    except GeosegError:
        done = _done_by_others(final, mark)
        if done is not None:
            return done
        if how.share == (1, 1):
            _discard(folder, final, made)
        raise
    return open_store(final)


def _done_by_others(final: Path, mark: str) -> Store | None:
    """Return the store if another process has finished it meanwhile and taken the folder from under us."""
    with contextlib.suppress(DataError):
        return existing_store(final, mark, overwrite=True)
    return None


def _discard(folder: Path, final: Path, made: bool) -> None:
    with locked(folder) as alone:
        if alone:  # nobody else is at work in it
            shutil.rmtree(folder, ignore_errors=True)
    if made:
        with contextlib.suppress(OSError):  # somebody else may have put something there
            final.parent.rmdir()


def _link(kept: Kept, folder: Path) -> None:
    """Bring the files of kept scenes over, without copying where the file system can."""
    for scene in kept.records:
        if record_path(folder, scene).is_file():
            continue
        sources = [path for kind in ("shards", "labels", "scenes") for path in (kept.folder / kind).glob(f"{scene}.*")]
        # The record comes last: it says that the others are there.
        for source in sorted(sources, key=lambda path: path.name == f"{scene}.json"):
            _link_one(source, folder / source.parent.name / source.name)


def _link_one(source: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        try:
            target.hardlink_to(source)
        except FileExistsError:
            raise
        except OSError:  # no links here
            shutil.copy2(source, target)


def _run(found: Survey, options: SampleOptions, folder: Path, how: Build, records: Mapping[str, Record]) -> None:
    """Make all parts, or our share, and finish each scene when its last part is there."""
    facts = [f for f in found.facts if f.scene.scene_id not in records]
    run = _counted(how.run or run_here, how)
    standing = [standing_scene(folder, record, options.size) for record in records.values()] if facts else []
    plans, warnings = plan_store(facts, options, folder / "looks", run, standing)
    for warning in warnings:
        if how.on_warning:
            how.on_warning(warning)
    entries = {f.scene.scene_id: scene_entry(f, plan) for f, plan in zip(facts, plans, strict=True)}
    tasks = [_tasks(f, options, folder, plan) for f, plan in zip(facts, plans, strict=True)]
    _make_parts(tasks, entries, folder, run, how)


def _tasks(facts: SceneFacts, options: SampleOptions, folder: Path, plan: ScenePlan | None) -> list[BlockTask]:
    if plan is None:
        trains = facts.scene.split == "trn"
    else:
        trains = "trn" in plan.windows.values()
    step = subsample_step(facts.info.height * facts.info.width) if trains else 0
    return plan_scene(facts, options, step, folder / "parts" / facts.scene.scene_id, plan)


def _let_go() -> None:
    """Give up what blocks needed, and its memory to the system: glibc would keep some 80 MB beside what follows."""
    forget_labels()
    close_raster()
    with contextlib.suppress(OSError, AttributeError):  # another system, or another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _counted(run: RunTasks, how: Build) -> RunTasks:
    def counted(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for task, result in run(function, tasks):
            yield task, result
            how.advance(1)

    return counted


def _make_parts(
    scenes: Sequence[Sequence[BlockTask]],
    entries: Mapping[str, Mapping[str, Any]],
    folder: Path,
    run: RunTasks,
    how: Build,
) -> None:
    plan_of = {tasks[0].part.parent: tasks for tasks in scenes}
    todo: list[BlockTask] = []
    for parts, tasks in plan_of.items():
        if record_path(folder, parts.name).is_file():  # finished by a run that was interrupted
            how.advance(len(tasks))
            continue
        parts.mkdir(exist_ok=True)
        todo += _prepared(tasks, how.in_place)
    share, shares = how.share
    mine = [task for number, task in enumerate(todo) if number % shares == share - 1]
    how.advance(len(todo) - len(mine))
    left = {parts: sum(task.part.parent == parts for task in mine) for parts in plan_of}
    problems: list[str] = []
    for task, result in run(run_block, mine):
        parts = task.part.parent
        left[parts] -= 1
        if isinstance(result, GeosegError):
            problems += result.problems
        elif isinstance(result, Exception) and not record_path(folder, parts.name).is_file():
            raise result
        if left[parts] == 0:
            _finish_if_whole(plan_of[parts], folder, entries[parts.name])
    if problems:
        raise DataError(list(dict.fromkeys(problems)))
    for tasks in plan_of.values():  # shares of none of whose blocks we made any, or whose last part came from others
        _finish_if_whole(tasks, folder, entries[tasks[0].part.parent.name])


def _prepared(tasks: Sequence[BlockTask], in_place: bool) -> list[BlockTask]:
    """Return tasks that write in place, if they shall, with the files that they write to."""
    with locked(tasks[0].part.parent, wait=True):  # nobody finishes the scene meanwhile
        if not in_place or all(task.part.is_dir() for task in tasks) or not tasks[0].part.parent.is_dir():
            return list(tasks)
        for place in tasks[0].raw:
            place.path.touch()
    return [replace(task, in_place=True) for task in tasks]


def _finish_if_whole(tasks: Sequence[BlockTask], folder: Path, entry: Mapping[str, Any]) -> None:
    if not record_path(folder, tasks[0].part.parent.name).is_file() and all(task.part.is_dir() for task in tasks):
        finish_scene(tasks, folder, entry)


def run_here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Run tasks one after another in this process."""
    for task in tasks:
        try:
            yield task, function(task)
        except (GeosegError, OSError) as error:
            yield task, error
