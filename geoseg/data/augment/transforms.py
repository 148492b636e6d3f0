"""The transforms of the presets, for normalised images of any number of bands.

The library's own intensity transforms are not used: they clip floats to 0..1, which destroys normalised values. Images
go through as (bands, H, W), against the library's (H, W, bands), and are changed plane by plane: some of OpenCV's
functions stop at 4 or 128 channels, and 200 interleaved bands are slow in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import albumentations as A
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


class Symmetry(A.D4):
    """Turn and mirror every plane by views."""

    def apply(self, img: NDArray[Any], group_element: str, **_: Any) -> NDArray[Any]:
        return _SYMMETRIES[group_element](img)

    def apply_to_mask(self, mask: NDArray[Any], group_element: str, **_: Any) -> NDArray[Any]:
        return _SYMMETRIES[group_element](mask)


class PlanarAffine(A.Affine):
    """Shift, scale and rotate plane by plane."""

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        return super().get_params_dependent_on_data(params | {"shape": params["shape"][1:]}, data)

    def apply(self, img: NDArray[Any], **params: Any) -> NDArray[Any]:
        return np.stack([super(PlanarAffine, self).apply(plane, **params) for plane in img])


class PlanarElastic(A.ElasticTransform):
    """Shift every pixel by a smooth random field, plane by plane."""

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        return super().get_params_dependent_on_data(params | {"shape": params["shape"][1:]}, data)

    def apply(self, img: NDArray[Any], **params: Any) -> NDArray[Any]:
        return np.stack([super(PlanarElastic, self).apply(plane, **params) for plane in img])


def _keep_empty(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Restore pixels that are 0 in all bands: they hold no data, and classification sees them as 0 too."""
    np.copyto(after, 0, where=~before.any(axis=0))
    return after


class BandJitter(A.ImageOnlyTransform):
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


class Noise(A.ImageOnlyTransform):
    """Gaussian noise of a drawn strength, independent per pixel and band; not clipped."""

    def __init__(self, strength: float, p: float = 0.5) -> None:
        super().__init__(p=p)
        self.strength = strength

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        scale = np.float32(self.random_generator.uniform(0.0, self.strength))
        return {"noise": self.random_generator.standard_normal(params["shape"], dtype=np.float32) * scale}

    def apply(self, img: NDArray[Any], noise: NDArray[Any], **_: Any) -> NDArray[Any]:
        return _keep_empty(img, img + noise)


class BandDropout(A.ImageOnlyTransform):
    """Set bands to 0, their mean, so that the network does not lean on one of them; one band at least stays."""

    def __init__(self, share: float, p: float = 0.5) -> None:
        super().__init__(p=p)
        self.share = share

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        bands = params["shape"][0]
        most = min(bands - 1, max(1, round(self.share * bands)))
        count = self.random_generator.integers(1, most + 1) if most else 0
        return {"dropped": self.random_generator.permutation(bands)[:count]}

    def apply(self, img: NDArray[Any], dropped: NDArray[Any], **_: Any) -> NDArray[Any]:
        out = img.copy()
        out[dropped] = 0
        return out


class CutOut(A.DualTransform):
    """Blank out rectangles: image 0, and the label unknown, so that nobody guesses what was there."""

    def __init__(self, most: int, sides: tuple[float, float], ignore_value: int, p: float = 0.5) -> None:
        super().__init__(p=p)
        self.most = most
        self.sides = sides
        self.ignore_value = ignore_value

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        extent = np.array(params["shape"][1:])
        holes = []
        for _ in range(self.random_generator.integers(1, self.most + 1)):
            sides = np.maximum(1, (extent * self.random_generator.uniform(*self.sides, 2)).astype(int))
            start = self.random_generator.integers(0, extent - sides + 1)
            holes.append(tuple(slice(low, low + side) for low, side in zip(start, sides, strict=True)))
        return {"holes": holes}

    def apply(self, img: NDArray[Any], holes: list[tuple[slice, slice]], **_: Any) -> NDArray[Any]:
        return self._filled(img, holes, 0)

    def apply_to_mask(self, mask: NDArray[Any], holes: list[tuple[slice, slice]], **_: Any) -> NDArray[Any]:
        return self._filled(mask, holes, self.ignore_value)

    def _filled(self, array: NDArray[Any], holes: list[tuple[slice, slice]], value: float) -> NDArray[Any]:
        out = array.copy()
        for rows, cols in holes:
            out[..., rows, cols] = value
        return out
