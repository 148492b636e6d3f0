"""Bands told apart by their names."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def numbers_by_name(wanted: Sequence[str | None], here: Sequence[str | None]) -> tuple[int, ...] | None:
    """Return the numbers, from 1, of the bands that are called as wanted, in that order.

    Case and blanks around a name do not matter.

    Args:
        wanted: Names, None for a band without one.
        here: The names of a raster's bands, in order.

    Returns:
        None unless every name is wanted once and is there once.
    """
    names, found = [plain_name(name) for name in wanted], [plain_name(name) for name in here]
    if not names or not all(names) or len(set(names)) < len(names) or any(found.count(name) != 1 for name in names):
        return None
    return tuple(found.index(name) + 1 for name in names)


def contradicting(first: Sequence[str | None], other: Sequence[str | None]) -> list[str]:
    """Return the names that stand once in both lists, but at different places."""
    one, two = [plain_name(name) for name in first], [plain_name(name) for name in other]
    return [
        str(first[place])
        for place, name in enumerate(one)
        if name and one.count(name) == 1 and two.count(name) == 1 and two.index(name) != place
    ]


def plain_name(name: str | None) -> str:
    """Return a name as it is compared; empty for none."""
    return unicodedata.normalize("NFC", name or "").strip().casefold()
