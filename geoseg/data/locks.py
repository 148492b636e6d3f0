"""Telling whether somebody is at work in a folder.

Locks are advisory and on folders; the system gives them back when a process dies. Where the file system has none,
everybody seems to be alone.
"""

from __future__ import annotations

import contextlib
import os
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
    handle, got = _held(folder, shared, wait)
    try:
        yield got
    finally:
        if handle is not None:
            os.close(handle)  # which gives the lock back


def _held(folder: Path, shared: bool, wait: bool) -> tuple[int | None, bool]:
    while True:
        try:
            handle = os.open(folder, os.O_RDONLY)
        except OSError:
            return None, True
        try:
            got = _acquired(handle, shared, wait)
            if not got or _is_still(folder, handle):
                return handle, got
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_still(folder: Path, handle: int) -> bool:
    """Tell whether a folder was not replaced, or removed, while we waited for it."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(handle))
    except OSError:
        return False


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
