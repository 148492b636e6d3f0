"""Every model under the default loss, and every loss under one model, learns four samples by heart; and every model
learns from the demo's scenes what holds elsewhere.

A network, or a loss, that cannot learn four samples cannot learn. `tests/test_train_command.py` does the same for
unetsmall under cross entropy at every run of the suite.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_store import make_store

import demo_data
from geoseg import sample, train
from geoseg.data.store import open_store
from geoseg.learn.losses import LOSSES
from geoseg.learn.modelfile import read_model_spec
from geoseg.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
DEMO = {
    "global.data_path": "data",
    "sample.prep_csv_file": "prep.csv",
    "training.output_path": "runs",
}
CONFIG = """\
global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5}
training:
  {batch_size: 4, num_epochs: 40, val_every: 40, learning_rate: 0.003, scheduler: one_cycle, precision: 32-true,
   device: cpu, workers: 0, augmentation: none, run_name: run}
"""
# A network without norms is trained with smaller steps.
WORDS = {"ternausnet": ["training.learning_rate=0.0003"], "unet": ["training.num_epochs=20", "training.val_every=20"]}
SUMS = {"boundary": "{cross_entropy: 1, boundary: 0.1}"}  # by itself it does not say which side is which


def iou_by_heart(folder: Path, *words: str) -> list[float]:
    make_store(folder / "data", trn=4, val=4, same=True)
    (folder / "config.yaml").write_text(CONFIG)
    assert train.main([str(folder / "config.yaml"), *words]) == 0
    ious: list[float] = read_model_spec(folder / "runs" / "run" / "best.safetensors").trained["iou"]
    return ious


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_learns_four_samples(tmp_path: Path, name: str) -> None:
    assert min(iou_by_heart(tmp_path, f"global.model_name={name}", *WORDS.get(name, []))) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_learns_four_samples(tmp_path: Path, loss: str) -> None:
    assert min(iou_by_heart(tmp_path, f"training.loss={SUMS.get(loss, loss)}")) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("word", ["label_smoothing=0.1", "hard_examples=0.25", "class_weights=auto"])
def test_what_changes_a_loss_still_learns(tmp_path: Path, word: str) -> None:
    assert min(iou_by_heart(tmp_path, f"training.{word}")) > 0.95


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_network_learns_four_samples(tmp_path: Path) -> None:
    """With the code that torch.compile generates; the suite takes it as far as the traced graph."""
    assert min(iou_by_heart(tmp_path, "global.model_name=unetsmall", "training.compile=true")) > 0.95


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's scenes, sampled; made ones where they cannot be downloaded."""
    folder = tmp_path_factory.mktemp("demo")
    demo_data.make_demo(folder)
    words = [f"{key}={folder / name}" for key, name in DEMO.items()]
    assert sample.main([str(ROOT / "config" / "demo.yaml"), *words, "sample.samples_dist=256"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_beats_the_majority_class_in_minutes(demo: Path, name: str) -> None:
    """A map of the majority class alone has its share of the pixels as IoU, and 0 for the other class."""
    store = open_store(demo / "data")
    pixels = store.info.class_pixels["val"]
    words = [f"{key}={demo / name}" for key, name in DEMO.items()]
    rate = 3e-4 if name == "ternausnet" else 2e-3  # it has no norm
    steps = ["training.batch_size=4", "training.num_epochs=2", "training.epoch_samples=192", "training.val_every=2"]
    settings = [*steps, f"training.run_name={name}", f"training.learning_rate={rate}", f"global.model_name={name}"]

    assert train.main([str(ROOT / "config" / "demo.yaml"), *words, *settings]) == 0

    ious = read_model_spec(demo / "runs" / name / "best.safetensors").trained["iou"]
    assert sum(ious) / 2 > max(pixels) / sum(pixels) / 2 + 0.1
