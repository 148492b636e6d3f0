"""A user's own pipeline, in albumentations' serialisation, made safe for samples of any bands."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import albumentations as A
import cv2
import numpy as np
from albumentations.core.serialization import SERIALIZABLE_REGISTRY
from numpy.typing import NDArray

from geoseg.errors import ConfigError, problem

_KEY = "training.augmentation"
_GROUPS = ("Compose", "Sequential")  # whose p is 1 if not said
_TRIALS = 3


class Pipeline:
    """An `Augmentation` by a pipeline of albumentations, as `A.to_dict` writes it.

    Its transforms see (H, W, bands) float32 from 0 to 1: the sample's lowest value is 0 and its highest 1, over all
    bands, and afterwards the values are put back. So those that clip to 0..1 cut nothing but what they add beyond the
    sample's own range. Whatever the pipeline says, labels are moved by nearest neighbour and filled with the ignore
    value; pixels that held no data, or that are filled, have image 0.

    Args:
        setting: The mapping.
        ignore_value: Label of what is filled.
        bands: Bands of the samples.
        size: Side of the samples.

    Raises:
        ConfigError: It cannot be built; or, tried alone, a transform fails, or changes shape or classes.
    """

    def __init__(self, setting: Mapping[str, Any], ignore_value: int, bands: int, size: int) -> None:
        plain = copy.deepcopy(dict(setting))
        top = plain.get("transform", plain)
        self._ignore_value = ignore_value
        # Codes of the plane that travels with the label; what is filled gets the ignore value there too.
        self._present = 1 if ignore_value != 1 else 2
        for node in _nodes(top):
            _force(node, ignore_value)
        for node in _nodes(top):
            if "transforms" not in node:
                self._try_out({**node, "p": 1.0}, bands, size)
        self._compose = self._built(top)

    def _built(self, node: Mapping[str, Any]) -> A.Compose:
        name = node.get("__class_fullname__", "nothing")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # unknown arguments are no more than a warning there
                built = A.from_dict({"transform": node})
            compose = built if isinstance(built, A.Compose) else A.Compose([built])
            compose.add_targets({"present": "mask"})
        except (ValueError, TypeError, KeyError, AttributeError, UserWarning) as error:
            found = f"{name}, which cannot be built ({_one_line(error)})"
            raise ConfigError(problem(_KEY, found, "a pipeline as albumentations writes it", "correct it")) from error
        return compose

    def _try_out(self, node: dict[str, Any], bands: int, size: int) -> None:
        """Refuse a transform that cannot work on the samples, before an epoch fails on it."""
        name, compose = node.get("__class_fullname__"), self._built(node)
        rng = np.random.default_rng(0)
        image = rng.standard_normal((bands, size, size), dtype=np.float32)
        label = rng.choice(np.array([self._present, self._ignore_value], np.uint8), (size, size))
        for seed in range(_TRIALS):
            try:
                out, moved = self._applied(compose, image, label, seed)
            except Exception as error:  # whatever a library raises on images it was not written for
                found = f"{name}, which fails on {bands} bands of {size} x {size} pixels ({_one_line(error)})"
                raise ConfigError(problem(_KEY, found, "one that takes them", "leave it out")) from error
            if out.shape != image.shape or moved.shape != label.shape:
                found = f"{name}, which makes {'x'.join(map(str, moved.shape))} of {size}x{size} pixels"
                raise ConfigError(problem(_KEY, found, "one that keeps the size", "leave it out, or resize back"))
            if not set(np.unique(moved)) <= set(np.unique(label)) or not np.isfinite(out).all():
                found = f"{name}, which makes classes up, or values that are no numbers"
                raise ConfigError(problem(_KEY, found, "one that moves labels as they are", "leave it out"))

    def __call__(
        self, image: NDArray[np.float32], label: NDArray[np.uint8], seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the changed pair, see `Augmentation`."""
        return self._applied(self._compose, image, label, seed)

    def _applied(
        self, compose: A.Compose, image: NDArray[np.float32], label: NDArray[np.uint8], seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        empty = ~image.any(axis=0)
        low, high = float(image.min()), float(image.max())
        span = high - low or 1.0
        present = np.where(empty, self._ignore_value, self._present).astype(np.uint8)
        compose.set_random_seed(seed)
        scaled = np.ascontiguousarray(((image - low) / span).transpose(1, 2, 0))
        out = compose(image=scaled, mask=np.array(label), present=present)
        changed = out["image"].reshape(*out["image"].shape[:2], -1).transpose(2, 0, 1) * np.float32(span)
        changed = np.ascontiguousarray(changed + np.float32(low), dtype=np.float32)
        changed *= out["present"] != self._ignore_value
        return changed, np.ascontiguousarray(out["mask"])


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every transform of a serialised pipeline, groups included."""
    if not isinstance(node, dict) or "__class_fullname__" not in node:
        expected = "mappings with __class_fullname__ and its arguments"
        raise ConfigError(problem(_KEY, _one_line(node), expected, "write it as albumentations' to_dict does"))
    yield node
    for inner in node.get("transforms") or ():
        yield from _nodes(inner)


def _force(node: dict[str, Any], ignore_value: int) -> None:
    """Set what a user may not decide, where the transform has it, and the p that the library would take to be 0.5."""
    name = str(node["__class_fullname__"])
    known = SERIALIZABLE_REGISTRY.get(name.removeprefix("albumentations.").split(".")[-1])
    if known is None:
        raise ConfigError(problem(_KEY, name, "a transform of albumentations", "correct the name"))
    parameters = inspect.signature(known.__init__).parameters
    if "fill_mask" in parameters:
        node["fill_mask"] = ignore_value
    if "mask_interpolation" in parameters:
        node["mask_interpolation"] = cv2.INTER_NEAREST
    if node.get("mask_drop_value") is not None:
        node["mask_drop_value"] = ignore_value
    if "p" not in node and "p" in parameters:
        default = parameters["p"].default
        node["p"] = 1.0 if name in _GROUPS else default if isinstance(default, int | float) else 0.5


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:200]
