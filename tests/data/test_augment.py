from __future__ import annotations

import os

import numpy as np
import pytest

from geoseg.data.augment import AUGMENTATIONS, Preset, build_augmentation
from geoseg.data.augment.transforms import BandDropout, CutOut, PlanarElastic


def _pair(bands: int, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(bands)
    image = (rng.standard_normal((bands, size, size)) * 3).astype(np.float32)
    return image, rng.choice(np.array([0, 4], np.uint8), (size, size))


def test_import_does_not_ask_the_network_for_a_newer_version() -> None:
    assert os.environ["NO_ALBUMENTATIONS_UPDATE"] == "1"


def test_none_is_no_augmentation() -> None:
    assert build_augmentation("none", 255) is None


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="geometric"):
        build_augmentation("geometrical", 255)


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 5, 12, 200])
@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_any_number_of_bands_keeps_shape_and_type(name: str, bands: int) -> None:
    augment = build_augmentation(name, 255)
    image, label = _pair(bands)

    for seed in range(6):
        out, moved = augment(image, label, seed)

        assert out.shape == image.shape
        assert out.dtype == np.float32
        assert out.flags.c_contiguous
        assert moved.shape == label.shape
        assert moved.dtype == np.uint8
        assert moved.flags.c_contiguous
        assert np.isfinite(out).all()


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_labels_hold_no_class_that_was_not_there(name: str) -> None:
    augment = build_augmentation(name, 255)
    image, label = _pair(2)
    seen: set[int] = set()

    for seed in range(60):
        seen |= set(np.unique(augment(image, label, seed)[1]).tolist())

    # 255 proves that some draws moved the edge inside, where an interpolated label would be 1, 2 or 3.
    assert seen == {0, 4, 255}


def test_strong_turns_the_label_of_a_cut_out_to_unknown() -> None:
    """A hole has image 0 in all bands and no class; outside of holes and of what moved in nothing is unknown."""
    cut = CutOut(most=1, sides=(0.25, 0.25), ignore_value=255, p=1.0)
    image, label = _pair(3)
    out, moved = Preset([cut])(image, label, 1)

    hole = moved == 255
    assert hole.sum() == 8 * 8
    assert (out[:, hole] == 0).all()
    np.testing.assert_array_equal(out[:, ~hole], image[:, ~hole])


@pytest.mark.parametrize(("bands", "most"), [(1, 0), (2, 1), (5, 1), (20, 4)])
def test_dropped_bands_are_zero_and_one_stays_at_least(bands: int, most: int) -> None:
    drop = Preset([BandDropout(share=0.2, p=1.0)])
    image, label = _pair(bands)
    counts = set()

    for seed in range(40):
        out, _ = drop(image, label, seed)
        gone = ~out.any(axis=(1, 2))
        counts.add(int(gone.sum()))
        np.testing.assert_array_equal(out[~gone], image[~gone])

    assert counts == (set(range(1, most + 1)) or {0})


def test_elastic_moves_image_and_label_together() -> None:
    elastic = Preset([PlanarElastic(alpha=100, sigma=12, fill=0, fill_mask=255, p=1.0)])
    label = np.zeros((96, 96), np.uint8)
    label[20:60, 30:80] = 1
    out, moved = elastic(label[None].astype(np.float32), label, 3)

    inside = moved != 255
    assert (moved[inside] != label[inside]).any()
    # Linear and nearest sampling differ at edges alone.
    assert (np.abs(out[0] - moved) > 0.51)[inside].mean() < 0.005


def test_image_and_label_move_together() -> None:
    augment = build_augmentation("geometric", 255)
    label = np.zeros((64, 64), np.uint8)
    label[5:30, 10:50] = 1
    label[40:60, 2:12] = 2
    image = label[None].astype(np.float32)

    for seed in range(40):
        out, moved = augment(image, label, seed)
        inside = moved != 255
        # Linear and nearest sampling differ at edges alone.
        different = np.abs(out[0] - moved) > 0.5
        assert different[inside].mean() < 0.02, f"seed {seed}"


def test_all_eight_symmetries_are_drawn_and_are_exact() -> None:
    augment = build_augmentation("geometric", 255)
    image = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    expected = {np.rot90(plane, k).tobytes() for plane in (image[0], image[0].T) for k in range(4)}

    drawn = {augment(image, np.zeros((3, 3), np.uint8), seed)[0].tobytes() for seed in range(200)}

    assert expected <= drawn


@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_values_are_not_clipped_to_a_range(scale: float) -> None:
    augment = build_augmentation("light", 255)
    image = np.linspace(-scale, scale, 1024, dtype=np.float32).reshape(1, 32, 32)

    for seed in range(20):
        out, _ = augment(image, np.zeros((32, 32), np.uint8), seed)
        assert out.min() < -0.6 * scale
        assert out.max() > 0.6 * scale


def test_light_changes_bands_apart_from_one_another() -> None:
    augment = build_augmentation("light", 255)
    image = np.ones((3, 8, 8), np.float32)

    means = augment(image, np.zeros((8, 8), np.uint8), 3)[0].mean(axis=(1, 2))

    assert len({round(float(m), 3) for m in means}) == 3


def test_result_is_a_function_of_the_seed() -> None:
    first, second = build_augmentation("light", 255), build_augmentation("light", 255)
    image, label = _pair(4)
    first(image, label, 5)  # what was drawn before must not matter

    again = [first(image, label, seed)[0].tobytes() for seed in (7, 8, 7)]

    assert again[0] == again[2] != again[1]
    assert second(image, label, 7)[0].tobytes() == again[0]


def test_inputs_are_left_as_they_were() -> None:
    augment = build_augmentation("light", 255)
    image, label = _pair(3)
    before = image.copy(), label.copy()

    for seed in range(20):
        augment(image, label, seed)

    np.testing.assert_array_equal(image, before[0])
    np.testing.assert_array_equal(label, before[1])


def test_pixels_without_data_stay_zero() -> None:
    augment = build_augmentation("light", 255)
    image, label = _pair(3)
    image[:, :10, :10] = 0
    label[:10, :10] = 7

    drawn = [augment(image, label, seed) for seed in range(30)]

    images, labels = np.stack([out for out, _ in drawn], axis=1), np.stack([moved for _, moved in drawn])
    for value, low, high in [(7, 0.85, 1.0), (255, 0.5, 1.0), (0, 0.0, 0.05), (4, 0.0, 0.05)]:
        # Not exactly all and none: turning by an angle blends the edges.
        assert low <= (images[:, labels == value] == 0).mean() <= high, value
