"""YAML as geoseg reads and writes it: no key twice, and nothing turned silently into something else.

PyYAML follows YAML 1.1, where `no` is false, `010` is 8, `1:30` is 90, `2024-01-01` is a date and `1e-4` is text.
Here only true and false (True, TRUE ...) are booleans, numbers are decimal, `1e-4` is a number, and all else is text.
Anchors, aliases and `<<` merges work as usual.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_RESOLVERS = (
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    (_MERGE, r"<<", "<"),
)


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A key stands twice in one mapping."""

    def __init__(self, key: object, first: yaml.Mark, second: yaml.Mark) -> None:
        self.key = key
        self.lines = (first.line + 1, second.line + 1)
        super().__init__(problem=f"key {key!r} twice, lines {self.lines[0]} and {self.lines[1]}", problem_mark=second)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own way of holding them)

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self._checked:
            # Only once: after merging, a mapping rightly holds the merged keys before its own of the same name.
            self._checked.add(id(node))
            self._refuse_duplicates(node)
        super().flatten_mapping(node)

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: dict[object, yaml.Mark] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not text; quote it", key_node.start_mark
                )
            if key in seen:
                raise DuplicateKeyError(key, seen[key], key_node.start_mark)
            seen[key] = key_node.start_mark

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        try:
            return int(text)  # decimal: YAML 1.1 would read a leading zero as octal and colons as base 60
        except ValueError:
            raise yaml.constructor.ConstructorError(None, None, f"{text!r} is not a number", node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {  # noqa: RUF012
        first: list(resolvers) for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))
    # The writer keeps YAML 1.1's list too: text that either reading would take for something else is quoted.
    _Dumper.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse(text: str | bytes) -> Any:
    """Return the plain values of a YAML document; None if it is empty.

    Aliased parts are copied, so that changing one leaves the others alone.

    Raises:
        yaml.YAMLError: The text is not YAML, or a key stands twice (`DuplicateKeyError`).
        ValueError: A value contains itself.
    """
    return _plain(yaml.load(text, _Loader), ())


def render(values: Any) -> str:
    """Return plain values as YAML text that `parse` reads back to equal values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def explain(error: yaml.YAMLError) -> tuple[str, str]:
    """Return what a YAML error found, with its line, and the remedy."""
    if isinstance(error, DuplicateKeyError):
        return f"the key {error.key!r} twice (lines {error.lines[0]} and {error.lines[1]})", "remove one of them"
    if not isinstance(error, yaml.MarkedYAMLError):
        return "characters that are not UTF-8 text", "save the file as UTF-8"
    mark = error.problem_mark or error.context_mark
    line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    remedy = "correct the line; text with any of : # { } [ ] * & ! % @ ` needs quotes"
    if "\\t" in str(error.problem):
        remedy = "indent with spaces, not tabs"
    return f"{line}{error.problem or error.context}", remedy


def _plain(value: Any, parents: tuple[int, ...]) -> Any:
    if isinstance(value, dict | list):
        if id(value) in parents:
            raise ValueError("a value that contains itself")
        inner = (*parents, id(value))
        if isinstance(value, dict):
            return {key: _plain(item, inner) for key, item in value.items()}
        return [_plain(item, inner) for item in value]
    return value
