"""The augmentations that have a name."""

from __future__ import annotations

from collections.abc import Callable

import albumentations as A
import cv2
import numpy as np
from numpy.typing import NDArray

from geoseg.data.augment.transforms import (
    BandDropout,
    BandJitter,
    CutOut,
    Noise,
    PlanarAffine,
    PlanarElastic,
    Symmetry,
)


def _affine(ignore_value: int, size: float, angle: float, shift: float, p: float) -> A.BasicTransform:
    return PlanarAffine(
        scale=(1 - size, 1 + size),
        rotate=(-angle, angle),
        translate_percent=(-shift, shift),
        interpolation=cv2.INTER_LINEAR,
        mask_interpolation=cv2.INTER_NEAREST,
        fill=0,
        fill_mask=ignore_value,
        p=p,
    )


def _geometric(ignore_value: int) -> list[A.BasicTransform]:
    return [Symmetry(p=1), _affine(ignore_value, size=0.1, angle=15, shift=0.05, p=0.25)]


def _light(ignore_value: int) -> list[A.BasicTransform]:
    return [*_geometric(ignore_value), BandJitter(gain=0.1, offset=0.1), Noise(strength=0.1, p=0.5)]


def _strong(ignore_value: int) -> list[A.BasicTransform]:
    elastic = PlanarElastic(
        alpha=100,  # 2.4 pixels on average: alpha / (2 * sqrt(pi) * sigma)
        sigma=12,
        interpolation=cv2.INTER_LINEAR,
        mask_interpolation=cv2.INTER_NEAREST,
        fill=0,
        fill_mask=ignore_value,
        p=0.3,
    )
    return [
        Symmetry(p=1),
        _affine(ignore_value, size=0.3, angle=45, shift=0.1, p=0.7),
        elastic,
        BandJitter(gain=0.25, offset=0.25),
        Noise(strength=0.25, p=0.5),
        BandDropout(share=0.2, p=0.2),
        CutOut(most=3, sides=(0.05, 0.25), ignore_value=ignore_value, p=0.3),
    ]


AUGMENTATIONS: dict[str, Callable[[int], list[A.BasicTransform]]] = {
    "none": lambda ignore_value: [],
    "geometric": _geometric,
    "light": _light,
    "strong": _strong,
}


class Preset:
    """An `Augmentation` by transforms that work on (bands, H, W).

    Pixels that a turn or shift brings in from outside get image 0 (the mean) and label `ignore_value`; labels are
    moved by nearest neighbour, so no class is invented between two others.
    """

    def __init__(self, transforms: list[A.BasicTransform]) -> None:
        self._compose = A.Compose(transforms, is_check_shapes=False)

    def __call__(
        self, image: NDArray[np.float32], label: NDArray[np.uint8], seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the changed pair, see `Augmentation`."""
        self._compose.set_random_seed(seed)  # 0.04 ms
        out = self._compose(image=image, mask=label)
        return np.ascontiguousarray(out["image"], dtype=np.float32), np.ascontiguousarray(out["mask"])
