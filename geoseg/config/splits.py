"""Rules for the keys that say where splits come from and how windows overlap."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geoseg.config.rules import RefusedError, Rule, as_number, as_whole, nearest

SPLIT_METHODS = ("csv", "blocks", "polygons", "random")
SPLIT_NAMES = ("trn", "val", "tst")
_LENGTH = re.compile(r"\s*([0-9.eE+-]+)\s*(m|px|km)?\s*")
_TOLERANCE = 1e-6


def split_rule() -> Rule:
    """Return the rule of `sample.split`: csv, or a mapping with a method and its options."""

    def convert(value: Any, folder: Path) -> Any:
        if isinstance(value, str):
            if value not in SPLIT_METHODS:
                guess = nearest(value, SPLIT_METHODS)
                raise RefusedError(f"did you mean {guess}?" if guess else "choose one of these")
            return {"method": value}
        if not isinstance(value, Mapping):
            raise RefusedError("write csv, or {method: blocks, size: 2000 m}")
        if "method" not in value:
            raise RefusedError("say which method, such as method: blocks")
        return value

    return Rule(f"csv, or a section with a method ({', '.join(SPLIT_METHODS)}) and its options", convert)


def length(words: tuple[str, ...] = ()) -> Rule:
    """Return the rule of a length on the ground or in pixels; it comes out as '2000 m' or '1024 px'."""

    def convert(value: Any, folder: Path) -> str:
        if isinstance(value, str) and value in words:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = f"{value} px"
        found = _LENGTH.fullmatch(value) if isinstance(value, str) else None
        if not found:
            raise RefusedError("write a number and its unit, such as 2000 m")
        number, unit = as_number(found.group(1)), found.group(2) or "px"
        if unit == "km":
            number, unit = number * 1000, "m"
        if number < 0 or (number == 0 and "auto" not in words):
            raise RefusedError("change the value")
        return f"{number:g} {unit}"

    return Rule(" or ".join(["a length such as 2000 m or 1024 px", *words]), convert)


def fraction_map() -> Rule:
    """Return the rule of the shares of the splits; it comes out with all three, summing up to 1."""

    def convert(value: Any, folder: Path) -> dict[str, float]:
        if not isinstance(value, Mapping):
            raise RefusedError("write {trn: 0.7, val: 0.15, tst: 0.15}")
        for name in value:
            if name not in SPLIT_NAMES:
                guess = nearest(name, SPLIT_NAMES)
                raise RefusedError(f"{name!r} is no split" + (f": did you mean {guess}?" if guess else ""))
        shares = {name: as_number(value.get(name, 0)) for name in SPLIT_NAMES}
        if min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > _TOLERANCE:
            raise RefusedError(f"they come to {sum(shares.values()):g}: correct them")
        if not shares["trn"]:
            raise RefusedError("trn needs a share")
        return shares

    return Rule("shares of trn, val and tst that come to 1", convert)


def overlap_rule() -> Rule:
    """Return the rule of an overlap: pixels, or a share of a sample's side below 1."""

    def convert(value: Any, folder: Path) -> int | float:
        if isinstance(value, str) and value.strip().endswith("%"):
            value = as_number(value.strip()[:-1]) / 100
        number = as_number(value)
        if number < 0:
            raise RefusedError("change the value")
        return number if 0 < number < 1 else as_whole(number)

    return Rule("whole pixels, or a share from 0 to below 1 such as 0.25 or '25%'", convert, optional=True)


def overlap_pixels(overlap: int | float, size: int) -> int:
    """Return an overlap in pixels; a share of a sample's side is rounded to the nearest pixel."""
    return round(overlap * size) if 0 < overlap < 1 else int(overlap)
