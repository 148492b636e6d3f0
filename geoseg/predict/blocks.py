"""A classified block of a scene; no torch, so that who reads and writes maps need not wait for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoseg.geo.grid import Window

NODATA = 255  # among class ids: the pixel's class is unknown


@dataclass(frozen=True)
class ClassBlock:
    """Classes of a part of the scene.

    Attributes:
        window: Where it lies; the blocks of a region cover it without overlap.
        classes: (height, width) uint8, NODATA where the image is invalid.
        probabilities: (classes, height, width) float32, NaN where invalid; None if not asked for.
    """

    window: Window
    classes: NDArray[np.uint8]
    probabilities: NDArray[np.float32] | None
