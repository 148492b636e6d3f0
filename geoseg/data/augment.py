"""Random changes of training samples; the only user of albumentations.

Everything works on *normalised* float images of any number of bands. The library's own intensity transforms are not
used: they clip floats to 0..1, which destroys normalised values. Images go through as (bands, H, W), against the
library's (H, W, bands), and are changed plane by plane: some of OpenCV's functions stop at 4 or 128 channels, and 200
interleaved bands are slow in the others.
"""

from __future__ import annotations

import os

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else the import asks the network for a newer version

from collections.abc import Callable
from typing import Any

import albumentations as A
import cv2
import numpy as np
from numpy.typing import NDArray

# The eight symmetries of the square on the last two axes, under the names by which albumentations' D4 draws them.
_SYMMETRIES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "e": lambda x: x,
    "r90": lambda x: np.rot90(x, 1, (-2, -1)),
    "r180": lambda x: np.rot90(x, 2, (-2, -1)),
    "r270": lambda x: np.rot90(x, 3, (-2, -1)),
    "v": lambda x: x[..., ::-1, :],
    "h": lambda x: x[..., ::-1],
    "t": lambda x: np.swapaxes(x, -2, -1),
    "hvt": lambda x: np.swapaxes(x, -2, -1)[..., ::-1, ::-1],
}


class _Symmetry(A.D4):
    """Turn and mirror every plane by views."""

    def apply(self, img: NDArray[Any], group_element: str, **_: Any) -> NDArray[Any]:
        return _SYMMETRIES[group_element](img)

    def apply_to_mask(self, mask: NDArray[Any], group_element: str, **_: Any) -> NDArray[Any]:
        return _SYMMETRIES[group_element](mask)


class _PlanarAffine(A.Affine):
    """Shift, scale and rotate plane by plane."""

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        return super().get_params_dependent_on_data(params | {"shape": params["shape"][1:]}, data)

    def apply(self, img: NDArray[Any], **params: Any) -> NDArray[Any]:
        return np.stack([super(_PlanarAffine, self).apply(plane, **params) for plane in img])


def _keep_empty(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Restore pixels that are 0 in all bands: they hold no data, and classification sees them as 0 too."""
    np.copyto(after, 0, where=~before.any(axis=0))
    return after


class _BandJitter(A.ImageOnlyTransform):
    """Gain and offset drawn per band; values are in standard deviations and are not clipped."""

    def __init__(self, gain: float, offset: float, p: float = 1.0) -> None:
        super().__init__(p=p)
        self.gain = gain
        self.offset = offset

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        draw = self.random_generator.uniform(-1.0, 1.0, (2, params["shape"][0], 1, 1)).astype(np.float32)
        return {"gains": 1 + self.gain * draw[0], "offsets": self.offset * draw[1]}

    def apply(self, img: NDArray[Any], gains: NDArray[Any], offsets: NDArray[Any], **_: Any) -> NDArray[Any]:
        return _keep_empty(img, img * gains + offsets)


class _Noise(A.ImageOnlyTransform):
    """Gaussian noise of a drawn strength, independent per pixel and band; not clipped."""

    def __init__(self, strength: float, p: float = 0.5) -> None:
        super().__init__(p=p)
        self.strength = strength

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        scale = np.float32(self.random_generator.uniform(0.0, self.strength))
        return {"noise": self.random_generator.standard_normal(params["shape"], dtype=np.float32) * scale}

    def apply(self, img: NDArray[Any], noise: NDArray[Any], **_: Any) -> NDArray[Any]:
        return _keep_empty(img, img + noise)


def _geometric(ignore_value: int) -> list[A.BasicTransform]:
    shift_scale_rotate = _PlanarAffine(
        scale=(0.9, 1.1),
        rotate=(-15, 15),
        translate_percent=(-0.05, 0.05),
        interpolation=cv2.INTER_LINEAR,
        mask_interpolation=cv2.INTER_NEAREST,
        fill=0,
        fill_mask=ignore_value,
        p=0.25,
    )
    return [_Symmetry(p=1), shift_scale_rotate]


def _light(ignore_value: int) -> list[A.BasicTransform]:
    return [*_geometric(ignore_value), _BandJitter(gain=0.1, offset=0.1), _Noise(strength=0.1, p=0.5)]


AUGMENTATIONS: dict[str, Callable[[int], list[A.BasicTransform]]] = {
    "none": lambda ignore_value: [],
    "geometric": _geometric,
    "light": _light,
}


class Augmentation:
    """A random change of an image and its label, a function of the seed alone.

    Pixels that a turn or shift brings in from outside get image 0 (the mean) and label `ignore_value`; labels are
    moved by nearest neighbour, so no class is invented between two others.
    """

    def __init__(self, transforms: list[A.BasicTransform]) -> None:
        self._compose = A.Compose(transforms, is_check_shapes=False)

    def __call__(
        self, image: NDArray[np.float32], label: NDArray[np.uint8], seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the changed pair, contiguous; the inputs are left as they are.

        Args:
            image: (bands, H, W) float32, normalised, free of NaN.
            label: (H, W) class ids and ignore.
            seed: Decides every draw; equal seeds give equal results whatever process they are drawn in.
        """
        # The library's own worker seeding repeats draws across workers and epochs; reseeding costs 0.04 ms and rules
        # that out.
        self._compose.set_random_seed(seed)
        out = self._compose(image=image, mask=label)
        return np.ascontiguousarray(out["image"], dtype=np.float32), np.ascontiguousarray(out["mask"])


def build_augmentation(name: str, ignore_value: int) -> Augmentation | None:
    """Return the augmentation of that name, or None for `none`.

    Raises:
        ValueError: There is no such augmentation; the text lists the choices.
    """
    if name not in AUGMENTATIONS:
        raise ValueError(f"no augmentation {name!r}; choose from {', '.join(AUGMENTATIONS)}")
    transforms = AUGMENTATIONS[name](ignore_value)
    return Augmentation(transforms) if transforms else None
