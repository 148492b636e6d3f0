"""`python -m geoseg.train` with what a user may choose of losses, weights, sampling, augmentation and scores."""

from __future__ import annotations

import json
from pathlib import Path

import albumentations as A
import pytest
import yaml
from sample_store import make_store

from geoseg import train
from geoseg.config import load_config
from geoseg.data.store import open_store
from geoseg.learn.classweights import class_weights
from geoseg.learn.modelfile import read_model_spec
from geoseg.learn.records import read_metrics

CHOICES = """\
global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5}
training:
  batch_size: 3
  num_epochs: 1
  device: cpu
  workers: 0
  loss: {cross_entropy: 1.0, tversky: {weight: 0.5, alpha: 0.4}, boundary: 0.1}
  label_smoothing: 0.05
  hard_examples: 0.5
  class_weights: median
  batch_sampling: balanced
  epoch_samples: 4
  augmentation: own.yaml
  cutmix: 0.5
  monitor: iou:roof
  boundary_iou: 2
models: {unetsmall: {}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    make_store(tmp_path / "data")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(A.to_dict(A.Compose([A.Affine(rotate=(-30, 30), p=1.0)]))))
    path = tmp_path / "config.yaml"
    path.write_text(CHOICES)
    return path


def test_choices_reach_the_run_and_are_recorded_in_it(config: Path) -> None:
    assert train.main([str(config)]) == 0
    folder = config.parent / "runs" / "unetsmall"
    spec, row = read_model_spec(folder / "best.safetensors"), read_metrics(folder / "metrics.csv")[0]
    assert spec.trained["monitor"] == "iou:roof"
    assert spec.trained["score"] == spec.trained["iou"][1] == pytest.approx(row["val_iou_roof"])
    assert {"val_boundary_iou", "val_ece", "val_kappa", "val_recall_roof"} <= row.keys()
    counts = open_store(config.parent / "data").info.class_pixels["trn"]
    weights = class_weights("median", counts, [sum(counts)] * 2).tolist()  # every sample holds both classes
    assert spec.trained["class_weights"] == pytest.approx(weights)
    found = json.loads((folder / "validation.json").read_text())
    assert found["epoch"] == spec.trained["epoch"]
    assert found["iou"] == spec.trained["iou"]
    assert [entry["scene"] for entry in found["scenes"]] == ["val"]
    assert found["scenes"][0]["pixels"] == sum(map(sum, found["confusion"])) == 2 * 31 * 32  # the first row is unknown
    resolved = load_config(folder / "config.yaml").training
    assert resolved.class_weights == pytest.approx(tuple(weights), rel=1e-7)
    # The pipeline itself, not the name of a file that may change.
    assert isinstance(resolved.augmentation, dict)
    assert resolved.augmentation["transform"]["transforms"][0]["__class_fullname__"] == "Affine"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("training.monitor=iou:rof", "training.monitor: found iou:rof, expected iou: and one of background, roof"),
        ("training.monitor=ious", "training.monitor: found 'ious'"),
        ("training.augmentation=away.yaml", "away.yaml, which cannot be read"),
        ("training.augmentation=strng", "did you mean strong?"),
        ("training.augmentation={name: Affine}", "write it as albumentations' to_dict does"),
        ("training.batch_sampling=rare", "expected uniform, balanced, scenes or a column such as"),
    ],
)
def test_a_wrong_choice_is_answered_before_training(
    config: Path, capsys: pytest.CaptureFixture[str], words: str, text: str
) -> None:
    assert train.main([str(config), words]) == 2
    assert text in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    ["focal", "dice", "jaccard", "tversky", "lovasz", "{dice: 1, boundary: 0.1}", "{cross_entropy: 1, lovasz: 1}"],
)
def test_every_loss_learns_four_samples_by_heart(tmp_path: Path, loss: str) -> None:
    make_store(tmp_path / "data", trn=4, val=4, same=True)
    config = tmp_path / "config.yaml"
    config.write_text(
        "global: {samples_size: 32, num_classes: 2, number_of_bands: 2, seed: 5}\n"
        "training: {batch_size: 4, num_epochs: 40, val_every: 40, learning_rate: 0.003, scheduler: one_cycle,\n"
        f"  augmentation: none, device: cpu, workers: 0, loss: {loss}}}\n"
    )
    assert train.main([str(config)]) == 0
    assert read_model_spec(tmp_path / "runs" / "unetsmall" / "best.safetensors").trained["iou"][1] > 0.95
