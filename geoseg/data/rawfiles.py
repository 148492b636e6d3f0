"""Shards that are written in place: each block's samples at the offset that they will have if none is left out.

If every window of a scene is kept, the shard needs a header and its name, and no byte is written twice. Otherwise what
was kept is copied together. Only processes of one machine write in place: not every network file system takes writes to
one file from several machines.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RawPlace:
    """Where a block's samples go in the file of its scene.

    Attributes:
        path: The file.
        offset: Bytes before the block's first sample.
        sample: Bytes of a sample.
    """

    path: Path
    offset: int
    sample: int


def array_header(shape: Sequence[int], dtype: Any) -> bytes:
    """Return the header of a .npy file."""
    text = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()


def raw_places(folder: Path, name: str, counts: Sequence[int], sample: Sequence[int], dtype: Any) -> list[RawPlace]:
    """Return the place of each block of a scene.

    Args:
        folder: Where the scene's parts are.
        name: Of the array.
        counts: Windows of each block, in order.
        sample: Shape of one sample.
        dtype: Of the array.
    """
    size = int(np.prod(sample, dtype=np.int64)) * np.dtype(dtype).itemsize
    start = len(array_header((sum(counts), *sample), dtype))
    before = np.cumsum([0, *counts])[:-1].tolist()
    return [RawPlace(folder / f"{name}.raw", start + count * size, size) for count in before]
