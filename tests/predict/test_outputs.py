"""What maps hold: ids or values, fractions as numbers or in steps of 1/250, entropy."""

from __future__ import annotations

import numpy as np
import pytest

from geoseg.geo.grid import Window
from geoseg.predict.outputs import entropy, map_outputs, needs_probabilities
from geoseg.predict.sliding import ClassBlock

SHARES = np.array([[[0.5, 1.0, np.nan]], [[0.3, 0.0, np.nan]], [[0.2, 0.0, np.nan]]], np.float32)
BLOCK = ClassBlock(Window(0, 0, 1, 3), np.array([[0, 0, 255]], np.uint8), SHARES)


def encoded(name: str, **options) -> np.ndarray:
    (output,) = map_outputs([name], 3, **options)
    values = output.encode(BLOCK)
    assert values.dtype == output.dtype
    return values


def test_ids_and_values():
    np.testing.assert_array_equal(encoded("classes"), [[0, 0, 255]])
    np.testing.assert_array_equal(encoded("classes", values=(300, 7, 9)), [[300, 300, 65535]])


def test_fractions():
    np.testing.assert_array_equal(encoded("confidence"), np.array([[0.5, 1, np.nan]], np.float32))
    np.testing.assert_array_equal(encoded("confidence", scaled=True), [[125, 250, 255]])
    np.testing.assert_array_equal(
        encoded("probabilities", scaled=True)[:, 0], [[125, 250, 255], [75, 0, 255], [50, 0, 255]]
    )


def test_entropy_is_a_share_of_the_greatest():
    by_hand = -(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2)) / np.log(3)
    np.testing.assert_allclose(encoded("entropy")[0, :2], [by_hand, 0], rtol=1e-6, atol=1e-7)
    assert np.isnan(encoded("entropy")[0, 2])
    np.testing.assert_allclose(entropy(np.full((4, 1, 1), 0.25, np.float32)), 1, rtol=1e-6)


def test_what_needs_probabilities():
    assert not needs_probabilities(["classes"])
    assert needs_probabilities(["classes", "entropy"])
    with pytest.raises(ValueError, match="unknown outputs"):
        map_outputs(["heights"], 3)
