"""A class map against reference labels: one confusion matrix over all known pixels, counted block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import ComparedBlock, Measure, Reference, compare, count_blocks
from geoseg.errors import DataError, problem

__all__ = ["Reference", "SceneConfusion", "confusion_of", "count_blocks", "whole_set"]


@dataclass(frozen=True)
class SceneConfusion:
    """Counts of one scene.

    Attributes:
        name: The scene.
        matrix: (C, C) known and classified pixels by reference class (rows) and class in the map (columns).
        unclassified: (C,) known pixels that the map leaves without a class, by reference class.
        unknown: Pixels whose reference is unknown.
    """

    name: str
    matrix: NDArray[np.int64]
    unclassified: NDArray[np.int64]
    unknown: int


def confusion_of(
    map_path: Path,
    reference: Reference,
    num_classes: int,
    name: str | None = None,
    on_progress: Callable[[int], None] | None = None,
    measures: Sequence[Measure] = (),
) -> SceneConfusion:
    """Compare a class map with its reference.

    Args:
        map_path: A class map: class ids, nodata where there is no class.
        reference: What is known about the same ground.
        num_classes: Number of classes, background included.
        name: Name of the scene, by default the map's.
        on_progress: Called with the number of blocks just done.
        measures: What else is to be worked out in the same pass.

    Raises:
        DataError: The map cannot be read, holds ids beyond the classes, or does not lie on its image's grid.
    """
    counts = _Counting(num_classes, map_path)
    # The counting comes first: it refuses ids that are no class.
    compare(map_path, reference, [counts, *measures], on_progress)
    matrix, unclassified = counts.counts[:, :num_classes], counts.counts[:, num_classes]
    return SceneConfusion(name or map_path.stem, matrix.copy(), unclassified.copy(), counts.unknown)


class _Counting:
    margin = 0

    def __init__(self, num_classes: int, map_path: Path) -> None:
        self.counts = np.zeros((num_classes, num_classes + 1), dtype=np.int64)
        self.unknown = 0
        self._num_classes, self._map_path = num_classes, map_path

    def add(self, block: ComparedBlock) -> None:
        block = block.cropped()
        known = block.known
        predicted = np.where(block.classified, block.predicted, self._num_classes)[known]
        self.counts += _count(block.label[known], predicted, self._num_classes, self._map_path)
        self.unknown += known.size - int(known.sum())


def whole_set(scenes: Sequence[SceneConfusion], name: str = "all scenes") -> SceneConfusion:
    """Return the sum over scenes (at least one): every pixel weighs the same, whichever scene it is in."""
    return SceneConfusion(
        name=name,
        matrix=np.sum([scene.matrix for scene in scenes], axis=0),
        unclassified=np.sum([scene.unclassified for scene in scenes], axis=0),
        unknown=sum(scene.unknown for scene in scenes),
    )


def _count(
    label: NDArray[np.integer], predicted: NDArray[np.integer], num_classes: int, map_path: Path
) -> NDArray[np.int64]:
    """Return (C, C + 1) counts by reference and map; the last column is for pixels without a class in the map."""
    for values, last, what in ((predicted, num_classes, str(map_path)), (label, num_classes - 1, "reference")):
        if values.size and values.max() > last:
            found = f"class id {values.max()}"
            raise DataError(problem(what, found, f"ids 0 to {num_classes - 1}", "compare a map with its own classes"))
    pairs = label.astype(np.int64) * (num_classes + 1) + predicted
    return np.bincount(pairs, minlength=num_classes * (num_classes + 1)).reshape(num_classes, num_classes + 1)
