"""Rules for the keys that hold shares of a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geoseg.config.rules import RefusedError, Rule, as_list, as_number


def share_list() -> Rule:
    """Return the rule of shares above 0 and below 1: one for all classes, or one per class."""

    def convert(value: Any, folder: Path) -> float | tuple[float, ...]:
        several = isinstance(value, list | tuple) or (isinstance(value, str) and "," in value)
        shares = tuple(as_number(item) for item in (as_list(value) if several else [value]))
        if not shares or not all(0 < share < 1 for share in shares):
            raise RefusedError("write a share such as 0.8, or a list of one per class")
        return shares if several else shares[0]

    return Rule("a number above 0 and below 1, or a list of one per class", convert)
