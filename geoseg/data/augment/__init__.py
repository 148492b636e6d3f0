"""Random changes of training samples; the only user of albumentations.

Everything works on *normalised* float images of any number of bands, and is a function of a seed alone: the library's
own seeding of worker processes repeats draws across workers and epochs.
"""

from __future__ import annotations

import os

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else the import asks the network for a newer version

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from geoseg.data.augment.cutmix import paste
from geoseg.data.augment.pipeline import Pipeline
from geoseg.data.augment.presets import AUGMENTATIONS, Preset

__all__ = ["AUGMENTATIONS", "Augmentation", "Pipeline", "Preset", "build_augmentation", "paste"]


class Augmentation(Protocol):
    """A random change of an image and its label."""

    def __call__(
        self, image: NDArray[np.float32], label: NDArray[np.uint8], seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the changed pair, contiguous; the inputs are left as they are.

        Args:
            image: (bands, H, W) float32, normalised, free of NaN; 0 in all bands where there is no data.
            label: (H, W) class ids and ignore.
            seed: Decides every draw; equal seeds give equal results whatever process they are drawn in.
        """


def build_augmentation(
    setting: str | Mapping[str, Any], ignore_value: int, bands: int = 3, size: int = 64
) -> Augmentation | None:
    """Return an augmentation, or None for `none`.

    Args:
        setting: A name in AUGMENTATIONS, or a pipeline in albumentations' own serialisation.
        ignore_value: Label of pixels that come in from outside.
        bands: Bands of the samples; a pipeline is tried on so many.
        size: Side of the samples; likewise.

    Raises:
        ValueError: There is no such preset; the text lists the choices.
        ConfigError: The pipeline cannot be built, or one of its transforms does not work on such samples.
    """
    if isinstance(setting, Mapping):
        return Pipeline(setting, ignore_value, bands, size)
    if setting not in AUGMENTATIONS:
        raise ValueError(f"no augmentation {setting!r}; choose from {', '.join(AUGMENTATIONS)}")
    transforms = AUGMENTATIONS[setting](ignore_value)
    return Preset(transforms) if transforms else None
