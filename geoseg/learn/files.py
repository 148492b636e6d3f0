"""Writing files so that a kill at any moment leaves the old one or the new one, whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename it into place.

    The temporary name is always the same, so what a killed process left is overwritten by the next one.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
