"""Items such as `training.batch_size=4`, laid over the values of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from geoseg.config import yamltext
from geoseg.config.explain import KeyPath, Trouble, shown
from geoseg.config.rules import nearest


def rename_inference(values: dict[str, Any], troubles: list[Trouble]) -> dict[str, Any]:
    """Return the values with the section `inference` under its other name, `classification`."""
    if "inference" not in values:
        return values
    if values.get("classification"):
        troubles.append(
            Trouble(
                ("inference",),
                "the sections inference and classification",
                "one of them: they are two names of one section",
                "move the keys into classification",
            )
        )
        return {name: value for name, value in values.items() if name != "inference"}
    renamed = dict(values)
    renamed["classification"] = renamed.pop("inference")
    return renamed


def apply_overrides(
    values: dict[str, Any], overrides: Sequence[str], troubles: list[Trouble], sections: Sequence[str]
) -> set[KeyPath]:
    """Put overrides into `values`; return the paths they set.

    A path may go deep (`models.unet.dropout=true`, `global.classes.0.name=soil`). The last override of a key wins.
    """
    paths: set[KeyPath] = set()
    for item in overrides:
        written, equals, value_text = item.partition("=")
        parts = tuple(written.strip().split("."))
        if not equals or len(parts) < 2 or not all(parts):
            found = f"'{item}'"
            troubles.append(Trouble((written or item,), found, "section.key=value", "name the section and the key"))
            paths.add((written or item,))
            continue
        path: KeyPath = ("classification", *parts[1:]) if parts[0] == "inference" else parts
        try:
            value = _parse_value(value_text)
        except (yaml.YAMLError, ValueError) as error:
            reason = yamltext.explain(error)[0] if isinstance(error, yaml.YAMLError) else str(error)
            troubles.append(Trouble(path, f"'{value_text}' ({reason})", "a YAML value", "put the value in quotes"))
            paths.add(path)
            continue
        paths.add(path)
        trouble = _unknown_section(path, sections) or _put(values, path, value)
        if trouble is not None:
            troubles.append(trouble)
    return paths


def _unknown_section(path: KeyPath, sections: Sequence[str]) -> Trouble | None:
    if path[0] in sections:
        return None
    guess = nearest(path[0], sections)
    remedy = f"did you mean {guess}?" if guess else "name one of these"
    return Trouble(path, f"an unknown section '{path[0]}'", f"one of {', '.join(sections)}", remedy)


def _parse_value(text: str) -> Any:
    try:
        return yamltext.parse(text)
    except yaml.YAMLError:
        if text.lstrip()[:1] in ("[", "{", '"', "'"):
            raise
        return text  # such as *.tif: a mark of YAML in a file, plain text on a command line


def _put(values: Any, path: KeyPath, value: Any) -> Trouble | None:
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(values, list) and str(part).isdigit() and int(part) < len(values):
            part = int(part)
        elif not isinstance(values, dict):
            remedy = "give the whole value, or set it in the file first"
            return Trouble(path, f"{shown(values)} at {'.'.join(map(str, path[:depth]))}", "a section there", remedy)
        elif not last and values.get(part) is None:
            values[part] = {}
        if last:
            values[part] = value
        else:
            values = values[part]
    return None
