"""From a YAML file and overrides to a checked, resolved Config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from geoseg.config import yamltext
from geoseg.config.checks import find_conflicts
from geoseg.config.explain import KeyPath, Trouble, explain_details, key_names, line
from geoseg.config.overrides import apply_overrides, rename_inference
from geoseg.config.root import Config
from geoseg.config.schema import Section
from geoseg.config.splits import overlap_pixels
from geoseg.errors import ConfigError, problem

AnySection = TypeVar("AnySection", bound=Section)
_REMOVED = object()


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Return the settings of a YAML file with overrides applied, checked and resolved.

    Args:
        path: The file; None for the defaults, with paths relative to the working directory.
        overrides: Items such as 'training.batch_size=4'; the value is YAML. Relative paths in them, too, are
            relative to the config file.

    Raises:
        ConfigError: With one line per problem, all of them: file, key, what was found, what was expected, remedy.
    """
    label = "config" if path is None else str(path)
    values: Any = {} if path is None else _read(Path(path).expanduser(), label)
    folder = Path.cwd() if path is None else Path(os.path.normpath(Path(path).expanduser().absolute())).parent
    troubles: list[Trouble] = []
    if not isinstance(values, dict):
        found = "a list" if isinstance(values, list) else "text" if isinstance(values, str) else "a single value"
        raise ConfigError(problem(label, found, "sections such as global: and training:", "see docs/config.md"))
    values = rename_inference(values, troubles)
    overridden = apply_overrides(values, overrides, troubles, key_names(Config))
    for name in key_names(Config):
        values[name] = {} if values.get(name) is None else values[name]
    config = _check(values, folder, troubles)
    if troubles or config is None:
        lines = [line(trouble, label, overridden) for trouble in troubles]
        raise ConfigError(list(dict.fromkeys(lines)))
    return config


def _read(path: Path, label: str) -> Any:
    try:
        values = yamltext.parse(path.read_bytes())
    except FileNotFoundError:
        tried = path.absolute()
        raise ConfigError(problem(label, f"no file {tried}", "a YAML config", "correct the path")) from None
    except OSError as error:
        found = f"a file that cannot be read ({error.strerror})"
        raise ConfigError(problem(label, found, "a YAML config", f"see {path.absolute()}")) from None
    except yaml.YAMLError as error:
        found, remedy = yamltext.explain(error)
        raise ConfigError(problem(label, found, "YAML with each key once", remedy)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(problem(label, str(error), "plain values", "remove the reference to itself")) from None
    return {} if values is None else values


def _check(values: dict[str, Any], folder: Path, troubles: list[Trouble]) -> Config | None:
    """Return the Config, or None if there is none; adds to `troubles`.

    What pydantic refuses is left out, so that the rest can be checked key against key in the same run.
    """
    bad: set[KeyPath] = set()
    while True:
        try:
            config = _derive(Config.model_validate(values, context={"folder": folder}))
            break
        except ValidationError as error:
            found, paths = explain_details(error.errors(include_url=False), values, Config)
            troubles.extend(found)
            removed = [_remove(values, path) for path in paths]
            if not all(removed):
                return None
            bad |= paths
    troubles.extend(trouble for trouble in find_conflicts(config) if not bad & set(trouble.involved))
    return config


def _remove(values: dict[str, Any], path: KeyPath) -> bool:
    """Take a key out of nested values; a section becomes empty. Return whether anything changed."""
    if not path:
        return False
    for part in path[:-1]:
        values = values[str(part)]
    if len(path) == 1 and path[0] in key_names(Config):
        changed = values.get(str(path[0])) != {}
        values[str(path[0])] = {}
        return changed
    return values.pop(str(path[-1]), _REMOVED) is not _REMOVED


def _derive(config: Config) -> Config:
    """Return the config with the defaults that follow from other keys filled in."""
    shared, sample, training = config.global_, config.sample, config.training
    classification, evaluation = config.classification, config.evaluation
    counts = {
        "num_classes": _first(shared.num_classes, len(shared.classes or (0, 0))),
        "number_of_bands": _first(shared.number_of_bands, len(shared.bands) if shared.bands else None),
    }
    run_name = _first(training.run_name, shared.model_name)
    weights = _first(classification.state_dict_path, training.output_path / run_name / "best.safetensors")
    maps = _first(evaluation.maps, classification.output_path)
    evaluated = {
        "prep_csv_file": _first(evaluation.prep_csv_file, sample.prep_csv_file),
        "maps": maps,
        "output_path": _first(evaluation.output_path, maps / "evaluation"),
    }
    stride = _first(sample.samples_dist, shared.samples_size - overlap_pixels(sample.overlap or 0, shared.samples_size))
    return _filled(
        config,
        {
            "global_": _filled(shared, counts),
            "sample": _filled(sample, {"samples_dist": stride}),
            "training": _filled(training, {"run_name": run_name}),
            "classification": _filled(classification, {"state_dict_path": weights}),
            "evaluation": _filled(evaluation, evaluated),
        },
    )


def _filled(section: AnySection, values: dict[str, Any]) -> AnySection:
    """Return a section with derived values, which do not count as said by the user (`model_fields_set`).

    `classify` compares with the model file what the user said, and nothing else.
    """
    return type(section).model_construct(_fields_set=section.model_fields_set, **{**vars(section), **values})


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value
