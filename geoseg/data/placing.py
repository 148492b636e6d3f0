"""Putting a finished store in its place, and clearing away what interrupted runs have left."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from geoseg.data.locks import locked


def publish_store(folder: Path, final: Path) -> None:
    """Give a finished store its final name; if another process was sooner, leave it at that."""
    with locked(final.parent, wait=True):
        if not folder.exists():
            return
        former = _former(final)
        shutil.rmtree(former, ignore_errors=True)
        if final.exists():
            final.rename(former)
        folder.rename(final)
        shutil.rmtree(former, ignore_errors=True)


def recover(final: Path) -> None:
    """Bring back the former store if a run died between the two renames that replace it."""
    if final.parent.is_dir() and not final.exists():
        with locked(final.parent, wait=True):
            if not final.exists() and _former(final).is_dir():
                _former(final).rename(final)


def remove_leftovers(final: Path, folder: Path) -> None:
    """Remove what interrupted runs with other options or files have left, but not what somebody works in."""
    if not final.parent.is_dir():
        return
    for other in final.parent.glob(f".{final.name}-*"):
        if other == folder or not re.fullmatch(r".*-[0-9a-f]{16}", other.name):
            continue
        with locked(other) as alone:
            if alone:
                shutil.rmtree(other, ignore_errors=True)


def _former(final: Path) -> Path:
    return final.with_name(f".{final.name}-former")
