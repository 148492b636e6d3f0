"""One normalisation, used by training, classification and export alike.

Per band ``(value - mean) / std`` in float32, and exactly 0 (the mean) where the image is not valid. The rule lives
here alone, so that the pixels a network is trained on and the pixels it later classifies cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.errors import DataError, problem


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per band, in the units of the source raster.

    A band that never varies (standard deviation 0) is divided by 1: it becomes zeros, never NaN.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"one mean and one std per band are needed, got {len(self.mean)} and {len(self.std)}")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()) or min(self.std) < 0:
            raise ValueError("means must be finite, standard deviations finite and not negative")

    @classmethod
    def from_statistics(cls, statistics: Sequence[Mapping[str, Any]]) -> Normalisation:
        """Take mean and std from a store's statistics, one mapping per band."""
        return cls(tuple(float(s["mean"]) for s in statistics), tuple(float(s["std"]) for s in statistics))

    @property
    def bands(self) -> int:
        """Number of bands."""
        return len(self.mean)

    @cached_property
    def _shift_and_scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        std = np.asarray(self.std, dtype=np.float64)
        scale = 1.0 / np.where(std > 0, std, 1.0)
        return np.asarray(self.mean, np.float64)[:, None, None], scale[:, None, None]

    def apply(self, image: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Return the normalised image: float32, C-contiguous, native byte order, a new array.

        Args:
            image: (bands, H, W) of any real dtype, byte order and strides.
            valid: (H, W); False where the image has no data. None: every pixel is valid.

        Raises:
            DataError: The image has another number of bands.
        """
        if image.ndim != 3 or image.shape[0] != self.bands:
            raise DataError(
                problem(
                    "image", f"shape {image.shape}", f"({self.bands}, H, W)", "use the bands the model was made for"
                )
            )
        mean, scale = self._shift_and_scale
        # float32 would round numbers beyond 2**24 before the mean is taken off, and with them all their contrast.
        wide = np.float64 if image.dtype.itemsize > 2 and image.dtype != np.float32 else np.float32
        out = np.array(image, dtype=wide, order="C")
        out -= mean.astype(wide)
        out *= scale.astype(wide)
        out = out.astype(np.float32, copy=False)
        if valid is not None and not valid.all():
            # Not a product: 0 * NaN would let a bad value through.
            np.copyto(out, np.float32(0), where=~valid)
        return out

    def to_dict(self) -> dict[str, list[float]]:
        """Return plain lists for JSON."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Sequence[float]]) -> Normalisation:
        """Build from what `to_dict` returned."""
        return cls(tuple(float(v) for v in data["mean"]), tuple(float(v) for v in data["std"]))
