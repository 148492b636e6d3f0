"""Layouts: the same values, next to each other or in planes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geoseg.predict.layout import channels_together, in_planes


@pytest.mark.parametrize("channels", [1, 2, 5, 200, 600])
def test_values_keep_their_places(channels: int):
    image = np.random.default_rng(channels).normal(size=(channels, 7, 9)).astype(np.float32)
    together = channels_together(image)
    np.testing.assert_array_equal(together.numpy(), image)
    assert channels in (1, 600) or together.unsqueeze(0).is_contiguous(memory_format=torch.channels_last)
    for cut in (slice(None), slice(2, 6)):
        planes = in_planes(together[:, cut, cut])
        np.testing.assert_array_equal(planes.numpy(), image[:, cut, cut])
        assert planes.stride(-1) == 1


def test_what_is_not_finite_stays_in_its_channel():
    image = np.zeros((3, 4, 4), np.float32)
    image[1, 2, 3], image[2, 0, 0] = -np.inf, np.nan
    np.testing.assert_array_equal(in_planes(channels_together(image)).numpy(), image)
