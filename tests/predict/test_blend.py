"""Blending: weights, exactness, and independence of the strips."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.predict.blend import (
    Span,
    StripBlender,
    axis_weights,
    gaussian_weights,
    hann_weights,
    overlapping_tiles,
    window_count,
)


def blended(
    scores: dict[tuple[int, int], torch.Tensor], shape, stride: int, overlap: int, cut: list[Span], blending="hann"
):
    """Blend given window scores, strip by strip, into (channels, height, width) and count how often pixels come."""
    height, width = shape
    channels = next(iter(scores.values())).shape[0]
    result = torch.full((channels, height, width), torch.nan, dtype=torch.float64)
    times = np.zeros(shape, dtype=int)
    weights = axis_weights(blending, stride + overlap, overlap)
    rows = Span(0, 0, window_count(height, stride, overlap))
    for strip in cut:
        blender = StripBlender(channels, stride, weights, rows, strip, torch.device("cpu"), torch.float64)
        for tile in overlapping_tiles(height, width, stride, overlap, rows, strip):
            mean = blender.add(tile, scores[tile.read.row_off, tile.read.col_off].clone())
            if mean is not None:
                at = (
                    slice(tile.write.row_off, tile.write.row_stop),
                    slice(tile.write.col_off, tile.write.col_stop),
                )
                result[:, at[0], at[1]] = mean
                times[at] += 1
    return result, times


def random_scores(shape, stride: int, overlap: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    side = stride + overlap
    rows, columns = (window_count(length, stride, overlap) for length in shape)
    return {
        (r * stride, k * stride): torch.rand(2, side, side, generator=generator, dtype=torch.float64)
        for r in range(rows)
        for k in range(columns)
    }


def one_strip(width: int, stride: int, overlap: int) -> list[Span]:
    return [Span(0, 0, window_count(width, stride, overlap))]


def test_weights_of_a_small_window():
    half = 0.5
    steep = np.sin(np.pi / 8) ** 2  # a ramp of two pixels is sampled at a quarter and three quarters
    expected = [steep, 1 - steep, 1, 1, 1 - steep, steep]
    np.testing.assert_allclose(hann_weights(6, 2), expected, atol=1e-15)
    np.testing.assert_allclose(hann_weights(4, 1), [half, 1, 1, half], atol=1e-15)
    np.testing.assert_array_equal(hann_weights(4, 0), np.ones(4))


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(0, 500))
def test_weights_are_never_zero_and_symmetric(side: int, overlap: int):
    weights = hann_weights(side, overlap)
    assert weights.min() > 0
    assert weights.max() <= 1
    torch.testing.assert_close(weights, weights.flip(0), rtol=0, atol=0)


@pytest.mark.parametrize(("stride", "overlap"), [(8, 4), (8, 8), (16, 2)])
def test_neighbouring_weights_add_up_to_one(stride: int, overlap: int):
    weights = hann_weights(stride + overlap, overlap)
    torch.testing.assert_close(weights[stride:] + weights[:overlap], torch.ones(overlap, dtype=torch.float64))


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (12, 1), (13, 2), (20, 2), (21, 3), (100, 12)])
def test_window_count(length: int, expected: int):
    assert window_count(length, 8, 4) == expected


@pytest.mark.parametrize(
    ("shape", "stride", "overlap"), [((21, 35), 8, 4), ((9, 50), 4, 12), ((30, 7), 5, 0), ((1, 1), 4, 2)]
)
@pytest.mark.parametrize("blending", ["hann", "gaussian"])
def test_equals_the_weighted_mean_over_whole_windows(shape, stride: int, overlap: int, blending: str):
    scores = random_scores(shape, stride, overlap)
    side = stride + overlap
    axis = axis_weights(blending, side, overlap)
    weights = axis[:, None] * axis
    big = (shape[0] + 2 * side, shape[1] + 2 * side)
    total, wanted = torch.zeros(big, dtype=torch.float64), torch.zeros(2, *big, dtype=torch.float64)
    for (row, column), values in scores.items():
        total[row : row + side, column : column + side] += weights
        wanted[:, row : row + side, column : column + side] += weights * values
    wanted = (wanted / total)[:, : shape[0], : shape[1]]
    result, times = blended(scores, shape, stride, overlap, one_strip(shape[1], stride, overlap), blending)
    assert (times == 1).all()
    torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 60), st.integers(1, 9), st.integers(0, 20), st.integers(1, 6))
def test_strips_do_not_change_a_bit(height: int, width: int, stride: int, overlap: int, size: int):
    scores = random_scores((height, width), stride, overlap)
    columns = window_count(width, stride, overlap)
    reach = -(-overlap // stride)
    cut = [Span(max(0, first - reach), first, min(columns, first + size)) for first in range(0, columns, size)]
    whole, _ = blended(scores, (height, width), stride, overlap, one_strip(width, stride, overlap))
    pieces, times = blended(scores, (height, width), stride, overlap, cut)
    assert (times == 1).all()
    assert torch.equal(whole, pieces)


def test_equal_scores_stay_equal_to_the_last_bit():
    value = torch.tensor([0.1, 1 / 3])[:, None, None].double()
    for stride in (256, 192, 128, 64, 32, 100):
        overlap = 256 - stride
        scores = {key: value.expand(2, 256, 256) for key in random_scores((300, 400), stride, overlap)}
        result, _ = blended(scores, (300, 400), stride, overlap, one_strip(400, stride, overlap))
        assert (result == value).all()


def test_gaussian_weights_are_positive_and_symmetric():
    for side in (1, 16, 683):
        weights = gaussian_weights(side)
        assert weights.min() > 0
        torch.testing.assert_close(weights, weights.flip(0), rtol=0, atol=0)
    # Four pixels are 4 / 8 of a standard deviation each; the outer centres lie 1.5 pixels, 3 deviations, away.
    np.testing.assert_allclose(gaussian_weights(4), np.exp([-4.5, -0.5, -0.5, -4.5]), rtol=1e-15)
