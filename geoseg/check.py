"""`python -m geoseg.check`: everything that would go wrong, before anything is written.

What `sample` looks at first is looked at here too, and then the pixels: all of them, or an even part of large scenes.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from geoseg.cli import Invocation, progress, run_command
from geoseg.config import Config
from geoseg.data.classes import background_doubts
from geoseg.data.disk import bytes_needed, check_room
from geoseg.data.editing import like_the_store, plan_update
from geoseg.data.inspect import Inspection, count_samples, inspect_scenes, plan_counts, store_bytes, with_counts
from geoseg.data.inspect.expect import BUDGET
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import read_scenes
from geoseg.data.survey import Findings, SceneFacts
from geoseg.errors import DataError, GeosegError, problem
from geoseg.execution import local_executor, map_tasks, resolve_workers
from geoseg.report.inspection import expected_values, scene_lines, scene_values, together_lines, verdict
from geoseg.settings import sample_options

_MANY = 4  # blocks that pay for a process of their own


class _Needs(NamedTuple):
    """What sampling and training take: name and text of each line, and problems."""

    lines: dict[str, str]
    problems: list[str]


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
    final = Path(config.global_.data_path) / "samples"
    options = like_the_store(final, sample_options(config), config.sample.overwrite)
    scenes = read_scenes(config.sample.prep_csv_file)
    key = uuid.uuid4().hex
    with progress(len(scenes), "looking at scenes", "scenes") as bar:
        together, inspection = inspect_scenes(scenes, options, key, bar.update)
    facts = [found.facts for found in together.scenes if found.facts is not None]
    inspection = _counted(call, facts, inspection, options, key)
    names = [str(entry["name"]) for entry in options.classes]
    expected = expected_values(inspection, names)
    problems = _expectations(expected, inspection)
    warnings = background_doubts(options.classes) + _missing_classes(expected) + _no_validation(expected, options)
    needs = _needs(config, options, inspection, facts)
    if facts and not call.options.quick:
        try:
            needs.lines["memory"] = _memory(config, len(facts[0].bands))
        except GeosegError as error:  # options that the model does not take
            needs.problems.extend(error.problems)
    problems += needs.problems
    warnings += _store_warning(final, config.sample.overwrite, together, options)
    inspection = replace(
        inspection, problems=inspection.problems + tuple(problems), warnings=inspection.warnings + tuple(warnings)
    )
    (_print_json if call.options.json else _print_tables)(call, inspection, expected, needs.lines, names)
    found = inspection.all_problems + (inspection.all_warnings if call.options.strict else [])
    if found:
        raise DataError(found)


def _counted(
    call: Invocation, facts: Sequence[SceneFacts], inspection: Inspection, options: SampleOptions, key: str
) -> Inspection:
    """Count the samples of the scenes that can be sampled, on this machine's processes."""
    if not facts:
        return inspection
    budget = None if call.options.full else 1 if call.options.quick else BUDGET
    try:
        plans, warnings = plan_counts(facts, options, key, budget)
    except DataError as error:  # splits that cannot be made
        return replace(inspection, problems=inspection.problems + tuple(error.problems))
    blocks = sum(len(plan.tasks) for plan in plans)
    workers = min(resolve_workers(call.config.sample.workers), max(1, blocks // _MANY))
    with progress(blocks, "counting samples", "blocks") as bar, local_executor(workers, ("geoseg.check",)) as executor:
        counts = count_samples(plans, partial(map_tasks, executor), bar.update)
    return replace(with_counts(inspection, counts), warnings=inspection.warnings + tuple(warnings))


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
        counts = list(zip(expected["classes"], entry["class_pixels"], strict=True))
        missing = [name for name, pixels in counts[1:] if not pixels]  # background may well be absent
        if missing and entry["samples"] and split != "tst":
            part = "" if expected["exact"] else " that were looked at"
            warnings.append(f"the {split} samples{part} hold no pixel of {', '.join(missing)}")
    return warnings


def _no_validation(expected: dict[str, Any], options: SampleOptions) -> list[str]:
    """A list without val scenes is warned of when it is read; scenes or areas may give no sample all the same."""
    split = expected["splits"].get("val")
    if (split and split["samples"]) or (split is None and options.splits.method == "csv"):
        return []
    return ["no sample comes into the split val: training needs some to choose the best epoch"]


def _needs(config: Config, options: SampleOptions, inspection: Inspection, facts: Sequence[SceneFacts]) -> _Needs:
    """Return lines about disk and time."""
    counted = [(r.info, len(r.bands), r.expected) for r in inspection.scenes if r.info is not None and r.expected]
    if not counted:
        return _Needs({}, [])
    folder = Path(config.global_.data_path) / "samples"
    size = sum(store_bytes(info, bands, options.size, found.samples) for info, bands, found in counted)
    room = bytes_needed(facts, options)
    problems = []
    try:
        check_room(folder, room)
    except DataError as error:
        problems += error.problems
    workers = resolve_workers(config.sample.workers)
    seconds = sum(found.seconds for _, _, found in counted) / workers
    lines = {
        "disk": f"about {_size(size)} for the store; {_size(room)} must be free while it is made, at most",
        "time": f"about {_duration(seconds)} to sample with {workers} process{'es' if workers > 1 else ''}",
    }
    return _Needs(lines, problems)


def _memory(config: Config, bands: int) -> str:
    """Return what a training step of the chosen model needs, estimated without running it."""
    from geoseg.learn.capacity import sample_bytes  # these import torch, which takes seconds
    from geoseg.memory import estimate_step
    from geoseg.models import build_model

    shared, training = config.global_, config.training
    batch = training.batch_size if isinstance(training.batch_size, int) else 1
    chosen = getattr(config.models, shared.model_name).model_dump(exclude={"pretrained"}, exclude_none=True)
    model = build_model(shared.model_name, bands, int(shared.num_classes or 2), **chosen)
    precision = "bf16-mixed" if training.precision == "auto" else training.precision
    step = estimate_step(model, batch, shared.samples_size, bands, int(shared.num_classes or 2), precision=precision)
    need = step.total + batch * sample_bytes(bands, shared.samples_size)
    auto = "" if isinstance(training.batch_size, int) else " (batch_size: auto takes the largest that fits)"
    return f"about {_size(need)} to train {shared.model_name} with batches of {batch}{auto}; more: plan"


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


def _store_warning(final: Path, overwrite: bool, together: Findings, options: SampleOptions) -> list[str]:
    """Say whether `sample` would refuse to replace what is there."""
    # Without the folder, planning might bring back a former store: that is for sample to do.
    if not final.exists() or together.problems or any(found.facts is None for found in together.scenes):
        return []
    try:
        plan_update(final, together.survey(), options, overwrite=overwrite)
    except DataError as error:
        return [f"sample would stop: {line}" for line in error.problems]
    return []


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
