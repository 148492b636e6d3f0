"""Opening class maps: their pixels are class ids, also where the file holds the values of the labels' attribute."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels, Raster, open_raster, read_info, read_tags

_NO_ID = 255


@contextlib.contextmanager
def open_class_map(path: Path) -> Iterator[Raster]:
    """Open a class map for reading class ids.

    Raises:
        DataError: The file cannot be read, or holds values and does not say which classes they stand for.
    """
    values = map_values(path)
    with open_raster(path, [1], allow_palette=True) as raster:
        yield raster if values is None else _Ids(raster, values)


def map_values(path: Path) -> tuple[int, ...] | None:
    """Return the value of each class in a map, by id; None if it holds ids.

    They stand in the map's tag VALUES, or else in the `classes.json` beside it, if the same model made that.

    Raises:
        DataError: The map cannot be read, or holds values and does not say which classes they stand for.
    """
    tags = read_tags(path)
    stored = read_info(path, allow_palette=True).dtype
    if "CLASSES" not in tags or stored == "uint8":
        return None
    try:
        said = json.loads(tags["VALUES"]) if "VALUES" in tags else _values_beside(path, tags)
        values = None if said is None else tuple(int(value) for value in said)
    except (ValueError, KeyError, TypeError):
        values = None
    if not values or len(set(values)) < len(values):
        found = f"{stored} values of the labels' attribute, of which the map does not say what classes they are"
        raise DataError(problem(path, found, "its tag VALUES, or its classes.json beside it", "classify again"))
    return values


def _values_beside(path: Path, tags: Mapping[str, str]) -> list[int] | None:
    beside = path.with_name("classes.json")
    if not beside.is_file():
        return None
    said = json.loads(beside.read_text(encoding="utf-8"))
    return [entry["value"] for entry in said["classes"]] if said["model_hash"] == tags.get("MODEL_HASH") else None


class _Ids(Raster):
    """A map of values, read as ids."""

    def __init__(self, source: Raster, values: Sequence[int]) -> None:
        super().__init__(replace(source.info, dtype="uint8"), source.bands)
        self._source = source
        self._table = np.full(max(values) + 1, _NO_ID, np.uint8)
        self._table[list(values)] = range(len(values))

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._source.close()

    def _read_inside(self, window: Window, shape: tuple[int, int] | None = None) -> Pixels:
        pixels = self._source._read_inside(window, shape)
        inside = pixels.valid & (pixels.image[0] >= 0) & (pixels.image[0] < len(self._table))
        ids = self._table[np.where(inside, pixels.image[0], 0)]
        ids[~inside] = _NO_ID
        strange = pixels.valid & (ids == _NO_ID)
        if strange.any():
            found = f"the value {pixels.image[0][strange][0]}"
            raise DataError(problem(self.info.path, found, "values of its classes", "classify again"))
        return Pixels(ids[None], pixels.valid)
