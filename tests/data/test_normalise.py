from __future__ import annotations

import numpy as np
import pytest

from geoseg.data.normalise import Normalisation
from geoseg.errors import DataError


def test_each_band_by_its_own_mean_and_std() -> None:
    image = np.array([[[10, 20]], [[5, 5]]], np.uint8)

    out = Normalisation(mean=(10.0, 4.0), std=(5.0, 0.5)).apply(image)

    np.testing.assert_array_equal(out, np.array([[[0, 2]], [[2, 2]]], np.float32))
    assert out.dtype == np.float32


def test_invalid_pixels_become_zero_even_where_they_are_nan() -> None:
    image = np.array([[[np.nan, 3.0], [-9999.0, 1.0]]], np.float32)
    valid = np.array([[False, True], [False, True]])

    out = Normalisation((1.0,), (2.0,)).apply(image, valid)

    np.testing.assert_array_equal(out, np.array([[[0.0, 1.0], [0.0, 0.0]]], np.float32))


def test_constant_band_gives_zeros_not_nan() -> None:
    image = np.full((1, 4, 4), 7, np.uint16)

    out = Normalisation((7.0,), (0.0,)).apply(image)

    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize(
    "image",
    [
        np.arange(12, dtype=">u2").reshape(1, 3, 4),
        np.arange(12, dtype=np.int16).reshape(1, 3, 4)[:, ::-1, ::-1],
        np.asfortranarray(np.arange(12.0).reshape(1, 3, 4)),
    ],
    ids=["big-endian", "flipped", "column-major"],
)
def test_any_layout_comes_out_native_and_contiguous(image: np.ndarray) -> None:
    out = Normalisation((1.0,), (2.0,)).apply(image)

    assert out.flags.c_contiguous
    assert out.dtype.isnative
    np.testing.assert_array_equal(out, (np.array(image, np.float64) - 1) / 2)


def test_input_is_left_as_it_was() -> None:
    image = np.ones((1, 2, 2), np.float32)

    Normalisation((1.0,), (2.0,)).apply(image, np.zeros((2, 2), bool))

    np.testing.assert_array_equal(image, 1)


def test_large_16_bit_values_stay_finite() -> None:
    out = Normalisation((30000.0,), (10000.0,)).apply(np.full((1, 1, 1), 65535, np.uint16))

    assert out[0, 0, 0] == pytest.approx(3.5535)


def test_other_number_of_bands_is_refused() -> None:
    with pytest.raises(DataError, match=r"\(2, H, W\)"):
        Normalisation((0.0, 0.0), (1.0, 1.0)).apply(np.zeros((3, 4, 4)))


def test_round_trip_through_plain_lists() -> None:
    original = Normalisation((0.1, 2.0), (0.3, 4.0))

    assert Normalisation.from_dict(original.to_dict()) == original


def test_unusable_numbers_are_refused() -> None:
    for mean, std in [((1.0,), (1.0, 2.0)), ((), ()), ((float("nan"),), (1.0,)), ((0.0,), (-1.0,))]:
        with pytest.raises(ValueError, match=r"mean|std"):
            Normalisation(mean, std)


def test_contrast_survives_a_large_offset() -> None:
    image = 1e9 + 7 + np.array([[[-3.0, 0.0, 3.0]]])
    got = Normalisation((1e9 + 7,), (3.0,)).apply(image)
    assert got.dtype == np.float32
    assert got.tolist() == [[[-1.0, 0.0, 1.0]]]
    whole = Normalisation((2**30,), (2.0,)).apply(np.array([[[2**30 - 2, 2**30 + 4]]], np.int32))
    assert whole.tolist() == [[[-1.0, 2.0]]]
