"""The words that the config accepts are those that the code knows, and no key is accepted in vain."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest

from geoseg.config import Config, load_config
from geoseg.config import losses as config_losses
from geoseg.config import training as config_training
from geoseg.data.augment import AUGMENTATIONS
from geoseg.learn.classweights import CLASS_WEIGHTS
from geoseg.learn.losses import LOSSES, PIXEL_LOSSES
from geoseg.learn.optimise import OPTIMIZERS, SCHEDULES
from geoseg.learn.runtime import DEVICES, PRECISIONS
from geoseg.learn.validation import CLASS_MONITORS, MONITORS
from geoseg.models import MODELS
from geoseg.models.options import MODEL_OPTIONS
from geoseg.predict.outputs import OUTPUTS
from geoseg.predict.plan import BLENDINGS

PACKAGE = Path(__file__).resolve().parent.parent / "geoseg"


def accepted(section: str, key: str) -> set[str]:
    """Return the words in the rule of a key: 'one of a, b' or 'a list of a, b'."""
    model = typing.cast("type[typing.Any]", Config.model_fields[section].annotation)
    expected: str = model.model_fields[key].metadata[0].expected
    return set(re.sub(r"^(one of|a list of) ", "", expected).split(", "))


@pytest.mark.parametrize(
    ("section", "key", "known"),
    [
        ("training", "optimizer", OPTIMIZERS),
        ("training", "scheduler", SCHEDULES),
        ("training", "precision", PRECISIONS),
        ("training", "device", DEVICES),
        ("classification", "precision", PRECISIONS),
        ("classification", "device", DEVICES),
        ("classification", "outputs", OUTPUTS),
        ("classification", "blending", BLENDINGS),
        ("global_", "model_name", MODEL_OPTIONS),
    ],
)
def test_accepted_words_are_known_words(section: str, key: str, known: typing.Iterable[str]) -> None:
    assert accepted(section, key) == set(known)


def test_losses_options_and_class_weights_are_known() -> None:
    assert set(config_losses.LOSS_OPTIONS) == set(LOSSES)
    assert config_losses.PIXEL_LOSSES == PIXEL_LOSSES
    assert set(config_losses.CLASS_WEIGHTS) == set(CLASS_WEIGHTS)
    for name, options in config_losses.LOSS_OPTIONS.items():
        own = set(inspect.signature(LOSSES[name]).parameters) - {"logits", "label", "ignore_value", "weights"}
        assert own - {"smoothing", "hardest"} == set(options), name


def test_augmentations_and_monitors_are_known() -> None:
    assert set(config_training.PRESETS) == set(AUGMENTATIONS)
    assert set(config_training.MONITORS) == set(MONITORS)
    assert set(config_training.CLASS_MONITORS) == set(CLASS_MONITORS)


def test_every_model_that_can_be_built_has_options() -> None:
    assert set(MODELS) <= set(MODEL_OPTIONS)


@pytest.mark.parametrize("path", sorted((PACKAGE.parent / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_the_model_of_a_shipped_config_can_be_built(path: Path) -> None:
    assert load_config(path).global_.model_name in MODELS


def test_every_key_is_used() -> None:
    code = "\n".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if "config" not in path.relative_to(PACKAGE).parts
    )
    unused = []
    for name, field in Config.model_fields.items():
        model = typing.cast("type[typing.Any]", field.annotation)
        unused += [f"{name}.{key}" for key in model.model_fields if not re.search(rf"\b{key}\b", code)]
    assert unused == []
