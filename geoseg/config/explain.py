"""What pydantic refused, said in the words of the config: key, found, expected, remedy."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from geoseg.config.rules import BOOLEAN_HINTS, nearest
from geoseg.errors import problem

KeyPath = tuple[str | int, ...]

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    "value_error": "{error}",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
}


@dataclass(frozen=True)
class Trouble:
    """One problem with the settings.

    Attributes:
        path: The key, from the section down.
        found: What is there.
        expected: What is accepted.
        remedy: What to do.
        involved: For a conflict between keys, all of them.
    """

    path: KeyPath
    found: str
    expected: str
    remedy: str
    involved: tuple[KeyPath, ...] = ()


def line(trouble: Trouble, label: str, overridden: set[KeyPath]) -> str:
    """Return the line shown to the user; keys set by an override are shown as such instead of with the file."""
    paths = (trouble.path, *trouble.involved)
    by_override = any(path[: len(key)] == key[: max(len(path), 2)] for path in paths for key in overridden)
    where = f"override {dotted(trouble.path)}" if by_override else f"{label}: {dotted(trouble.path)}"
    return problem(where, trouble.found, trouble.expected, trouble.remedy)


def dotted(path: KeyPath) -> str:
    """Return a key path as the user writes it: 'global.classes[0].name'."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def shown(value: Any) -> str:
    """Return a value as it may stand in a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        keys = ", ".join(map(str, value))
        return f"a section with {_cut(keys)}" if keys else "an empty section"
    if isinstance(value, list | tuple):
        return _cut(f"[{', '.join(shown(item) for item in value)}]")
    return _cut(f"'{value}'" if isinstance(value, str | Path) else repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def explain_details(
    details: Sequence[Any], values: dict[str, Any], root: type[BaseModel]
) -> tuple[list[Trouble], set[KeyPath]]:
    """Return the problems in pydantic's details, and the paths of the keys in `values` that hold them."""
    by_path: dict[KeyPath, list[Any]] = {}
    for detail in details:
        by_path.setdefault(_display_path(detail, values), []).append(detail)
    troubles = [_explain(path, group, root) for path, group in by_path.items()]
    return troubles, {_holder(values, path) for path in by_path}


def _display_path(detail: Any, values: Any) -> KeyPath:
    """Return the location without the names that pydantic adds for the branches of a union."""
    location: KeyPath = detail["loc"]
    if detail["type"] in ("missing", "extra_forbidden"):
        return location
    known: list[str | int] = []
    for part in location:
        in_mapping = isinstance(values, Mapping) and part in values
        in_list = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if not in_mapping and not in_list:
            break
        known.append(part)
        values = values[part]
    return tuple(known) or location


def _holder(values: Any, path: KeyPath) -> KeyPath:
    """Return the deepest mapping key on the path: a bad item is removed with its whole list."""
    held: list[str | int] = []
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            break
        held.append(part)
        values = values[part]
    return tuple(held)


def _explain(path: KeyPath, details: list[Any], root: type[BaseModel]) -> Trouble:
    detail = details[0]
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, root)
    if kind == "missing":
        return Trouble(path, "no such key", "this key in every entry", "add it")
    if kind == "rule":
        return Trouble(path, shown(value), context["expected"], context["remedy"])
    field = _field_at(root, path)
    if len(details) > 1 and field is not None and field.description:
        expected = field.description.rstrip(".")
        return Trouble(path, shown(value), expected[0].lower() + expected[1:], "change the value")
    expected = _EXPECTED.get(kind, detail["msg"]).format(**context)
    remedy = "change the value"
    if kind == "bool_type":
        hint = BOOLEAN_HINTS.get(str(value).lower())
        remedy = f"write {hint}" if hint else "write true or false, without quotes"
    return Trouble(path, shown(value), expected, remedy)


def _unknown_key(path: KeyPath, root: type[BaseModel]) -> Trouble:
    name = str(path[-1])
    owner = _model_at(root, path[:-1])
    known = key_names(owner) if owner else []
    found = "an unknown section" if len(path) == 1 else "an unknown key"
    homes = [section for section in key_names(root) if name in key_names(_model_at(root, (section,)))]
    guess = nearest(name, known)
    if homes and len(path) <= 2:
        remedy = f"it belongs in {' or '.join(homes)}"
    elif guess:
        remedy = f"did you mean {guess}?"
    else:
        remedy = "remove it"
    return Trouble(path, found, f"one of {', '.join(known)}", remedy)


def key_names(model: type[BaseModel] | None) -> list[str]:
    """Return the names of a section's keys as the user writes them."""
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _field_at(root: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    names = [part for part in path if isinstance(part, str)]
    owner = _model_at(root, tuple(names[:-1]))
    if owner is None or not names:
        return None
    return next((f for name, f in owner.model_fields.items() if names[-1] in (name, f.alias)), None)


def _model_at(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, int):
            continue
        if model is None:
            return None
        fields = [f for name, f in model.model_fields.items() if part in (name, f.alias)]
        model = _inner_model(fields[0].annotation) if fields else None
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_inner_model(part) for part in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)
