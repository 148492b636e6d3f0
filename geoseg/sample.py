"""`python -m geoseg.sample`: rasters and polygons to a sample store.

All scenes are looked at first, and everything that is wrong with any of them is reported together before a file is
written. A scene that fails later, because its pixels cannot be read, fails the run: nothing is left of it, and a store
that was there before stays as it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from geoseg.cli import Invocation, Log, progress, run_command
from geoseg.data.building import Build, build_store, count_blocks
from geoseg.data.classes import background_doubts
from geoseg.data.disk import bytes_needed, check_room
from geoseg.data.editing import Update, find_scene, like_the_store, plan_update, remove_scenes
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import read_scenes
from geoseg.data.splitnames import SPLITS
from geoseg.data.store import Store, StoreInfo, open_store
from geoseg.data.survey import Survey, survey
from geoseg.data.verify import verify_store
from geoseg.errors import ConfigError, DataError, problem
from geoseg.execution import map_tasks, resolve_workers, share_of_work
from geoseg.report.store import empty_warnings, write_store_report
from geoseg.settings import executor_of, sample_options

_WORKERS_NEED = ("geoseg.sample", "pyogrio")
# Processes cost about a second to start; this many blocks for each pay for it.
_BLOCKS_PER_PROCESS = 4
_LEFT_OUT = {
    "background": "left out: background alone",
    "unknown": "left out: nothing known",
    "invalid": "left out: too little valid",
    "unannotated": "left out: too little annotated",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("sample", argv, _sample, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace a sample store that differs")
    parser.add_argument("--append", action="store_true", help="add to the store: scenes that are not listed stay")
    parser.add_argument("--replace", action="append", metavar="SCENE", help="make this scene again; with --append")
    parser.add_argument("--remove", action="append", metavar="SCENE", help="take this scene out of the store; no more")
    parser.add_argument("--verify", action="store_true", help="check a finished store, byte by byte; no more")
    parser.add_argument(
        "--shard", metavar="i/n", help="make the i-th of n shares; batch arrays are known by themselves"
    )
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="work on this Dask cluster")
    parser.add_argument(
        "--dask-local", type=int, metavar="N", help="work on a Dask cluster of N processes started here"
    )


def _sample(call: Invocation) -> None:
    config, log, chosen = call.config, call.log, call.options
    final = Path(config.global_.data_path) / "samples"
    _refuse_mixtures(chosen)
    if chosen.verify:
        _verify(final, log)
        return
    options = sample_options(config)
    if chosen.remove:
        store = remove_scenes(final, chosen.remove, options, Build(decorate=write_store_report, on_warning=log.warn))
        log.info(f"removed {', '.join(chosen.remove)}")
    else:
        made = _make(call, options, final)
        if made is None:
            log.info("this share is done; the share that finds all others done finishes the store")
            return
        store = made
    for line in empty_warnings(store.info):
        log.warn(line)
    for line in summary(store):
        log.info(line)


def _refuse_mixtures(chosen: argparse.Namespace) -> None:
    alone = [f"--{name}" for name in ("verify", "remove") if getattr(chosen, name)]
    others = [f"--{name}" for name in ("overwrite", "append", "replace") if getattr(chosen, name)]
    if len(alone) > 1 or (alone and others):
        raise ConfigError(problem("command line", " and ".join(alone + others), "one of them", "call it twice"))
    if chosen.scheduler and chosen.dask_local:
        found = "--scheduler and --dask-local"
        raise ConfigError(problem("command line", found, "one of them", "leave one out"))


def _verify(final: Path, log: Log) -> None:
    store = open_store(final)
    with progress(len(store.info.scenes), "verifying", "scenes") as bar:
        problems = verify_store(store, bar.update)
    if problems:
        raise DataError(problems)
    log.info(f"all well: {len(store.index)} samples of {len(store.info.scenes)} scenes in {store.folder}")


def _make(call: Invocation, options: SampleOptions, final: Path) -> Store | None:
    """Look at the scenes and make what is not there; None if this was a share and others are missing."""
    config, log, chosen = call.config, call.log, call.options
    scenes = read_scenes(config.sample.prep_csv_file)
    overwrite = config.sample.overwrite or chosen.overwrite
    options = like_the_store(final, options, overwrite and not chosen.append)
    with progress(len(scenes), "looking at scenes", "scenes") as bar:
        found = survey(scenes, replace(options.survey, needs_training=not chosen.append), bar.update)
    for warning in (*background_doubts(options.classes), *found.warnings):
        log.warn(warning)
    update = plan_update(
        final,
        found,
        options,
        overwrite=overwrite,
        append=chosen.append,
        again=_named(chosen.replace or (), found),
    )
    if update.done is not None:
        log.info(f"already done: {final} holds these samples")
        return update.done
    if update.news:
        log.info(f"{final}: {update.news}")
    return _build(call, found, options, final, update)


def _named(names: Sequence[str], found: Survey) -> list[str]:
    listed: dict[str, dict[str, object]] = {f.scene.scene_id: {"image": f.scene.image} for f in found.facts}
    return [find_scene(Path("list of scenes"), listed, name) for name in names]


def _build(call: Invocation, found: Survey, options: SampleOptions, final: Path, update: Update) -> Store | None:
    log = call.log
    kept = update.kept.records if update.kept else {}
    new = Survey(tuple(f for f in found.facts if f.scene.scene_id not in kept), found.warnings)
    check_room(final, bytes_needed(new.facts, options))
    blocks = count_blocks(new, options)
    try:
        share = share_of_work(call.options.shard)
    except ValueError as error:
        raise ConfigError(problem("--shard", str(error), "i/n, such as 3/10", "correct it")) from error
    if share != (1, 1):
        log.info(f"share {share[0]} of {share[1]}")
    local = share == (1, 1) and call.options.scheduler is None
    workers = min(resolve_workers(call.config.sample.workers), max(1, blocks // _BLOCKS_PER_PROCESS))
    with (
        progress(blocks, "sampling", "blocks") as bar,
        executor_of(call.options.scheduler, call.options.dask_local, workers, _WORKERS_NEED) as executor,
    ):
        how = Build(partial(map_tasks, executor), bar.update, write_store_report, log.warn, share, local)
        return build_store(found, options, final, how, update.kept)


def summary(store: Store) -> list[str]:
    """Return the lines that end the command: samples, windows left out, pixels per split and class, distances."""
    info = store.info
    splits = [s for s in SPLITS if info.samples[s] or any(scene["split"] == s for scene in info.scenes)]
    rows = [["", *splits], ["scenes", *(str(_scenes(info, split)) for split in splits)]]
    rows.append(["samples", *(str(info.samples[split]) for split in splits)])
    for reason, text in _LEFT_OUT.items():
        counts = [info.dropped[split].get(reason, 0) for split in splits]
        if any(counts) or reason in ("background", "unknown"):
            rows.append([text, *map(str, counts)])
    for entry in info.classes:
        name = f"{entry['id']} {entry['name']}"
        rows.append([name, *(_pixels(info, split, int(entry["id"])) for split in splits)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
    bands = f"{len(info.bands)} bands of {info.dtype}"
    where = f"samples of {info.samples_size} x {info.samples_size} pixels, {bands}: {store.folder}"
    return [*lines, *_apart(info), where, f"to look at: {store.folder / 'report.html'}"]


def _scenes(info: StoreInfo, split: str) -> int:
    return sum(s["samples_by_split"][split] > 0 or s["split"] == split for s in info.scenes)


def _apart(info: StoreInfo) -> list[str]:
    """Return how far the splits are apart on the ground."""
    lines = []
    for unit in ("m", "px"):
        found = info.splitting.get(f"distance_{unit}") or {}
        if found:
            shown = ", ".join(f"{pair} {distance:,.1f} {unit}" for pair, distance in found.items())
            lines.append(f"smallest distance between splits: {shown}")
    for pair, count in (info.splitting.get("shared") or {}).items():
        lines.append(f"on common ground of two splits: {count} samples ({pair})")
    if info.splitting.get("apart"):
        lines.append(f"left out to keep the splits apart: {info.splitting['apart']} windows")
    return lines


def _pixels(info: StoreInfo, split: str, index: int) -> str:
    """Return 'pixels (percent of the known ones)'."""
    counts = info.class_pixels[split]
    share = 100 * counts[index] / (sum(counts) or 1)
    return f"{counts[index]:,} ({share:5.1f} %)"


if __name__ == "__main__":
    raise SystemExit(main())
