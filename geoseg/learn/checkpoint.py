"""The run folder and the checkpoint in it.

A checkpoint is written after every epoch and now and then between, whole or not at all, and holds tensors and plain
values alone, so that torch's safe loader opens it. It needs no state of random generators or samplers: everything
random in a step is drawn from (seed, epoch, step), so a run that is taken up again goes on as if it had never stopped.
"""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geoseg.errors import ConfigError, ModelFileError, problem
from geoseg.learn.files import replacing
from geoseg.learn.modelfile import ModelSpec

CONFIG, METRICS, CURVES = "config.yaml", "metrics.csv", "tensorboard"
LAST, BEST, MEMORY, REPORT = "last.ckpt", "best.safetensors", "memory.json", "report.html"
VALIDATION = "validation.json"
# All that a run writes; `overwrite` removes these and nothing else.
RUN_FILES = (CONFIG, METRICS, CURVES, LAST, BEST, REPORT, MEMORY, VALIDATION)
FORMAT = 2


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch: Number of finished epochs.
        step: Steps of the optimiser in the epoch that is under way.
        sums: Their total and weight of the loss, and their samples, over all processes.
        seconds: Time they took.
        scores: What the validations said, one after the other; None where the figure was not finite.
        best: Facts about the best epoch so far, as in the model file's `trained`; empty before there is one.
    """

    epoch: int = 0
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    seconds: float = 0.0
    scores: list[float | None] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Mean loss of the epoch that is under way; 0 if nothing was known."""
        return self.sums[0] / (self.sums[1] or 1.0)

    def measure(self, sums: Tensor, started: float) -> None:
        """Take in the sums so far and the time since `started`, by `time.perf_counter`."""
        self.sums, self.seconds = sums.tolist(), time.perf_counter() - started

    def take_score(self, facts: dict[str, Any], best: bool) -> None:
        """Take in what a validation said, and whether it is the best so far."""
        self.scores.append(facts["score"])
        if best:
            self.best = facts

    def finish_epoch(self) -> None:
        """Count an epoch and begin the next one."""
        self.epoch, self.step, self.sums, self.seconds = self.epoch + 1, 0, [0.0, 0.0, 0.0], 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "scores": list(self.scores), "best": dict(self.best)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Progress:
        """Rebuild it."""
        return cls(
            **{**plain, "sums": list(plain["sums"]), "scores": list(plain["scores"]), "best": dict(plain["best"])}
        )


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        spec: `ModelSpec` as JSON: what the weights mean.
        settings: Plain facts that a resumed run must agree with or take over: seed, optimizer, learning_rate,
            batch_size and steps of an epoch.
        model: State dict of the network.
        optimizer: State dict of the optimiser, and `names` of the parameters in its order.
        scaler: State of the loss scaling of half precision; empty without it.
        average: State of the average of the weights; empty without it.
        progress: `Progress` as plain values.
    """

    spec: str
    settings: Mapping[str, Any]
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    average: Mapping[str, Any]
    progress: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return int(self.progress["epoch"])

    def save(self, path: Path) -> None:
        """Write under a temporary name, then rename."""
        with replacing(path) as file:
            torch.save({"format": FORMAT, **vars(self)}, file)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint onto the CPU.

        Raises:
            ModelFileError: The file is damaged or was not written by `save`.
        """
        expected, remedy = "a checkpoint of geoseg", "train again with --overwrite, or under another run_name"
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
            detail = " ".join(str(error).split())[:120] or type(error).__name__
            found = f"a file that cannot be read ({detail})"
            raise ModelFileError(problem(path, found, expected, remedy)) from error
        version = content.get("format") if isinstance(content, dict) else None
        names = {entry.name for entry in fields(cls)}
        if version != FORMAT or not names <= content.keys():
            raise ModelFileError(problem(path, f"format {version!r}", f"{expected}, format {FORMAT}", remedy))
        return cls(**{name: content[name] for name in names})

    def model_spec(self) -> ModelSpec:
        """Return what the weights mean."""
        return ModelSpec.from_json(self.spec)


def find_checkpoint(folder: Path, resume: bool, overwrite: bool) -> Checkpoint | None:
    """Decide how a run starts; nothing is written or removed.

    Args:
        folder: The run folder, which need not exist.
        resume: Go on from the last checkpoint. A run that was stopped before it had one starts from the beginning.
        overwrite: Start anew whatever is there.

    Returns:
        The checkpoint to go on from, or None to start from the beginning.

    Raises:
        ConfigError: There is a run and it is not said what to do with it, or both things are said.
        ModelFileError: The checkpoint cannot be read.
    """
    if resume and overwrite:
        raise ConfigError(problem("training", "resume and overwrite", "one of them", "leave the other one out"))
    there = [name for name in RUN_FILES if (folder / name).exists()]
    if there and not (resume or overwrite):
        raise ConfigError(
            problem(
                folder,
                f"a run ({', '.join(there)})",
                "a new run folder",
                "use --resume to go on with it, --overwrite to replace it, or another training.run_name",
            )
        )
    return Checkpoint.load(folder / LAST) if resume and LAST in there else None


def start_folder(folder: Path) -> None:
    """Make the run folder and remove what an earlier run wrote there; other files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in RUN_FILES:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
