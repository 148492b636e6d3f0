"""A map of where a class map and its reference agree, and of how they differ."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from geoseg.assess.blocks import ComparedBlock
from geoseg.geo.raster import RasterInfo, RasterWriter, create_geotiff, finish_cog

NODATA = 255
KINDS = ("both background", "agreement", "omission", "commission", "another class")
COLOURS = ("#f2f2f2", "#4daf4a", "#377eb8", "#e41a1c", "#984ea3")


class DifferenceWriter:
    """Writes one scene's difference map: a number of `KINDS` per pixel, `NODATA` where one of the two says nothing.

    Omission: the reference has a class where the map has background. Commission: the other way round. Another class:
    both have one, and not the same.
    """

    margin = 0

    def __init__(self, writer: RasterWriter) -> None:
        self._writer = writer

    def add(self, block: ComparedBlock) -> None:
        """Write a block."""
        block = block.cropped()
        there, mapped = block.label > 0, block.predicted > 0
        # Bytes all along: one of 0, 2 (reference alone), 3 (map alone), 5 (both).
        kind = 2 * there.view(np.uint8) + 3 * mapped.view(np.uint8)
        kind[kind == 5] = 4
        kind[there & (block.label == block.predicted)] = 1
        kind[~(block.known & block.classified)] = NODATA
        self._writer.write(kind, block.window)


@contextlib.contextmanager
def difference_map(path: Path, like: RasterInfo) -> Iterator[DifferenceWriter]:
    """Write a difference map that appears, as a Cloud Optimized GeoTIFF with a colour table, when the block ends.

    Args:
        path: The file, replaced if it exists.
        like: The class map.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}.tif")
    try:
        with create_geotiff(
            temporary, like, 1, np.uint8, NODATA, colours=COLOURS, names=KINDS, band_names=("difference",)
        ) as writer:
            yield DifferenceWriter(writer)
        finish_cog(temporary, path, "mode")
    finally:
        temporary.unlink(missing_ok=True)
