"""`section.key=value` items laid over a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from geoseg.config import Config, load_config
from geoseg.errors import ConfigError

CONFIG = """\
global:
  classes: [a, {name: b}]
models:
  unet: &u {dropout: false, probability: 0.3}
  unetsmall: *u
  checkpointed_unet: {<<: *u}
"""


def load(tmp_path: Path, *overrides: str) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return load_config(path, overrides)


def problem(tmp_path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *overrides)
    (line,) = caught.value.problems
    return line


def test_values_are_yaml(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "training.batch_size=4",
        "training.learning_rate=1e-3",
        "training.class_weights=[1, 2.5]",
        "global.bands=3,2,1",
        "training.run_name='12'",
        "training.resume=true",
        "sample.ignore_values=[x, 3]",
    )
    assert config.training.batch_size == 4
    assert config.training.learning_rate == 0.001
    assert config.training.class_weights == (1.0, 2.5)
    assert config.global_.bands == (3, 2, 1)
    assert config.training.run_name == "12"
    assert config.training.resume is True
    assert config.sample.ignore_values == ("x", 3)


def test_an_empty_value_is_null(tmp_path: Path) -> None:
    assert load(tmp_path, "training.run_name=x", "training.run_name=").training.run_name == "unetsmall"


def test_the_last_override_of_a_key_wins(tmp_path: Path) -> None:
    assert load(tmp_path, "training.batch_size=4", "training.batch_size=5").training.batch_size == 5


def test_a_deep_path_changes_that_place_alone(tmp_path: Path) -> None:
    models = load(tmp_path, "models.unet.dropout=true").models
    assert (models.unet.dropout, models.unet.probability) == (True, 0.3)
    assert not models.unetsmall.dropout
    assert not models.checkpointed_unet.dropout
    assert models.checkpointed_unet.probability == 0.3


def test_an_item_of_a_list_can_be_changed(tmp_path: Path) -> None:
    classes = load(tmp_path, "global.classes.1.name=c").global_.classes
    assert classes is not None
    assert [entry.name for entry in classes] == ["a", "c"]


def test_text_that_yaml_would_refuse_stays_text(tmp_path: Path) -> None:
    config = load(tmp_path, "classification.images=*.tif", "training.run_name=a=b")
    assert config.classification.images == (tmp_path / "*.tif",)
    assert config.training.run_name == "a=b"


@pytest.mark.parametrize(
    ("item", "start"),
    [
        (
            "training.batch_size=0",
            "override training.batch_size: found 0, expected a whole number of at least 1 or auto",
        ),
        ("training.batchsize=1", "override training.batchsize: found an unknown key, expected one of output_path"),
        ("models.unet.dropout=yes", "override models.unet.dropout: found 'yes', expected true or false; write true"),
        ("trainin.batch_size=1", "override trainin.batch_size: found an unknown section 'trainin', expected one of"),
        ("batch_size=1", "override batch_size: found 'batch_size=1', expected section.key=value"),
        ("training.=1", "override training.: found 'training.=1', expected section.key=value"),
        ("training.batch_size=[1", "override training.batch_size: found '[1' (line 1"),
        ("training.class_weights=[1, 2, 3]", "override training.class_weights: found 3 weights, expected 2"),
        ("global.num_classes=3", "override global.num_classes: found 3, but 2 entries in global.classes"),
        ("global.ignore_value=1", "override global.ignore_value: found 1, the id of a class"),
        ("global.classes.5.name=x", "override global.classes.5.name: found [a, a section with name]"),
        ("global.samples_size.x=1", "override global.samples_size: found a section with x, expected a whole number"),
    ],
)
def test_a_wrong_override_is_shown_as_an_override(tmp_path: Path, item: str, start: str) -> None:
    line = problem(tmp_path, item)
    assert line.startswith(start.replace("[a, ", "['a', "))


def test_an_override_can_mend_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("training: {batch_size: none}")
    assert load_config(path, ["training.batch_size=2"]).training.batch_size == 2
