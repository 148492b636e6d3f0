"""Killed at any moment, and taken up: the same run to the bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_store import make_store

from geoseg.learn.records import read_metrics

ROOT = Path(__file__).resolve().parents[1]
KILLS = 4
CONFIG = """\
global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5}
training:
  {batch_size: 2, num_epochs: 12, learning_rate: 0.01, device: cpu, workers: 0, accumulate: 2, ema: 0.9, clip_norm: 1.0,
   optimizer: adamw, scheduler: plateau, step_size: 1, warmup_epochs: 1, val_every: 2, checkpoint_minutes: 0.001}
models:
  unetsmall: {dropout: true}
"""


def start(config: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "geoseg.train", str(config), f"training.run_name={name}", "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def end(process: subprocess.Popen[str]) -> int:
    """Return the exit code of a process that is left to itself, or was killed."""
    process.communicate()
    return process.returncode


def flat(state: Any) -> list[Any]:
    """Return a nested state as a list that compares by value, to the bit."""
    if isinstance(state, torch.Tensor):
        return [state.dtype, *state.flatten().tolist()]
    if isinstance(state, dict):
        return [entry for key in state for entry in (key, *flat(state[key]))]
    return [entry for part in state for entry in flat(part)] if isinstance(state, list | tuple) else [state]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("kills")
    make_store(folder / "data", trn=12, val=4)
    (folder / "config.yaml").write_text(CONFIG)
    assert end(start(folder / "config.yaml", "whole")) == 0
    return folder / "runs" / "whole"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_again_and_again_equals_never_killed(whole: Path, seed: int) -> None:
    """With a checkpoint after nearly every step, some of the kills come while one is written."""
    name, config = f"parts{seed}", whole.parents[1] / "config.yaml"
    draw, killed = random.Random(seed), 0
    for _ in range(KILLS):
        process = start(config, name)
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("a step of"))
        time.sleep(3 * draw.random())
        process.kill()
        killed += end(process) == -9
    assert killed
    assert end(start(config, name)) == 0
    folders = [whole, whole.parent / name]
    one, other = (torch.load(folder / "last.ckpt", weights_only=True) for folder in folders)
    for key in ("model", "average", "progress"):
        assert flat(one[key]) == flat(other[key]), key
    assert flat(one["optimizer"]["state"]) == flat(other["optimizer"]["state"])
    files = [(folder / "best.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1]
    epochs = [[row["epoch"] for row in read_metrics(folder / "metrics.csv")] for folder in folders]
    assert epochs[0] == epochs[1] == list(range(1, 13))
