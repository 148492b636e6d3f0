"""`python -m geoseg.check`: everything that would go wrong, before anything is written.

What `sample` looks at first is looked at here too, and then the pixels: all of them, or an even part of large scenes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from geoseg.cli import Invocation, progress, run_command
from geoseg.config import Config
from geoseg.data.building import fingerprint
from geoseg.data.inspect import Inspection, count_samples, disk_bytes, inspect_scenes, plan_counts, with_counts
from geoseg.data.inspect.expect import BUDGET
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import read_scenes
from geoseg.data.store import open_store
from geoseg.data.survey import Findings, SceneFacts
from geoseg.errors import DataError, problem
from geoseg.execution import local_executor, map_tasks, resolve_workers
from geoseg.report.inspection import expected_values, scene_lines, scene_values, together_lines, verdict
from geoseg.settings import sample_options

_MANY = 4  # blocks that pay for a process of their own


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("check", argv, _check, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="take warnings as errors")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="count samples in one block of each scene")
    extent.add_argument("--full", action="store_true", help="read every block, of large scenes too")


def _check(call: Invocation) -> None:
    config = call.config
    options = sample_options(config)
    scenes = read_scenes(config.sample.prep_csv_file)
    key = uuid.uuid4().hex
    with progress(len(scenes), "looking at scenes", "scenes") as bar:
        together, inspection = inspect_scenes(scenes, options, key, bar.update)
    facts = [found.facts for found in together.scenes if found.facts is not None]
    inspection = _counted(call, facts, inspection, options, key)
    names = [str(entry["name"]) for entry in options.classes]
    expected = expected_values(inspection, names)
    problems, warnings = _expectations(expected, inspection), _missing_classes(expected)
    needs = _needs(config, options, inspection)
    problems += needs.pop("problems")
    warnings += needs.pop("warnings") + _store_warning(config, together, options)
    inspection = Inspection(
        inspection.scenes, inspection.problems + tuple(problems), inspection.warnings + tuple(warnings)
    )
    (_print_json if call.options.json else _print_tables)(call, inspection, expected, needs, names)
    found = inspection.all_problems + (inspection.all_warnings if call.options.strict else [])
    if found:
        raise DataError(found)


def _counted(
    call: Invocation, facts: Sequence[SceneFacts], inspection: Inspection, options: SampleOptions, key: str
) -> Inspection:
    """Count the samples of the scenes that can be sampled, on this machine's processes."""
    budget = None if call.options.full else 1 if call.options.quick else BUDGET
    plans = plan_counts(facts, options, key, budget)
    blocks = sum(len(tasks) for _, _, tasks in plans)
    if not blocks:
        return inspection
    workers = min(resolve_workers(call.config.sample.workers), max(1, blocks // _MANY))
    with progress(blocks, "counting samples", "blocks") as bar, local_executor(workers) as executor:
        counts = count_samples(plans, partial(map_tasks, executor), bar.update)
    by_scene = {fact.scene.scene_id: found for (fact, _, _), found in zip(plans, counts, strict=True)}
    return with_counts(inspection, by_scene)


def _expectations(expected: dict[str, Any], inspection: Inspection) -> list[str]:
    """No training sample is an error, once it is known for sure that there is none."""
    entry = expected["splits"].get("trn")
    complete = all(report.expected is not None for report in inspection.scenes)
    if entry is None or entry["samples"] or not (complete and expected["exact"]):
        return []
    remedy = "set sample.remove_background: false, or check labels and nodata of the trn scenes"
    return [problem("samples", "no trn sample to expect", "at least one", remedy)]


def _missing_classes(expected: dict[str, Any]) -> list[str]:
    warnings = []
    for split, entry in expected["splits"].items():
        missing = [name for name, pixels in zip(expected["classes"], entry["class_pixels"], strict=True) if not pixels]
        if missing and entry["samples"] and split != "tst":
            part = "" if expected["exact"] else " that were looked at"
            warnings.append(f"the {split} samples{part} hold no pixel of {', '.join(missing)}")
        if not entry["samples"] and split == "val":
            warnings.append("the val scenes give no samples: training needs some to choose the best epoch")
    return warnings


def _needs(config: Config, options: SampleOptions, inspection: Inspection) -> dict[str, Any]:
    """Return lines about disk, time and memory, with "problems" and "warnings"."""
    needs: dict[str, Any] = {"problems": [], "warnings": []}
    counted = [r for r in inspection.scenes if r.expected is not None and r.info is not None]
    if not counted:
        return needs
    sizes = [disk_bytes(r.info, len(r.bands), options, r.expected.samples) for r in counted if r.info and r.expected]
    need, free = sum(sizes) + max(sizes), _free_bytes(Path(config.global_.data_path))
    needs["disk"] = f"about {_size(sum(sizes))} for the store, {_size(need)} while it is made; {_size(free)} are free"
    if need > free:
        found = f"{_size(free)} free, for a store that takes about {_size(need)}"
        remedy = "free some space, choose another global.data_path, or raise sample.samples_dist"
        needs["problems"] = [problem(config.global_.data_path, found, "enough", remedy)]
    workers = resolve_workers(config.sample.workers)
    seconds = sum(r.expected.seconds for r in counted if r.expected) / workers
    needs["time"] = f"about {_duration(seconds)} to sample with {workers} process{'es' if workers > 1 else ''}"
    return needs


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _size(count: float) -> str:
    for name in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {name}"
        count /= 1000
    return f"{count:.3g} TB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _store_warning(config: Config, together: Findings, options: SampleOptions) -> list[str]:
    """Say whether `sample` would refuse to replace what is there."""
    final = Path(config.global_.data_path) / "samples"
    if not final.exists() or config.sample.overwrite or any(found.facts is None for found in together.scenes):
        return []
    try:
        mark = open_store(final).info.provenance.get("fingerprint")
        if together.problems or mark == fingerprint(together.survey(), options):
            return []
        found = "a sample store made with other settings, or from files that have changed since"
    except DataError:
        found = "files, but no complete sample store"
    return [f"{final}: {found}: sample would refuse to replace it without --overwrite"]


def _print_tables(
    call: Invocation, inspection: Inspection, expected: dict[str, Any], needs: dict[str, str], names: Sequence[str]
) -> None:
    for report in inspection.scenes:
        for line in scene_lines(report, names):
            call.log.info(line)
    if expected["splits"]:
        for line in together_lines(expected, needs):
            call.log.info(line)
    for line in inspection.warnings:
        call.log.info(f"warning: {line}")
    count = len(inspection.scenes)
    judged = verdict(len(inspection.all_problems), len(inspection.all_warnings))
    call.log.info(f"verdict on {count} scene{'s' if count > 1 else ''}: {judged}")


def _print_json(
    call: Invocation, inspection: Inspection, expected: dict[str, Any], needs: dict[str, str], names: Sequence[str]
) -> None:
    values = {
        "verdict": verdict(len(inspection.all_problems), len(inspection.all_warnings)),
        "errors": inspection.all_problems,
        "warnings": inspection.all_warnings,
        "expected": expected,
        "needs": needs,
        "scenes": [scene_values(report) for report in inspection.scenes],
    }
    call.log.info(json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False, default=str))


if __name__ == "__main__":
    raise SystemExit(main())
