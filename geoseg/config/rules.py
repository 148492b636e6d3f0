"""Rules for single values: what a key accepts, in words for the user and in code, in one place."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_REMOTE = re.compile(r"^(/vsi[a-z0-9_]+/|[A-Za-z][A-Za-z0-9+.-]+://)")
_PART = re.compile(r'^([A-Za-z][A-Za-z0-9_]+):"?([^":|]+)"?(:.*)?$')
_STACK = "|"
_WHOLE_TEXT = re.compile(r"^[-+]?(0|[1-9][0-9]*)$")
#: What people write for a boolean, and what to write instead.
BOOLEAN_HINTS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


class RefusedError(Exception):
    """A value does not keep a rule; holds the remedy."""


@dataclass(frozen=True)
class Rule:
    """What a key accepts.

    Attributes:
        expected: The accepted values, in words.
        convert: Returns the value to keep, or raises RefusedError. The second argument is the folder of the config.
        optional: Whether null is accepted.
    """

    expected: str
    convert: Callable[[Any, Path], Any]
    optional: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make pydantic call the rule before its own check of the type."""
        return core_schema.with_info_wrap_validator_function(self._validate, handler(source))

    def _validate(self, value: Any, inner: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if value is None and self.optional:
            return None
        folder = (info.context or {}).get("folder") or Path.cwd()
        try:
            converted = self.convert(value, folder)
        except RefusedError as refused:
            context = {"expected": self.expected, "remedy": str(refused)}
            raise PydanticCustomError("rule", "{expected}; {remedy}", context) from None
        return inner(converted)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word most like `word`, or None if none is alike."""
    plain = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(str(word).lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def switch() -> Rule:
    """Return the rule of a key that is true or false."""

    def convert(value: Any, folder: Path) -> bool:
        if isinstance(value, bool):
            return value
        hint = BOOLEAN_HINTS.get(str(value).lower())
        raise RefusedError(f"write {hint}" if hint else "write true or false, without quotes")

    return Rule("true or false", convert)


def whole(low: int, high: int | None = None, words: tuple[str, ...] = (), optional: bool = False) -> Rule:
    """Return the rule of a whole number from `low` to `high`, or one of some words."""
    span = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    expected = " or ".join([span, *words])

    def convert(value: Any, folder: Path) -> int | str:
        if isinstance(value, str) and value in words:
            return value
        number = as_whole(value)
        if number < low or (high is not None and number > high):
            raise RefusedError("change the value")
        return number

    return Rule(expected, convert, optional)


def as_whole(value: Any) -> int:
    """Return a whole number; 100.0 and '100' are taken as 100.

    Raises:
        RefusedError: The value is something else.
    """
    if isinstance(value, bool):
        raise RefusedError("write a number")
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _WHOLE_TEXT.match(value.strip()):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"0[0-9]+", value.strip()):
        raise RefusedError(f"write {int(value)} without the leading zero")
    raise RefusedError("write a whole number")


def number(
    low: float = -math.inf,
    above: bool = False,
    high: float = math.inf,
    words: tuple[str, ...] = (),
    optional: bool = False,
) -> Rule:
    """Return the rule of a finite number of at least `low` (more than `low` if `above`), at most `high`, or a word."""
    expected = "a number"
    if low > -math.inf:
        expected += f" above {low:g}" if above else f" of at least {low:g}"
    if high < math.inf:
        expected += f" and at most {high:g}"
    expected = " or ".join([expected, *words])

    def convert(value: Any, folder: Path) -> float | str:
        if isinstance(value, str) and value in words:
            return value
        result = as_number(value)
        if result < low or (above and result == low) or result > high:
            raise RefusedError("change the value")
        return result

    return Rule(expected, convert, optional)


def as_number(value: Any) -> float:
    """Return a finite number; text such as '1e-4' is taken as the number it shows.

    Raises:
        RefusedError: The value is something else.
    """
    try:
        result = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise RefusedError("write a number such as 0.0001 or 1e-4")
    return result


def choice(*words: str, optional: bool = False) -> Rule:
    """Return the rule of a key that is one of some words."""

    def convert(value: Any, folder: Path) -> str:
        if isinstance(value, str) and value in words:
            return value
        guess = nearest(value, words)
        raise RefusedError(f"did you mean {guess}?" if guess else "choose one of these")

    return Rule(f"one of {', '.join(words)}" if len(words) > 1 else words[0], convert, optional)


def text(expected: str = "text", optional: bool = False, pattern: str = r"(?s)\s*\S.*") -> Rule:
    """Return the rule of a key that is text in full agreement with a regular expression."""

    def convert(value: Any, folder: Path) -> str:
        if not isinstance(value, str):
            raise RefusedError(
                f'put it in quotes: "{value}"' if isinstance(value, bool | int | float) else "write text"
            )
        if not re.fullmatch(pattern, value):
            raise RefusedError("change the value")
        return value.strip()

    return Rule(expected, convert, optional)


def local_path(kind: str = "a path", optional: bool = False) -> Rule:
    """Return the rule of a path on this machine; it comes out absolute."""

    def convert(value: Any, folder: Path) -> Path:
        result = resolve_path(value, folder, plain=True)
        if isinstance(result, str):
            raise RefusedError("use a path on this machine")
        return result

    return Rule(f"{kind} on this machine", convert, optional)


def source_path(kind: str = "a path", optional: bool = False) -> Rule:
    """Return the rule of a path that may also be remote: /vsi..., s3://..., https://..."""
    return Rule(f"{kind}, local or remote", resolve_path, optional)


def resolve_path(value: Any, folder: Path, plain: bool = False) -> Path | str:
    """Return a path made absolute against the config's folder; names that are no paths are returned as text.

    Those are remote ones, and parts of files (netcdf:file.nc:variable). Of several paths joined by | each is made
    absolute. `~` and `$VARIABLES` are replaced. With `plain` all that is not remote is a path.

    Raises:
        RefusedError: The value is not a path, or names a variable that is not set.
    """
    if not isinstance(value, str | Path) or not str(value).strip():
        raise RefusedError("write a path")
    written = os.path.expandvars(str(value).strip())
    if _REMOTE.match(written):
        return written
    result = Path(os.path.normpath(folder / Path(written).expanduser()))
    if result.exists():
        return result
    if unset := re.search(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", written):
        raise RefusedError(f"set the environment variable {unset.group(1)}")
    if not plain and _STACK in written:
        return _STACK.join(str(resolve_path(part, folder)) for part in written.split(_STACK))
    if not plain and (part := _PART.match(written)):
        inner = Path(os.path.normpath(folder / part[2]))
        return f'{part[1]}:"{inner}"{part[3] or ""}' if inner.exists() else written
    return result


def as_list(value: Any, *, commas: bool = True, example: str = "[1, 2, 3]") -> list[Any]:
    """Return a list; the text 'a, b' is taken as the list of its parts, and other single text as a list of one.

    Args:
        value: What the user wrote.
        commas: Whether text is cut at commas.
        example: What a list looks like here, for the message.

    Raises:
        RefusedError: The value is neither a list nor text.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str) and value.strip():
        parts = [part.strip() for part in value.split(",")] if commas else [value]
        if all(parts):
            return [int(part) if commas and _WHOLE_TEXT.match(part) else part for part in parts]
    raise RefusedError(f"write a list, such as {example}")
