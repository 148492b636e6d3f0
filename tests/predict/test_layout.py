"""Layouts: the same values, next to each other or in planes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geoseg.predict.layout import channels_together, in_planes, shares


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_are_a_softmax_that_knows_no_neighbours(dtype: torch.dtype):
    scores = torch.randn(4, 6, 31, 37, generator=torch.Generator().manual_seed(0), dtype=dtype) * 30
    wide = scores.double().numpy()
    powers = np.exp(wide - wide.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    found = shares(scores, 1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-30)
    for rows, columns in ((slice(3, 4), slice(5, 6)), (slice(1, 30), slice(2, 15))):
        assert torch.equal(shares(scores[2, :, rows, columns], 0), found[2, :, rows, columns])
