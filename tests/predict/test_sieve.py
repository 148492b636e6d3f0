"""The minimum mapping unit against its rule, spelled out pixel by pixel."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from flood_fill import beside, flood
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from geoseg.geo.grid import Window
from geoseg.predict.sieve import sieve

NODATA = 255


def by_hand(values: np.ndarray, least: int) -> np.ndarray:
    """Apply the rule as it is written."""
    while True:
        regions = flood(values, NODATA)
        number = {place: n for n, region in enumerate(regions) for place in region}
        rank = [(len(region), -n) for n, region in enumerate(regions)]
        changed = values.copy()
        for n, region in enumerate(regions):
            if len(region) >= least:
                continue
            border: Counter[int] = Counter()
            for row, col in region:
                for place in beside(row, col):
                    if place in number and rank[number[place]] > rank[n]:
                        border[int(values[place])] += 1
            if border:
                longest = max(border.values())
                for place in region:
                    changed[place] = min(kind for kind, length in border.items() if length == longest)
        if (changed == values).all():
            return values
        values = changed


def sieved(values: np.ndarray, least: int, side: int) -> np.ndarray:
    result = np.full_like(values, 77)
    blocks = sieve(
        lambda w: values[w.within(Window(0, 0, *values.shape))], values.shape, least, NODATA, values.dtype.name, side
    )
    for window, block in blocks:
        assert block.dtype == values.dtype
        result[window.within(Window(0, 0, *values.shape))] = block
    return result


MAPS = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.sampled_from([0, 1, 2, NODATA])
)


@settings(max_examples=300)
@given(values=MAPS, least=st.integers(1, 12), side=st.integers(1, 13))
def test_the_rule_whatever_the_blocks(values: np.ndarray, least: int, side: int):
    np.testing.assert_array_equal(sieved(values, least, side), by_hand(values, least))


def test_a_region_counts_as_a_whole_across_blocks():
    values = np.zeros((9, 12), np.uint8)
    values[4, 1:11] = 1  # 10 pixels through four blocks of 3
    np.testing.assert_array_equal(sieved(values, 10, 3), values)
    assert (sieved(values, 11, 3) == 0).all()


def test_the_longest_border_decides_and_corners_do_not_connect():
    values = np.zeros((4, 7), np.uint8)
    values[:, 4:] = 5
    values[1, 3] = values[2, 2] = 9  # two pixels that touch at a corner: each has three sides towards 0
    expected = np.where(np.arange(7) < 4, 0, 5).astype(np.uint8) * np.ones((4, 1), np.uint8)
    np.testing.assert_array_equal(sieved(values, 2, 7), expected)
    np.testing.assert_array_equal(sieved(values, 1, 7), values)


def test_nodata_stays_and_what_it_encloses_stays():
    values = np.full((5, 5), NODATA, np.uint8)
    values[1, 1:3] = 3
    values[3, 3], values[3, 4] = 1, 2  # two neighbours of one pixel: the first one counts as larger
    expected = values.copy()
    expected[3, 4] = 1
    np.testing.assert_array_equal(sieved(values, 100, 2), expected)


def test_wide_values():
    values = np.full((6, 6), 60000, np.uint16)
    values[2, 2] = 40000
    nodata, blocks = 65535, []
    for _, block in sieve(lambda w: values[w.within(Window(0, 0, *values.shape))], (6, 6), 2, nodata, "uint16", 4):
        blocks.append(block)
    assert {block.dtype.name for block in blocks} == {"uint16"}
    assert all((block == 60000).all() for block in blocks)


def test_noise_leaves_no_small_region():
    values = np.random.default_rng(3).integers(0, 5, (120, 150)).astype(np.uint8)
    made = sieved(values, 40, 32)
    assert min(map(len, flood(made))) >= 40
    assert len(set(made.ravel().tolist())) == 5


@pytest.mark.parametrize("side", [7, 64])
def test_what_is_large_is_not_touched(side: int):
    values = np.kron(np.random.default_rng(1).integers(0, 3, (10, 10)), np.ones((6, 6))).astype(np.uint8)
    np.testing.assert_array_equal(sieved(values, 36, side), values)
