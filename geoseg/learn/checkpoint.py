"""The run folder and the checkpoint in it.

A checkpoint is written after every epoch, whole or not at all, and holds tensors and plain values alone, so that
torch's safe loader opens it. It needs no state of random generators or samplers: everything random in an epoch is
drawn from (seed, epoch), so a run that is taken up again after epoch k goes on as if it had never stopped.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from geoseg.errors import ConfigError, ModelFileError, problem
from geoseg.learn.files import replacing
from geoseg.learn.modelfile import ModelSpec

CONFIG, METRICS, CURVES = "config.yaml", "metrics.csv", "tensorboard"
LAST, BEST, MEMORY = "last.ckpt", "best.safetensors", "memory.json"
# All that a run writes; `overwrite` removes these and nothing else.
RUN_FILES = (CONFIG, METRICS, CURVES, LAST, BEST, "report.html", MEMORY)
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after an epoch.

    Attributes:
        spec: `ModelSpec` as JSON: what the weights mean.
        settings: Plain facts that a resumed run must agree with or take over: seed, optimizer, batch_size.
        model: State dict of the network.
        optimizer: State dict of the optimiser.
        scaler: State of the loss scaling of half precision; empty without it.
        epoch: Number of finished epochs.
        best: Facts about the best epoch so far, as in the model file's `trained`; empty before there is one.
    """

    spec: str
    settings: Mapping[str, Any]
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    epoch: int
    best: Mapping[str, Any]

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
