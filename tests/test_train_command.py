"""`python -m geoseg.train` as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from sample_store import make_store

from geoseg import train
from geoseg.data.store import open_store
from geoseg.learn.modelfile import load_model_file, read_model_spec
from geoseg.learn.records import read_metrics

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """\
global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5}
training:
  {batch_size: 3, num_epochs: 2, learning_rate: 0.01, device: cpu, workers: 0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config beside its samples."""
    make_store(tmp_path / "data")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def run(config: Path, *words: str) -> int:
    return train.main([str(config), *words])


def error_of(capsys: pytest.CaptureFixture[str], code: int, config: Path, *words: str) -> str:
    """Run what must fail with one line on stderr and leave no run behind; return that line."""
    assert run(config, *words) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def folder_of(config: Path, name: str = "unetsmall") -> Path:
    return config.parent / "runs" / name


def test_overfits_four_samples(tmp_path, capsys):
    """Four samples, the same for validation: a network that cannot learn these by heart cannot learn."""
    make_store(tmp_path / "data", trn=4, val=4, same=True)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    words = ["training.batch_size=4", "training.learning_rate=0.003", "training.scheduler=one_cycle"]
    words += ["training.num_epochs=40", "training.val_every=40", "training.augmentation=none"]
    assert run(config, *words) == 0
    _, spec = load_model_file(folder_of(config) / "best.safetensors")
    assert spec.trained["iou"][1] > 0.95
    said = capsys.readouterr()
    assert "best epoch 40 of 40 by mean_iou" in said.out
    assert f"roof        IoU {spec.trained['iou'][1]:.4f}" in said.out
    assert str(folder_of(config) / "best.safetensors") in said.out
    assert "peak memory" in said.err


def test_a_run_starts_from_the_weights_of_another_and_says_so(config, capsys):
    assert run(config, "training.num_epochs=1") == 0
    best = folder_of(config) / "best.safetensors"
    words = [f"models.unetsmall.pretrained={best}", "training.run_name=second", "training.num_epochs=1"]
    capsys.readouterr()
    assert run(config, *words) == 0
    count = len(load_file(best))
    assert f"starting from {best}: {count} weights as they are\n" in capsys.readouterr().err
    best.unlink()  # going on needs the checkpoint alone
    assert run(config, *words, "training.num_epochs=2", "--resume") == 0
    assert run(config, *words, "--overwrite") == 2
    assert "no file" in capsys.readouterr().err


def test_a_run_leaves_its_folder_and_can_be_repeated_from_it(config, capsys):
    assert run(config, "training.precision=auto") == 0
    folder = folder_of(config)
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.csv", "tensorboard", "last.ckpt", "best.safetensors", "memory.json", "report.html",
        "validation.json",
    }  # fmt: skip
    report = (folder / "report.html").read_text(encoding="utf-8")
    for heading in ("Curves", "Confusion matrix", "Worst and best validation samples", "Memory of a training step"):
        assert f"<h2>{heading}</h2>" in report
    assert str(folder / "report.html") in capsys.readouterr().out
    assert list((folder / "tensorboard" / "samples").iterdir())
    recorded = yaml.safe_load((folder / "config.yaml").read_text())
    assert recorded["global"]["seed"] == 5
    assert recorded["training"]["device"] == "cpu"
    assert recorded["training"]["precision"] in ("32-true", "bf16-mixed")
    assert run(folder / "config.yaml", "training.run_name=again") == 0
    again = folder_of(config, "again")
    assert (again / "best.safetensors").read_bytes() == (folder / "best.safetensors").read_bytes()
    spec = read_model_spec(folder / "best.safetensors")
    assert (spec.bands, spec.class_names, spec.trained["seed"]) == ((1, 3), ("background", "roof"), 5)


def test_the_largest_batch_is_found_and_kept_by_a_resumed_run(config, capsys):
    """The store has fewer samples than fit, so the answer is all of them; 3 MiB have room for nothing."""
    samples = len(open_store(config.parent / "data").samples("trn"))
    assert run(config, "training.batch_size=auto", "training.memory=4GiB") == 0
    assert f"a step of {samples} samples" in capsys.readouterr().err
    folder = folder_of(config)
    assert yaml.safe_load((folder / "config.yaml").read_text())["training"]["batch_size"] == samples
    record = json.loads((folder / "memory.json").read_text())
    assert record["batch_size"] == samples
    assert record["predicted"]["peak"] == pytest.approx(record["measured"]["peak"], rel=0.02)
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
    words = ["training.batch_size=auto", "training.memory=601MiB", "training.num_epochs=3", "--resume"]
    assert run(config, *words) == 0  # a new answer would have been refused for want of memory
    capsys.readouterr()
    line = error_of(capsys, 3, config, *words[:2], "--overwrite")
    assert "reversible_unet" in line


def test_the_rebuild_of_a_reversible_run_is_watched(config):
    words = ["global.model_name=reversible_unet", "models.reversible_unet.monitor_every=1"]
    assert run(config, *words) == 0
    errors = [float(row["inverse_error"]) for row in read_metrics(folder_of(config, "reversible_unet") / "metrics.csv")]
    assert len(errors) == 2
    assert all(0 <= error < 1e-4 for error in errors)


def test_a_drawn_seed_is_recorded(config):
    assert run(config, "global.seed=null") == 0
    seed = yaml.safe_load((folder_of(config) / "config.yaml").read_text())["global"]["seed"]
    assert isinstance(seed, int)
    assert read_model_spec(folder_of(config) / "best.safetensors").trained["seed"] == seed
    assert run(config, "global.seed=null", "training.num_epochs=3", "--resume") == 0


def test_an_existing_run_is_refused_resumed_or_replaced(config, capsys):
    assert run(config) == 0
    before = (folder_of(config) / "last.ckpt").read_bytes()
    capsys.readouterr()
    line = error_of(capsys, 2, config)
    assert "--resume" in line
    assert "--overwrite" in line
    assert (folder_of(config) / "last.ckpt").read_bytes() == before
    assert run(config, "--resume", "training.num_epochs=3") == 0
    assert len(read_metrics(folder_of(config) / "metrics.csv")) == 3
    assert run(config, "training.overwrite=true", "training.num_epochs=1") == 0
    assert len(read_metrics(folder_of(config) / "metrics.csv")) == 1
    # The command line counts more than the file.
    assert run(config, "training.overwrite=true", "--resume") == 0
    assert len(read_metrics(folder_of(config) / "metrics.csv")) == 2
    assert "resume and overwrite" in error_of_last(capsys, config, "--resume", "--overwrite")


def error_of_last(capsys, config, *words):
    capsys.readouterr()
    return error_of(capsys, 2, config, *words)


def test_resume_without_a_run_starts_one_and_says_so(config, capsys):
    assert run(config, "training.resume=true") == 0
    assert "starting from the beginning" in capsys.readouterr().err
    assert len(read_metrics(folder_of(config) / "metrics.csv")) == 2


def test_resuming_a_finished_run_changes_nothing(config, capsys):
    assert run(config) == 0
    before = (folder_of(config) / "last.ckpt").read_bytes()
    first = capsys.readouterr().out
    assert run(config, "--resume") == 0
    assert (folder_of(config) / "last.ckpt").read_bytes() == before
    assert first.splitlines()[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["global.ignore_value=254"], ["ignore value 255", "254"]),
        (["global.num_classes=4"], ["num classes 2", "4"]),
        (["global.number_of_bands=4"], ["number of bands 2", "4"]),
        (["global.bands=[1, 2]"], ["bands [1, 3]", "[1, 2]"]),
        (["global.bands=[red, green]"], ["band names ['red', 'nir']", "green"]),
        (["global.samples_size=64"], ["samples size 32", "64"]),
        (["global.classes=[background, tree]"], ["'roof'", "'tree'"]),
        (["training.class_weights=[1, 2, 3]"], ["class_weights"]),
        (["global.data_path=nowhere"], ["nowhere", "geoseg.sample"]),
        (["training.precision=16-mixed"], ["training.precision", "16-mixed on a CPU"]),
    ],
)
def test_what_contradicts_the_samples_or_the_machine_is_one_line(config, capsys, words, parts):
    line = error_of(capsys, 2, config, *words)
    assert all(part in line for part in parts)
    assert not folder_of(config).exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_an_error(config, capsys):
    assert "no usable GPU" in error_of(capsys, 2, config, "training.device=cuda")
    assert not folder_of(config).exists()


@pytest.mark.parametrize(("trn", "val"), [(0, 2), (3, 0)])
def test_an_empty_split_lists_the_counts(tmp_path, capsys, trn, val):
    make_store(tmp_path / "data", trn=trn, val=val)
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert f"trn {trn}, val {val}, tst 0" in error_of(capsys, 2, tmp_path / "config.yaml")


def test_a_checkpoint_of_another_model_is_refused_before_the_data_is_read(config, capsys):
    assert run(config) == 0
    name = "training.run_name=unetsmall"
    line = error_of_last(capsys, config, "--resume", "global.model_name=unet", name, "global.data_path=nowhere")
    assert "'unetsmall'" in line
    assert "'unet'" in line
    line = error_of_last(capsys, config, "--resume", "models.unetsmall.dropout=true")
    assert "model options" in line


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: not enough memory: ...")],
)
def test_running_out_of_memory_is_an_answer(config, capsys, monkeypatch, error):
    from geoseg.learn import engine

    def fail(*_):
        raise error

    monkeypatch.setattr(engine._Loop, "_loss", fail)
    assert run(config) == 3
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(part in line for part in (str(error), "MiB", "the plan says", "reversible_unet"))


def test_another_seed_cannot_go_on_with_a_run(config, capsys):
    assert run(config) == 0
    assert "found seed 5, expected 6" in error_of_last(capsys, config, "--resume", "global.seed=6")


def command(config: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "geoseg.train", str(config), *words]


def test_killed_and_resumed_equals_never_killed(config):
    """SIGKILL in the third of four epochs. Each run has a process of its own, as a user's runs have."""
    words = ["training.num_epochs=4", "training.scheduler=one_cycle", "models.unetsmall.dropout=true"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run(command(config, *words, "training.run_name=whole"), env=environment, check=True)
    process = subprocess.Popen(
        command(config, *words, "training.run_name=parts"), env=environment, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("epoch 2/4"):
            time.sleep(0.05)
            break
    process.send_signal(signal.SIGKILL)
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL
    subprocess.run(command(config, *words, "training.run_name=parts", "--resume"), env=environment, check=True)
    whole, parts = folder_of(config, "whole"), folder_of(config, "parts")
    states = [torch.load(folder / "last.ckpt", weights_only=True) for folder in (whole, parts)]
    assert all(torch.equal(states[0]["model"][name], states[1]["model"][name]) for name in states[0]["model"])
    assert states[0]["progress"]["best"] == states[1]["progress"]["best"]
    assert [row["epoch"] for row in read_metrics(parts / "metrics.csv")] == [1, 2, 3, 4]
    weights = [load_file(folder / "best.safetensors") for folder in (whole, parts)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_terminated_is_exit_code_130_without_a_traceback(config):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(config, "training.num_epochs=500"), env=environment, stderr=subprocess.PIPE, text=True
    )
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("epoch 1/"):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    process.stderr.close()
    assert "interrupted" in said[-1]
    assert not any("Traceback" in line for line in said)
    assert not list(folder_of(config).glob("*.tmp"))
    assert "Stopped before the end" in (folder_of(config) / "report.html").read_text(encoding="utf-8")


def test_a_foreign_safetensors_file_is_not_mistaken_for_a_run(config):
    folder_of(config).mkdir(parents=True)
    save_file({"weight": torch.zeros(1)}, folder_of(config) / "other.safetensors")
    assert run(config, "training.num_epochs=1") == 0
    assert (folder_of(config) / "other.safetensors").exists()
