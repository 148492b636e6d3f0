"""CutMix for segmentation: a rectangle of one sample in another, image and label alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def paste(
    image: NDArray[np.float32],
    label: NDArray[np.uint8],
    other: tuple[NDArray[np.float32], NDArray[np.uint8]],
    seed: int,
) -> None:
    """Replace a rectangle of a sample by the same rectangle of another, in place.

    The share of the area is uniform from 0 to 1, and the place of the rectangle's centre too; what lies beyond the
    edge is cut off (Yun et al. 2019, section 3.1, where labels of whole images are mixed by that share; here every
    pixel has its own).

    Args:
        image: (bands, H, W).
        label: (H, W).
        other: Image and label of the other sample, of the same shapes.
        seed: Decides the rectangle.
    """
    rng = np.random.default_rng(seed)
    extent = np.array(label.shape)
    sides = np.sqrt(rng.random()) * extent
    centre = rng.random(2) * extent
    low, high = np.round(np.clip([centre - sides / 2, centre + sides / 2], 0, extent)).astype(int)
    place = (..., slice(low[0], high[0]), slice(low[1], high[1]))
    image[place], label[place] = other[0][place], other[1][place]
