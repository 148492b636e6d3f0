"""`python -m geoseg.plan`, on samples small enough to be quick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geoseg import plan
from geoseg.models import MODELS
from geoseg.models.unet import UNet

CONFIG = """
global: {samples_size: 64, num_classes: 5, number_of_bands: 4}
models:
  unet: {dropout: true, pretrained: ./not/there.safetensors}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def thin(in_channels: int, num_classes: int, **_options: object) -> UNet:
        return UNet(in_channels, num_classes, widths=(8, 16))

    def recomputing(in_channels: int, num_classes: int, **_options: object) -> UNet:
        return thin(in_channels, num_classes).recompute_activations()

    chosen = {"unetsmall": thin, "checkpointed_unet": recomputing}
    monkeypatch.setattr(plan, "MODELS", chosen)
    for name, make in chosen.items():
        monkeypatch.setitem(MODELS, name, make)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_a_table_of_all_models_and_usual_cards(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "64 x 64 pixels, 4 bands, 5 classes, 32-true, adam" in lines[0]
    assert "set aside" in lines[1]
    head, *rows = lines[3:]
    assert all(f"{size} GiB" in head for size in (8, 11, 12, 16, 24, 40, 80, 141))
    assert [row.split()[0] for row in rows] == list(plan.MODELS)
    for row in rows:
        batches = [int(cell) for cell in row.split()[-8:]]
        assert batches == sorted(batches)
    # The recomputing one fits more on every card.
    few, many = ([int(cell) for cell in row.split()[-8:]] for row in rows)
    assert all(1.5 * one < two for one, two in zip(few, many, strict=True))


def test_figures_for_given_memory(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    words = [str(config), "training.precision=bf16-mixed", "training.optimizer=sgd"]
    assert plan.main([*words, "--memory", "1GiB", "--memory", "600MiB", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["memory"] == [1 << 30, 600 << 20]
    assert figures["work"]["precision"] == "bf16-mixed"
    assert all(row["largest"][1] == 0 < row["largest"][0] for row in figures["models"])
    assert " -" in capsys.readouterr().out.splitlines()[-1]


def test_more_processes_and_precision_change_the_answer(config: Path, tmp_path: Path) -> None:
    found = []
    for words in ([], ["--processes", "4", "--accumulation", "2"]):
        out = tmp_path / "plan.json"
        assert plan.main([str(config), "--memory", "2GiB", "--json", str(out), *words]) == 0
        found.append(json.loads(out.read_text())["models"][0])
    assert found[1]["fixed"] > found[0]["fixed"]
    assert found[1]["largest"] <= found[0]["largest"]


@pytest.mark.parametrize(
    "words", [["--memory", "lots"], ["--processes", "0"], ["--accumulation", "0"], ["--measured", "absent.json"]]
)
def test_wrong_options_are_the_users(config: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([str(config), *words]) == 2
    assert "found" in capsys.readouterr().err


def test_unknown_bands_are_taken_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("global: {samples_size: 64}\n")
    assert plan.main([str(path), "--memory", "1GiB"]) == 0
    shown = capsys.readouterr()
    assert "3 bands, 2 classes" in shown.out
    assert "number_of_bands" in shown.err
