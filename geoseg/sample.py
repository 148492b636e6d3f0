"""`python -m geoseg.sample`: rasters and polygons to a sample store.

All scenes are looked at first, and everything that is wrong with any of them is reported together before a file is
written. A scene that fails later, because its pixels cannot be read, fails the run: nothing is left of it, and a store
that was there before stays as it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from geoseg.cli import Invocation, Log, progress, run_command
from geoseg.config import Config
from geoseg.data.building import build_store, count_blocks, existing_store, fingerprint
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import read_scenes
from geoseg.data.store import SPLITS, Store, StoreInfo
from geoseg.data.survey import Survey, survey
from geoseg.execution import local_executor, map_tasks, resolve_workers
from geoseg.settings import sample_options

# A process costs about two seconds to start; this many blocks pay for it.
_BLOCKS_PER_PROCESS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("sample", argv, _sample, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace a sample store made with other settings")


def _sample(call: Invocation) -> None:
    config, log = call.config, call.log
    options = sample_options(config)
    scenes = read_scenes(config.sample.prep_csv_file)
    with progress(len(scenes), "looking at scenes", "scenes") as bar:
        found = survey(scenes, options.survey, bar.update)
    for warning in found.warnings:
        log.warn(warning)
    final = Path(config.global_.data_path) / "samples"
    overwrite = config.sample.overwrite or call.options.overwrite
    store = existing_store(final, fingerprint(found, options), overwrite)
    if store is not None:
        log.info(f"already done: {final} holds these samples")
    else:
        store = _build(config, found, options, final)
    _warn_of_empty(store, log)
    for line in summary(store):
        log.info(line)


def _build(config: Config, found: Survey, options: SampleOptions, final: Path) -> Store:
    blocks = count_blocks(found, options)
    workers = min(resolve_workers(config.sample.workers), max(1, blocks // _BLOCKS_PER_PROCESS))
    with progress(blocks, "sampling", "blocks") as bar, local_executor(workers) as executor:
        return build_store(found, options, final, partial(map_tasks, executor), bar.update)


def _warn_of_empty(store: Store, log: Log) -> None:
    for scene in store.info.scenes:
        if not scene["samples"]:
            dropped = scene["dropped"]
            log.warn(
                f"{scene['image']}: no samples; {dropped['background']} windows hold background alone, "
                f"{dropped['unknown']} no known pixel"
            )
    if any(s["split"] == "val" for s in store.info.scenes) and not store.info.samples["val"]:
        log.warn("the val scenes gave no samples: training needs some to choose the best epoch")


def summary(store: Store) -> list[str]:
    """Return the lines that end the command: samples, windows left out, and pixels per split and class."""
    info = store.info
    splits = [split for split in SPLITS if any(s["split"] == split for s in info.scenes)]
    rows = [["", *splits], ["scenes", *(str(sum(s["split"] == split for s in info.scenes)) for split in splits)]]
    rows.append(["samples", *(str(info.samples[split]) for split in splits)])
    for reason, text in (("background", "left out: background alone"), ("unknown", "left out: nothing known")):
        rows.append([text, *(str(info.dropped[split][reason]) for split in splits)])
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
    return [*lines, where, f"to look at: {store.folder / 'preview.png'}"]


def _pixels(info: StoreInfo, split: str, index: int) -> str:
    """Return 'pixels (percent of the known ones)'."""
    counts = info.class_pixels[split]
    share = 100 * counts[index] / (sum(counts) or 1)
    return f"{counts[index]:,} ({share:5.1f} %)"


if __name__ == "__main__":
    raise SystemExit(main())
