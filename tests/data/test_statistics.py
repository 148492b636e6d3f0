from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.data.statistics import EMPTY, band_moments, describe, merge, percentiles, subsample, subsample_step
from geoseg.geo.grid import Window


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_moments_are_those_of_the_valid_pixels(dtype: str, share: float) -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(100, 130, (2, 300, 301)).astype(dtype)
    valid = rng.random((300, 301)) < share

    found = band_moments(image, valid)

    for band, moments in zip(image.astype(np.float64), found, strict=True):
        values = band[valid]
        assert moments.count == len(values)
        if len(values):
            assert moments.mean == pytest.approx(values.mean(), rel=1e-12)
            assert moments.std == pytest.approx(values.std(), rel=1e-12)
            assert (moments.low, moments.high) == (values.min(), values.max())
        else:
            assert moments == EMPTY
            assert moments.std == 0


def test_nodata_does_not_enter() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(500, 50, (400, 400)).astype(np.float32)
    valid = rng.random((400, 400)) >= 0.3
    image = np.where(valid, truth, np.float32(-9999))[None]

    (moments,) = band_moments(image, valid)

    assert moments.mean == pytest.approx(float(truth[valid].astype(np.float64).mean()), rel=1e-9)
    assert 499 < moments.mean < 501
    assert 49 < moments.std < 51
    assert moments.low > 0


def test_constant_bands_have_exactly_no_deviation() -> None:
    for value, dtype in [(255, "uint8"), (251, "uint8"), (65535, "uint16"), (0.1, "float32")]:
        (moments,) = band_moments(np.full((1, 100, 100), value, dtype), np.ones((100, 100), bool))
        assert moments.std < 1e-12 * value


def test_large_means_do_not_cancel() -> None:
    noise = np.random.default_rng(2).normal(0, 1, (200, 200))
    image = (noise + 1e9)[None]

    (moments,) = band_moments(image, np.ones((200, 200), bool))

    assert moments.std == pytest.approx(image[0].std(), rel=1e-6)


@given(st.lists(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30), min_size=1, max_size=6), st.randoms())
@settings(max_examples=60, deadline=None)
def test_merging_is_the_same_in_any_order_and_equals_the_whole(groups: list[list[float]], random: object) -> None:
    parts = [band_moments(np.array([[g]]), np.ones((1, len(g)), bool))[0] for g in groups]
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    every = np.concatenate([np.array(g) for g in groups])

    merged = merge(parts)

    assert merged == merge(shuffled)
    assert merge([*parts, EMPTY]) == merged
    assert merged.count == len(every)
    assert merged.mean == pytest.approx(every.mean(), abs=1e-9)
    assert merged.std == pytest.approx(every.std(), abs=1e-7)


def test_merging_nothing() -> None:
    assert merge([]) == EMPTY


def test_subsample_step_bounds_the_subsample() -> None:
    assert subsample_step(1) == subsample_step(2**18) == 1
    step = subsample_step(10_000 * 10_000)
    assert (10_000 / step) ** 2 <= 2**18 < (10_000 / (step - 1)) ** 2


def test_any_cut_of_a_scene_gives_the_same_subsample() -> None:
    rng = np.random.default_rng(3)
    image, valid = rng.integers(0, 1000, (2, 37, 41)), rng.random((37, 41)) < 0.8
    whole = subsample(image, valid, Window(0, 0, 37, 41), 5)
    expected = image[:, ::5, ::5][:, valid[::5, ::5]]
    np.testing.assert_array_equal(whole, expected)

    parts = []
    for row, height in [(0, 13), (13, 24)]:
        for col, width in [(0, 7), (7, 34)]:
            place = (slice(row, row + height), slice(col, col + width))
            parts.append(subsample(image[:, *place], valid[place], Window(row, col, height, width), 5))

    joined = np.concatenate(parts, axis=1)
    assert sorted(map(tuple, joined.T)) == sorted(map(tuple, whole.T))


def test_percentiles_over_several_files(tmp_path: Path) -> None:
    values = np.arange(201, dtype=np.int16)
    np.save(tmp_path / "a.npy", np.stack([values[:50], -values[:50]]))
    np.save(tmp_path / "b.npy", np.stack([values[50:], -values[50:]]))
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]

    assert percentiles(files, [3, 3], 0) == {"p1": 2, "p2": 4, "p50": 100, "p98": 196, "p99": 198}
    assert percentiles(files, [3, 3], 1)["p1"] == -198
    assert set(percentiles([], [], 0).values()) == {0.0}


def test_describe_holds_finite_numbers_even_without_pixels() -> None:
    (described,) = describe([EMPTY], [], [])

    assert described["count"] == 0
    assert all(np.isfinite(value) for value in described.values())
