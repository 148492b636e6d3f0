"""A network and all that must be known to feed it windows of a raster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.geo.grid import Window
from geoseg.geo.raster import Pixels
from geoseg.predict.layout import channels_together

_CPU = torch.device("cpu")


class PixelSource(Protocol):
    """What a raster must offer to be classified (`geoseg.geo.raster.Raster` does)."""

    def read(self, window: Window) -> Pixels:
        """Return the pixels of a window; outside the scene they are invalid."""
        ...


class Preparation(Protocol):
    """What turns source pixels into network input (`geoseg.data.normalise.Normalisation` does)."""

    def apply(self, image: NDArray[np.generic], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return float32 (bands, H, W), 0 where invalid."""
        ...


@dataclass(frozen=True)
class Predictor:
    """A network and all that must be known to feed it.

    Attributes:
        network: (N, bands, H, W) -> (N, classes, H, W) scores (logits).
        num_classes: Number of classes, at most 255.
        normalisation: Applied to every window; None takes the pixels as they are, invalid ones as 0.
        size_divisor: Windows begin at multiples of this and their sides are multiples of it.
        receptive_radius: How far a pixel's score looks; None if over the whole window.
        device: Where the network is.
        dtype: Type of its input.
        autocast: Lower precision to compute in, or None.
        channels_last: Memory layout of its input.
        bands: Number of bands, where that is known.
    """

    network: Callable[[Tensor], Tensor]
    num_classes: int
    normalisation: Preparation | None = None
    size_divisor: int = 1
    receptive_radius: int | None = 0
    device: torch.device = _CPU
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    channels_last: bool = False
    bands: int | None = None

    def prepare(self, pixels: Pixels) -> Tensor:
        """Return the network's input for one window: (bands, H, W)."""
        if self.normalisation is not None:
            image = self.normalisation.apply(pixels.image, pixels.valid)
            return channels_together(image) if self.channels_last else torch.from_numpy(image)
        return torch.from_numpy(np.where(pixels.valid, pixels.image, 0).astype(np.float64)).to(self.dtype)

    def __call__(self, windows: list[Tensor]) -> Tensor:
        """Return the scores (N, classes, H, W) of windows (bands, H, W) of one size, at least in float32."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        stacked = torch.stack(windows) if len(windows) > 1 else windows[0].unsqueeze(0)  # one is not copied
        batch = stacked.to(self.device, self.dtype).contiguous(memory_format=layout)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            scores = self.network(batch)
        if scores.shape[1] != self.num_classes:
            raise ValueError(f"the network gives {scores.shape[1]} scores a pixel, not {self.num_classes}")
        return scores if scores.dtype == torch.float64 else scores.float()
