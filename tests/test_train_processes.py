"""Training in two processes, as torchrun starts them, against training in one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sample_store import make_store

from geoseg import train
from geoseg.data.store import open_store
from geoseg.learn.metrics import ConfusionMatrix, scores
from geoseg.learn.modelfile import load_model_file, read_model_spec
from geoseg.learn.prepare import StoreBatches
from geoseg.learn.records import read_metrics

ROOT = Path(__file__).resolve().parents[1]
# Group norm works sample by sample, so that nothing depends on how a batch is shared out.
CONFIG = """\
global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5, model_name: reversible_unet}
training:
  {batch_size: 4, num_epochs: 2, learning_rate: 0.05, optimizer: sgd, class_weights: auto, ema: 0.9, device: cpu,
   workers: 0, precision: 32-true, monitor: accuracy}
models:
  reversible_unet: {norm: group, width: 16, stem: 16, head: 16}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Eight training samples, and three to validate: the second process has fewer of these."""
    make_store(tmp_path / "data", trn=8, val=3)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def start_two(config: Path, *words: str) -> list[subprocess.Popen[str]]:
    """Start the processes with the variables that torchrun sets; it would itself be one more to wait for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }  # fmt: skip
    command = [sys.executable, "-m", "geoseg.train", str(config), *words]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_two_processes_train_and_score_as_one(config: Path) -> None:
    """Half the batch in each of two processes is the same step; the sums of their validations are the same scores."""
    processes = start_two(config, "training.batch_size=2", "training.run_name=two")
    assert train.main([str(config), "training.run_name=one"]) == 0
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    one, two = (config.parent / "runs" / name for name in ("one", "two"))
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    for alone, together in zip(*(read_metrics(folder / "metrics.csv") for folder in (one, two)), strict=True):
        assert together["trn_loss"] == pytest.approx(alone["trn_loss"], rel=1e-4)
        assert together["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-4)
        assert together["val_accuracy"] == pytest.approx(alone["val_accuracy"], abs=2e-3)
    weights = [load_file(folder / "best.safetensors") for folder in (one, two)]
    for name, value in weights[0].items():
        assert weights[1][name].numpy() == pytest.approx(value.numpy(), rel=1e-3, abs=1e-5), name
    best = two / "best.safetensors"
    assert scores_in_one_process(config, best) == read_model_spec(best).trained["iou"]
    # One of them speaks, and writes each point of the curves once.
    assert "epoch 2/2" in said[0][1]
    assert said[1] == ("", "")
    assert len([path for path in (two / "tensorboard").iterdir() if path.is_file()]) == 1


def scores_in_one_process(config: Path, path: Path) -> list[float | None]:
    """Return the IoUs of a model file, counted sample by sample."""
    model, spec = load_model_file(path)
    matrix = ConfusionMatrix(spec.num_classes, spec.ignore_value)
    with torch.no_grad():
        for image, label in StoreBatches(open_store(config.parent / "data"), "val", batch_size=1):
            matrix.update(model(image).argmax(1), label)
    found: list[float | None] = scores(matrix.matrix()).to_dict()["iou"]
    return found
