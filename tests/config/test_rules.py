"""What single keys accept and refuse, through the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geoseg.config import load_config
from geoseg.config.rules import resolve_path
from geoseg.errors import ConfigError


def value_of(tmp_path: Path, key: str, written: str) -> Any:
    section, name = key.split(".")
    path = tmp_path / "c.yaml"
    path.write_text(f"{section}:\n  {name}: {written}\n")
    config = load_config(path)
    return getattr(getattr(config, "global_" if section == "global" else section), name)


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("training.batch_size", "1e2", 100),
        ("training.batch_size", "'12'", 12),
        ("training.batch_size", "auto", "auto"),
        ("training.num_trn_samples", "null", None),
        ("training.weight_decay", "0", 0.0),
        ("training.gamma", "1", 1.0),
        ("training.class_weights", "False", False),
        ("training.class_weights", "auto", "auto"),
        ("training.class_weights", "1, 0.5", (1.0, 0.5)),
        ("training.class_weights", "median", "median"),
        ("training.loss", "lovasz", "lovasz"),
        ("training.loss", "{cross_entropy: 1, dice: '5e-1'}", {"cross_entropy": 1.0, "dice": 0.5}),
        ("training.loss", "{focal: {gamma: 3}}", {"focal": {"gamma": 3.0}}),
        ("training.run_name", "2024-01-01", "2024-01-01"),
        ("training.run_name", "no", "no"),
        ("training.run_name", "010", "010"),
        ("training.workers", "0", 0),
        ("global.bands", "1,2,3", (1, 2, 3)),
        ("global.bands", "[1, 2, 3]", (1, 2, 3)),
        ("global.bands", "['2', red]", (2, "red")),
        ("global.bands", "nir, red", ("nir", "red")),
        ("global.bands", "red", ("red",)),
        ("global.ignore_value", "2", 2),
        ("global.num_classes", "255", 255),
        ("sample.ignore_values", "9", (9,)),
        ("sample.ignore_values", "cloud", ("cloud",)),
        ("classification.outputs", "classes, confidence", ("classes", "confidence")),
        ("classification.outputs", "[classes, classes]", ("classes",)),
        ("sample.remove_background", "TRUE", True),
    ],
)
def test_accepted(tmp_path: Path, key: str, written: str, value: object) -> None:
    accepted = value_of(tmp_path, key, written)
    assert accepted == value
    assert type(accepted) is type(value)


@pytest.mark.parametrize(
    ("key", "written", "words"),
    [
        ("training.batch_size", "010", ["'010'", "write 10 without the leading zero"]),
        ("training.batch_size", "1:30", ["'1:30'", "a whole number of at least 1 or auto"]),
        ("training.batch_size", "2.5", ["found 2.5", "write a whole number"]),
        ("training.batch_size", "true", ["found true", "write a number"]),
        ("training.batch_size", "", ["found nothing"]),
        ("training.batch_size", "-1", ["found -1"]),
        ("training.batch_size", "Auto", ["found 'Auto'", "or auto"]),
        ("training.learning_rate", "0", ["found 0", "a number above 0"]),
        ("training.learning_rate", ".nan", ["found nan", "a number above 0"]),
        ("training.learning_rate", ".inf", ["found inf"]),
        ("training.learning_rate", "fast", ["'fast'", "1e-4"]),
        ("training.learning_rate", "true", ["found true"]),
        ("training.gamma", "1.5", ["at most 1"]),
        ("training.resume", "yes", ["'yes'", "write true"]),
        ("training.resume", "off", ["'off'", "write false"]),
        ("training.resume", "1", ["found 1", "without quotes"]),
        ("training.resume", "'true'", ["'true'", "without quotes"]),
        ("training.optimizer", "addam", ["'addam'", "adam, adamw, sgd", "did you mean adam?"]),
        ("training.device", "gpu", ["'gpu'", "auto, cpu, cuda"]),
        ("training.run_name", "12", ["found 12", 'put it in quotes: "12"']),
        ("training.run_name", "a/b", ["'a/b'", "a folder name"]),
        ("training.run_name", "..", ["'..'"]),
        ("training.run_name", "' '", ["' '"]),
        ("training.output_path", "", ["found nothing", "write a path"]),
        ("training.output_path", "3", ["found 3", "write a path"]),
        ("training.class_weights", "true", ["found true", "false, auto, or a list"]),
        ("training.class_weights", "[1, -1]", ["0 or more"]),
        ("training.class_weights", "[0, 0]", ["not all 0"]),
        ("training.class_weights", "[1, x]", ["write a number"]),
        ("training.class_weights", "[1, 2, 3]", ["3 weights", "2, one per class"]),
        ("training.class_weights", "medain", ["did you mean median?"]),
        ("training.loss", "dize", ["did you mean dice?"]),
        ("training.loss", "boundary", ["add another loss"]),
        ("training.loss", "{boundary: 1}", ["another loss beside it"]),
        ("training.loss", "{}", ["{cross_entropy: 1, dice: 0.5}"]),
        ("training.loss", "[dice]", ["{cross_entropy: 1, dice: 0.5}"]),
        ("training.loss", "{dice: 0}", ["the weight of dice must be above 0"]),
        ("training.loss", "{dice: {weigth: 1}}", ["for dice: did you mean weight?"]),
        ("training.loss", "{focal: {gamma: 0.5}}", ["gamma of focal must be at least 1"]),
        ("training.loss", "{tversky: {beta: 0}}", ["beta of tversky must be above 0"]),
        ("training.label_smoothing", "1", ["at most 0.9"]),
        ("training.hard_examples", "0", ["above 0"]),
        ("global.bands", "[0, 1, 2]", ["numbering starts at 1", "add 1 to each"]),
        ("global.bands", "0,1", ["numbering starts at 1"]),
        ("global.bands", "[1, 1]", ["name band 1 once"]),
        ("global.bands", "[1, '1']", ["name band 1 once"]),
        ("global.bands", "[-1]", ["found [-1]"]),
        ("global.bands", "[]", ["leave the key out"]),
        ("global.bands", "3", ["write [3] for band 3, or number_of_bands: 3"]),
        ("global.bands", "{a: 1}", ["found a section with a"]),
        ("global.bands", "1,,2", ["'1,,2'"]),
        ("global.num_classes", "1", ["from 2 to 255"]),
        ("global.num_classes", "256", ["from 2 to 255"]),
        ("global.ignore_value", "-1", ["from 0 to 255"]),
        ("global.ignore_value", "256", ["from 0 to 255"]),
        ("global.ignore_value", "0", ["the id of a class", "outside 0 to 1"]),
        ("global.classes", "[true, no]", ["class names are text: put true in quotes"]),
        ("global.classes", "[1, 2]", ["put 1 in quotes"]),
        ("global.classes", "[a]", ["2 to 255 classes, background first"]),
        ("global.classes", "{a: 1, b: 2}", ["such as [background, {name: building, value: 1}]"]),
        ("global.classes", "[a, a]", ["'a' 2 times"]),
        ("global.classes", "[a, {name: b, colour: red}]", ["classes[1].colour", "'#1f77b4'"]),
        ("global.classes", "[a, {value: 3}]", ["classes[1].name", "no such key"]),
        ("global.classes", "[a, {name: b, value: true}]", ["classes[1].value", "put true in quotes"]),
        ("global.classes", "[a, {name: b, value: 1.5}]", ["classes[1].value", "1.5"]),
        ("global.classes", "[{name: a, value: 1}, {name: b, value: [2, 1]}]", ["the value 1 in two classes"]),
        ("sample.workers", "0", ["from 1 to 1024 or auto"]),
        ("sample.unmapped", "drop", ["error, ignore, background"]),
        ("classification.outputs", "[]", ["name at least one"]),
        ("classification.outputs", "[probability]", ["did you mean probabilities?"]),
        ("classification.images", "[]", ["name at least one"]),
    ],
)
def test_refused(tmp_path: Path, key: str, written: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        value_of(tmp_path, key, written)
    (line,) = caught.value.problems
    assert f": {key}" in line
    assert all(word in line for word in words), line


def test_quoted_and_plain_words_are_class_names(tmp_path: Path) -> None:
    entries = value_of(tmp_path, "global.classes", "[yes, no, off, 010, 'true', '3']")
    assert [entry.name for entry in entries] == ["yes", "no", "off", "010", "true", "3"]


def test_class_entries_keep_their_values(tmp_path: Path) -> None:
    written = "[bg, {name: x, value: 7}, {name: y, value: '07'}, {name: z, value: [8, nine], colour: '#A0b1C2'}]"
    entries = value_of(tmp_path, "global.classes", written)
    assert [entry.value for entry in entries] == [None, 7, "07", (8, "nine")]
    assert entries[3].colour == "#A0b1C2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("global: {num_classes: 5, classes: [a, b, c, d]}", ["global.num_classes", "5, but 4 entries", "background"]),
        ("global: {number_of_bands: 4, bands: [1, 2]}", ["global.number_of_bands", "4, but 2 bands"]),
        (
            "global: {classes: [a, {name: b, value: 3}]}\nsample: {ignore_values: [3]}",
            ["sample.ignore_values", "3, the value of a class"],
        ),
        ("training: {loss: dice, label_smoothing: 0.1}", ["training.label_smoothing: found 0.1 for loss dice"]),
        (
            "training: {loss: {dice: 1, lovasz: 1}, hard_examples: 0.5}",
            ["training.hard_examples: found 0.5 for loss dice + lovasz", "cross_entropy or focal"],
        ),
        (
            "global: {classes: [a, b, c]}\ntraining: {class_weights: [1, 2]}",
            ["training.class_weights", "2 weights", "expected 3"],
        ),
        (
            "training: {warmup_epochs: 5, num_epochs: 5}",
            ["training.warmup_epochs: found 5", "fewer than num_epochs (5)"],
        ),
        ("training: {warmup_epochs: 1, scheduler: one_cycle}", ["training.warmup_epochs", "a rise of its own"]),
        ("training: {sync_batchnorm: true, device: cpu}", ["training.sync_batchnorm", "several processes"]),
        (
            "global: {model_name: reversible_unet}\ntraining: {compile: true}",
            ["training.compile", "true with reversible_unet", "run again in the backward pass"],
        ),
        ("global: {classes: [a, b, c], ignore_value: 2}", ["global.ignore_value", "outside 0 to 2"]),
    ],
)
def test_conflicts_between_keys(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (line,) = caught.value.problems
    assert all(word in line for word in words), line


def test_a_learning_rate_is_a_number_or_auto_and_parts_to_freeze_are_names(tmp_path: Path) -> None:
    assert value_of(tmp_path, "training.learning_rate", "auto") == "auto"
    assert value_of(tmp_path, "training.learning_rate", "1e-3") == 0.001
    assert value_of(tmp_path, "training.freeze", "encoder") == ("encoder",)
    assert value_of(tmp_path, "training.freeze", "[encoder, 'head.*']") == ("encoder", "head.*")
    assert value_of(tmp_path, "training.clip_norm", "null") is None
    for key, written in (("learning_rate", "fast"), ("ema", "1"), ("freeze", "[1]")):
        with pytest.raises(ConfigError, match=f"training.{key}"):
            value_of(tmp_path, f"training.{key}", written)


def test_keys_that_agree_are_no_conflict(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "global: {classes: [a, b, c], num_classes: 3, bands: [1, 4], number_of_bands: 2, ignore_value: 3}\n"
        "training: {class_weights: [1, 1, 0]}\nsample: {ignore_values: [3]}\n"
    )
    config = load_config(path)
    assert config.global_.ignore_value == 3
    assert config.training.class_weights == (1.0, 1.0, 0.0)


def test_names_of_images_may_be_several_files_or_parts_of_one(tmp_path: Path) -> None:
    (tmp_path / "a|b").mkdir()
    assert resolve_path("x.tif|https://h/y.tif", tmp_path) == f"{tmp_path}/x.tif|https://h/y.tif"
    assert resolve_path("netcdf:cube.nc:v", tmp_path) == "netcdf:cube.nc:v"
    (tmp_path / "cube.nc").touch()
    assert resolve_path("netcdf:cube.nc:v", tmp_path) == f'netcdf:"{tmp_path}/cube.nc":v'
    assert resolve_path("a|b", tmp_path) == tmp_path / "a|b"
    assert resolve_path("run:1", tmp_path, plain=True) == tmp_path / "run:1"
