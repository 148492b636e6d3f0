"""The report of a training: what it says, from the files of a run and a look at its samples."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_store import make_store
from test_html import Checker

from geoseg.assess.calibration import reliability_of
from geoseg.assess.confusion import SceneConfusion
from geoseg.assess.review import Judged, Review
from geoseg.data.dataset import SampleDataset
from geoseg.data.store import open_store
from geoseg.report.curves import bars, confusion_chart, curves, reliability_chart
from geoseg.report.training import Run, write_training_report

MIB = 2**20
BEST = {
    "epoch": 2,
    "num_epochs": 3,
    "monitor": "mean_iou",
    "mean_iou": 0.75,
    "mean_f1": 0.8,
    "accuracy": None,
    "kappa": 0.625,
}
METRICS = """\
epoch,learning_rate,trn_loss,val_loss,val_mean_iou,val_mean_f1,val_accuracy,seconds,samples_per_second
1,0.001,2.5,,,,,3,10
2,0.0005,1.5,1.75,0.75,0.8,0.9,5,6
3,0.0001,1.25,2,0.5,0.6,0.85,4,8
"""
MEMORY = {
    "batch_size": 3,
    "device": "cuda",
    "precision": "bf16-mixed",
    "predicted": {"weights": 2 * MIB, "peak": 100 * MIB, "exchange": 0, "reserved": None},
    "measured": {"weights": 2 * MIB, "peak": 101 * MIB, "exchange": 0, "allocated": 140 * MIB, "reserved": 180 * MIB},
    "epochs": [{"epoch": 1, "peak_memory_mb": 150.0}, {"epoch": 2, "peak_memory_mb": 160.5}],
}


def make_run(folder: Path) -> tuple[Run, Review, SampleDataset]:
    """A run folder without a model, and what a model might have made of its samples."""
    store = open_store(make_store(folder / "data"))
    run = folder / "runs" / "a"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text(METRICS)
    (run / "memory.json").write_text(json.dumps(MEMORY))
    (run / "config.yaml").write_text("global: {seed: 1}  # <b>\n")
    dataset = SampleDataset(store, "val")
    wrong, right = np.zeros((32, 32), np.uint8), np.array(dataset.stored(1)[1] % 255)
    counts = [np.array([[900, 40], [3, 60]]), np.array([[500, 0], [0, 0]])]
    scenes = tuple(SceneConfusion(f"s{i}", m, np.zeros(2, np.int64), 7 + i) for i, m in enumerate(counts))
    worst, best = Judged(0, "s0", 0.25, 0.5, wrong), Judged(1, "s1", 1.0, 1.0, right)
    sure = reliability_of(np.array([0.95, 0.95, 0.65, 0.65]), np.array([True, True, True, False]))
    facts = {"model": "unet<small>", "seed": "1"}
    return Run(run, store, facts, BEST, {"training": 12.0}), Review(scenes, (worst, best), (best, worst), sure), dataset


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_training_report(*make_run(tmp_path_factory.mktemp("run")))
    assert path.name == "report.html"
    return path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_holds_all_that_it_shows(text: str) -> None:
    Checker(text)
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []
    assert "<script" not in text
    assert "url(" not in text
    assert "<b>" not in text
    assert "unet&lt;small&gt;" in text


def test_it_says_how_it_went(text: str) -> None:
    assert "Best epoch 2 of 3 by mean_iou" in text
    assert "mean IoU 0.750, mean F1 0.800, accuracy not defined, Cohen&#x27;s kappa 0.625." in text
    for hint in ("epoch 1: 2.5", "epoch 2: 1.75", "epoch 3: 0.85", "epoch 1: 0.001"):
        assert f"<title>{hint}</title>" in text
    assert "<title>epoch 1: nan" not in text
    assert "8.0 training samples per second" in text
    assert "epochs: training, : 12.0 s" in text  # 3 + 5 + 4
    assert "global: {seed: 1}" in text


def test_it_says_how_good_the_model_is(text: str) -> None:
    # Reference 1440 and 63 pixels, predicted 1403 and 100; IoU 1400 / 1443 and 60 / 103.
    assert "<td>0.970</td><td>0.998</td><td>0.972</td>" in text
    assert "<td>0.583</td><td>0.600</td><td>0.952</td>" in text
    assert "over 1,503 known pixels" in text
    assert "15 unknown pixels are left out" in text
    assert "40 pixels of background predicted as roof" in text
    worst, best = text.index("<td>s0</td>"), text.index("<td>s1</td>")
    assert worst < best
    assert "worst 1: IoU 0.250, 50.0 % right, s0" in text
    assert "best 1: IoU 1.000, 100.0 % right, s1" in text
    # By hand: |2 - 1.9| + |1 - 1.3| over four pixels.
    assert "Expected calibration error 0.100" in text


def test_samples_are_shown_with_their_errors(text: str) -> None:
    pictures = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), int)
        for data in re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    ]
    assert len(pictures) == 4
    side = pictures[0].shape[1]
    magenta = [((p[-side:, :, 0] > 150) & (p[-side:, :, 1] < 90) & (p[-side:, :, 2] > 90)).mean() for p in pictures]
    assert magenta[0] == magenta[3] > 0.05  # the rectangle that was missed
    assert magenta[1] == magenta[2] == 0


def test_memory_is_shown_by_phase(text: str) -> None:
    for hint in (
        "peak of forward and backward, foreseen: 100.0 MiB",
        "peak of forward and backward, measured: 101.0 MiB",
        "reserved on the GPU, measured: 180.0 MiB",
        "most allocated on the GPU, epochs, measured: 160.5 MiB",
    ):
        assert f"<title>{hint}</title>" in text
    assert "exchange" not in text


def test_a_run_that_was_stopped_is_told_from_its_files(tmp_path: Path) -> None:
    run, _, dataset = make_run(tmp_path)
    (run.folder / "memory.json").unlink()
    (run.folder / "metrics.csv").unlink()
    stopped = Run(run.folder, run.store, run.facts, {}, {}, "Stopped by the user.")
    text = write_training_report(stopped, None, dataset).read_text(encoding="utf-8")
    assert "0 epochs, none with a score. Stopped by the user." in text
    assert "No epoch was finished." in text
    assert "Confusion matrix" not in text


def test_curves_without_a_value_are_not_drawn() -> None:
    assert curves("loss", {"a": [(1, math.nan)]}) == ""
    drawn = curves("loss", {"a": [(1, 5.0)], "b": [(1, math.nan)]})
    assert "epoch 1: 5" in drawn
    assert ">b<" not in drawn


def test_a_spike_of_the_loss_does_not_hide_the_rest(tmp_path: Path) -> None:
    run, _, _ = make_run(tmp_path)
    assert ">loss<" in write_training_report(run).read_text(encoding="utf-8")
    losses = [2, 2, 100, 1, 2, 1]  # four fifths of them are at most 2
    rows = "".join(f"{epoch},{loss}\n" for epoch, loss in enumerate(losses, 1))
    (run.folder / "metrics.csv").write_text(f"epoch,trn_loss\n{rows}")
    text = write_training_report(run).read_text(encoding="utf-8")
    assert ">loss, cut at 2.5<" in text
    assert "<title>epoch 3: 100</title>" in text
    (line,) = re.findall(r'<path d="M([^"]*)" fill="none"', text)
    heights = [float(corner.split()[1]) for corner in line.split("L")]
    # At the top edge, 40 pixels down; 1 is the least and stands on the axis, 190 lower; 2 is two thirds up.
    assert heights == [103.3, 103.3, 40, 230, 103.3, 230]


def test_a_class_without_pixels_has_no_share() -> None:
    drawn = confusion_chart(np.array([[3, 1], [0, 0]]), ["a", "b"])
    assert ">75.0<" in drawn
    assert ">25.0<" in drawn
    assert drawn.count(">0.0<") == 0


def test_bars_and_empty_bins() -> None:
    assert "nan" not in bars("t", [("x", {"a": math.nan, "b": 2.0})], "s")
    assert reliability_chart(reliability_of(np.array([0.5]), np.array([True]))).count("% sure") == 1
    assert reliability_chart(reliability_of(np.zeros(0), np.zeros(0, bool))).count("% sure") == 0
