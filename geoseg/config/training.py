"""Rules of the keys that say how training samples are changed and what decides which epoch is best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from geoseg.config import yamltext
from geoseg.config.rules import RefusedError, Rule, nearest, resolve_path
from geoseg.errors import ConfigError, problem

PRESETS = ("none", "geometric", "light", "strong")
MONITORS = (
    "mean_iou",
    "mean_f1",
    "mean_precision",
    "mean_recall",
    "fw_iou",
    "accuracy",
    "kappa",
    "ece",
    "boundary_iou",
    "loss",
)
CLASS_MONITORS = ("iou", "f1", "precision", "recall")
_FILES = (".yaml", ".yml", ".json")


def augmentation_rule() -> Rule:
    """Return the rule of `training.augmentation`: a preset, or a pipeline as a file or as a mapping."""

    def convert(value: Any, folder: Path) -> str | Path | dict[str, Any]:
        if isinstance(value, Mapping):
            if not {"transform", "__class_fullname__"} & set(value):
                raise RefusedError("write it as albumentations' to_dict does, with `transform`")
            return dict(value)
        if isinstance(value, str) and value in PRESETS:
            return value
        if isinstance(value, str | Path) and str(value).lower().endswith(_FILES):
            path = resolve_path(value, folder, plain=True)
            if isinstance(path, Path):
                return path
        guess = nearest(value, PRESETS)
        raise RefusedError(f"did you mean {guess}?" if guess else "choose one of these, or name a .yaml file")

    return Rule(f"one of {', '.join(PRESETS)}, or a pipeline of albumentations: a YAML file or a mapping", convert)


def read_augmentation(value: str | Path | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Return the name of a preset or the mapping of a pipeline, read from its file if it has one.

    Raises:
        ConfigError: There is no such file, or it holds no mapping.
    """
    if not isinstance(value, Path):
        return value
    try:
        content = yamltext.parse(value.read_bytes())
    except (OSError, yaml.YAMLError, ValueError) as error:
        found = f"{value}, which cannot be read ({' '.join(str(error).split())})"
        raise ConfigError(problem("training.augmentation", found, "a pipeline in YAML", "correct it")) from error
    if not isinstance(content, Mapping):
        expected = "a pipeline as albumentations' save(..., data_format='yaml') writes it"
        raise ConfigError(problem("training.augmentation", f"{value} without a mapping", expected, "correct it"))
    return content


def monitor_rule() -> Rule:
    """Return the rule of `training.monitor`: a figure, or a figure of one class such as iou:roof."""

    def convert(value: Any, folder: Path) -> str:
        name, colon, wanted = str(value).partition(":")
        if isinstance(value, str) and (value in MONITORS or (name in CLASS_MONITORS and wanted.strip())):
            return f"{name}{colon}{wanted.strip()}"
        if name in CLASS_MONITORS:
            raise RefusedError(f"write {name}: and the name of a class, or mean_{name}")
        guess = nearest(value, MONITORS)
        raise RefusedError(f"did you mean {guess}?" if guess else "choose one of these")

    of_class = ", ".join(f"{name}:CLASS" for name in CLASS_MONITORS)
    return Rule(f"one of {', '.join(MONITORS)}, {of_class}", convert)
