"""From attribute values to class ids."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from geoseg.errors import DataError, problem

MAX_CLASSES = 255
SHOWN = 10
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")

Value = int | str


@dataclass(frozen=True)
class ClassMapping:
    """Which class an attribute value stands for.

    Text and number are one: 1, 1.0, "1" and " 1 " are the same value. An accented letter is the same whether it is
    written as one character or as a letter and its accent.

    Attributes:
        num_classes: Classes, background included: ids are 0..num_classes-1.
        by_value: Attribute value to class id; None where the attribute holds the ids themselves.
        ignore_value: Id of unknown pixels.
        ignore_values: Attribute values whose polygons are unknown ground.
        unmapped: What a value that stands for no class does: stop with an error, or become unknown or background.
        remedy: What the user can do about such values.
    """

    num_classes: int
    by_value: Mapping[Value, int] | None = None
    ignore_value: int = 255
    ignore_values: frozenset[Value] = field(default_factory=frozenset)
    unmapped: Literal["error", "ignore", "background"] = "error"
    remedy: str = "map them in global.classes, list them in sample.ignore_values, or set sample.unmapped"

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise DataError(
                problem("classes", f"{self.num_classes} classes", f"1 to {MAX_CLASSES}", "merge rare classes")
            )
        if not self.num_classes <= self.ignore_value <= MAX_CLASSES:
            expected = f"a number from {self.num_classes} to {MAX_CLASSES}, which is no class"
            raise DataError(problem("ignore_value", str(self.ignore_value), expected, "leave it at 255"))
        wrong = [i for i in (self.by_value or {}).values() if not 0 <= i < self.num_classes]
        if wrong:
            raise DataError(
                problem("classes", f"ids {wrong}", f"0 to {self.num_classes - 1}", "raise num_classes or mend the ids")
            )


class ClassIds(NamedTuple):
    """Class ids of features.

    Attributes:
        ids: (features,) uint8.
        null: How many had no value (they are unknown).
        ignored: How many had one of the values to ignore.
        unmapped: How many had a value that stands for no class.
    """

    ids: NDArray[np.uint8]
    null: int
    ignored: int
    unmapped: int


def class_ids(values: Sequence[Any] | pd.Series, mapping: ClassMapping, where: str) -> ClassIds:
    """Return the class id of every attribute value.

    Args:
        values: Attribute values: numbers, text, booleans or null.
        mapping: What they mean.
        where: File, layer and attribute, for messages.

    Raises:
        DataError: If values are fractional, are text that no class is given for, or stand for no class.
    """
    codes, uniques = pd.factorize(pd.Series(values, dtype=object), use_na_sentinel=True)
    keys = [_key(value, where) for value in uniques]
    ignored = _plain(mapping.ignore_values)
    is_null = np.array([key == "" for key in keys], bool)
    is_ignored = np.array([key in ignored for key in keys], bool)
    classes = _classes(mapping)
    found = [None if skip else classes.get(key) for key, skip in zip(keys, is_null | is_ignored, strict=True)]
    lost = np.array([i is None for i in found], bool) & ~is_null & ~is_ignored
    if lost.any() and mapping.unmapped == "error":
        raise DataError(_unmapped([key for key, flag in zip(keys, lost, strict=True) if flag], mapping, where))
    substitute = 0 if mapping.unmapped == "background" else mapping.ignore_value
    table = [
        substitute if flag else mapping.ignore_value if i is None else i for i, flag in zip(found, lost, strict=True)
    ]
    # The last entry is reached by code -1, which factorize gives to null.
    ids = np.array([*table, mapping.ignore_value], np.uint8)[codes]
    return ClassIds(
        ids=ids,
        null=_count(codes, is_null, null=True),
        ignored=_count(codes, is_ignored, null=False),
        unmapped=_count(codes, lost, null=False),
    )


def _key(value: Any, where: str) -> Value:
    """Return a whole number where the value is one (also as text), else stripped text in composed characters (NFC)."""
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value).strip()
        return int(text.split(".")[0]) if _WHOLE.fullmatch(text) else text
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            found = f"the value {float(value):g}"
            remedy = "round the column in the file, or choose another attribute"
            raise DataError(problem(where, found, "class ids, which must be whole numbers", remedy))
        return int(value)
    found = f"a value of type {type(value).__name__}"
    raise DataError(problem(where, found, "whole numbers or text", "choose another attribute"))


def _plain(values: Iterable[Value]) -> set[Value]:
    return {_key(value, "ignore_values") for value in values}


def _classes(mapping: ClassMapping) -> dict[Value, int]:
    if mapping.by_value is None:
        return {i: i for i in range(mapping.num_classes)}
    return {_key(value, "classes"): i for value, i in mapping.by_value.items()}


def _unmapped(lost: list[Value], mapping: ClassMapping, where: str) -> str:
    shown = ", ".join(repr(key) for key in sorted(lost, key=lambda key: (isinstance(key, str), key))[:SHOWN])
    more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
    if mapping.by_value is None:
        texts = [key for key in lost if isinstance(key, str)]
        kind = "text values" if texts else "class ids"
        remedy = (
            "give global.classes a value for each class" if texts else "raise num_classes, map or exclude these values"
        )
        return problem(where, f"{kind} {shown}{more}", f"class ids from 0 to {mapping.num_classes - 1}", remedy)
    known = [str(value) for value in mapping.by_value]
    near = difflib.get_close_matches(str(lost[0]), known, n=1)
    hint = f"; did you mean {near[0]!r} for {lost[0]!r}?" if near else ""
    return problem(where, f"values {shown}{more} of no class", f"one of {', '.join(known[:20])}", mapping.remedy + hint)


def _count(codes: NDArray[np.intp], flags: NDArray[np.bool_], null: bool) -> int:
    return int(np.append(flags, null)[codes].sum())
