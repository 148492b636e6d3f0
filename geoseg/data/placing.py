"""Putting a finished store in its place, and telling whether somebody is at work in a folder.

Locks are advisory and on folders. Where the file system has none, two publishers are still safe unless they rename in
the same instant.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Tell other processes that this one works in the folder, until the block ends or the process dies."""
    with _lock(folder, shared=True, wait=True):
        yield


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Hold a folder alone; yields False if others are at work in it (and `wait` is not set)."""
    with _lock(folder, shared=False, wait=wait) as alone:
        yield alone


@contextlib.contextmanager
def _lock(folder: Path, shared: bool, wait: bool) -> Iterator[bool]:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        yield _acquired(handle, shared, wait)
    finally:
        os.close(handle)  # which gives the lock back


def _acquired(handle: int, shared: bool, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


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
