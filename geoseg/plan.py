"""`python -m geoseg.plan`: peak memory and largest batch per model and GPU, computed on a CPU without training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from geoseg.cli import Invocation, progress, run_command, warn
from geoseg.config import Config
from geoseg.data.store import open_store
from geoseg.errors import ConfigError, DataError, problem
from geoseg.learn.capacity import GIB, MIB, Margin, Needs, calibrated, needs_of, parse_memory
from geoseg.learn.sizing import StepWork, estimator
from geoseg.models import MODELS, build_model
from geoseg.trainjob import step_settings

#: Memory of usual cards. Their makers' GB are GiB, give or take what the driver hides.
CARDS = tuple(size * GIB for size in (8, 11, 12, 16, 24, 40, 80, 141))
DEFAULT_BANDS = 3


@dataclass(frozen=True)
class Row:
    """The answer for one model: bytes, and the largest batch for each amount of memory."""

    model: str
    parameters: int
    fixed: int
    per_image: int
    largest: tuple[int, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("plan", argv, _plan, _add_options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", action="append", metavar="SIZE", help="memory of the GPU, such as 11GiB; may be repeated"
    )
    parser.add_argument("--accumulation", type=int, default=1, metavar="N", help="batches per step of the optimiser")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes that train together")
    parser.add_argument("--measured", nargs="+", type=Path, default=[], metavar="FILE", help="memory.json of GPU runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")


def _plan(call: Invocation) -> None:
    memories = tuple(parse_memory(text, "--memory") for text in call.options.memory or ()) or CARDS
    work = _work(call.config, call.options)
    margin = calibrated(call.options.measured)
    rows = []
    with progress(len(MODELS), "estimating", "model") as bar:
        for name in MODELS:
            rows.append(plan_model(name, _options(call.config, name), work, memories, margin))
            bar.update()
    for line in table(rows, work, memories, margin):
        print(line)
    if call.options.json is not None:
        figures = {"work": asdict(work), "memory": memories, "margin": asdict(margin)}
        text = json.dumps({**figures, "models": [asdict(row) for row in rows]}, indent=2)
        call.options.json.write_text(text + "\n", encoding="utf-8")


def _work(config: Config, options: argparse.Namespace) -> StepWork:
    for name in ("accumulation", "processes"):
        if getattr(options, name) < 1:
            raise ConfigError(problem(f"--{name}", str(getattr(options, name)), "at least 1", "correct it"))
    training = config.training
    return StepWork(
        size=config.global_.samples_size,
        channels=_channels(config),
        classes=int(config.global_.num_classes or 2),
        precision="bf16-mixed" if training.precision == "auto" else training.precision,
        **step_settings(config),
        accumulation=options.accumulation,
        processes=options.processes,
    )


def _channels(config: Config) -> int:
    if config.global_.bands is not None:
        return len(config.global_.bands)
    if config.global_.number_of_bands is not None:
        return config.global_.number_of_bands
    try:
        return len(open_store(config.global_.data_path).info.bands)
    except DataError:
        warn(f"the number of bands is not known yet: {DEFAULT_BANDS} taken; set global.number_of_bands")
        return DEFAULT_BANDS


def _options(config: Config, name: str) -> dict[str, object]:
    options = getattr(config.models, name, None)
    return {} if options is None else options.model_dump(exclude={"pretrained"}, exclude_none=True)


def plan_model(name: str, options: dict[str, object], work: StepWork, memories: Sequence[int], margin: Margin) -> Row:
    """Estimate one model's steps, and the largest batches for some amounts of memory in bytes."""
    model = build_model(name, work.channels, work.classes, **options)
    needs = needs_of(estimator(model, work), work.image_bytes)
    fixed, slope = _line(needs)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    largest = tuple(needs.largest(margin.room(memory)) for memory in memories)
    return Row(name, parameters, fixed, slope, largest)


def _line(needs: Needs) -> tuple[int, int]:
    """Return bytes that do not depend on the batch, and bytes per image of a large one."""
    (low, few), (high, many) = needs.known[-2:]
    slope = (many - few) // (high - low)
    return max(0, few - slope * low), slope


def table(rows: Sequence[Row], work: StepWork, memories: Sequence[int], margin: Margin) -> list[str]:
    """Return the answer as lines of text."""
    heads = [f"{memory / GIB:.3g} GiB" for memory in memories]
    lines = [
        f"training {work.size} x {work.size} pixels, {work.channels} bands, {work.classes} classes, {work.precision}, "
        f"{work.optimizer}, {work.processes} process{'es' * (work.processes > 1)}, accumulation {work.accumulation}",
        f"largest batch per GPU, with {margin.context / MIB:.0f} MiB set aside for driver and libraries and "
        f"{100 * margin.share:.0f} % for workspaces and gaps",
        "",
        f"{'model':<20}{'weights':>9}{'fixed MiB':>11}{'MiB/image':>11}" + "".join(f"{head:>10}" for head in heads),
    ]
    for row in rows:
        cells = "".join(f"{batch or '-':>10}" for batch in row.largest)
        figures = f"{row.parameters / 1e6:>8.2f}M{row.fixed / MIB:>11.1f}{row.per_image / MIB:>11.1f}"
        lines.append(f"{row.model:<20}{figures}{cells}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
