"""Write docs/config.md from the config's schema; with --check, say whether the file is up to date."""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from geoseg.config import ClassEntry, Config, SplitEntry
from geoseg.config.rules import Rule
from geoseg.models.options import MODEL_OPTIONS

TARGET = Path(__file__).resolve().parent.parent / "docs" / "config.md"

_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))

INTRODUCTION = """\
# Config reference

<!-- Written by tools/make_config_docs.py from the schema in geoseg/config: do not edit, run `make docs`. -->

A config is a YAML file with the sections below. Every key has a default, so a file holds only what differs from it:
`config/minimal.yaml` is a start, and `config/` has a file per common job.

    python -m geoseg.COMMAND [CONFIG.yaml] [section.key=value ...] [--options]

- Without `CONFIG.yaml`, commands take `$GEOSEG_CONFIG`, else `./config.yaml`.
- `section.key=value` changes one key for one call; the value is YAML: `training.batch_size=4`,
  `global.bands=[3,2,1]`, `models.unet.dropout=true`, `training.run_name=` (null).
- Relative paths, also in overrides, are relative to the folder of the config file, not to the working directory.
  `~` and `$VARIABLES` are replaced. Where a path may be remote, `/vsi...`, `s3://...` and `https://...` are kept as
  they are.
- Unknown keys and keys that stand twice are refused. All problems of a file are reported together, one line each.
- Only `true` and `false` are booleans: `yes`, `no`, `on` and `off` are text. Numbers are decimal, `1e-4` is one, and
  a number with a leading zero (`010`) is not. Anchors, aliases and `<<` merges work.
- A default in *italics* follows from other keys. Every run saves the resolved config beside its results.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    options = parser.parse_args(argv)
    page = make_page()
    if options.check:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != page:
            print("docs/config.md is out of date: run `make docs`", file=sys.stderr)
        return int(current != page)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page, encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


def make_page() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    for name, field in Config.model_fields.items():
        section = typing.cast(type[BaseModel], field.annotation)
        if name != "models":
            parts += _section(field.alias or name, section)
        if name == "sample":
            parts += _section("sample.split", SplitEntry, "The section `sample.split`; a bare method is short for it.")
        if name == "global_":
            parts += _section(
                "global.classes", ClassEntry, "An entry of `global.classes`; a bare name is short for it."
            )
    parts.append(
        "## models\n\nOptions of each model; those of models that are not chosen are checked for form alone.\n"
    )
    for model, options in MODEL_OPTIONS.items():
        parts += _section(f"models.{model}", options, "", level=3)
    return "\n".join(parts)


def _section(title: str, model: type[BaseModel], text: str | None = None, level: int = 2) -> list[str]:
    introduction = (model.__doc__ or "").strip() if text is None else text
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    head = [f"{'#' * level} {title}", ""]
    if introduction:
        head += [introduction, ""]
    return [*head, "| key | default | accepts | meaning |", "|---|---|---|---|", *rows, ""]


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _default(field), _accepts(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "shown" in extra:
        return f"*{extra['shown']}*"
    value = field.default
    plain = list(value) if isinstance(value, tuple) else value
    return f"`{yaml.safe_dump(plain, default_flow_style=True, sort_keys=False).removesuffix('...' + chr(10)).strip()}`"


def _accepts(field: FieldInfo) -> str:
    rules = [rule for rule in field.metadata if isinstance(rule, Rule)]
    if rules:
        return rules[0].expected + (", or null" if rules[0].optional else "")
    limits = [
        f"{words} {getattr(limit, name)}" for limit in field.metadata for name, words in _LIMITS if hasattr(limit, name)
    ]
    words = _words(field.annotation)
    null = [word for word in words if word == "null"]
    return ", ".join(dict.fromkeys([*(word for word in words if word != "null"), *limits, *null]))


def _words(annotation: Any) -> list[str]:
    """Return what a plain annotation accepts, in words."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in typing.get_args(annotation)]
    if origin in (typing.Union, UnionType):
        return [word for part in typing.get_args(annotation) for word in _words(part)]
    if origin is typing.Annotated:
        return _words(typing.get_args(annotation)[0])
    if origin is tuple:
        return ["a list of numbers"]
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return [names.get(annotation, "null")]


if __name__ == "__main__":
    raise SystemExit(main())
