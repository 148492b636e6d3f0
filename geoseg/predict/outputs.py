"""The maps that classification makes of a scene: what their pixels are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.raster import tile_profile
from geoseg.predict.blocks import NODATA, ClassBlock

OUTPUTS = ("classes", "probabilities", "confidence", "entropy")
WIDE_NODATA = 65535  # of maps of attribute values
#: Number that stands for the probability 1 where probabilities are written as uint8.
FULL = 250
_NEEDS_PROBABILITIES = frozenset(OUTPUTS) - {"classes"}


@dataclass(frozen=True)
class MapOutput:
    """One kind of map.

    Attributes:
        name: One of `OUTPUTS`.
        count: Bands.
        dtype: numpy name of its type.
        nodata: Value of pixels that are not known.
        resampling: How its overviews are made.
        encode: From a block to its pixels, (h, w) or (count, h, w).
        scale: What a value is to be multiplied by.
    """

    name: str
    count: int
    dtype: str
    nodata: float
    resampling: str
    encode: Callable[[ClassBlock], NDArray[Any]]
    scale: float = 1.0

    @property
    def profile(self) -> dict[str, Any]:
        """The profile, for rasterio, of the files that hold its tiles."""
        return tile_profile(self.count, self.dtype, self.nodata)


def needs_probabilities(names: Sequence[str]) -> bool:
    """Tell whether any of the maps is made of probabilities."""
    return bool(_NEEDS_PROBABILITIES & set(names))


def map_outputs(
    names: Sequence[str], num_classes: int, values: Sequence[int] | None = None, scaled: bool = False
) -> list[MapOutput]:
    """Return the maps that are wanted.

    Classes are uint8 with nodata 255, or uint16 with nodata 65535 if `values` are to be written in place of ids.
    Probabilities (a band per class), confidence (the probability of the class in the map) and entropy (0 where one
    class is certain, 1 where all are as likely) are float32 with nodata NaN, or if `scaled` uint8: 250 times the
    number, rounded, with nodata 255.

    Args:
        names: Some of `OUTPUTS`.
        num_classes: Number of classes.
        values: What to write for each class id, 0 to 65534.
        scaled: Whether to write fractions as uint8.

    Raises:
        ValueError: An unknown name.
    """
    if unknown := set(names) - set(OUTPUTS):
        raise ValueError(f"unknown outputs {sorted(unknown)}, expected some of {', '.join(OUTPUTS)}")
    fractions: dict[str, tuple[int, Callable[[NDArray[np.float32]], NDArray[np.float32]]]] = {
        "probabilities": (num_classes, lambda shares: shares),
        # With NaN where invalid the maximum is NaN too, without a warning.
        "confidence": (1, lambda shares: shares.max(axis=0)),
        "entropy": (1, entropy),
    }
    found = []
    for name in names:
        if name == "classes":
            found.append(_classes(values))
        else:
            found.append(_fraction(name, *fractions[name], scaled))
    return found


def entropy(shares: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the entropy of probabilities (classes, h, w) as a share of the greatest possible: (h, w) in 0..1."""
    total = np.zeros(shares.shape[1:], np.float32)
    for share in shares:
        total -= share * np.log(np.maximum(share, np.float32(1e-12)))
    result: NDArray[np.float32] = np.clip(total / np.float32(np.log(max(2, len(shares)))), 0, 1)
    return result


def _classes(values: Sequence[int] | None) -> MapOutput:
    if values is None:
        return MapOutput("classes", 1, "uint8", NODATA, "mode", lambda block: block.classes)
    table = np.full(256, WIDE_NODATA, np.uint16)
    table[: len(values)] = values
    return MapOutput("classes", 1, "uint16", WIDE_NODATA, "mode", lambda block: table[block.classes])


def _fraction(
    name: str, count: int, measure: Callable[[NDArray[np.float32]], NDArray[np.float32]], scaled: bool
) -> MapOutput:
    def plain(block: ClassBlock) -> NDArray[np.float32]:
        assert block.probabilities is not None
        return measure(block.probabilities)

    def rounded(block: ClassBlock) -> NDArray[np.uint8]:
        values = plain(block)
        unknown = np.isnan(values)
        return np.where(unknown, NODATA, np.rint(np.where(unknown, 0, values) * FULL)).astype(np.uint8)

    if scaled:
        return MapOutput(name, count, "uint8", NODATA, "average", rounded, 1 / FULL)
    return MapOutput(name, count, "float32", float("nan"), "average", plain)
