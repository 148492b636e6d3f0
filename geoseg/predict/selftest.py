"""Scenes and networks whose maps are known beforehand: any way to lay windows must give the same bits.

A constant network says the same everywhere, a network of single pixels reads its class from the pixel, and the
position-coded scene has another value at every pixel, so that a window written at a wrong place cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels
from geoseg.predict.blocks import NODATA
from geoseg.predict.plan import BLENDINGS, SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import plan_windows, predict_blocks

SHAPES = ((97, 150), (129, 60), (17, 200), (1, 1))
_CLASSES = 5
_WINDOWS, _OVERLAPS, _BATCHES = (32, 48, 512), (0, 8, 40), (1, 3)


class ArrayScene:
    """A scene in memory: (bands, H, W), and (H, W) where it is valid."""

    def __init__(self, image: NDArray[np.generic], valid: NDArray[np.bool_]) -> None:
        self.image, self.valid = image, valid

    def read(self, window: Window) -> Pixels:
        """Return the pixels of a window; outside the scene they are invalid."""
        image = np.zeros((len(self.image), *window.shape), self.image.dtype)
        valid = np.zeros(window.shape, dtype=bool)
        scene = Window(0, 0, *self.valid.shape)
        part = window.intersection(scene)
        if part is not None:
            here, there = part.within(window), part.within(scene)
            valid[here] = self.valid[there]
            image[:, here[0], here[1]] = self.image[:, there[0], there[1]]
        return Pixels(image, valid)


def ways() -> Iterator[SlidingOptions]:
    """Yield ways to lay windows over a scene."""
    for window, overlap, batch, blending in product(_WINDOWS, _OVERLAPS, _BATCHES, BLENDINGS):
        yield SlidingOptions(window, overlap, blending, batch)


def classify_array(predictor: Predictor, scene: ArrayScene, options: SlidingOptions) -> NDArray[np.uint8]:
    """Return the class map (H, W) of a scene; every pixel must come once."""
    shape = scene.valid.shape
    classes, times = np.zeros(shape, np.uint8), np.zeros(shape, int)
    for block in predict_blocks(predictor, scene, plan_windows(predictor, *shape, options)):
        at = block.window.within(Window(0, 0, *shape))
        classes[at] = block.classes
        times[at] += 1
    assert (times == 1).all(), "pixels that came twice, or never"
    return classes


def check_constant() -> int:
    """Check that a network that says the same everywhere gives a constant map; return the ways tried."""
    scores = torch.tensor([0.1, 2.3, -1.0, 2.2, 0.0]).view(1, _CLASSES, 1, 1)
    return _check(lambda batch: scores.expand(len(batch), -1, *batch.shape[2:]), lambda rows, columns: 1 + 0 * rows)


def check_pixels() -> int:
    """Check that a network that reads the class from the pixel gives those classes; return the ways tried."""
    return _check(_class_of_value, lambda rows, columns: (rows // 7 + columns // 11) % _CLASSES)


def check_positions() -> int:
    """Check that every pixel comes from its own place; return the ways tried."""
    return _check(_class_of_value, lambda rows, columns: (31 * rows + 17 * columns + rows * columns % 7) % _CLASSES)


CHECKS: dict[str, Callable[[], int]] = {
    "constant network": check_constant,
    "network of single pixels": check_pixels,
    "position-coded scene": check_positions,
}


def _class_of_value(batch: Tensor) -> Tensor:
    """Return scores by which the value of band 1 is the class."""
    return 8 * torch.nn.functional.one_hot(batch[:, 0].long(), _CLASSES).movedim(-1, 1).to(batch.dtype)


def _check(
    network: Callable[[Tensor], Tensor],
    wanted: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
) -> int:
    predictor = Predictor(network, _CLASSES, size_divisor=8, receptive_radius=0)
    tried = 0
    for shape in SHAPES:
        rows, columns = np.indices(shape)
        expected = wanted(rows, columns).astype(np.uint8)
        valid = (rows * columns) % 13 != 12  # specks without data
        scene = ArrayScene(np.where(valid, expected, 0)[None], valid)
        expected = np.where(valid, expected, NODATA).astype(np.uint8)
        for options in ways():
            tried += 1
            found = classify_array(predictor, scene, options)
            assert np.array_equal(found, expected), f"another map of {shape} with {options}"
    return tried
