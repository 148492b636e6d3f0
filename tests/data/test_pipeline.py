"""A user's own albumentations pipeline: what is forced on it, what is refused, and what it may see."""

from __future__ import annotations

from typing import Any

import albumentations as A
import numpy as np
import pytest

from geoseg.data.augment import build_augmentation
from geoseg.errors import ConfigError

IGNORE = 255


def of(*transforms: A.BasicTransform) -> dict[str, Any]:
    """A pipeline as the library writes it."""
    return A.to_dict(A.Compose(list(transforms)))


def pair(bands: int = 6, size: int = 32, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(bands)
    image = (rng.standard_normal((bands, size, size)) * scale).astype(np.float32)
    return image, rng.choice(np.array([0, 4], np.uint8), (size, size))


def test_labels_are_filled_with_ignore_and_moved_by_nearest_whatever_is_said() -> None:
    affine = A.Affine(rotate=(30, 30), interpolation=1, mask_interpolation=1, fill=0.3, fill_mask=0, p=1.0)
    image, label = pair()
    out, moved = build_augmentation(of(affine), IGNORE, 6, 32)(image, label, 0)
    assert set(np.unique(moved)) == {0, 4, IGNORE}
    assert (out[:, moved == IGNORE] == 0).all()
    assert (out[:, moved != IGNORE] != 0).any()


def test_a_cut_out_is_unknown() -> None:
    image, label = pair()
    out, moved = build_augmentation(of(A.CoarseDropout(p=1.0)), IGNORE, 6, 32)(image, label, 0)
    assert 0 < (moved == IGNORE).sum() < moved.size
    assert (out[:, moved == IGNORE] == 0).all()
    np.testing.assert_allclose(out[:, moved != IGNORE], image[:, moved != IGNORE], atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_values_keep_their_range(scale: float) -> None:
    """The library would clip floats to 0..1: all that is negative, and all beyond one standard deviation."""
    image, label = pair(scale=scale)
    brighter = A.RandomBrightnessContrast(brightness_limit=(0.1, 0.1), contrast_limit=(0, 0), p=1.0)
    out, _ = build_augmentation(of(brighter), IGNORE, 6, 32)(image, label, 0)
    # A tenth of the range more, but nothing above the sample's own highest value.
    expected = np.minimum(image + 0.1 * (image.max() - image.min()), image.max())
    np.testing.assert_allclose(out, expected, atol=1e-4 * scale)


@pytest.mark.parametrize("bands", [1, 2, 4, 12, 200])
def test_any_number_of_bands(bands: int) -> None:
    setting = of(A.Affine(rotate=(-20, 20), p=1.0), A.HorizontalFlip(p=1.0), A.GaussNoise(p=1.0))
    image, label = pair(bands)
    out, moved = build_augmentation(setting, IGNORE, bands, 32)(image, label, 1)
    assert (out.shape, out.dtype, moved.dtype) == (image.shape, np.float32, np.uint8)
    assert out.flags.c_contiguous
    assert moved.flags.c_contiguous


def test_the_result_is_a_function_of_the_seed_in_nested_groups_too() -> None:
    setting = of(A.OneOf([A.GaussNoise(p=1.0), A.Sequential([A.D4(p=1.0)], p=1.0)], p=1.0))
    first, second = (build_augmentation(setting, IGNORE, 6, 32) for _ in range(2))
    image, label = pair()
    again = [first(image, label, seed)[0].tobytes() for seed in (7, 8, 7)]
    assert again[0] == again[2] != again[1]
    assert second(image, label, 7)[0].tobytes() == again[0]


def test_pixels_without_data_stay_zero_and_inputs_as_they_are() -> None:
    image, label = pair()
    image[:, :8] = 0
    before = image.copy(), label.copy()
    out, _ = build_augmentation(of(A.GaussNoise(p=1.0)), IGNORE, 6, 32)(image, label, 0)
    assert (out[:, :8] == 0).all()
    assert (out[:, 8:] != image[:, 8:]).any()
    np.testing.assert_array_equal(image, before[0])
    np.testing.assert_array_equal(label, before[1])


def test_the_version_around_the_pipeline_may_be_left_out_and_a_group_without_p_is_always_applied() -> None:
    flip = {"__class_fullname__": "HorizontalFlip", "p": 1.0}
    for setting in ({"__class_fullname__": "Compose", "transforms": [flip]}, {"transform": flip}, flip):
        augment = build_augmentation(setting, IGNORE, 6, 32)
        image, label = pair()
        for seed in range(5):
            np.testing.assert_allclose(augment(image, label, seed)[0], image[..., ::-1], atol=1e-5)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"__class_fullname__": "HorzontalFlip"}, "HorzontalFlip, expected a transform of albumentations"),
        ({"name": "HorizontalFlip"}, "__class_fullname__"),
        ({"__class_fullname__": "Affine", "rotate": "far"}, "Affine, which cannot be built"),
        ({"__class_fullname__": "Affine", "mask_value": 0}, r"Argument\(s\) 'mask_value' are not valid"),
        (of(A.RandomCrop(16, 16)), "RandomCrop, which makes 16x16 of 32x32 pixels"),
        (of(A.OneOf([A.D4(), A.HueSaturationValue()])), "HueSaturationValue, which fails on 6 bands"),
        (of(A.CLAHE()), "CLAHE, which fails on 6 bands"),
    ],
)
def test_what_cannot_work_is_refused_before_training(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.augmentation: found .*" + words):
        build_augmentation(setting, IGNORE, 6, 32)


def test_an_ignore_value_of_one_is_no_trap() -> None:
    image, label = pair()
    label[label == 4] = 1
    augment = build_augmentation(of(A.Affine(rotate=(30, 30), p=1.0)), 1, 6, 32)
    out, moved = augment(image, label, 0)
    assert set(np.unique(moved)) == {0, 1}
    assert (out[:, moved == 0] != 0).any()
