"""Writing files so that a kill at any moment leaves the old one or the new one, whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from geoseg.errors import DataError, problem


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the place of `path` when the block ends without an error.

    The temporary name is always the same, so what a killed process left is overwritten by the next one.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def being_made(folder: Path) -> Iterator[None]:
    """Turn what the system says while an output folder is made into one line about that folder.

    Raises:
        DataError: It cannot be made.
    """
    try:
        yield
    except OSError as error:
        found = f"a folder that cannot be made ({error.strerror})"
        raise DataError(problem(folder, found, "a writable place", "choose another output folder")) from error


def make_folder(folder: Path) -> Path:
    """Make the folder of a command's results, with those above it, unless it is there; return it.

    Raises:
        DataError: It cannot be made, or a file has its name.
    """
    with being_made(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping of plain values as JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
