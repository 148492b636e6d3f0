"""What the parts of a data set are called."""

from __future__ import annotations

from typing import Literal

Split = Literal["trn", "val", "tst"]
SPLITS: tuple[Split, ...] = ("trn", "val", "tst")
#: Other names that are common for them.
SPLIT_NAMES: dict[str, Split] = {
    "train": "trn",
    "training": "trn",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "test": "tst",
    "testing": "tst",
}


def split_named(text: str) -> Split | None:
    """Return the split that a text names, in any case, or None."""
    name = text.strip().lower()
    return next((split for split in SPLITS if split == name), SPLIT_NAMES.get(name))
