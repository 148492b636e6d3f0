"""The curves of a run: `metrics.csv`, one row per epoch, and TensorBoard event files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from geoseg.learn.checkpoint import CURVES, METRICS
from geoseg.learn.files import replacing


class Records:
    """Writer of a run's curves.

    The CSV is rewritten whole after each epoch: it is small, and so it can neither end in half a row nor hold an epoch
    twice. A resumed run keeps the rows of the epochs that it goes on from.

    Args:
        folder: The run folder.
        epoch: Number of finished epochs that the run goes on from; 0 for a new run.
        step: Number of optimiser steps so far.
        writes: False in processes that only compute: nothing is written.
    """

    def __init__(self, folder: Path, epoch: int = 0, step: int = 0, writes: bool = True) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes half a second to import

        self.writes = writes
        if not writes:
            return
        self.path = folder / METRICS
        self.rows = [row for row in read_metrics(self.path) if row["epoch"] <= epoch] if epoch else []
        # purge_step hides what a killed run logged beyond the point from which it goes on.
        self._curves = SummaryWriter(str(folder / CURVES), purge_step=step + 1 if step else None)

    def add_step(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to the curves at an optimiser step (TensorBoard alone)."""
        for name, value in values.items() if self.writes else ():
            self._curves.add_scalar(name, value, step)

    def add_epoch(self, step: int, row: Mapping[str, float]) -> None:
        """Add the row of an epoch, which ended at `step`; NaN is an empty cell."""
        if not self.writes:
            return
        self.rows.append(dict(row))
        names = list(dict.fromkeys(name for entry in self.rows for name in entry))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_cell(entry.get(name, math.nan)) for name in names] for entry in self.rows])
        with replacing(self.path) as file:
            file.write(text.getvalue().encode())
        self.add_step(step, {name: value for name, value in row.items() if not math.isnan(value)})
        self._curves.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writes:
            self._curves.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a `metrics.csv`; an empty cell is NaN, a missing file has no rows."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(cell) if cell else math.nan for name, cell in row.items()} for row in csv.DictReader(file)]


def _cell(value: float) -> str:
    if math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"
