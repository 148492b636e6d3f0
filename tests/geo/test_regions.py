"""Regions of blocks against a flood fill, and what is linked put together."""

from __future__ import annotations

import numpy as np
import pytest
from flood_fill import flood
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from geoseg.geo.regions import joined, number_regions

MAPS = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.sampled_from([0, 1, 2, 255])
)


@pytest.mark.parametrize("unknown", [None, 255])
@given(values=MAPS)
def test_regions_are_those_of_a_flood_fill(values: np.ndarray, unknown: int | None):
    numbers, kinds = number_regions(values, unknown)
    found = {
        frozenset(zip(*(axis.tolist() for axis in np.nonzero(numbers == n)), strict=True)) for n in range(1, len(kinds))
    }
    assert found == set(map(frozenset, flood(values, unknown)))
    assert (values[numbers > 0] == kinds[numbers[numbers > 0]]).all()
    assert ((numbers == 0) == (values == unknown)).all()


def test_long_chains_are_joined():
    links = np.stack([np.arange(999), np.arange(1, 1000)])[:, np.random.default_rng(0).permutation(999)]
    assert (joined(1001, links) == [0] * 1000 + [1000]).all()
