"""How often an epoch holds each sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sample_store import make_store

from geoseg.data.frequency import Frequency, pixels_around, sample_frequency
from geoseg.data.store import Store, open_store
from geoseg.errors import ConfigError, DataError

# Pixels of background and roof in each of ten samples of two scenes: roof is in two of them alone.
COUNTS = np.array([[100, 0]] * 8 + [[90, 10], [70, 30]])
SCENES = ["a"] * 6 + ["b"] * 4


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(
        make_store(tmp_path, trn=10, scenes=({"id": "a", "rank": 2}, {"id": "b", "rank": 5, "weight": 3.0}))
    )
    rows = made.index["split"] == "trn"
    made.index.loc[rows, ["class_0", "class_1"]] = COUNTS
    made.index.loc[rows, "scene"] = SCENES
    made.index.loc[rows, "quality"] = np.arange(10.0)
    return made


def expected(store: Store, **options) -> list[float]:
    frequency = sample_frequency(store, "trn", np.arange(10), **options)
    return frequency.expected.tolist()


def test_once_each_is_no_frequency(store: Store) -> None:
    assert sample_frequency(store, "trn", np.arange(6)) is None
    assert sample_frequency(store, "val", np.arange(2), "scenes") is None


def test_weights_of_scenes_multiply_and_lengthen_the_epoch(store: Store) -> None:
    assert expected(store) == [1.0] * 6 + [3.0] * 4


def test_an_epoch_of_a_length(store: Store) -> None:
    assert expected(store, length=9) == [0.5] * 6 + [1.5] * 4
    frequency = sample_frequency(store, "trn", np.arange(6), length=4)
    orders = [frequency.draw(np.random.default_rng(seed)).tolist() for seed in range(50)]
    assert {len(order) for order in orders} == {4}
    assert all(len(set(order)) == 4 for order in orders)  # none twice while others wait
    assert len({tuple(sorted(order)) for order in orders}) > 10  # not always the same neighbours


def test_balanced_draws_every_class_alike(store: Store) -> None:
    """Half of the draws for roof's 40 pixels, half for background's 960; scene b counts threefold."""
    plain = COUNTS[:, 0] / 960 / 2 + COUNTS[:, 1] / 40 / 2
    plain = plain * ([1] * 6 + [3] * 4)
    assert expected(store, sampling="balanced") == pytest.approx((10 * plain / plain.sum()).tolist())


def test_the_rarest_class_has_its_share_of_every_epoch_however_short(store: Store) -> None:
    frequency = sample_frequency(store, "trn", np.arange(10), "balanced", 4)
    share = frequency.expected[8:].sum()
    assert share > 2
    for seed in range(200):
        drawn = frequency.draw(np.random.default_rng(seed))
        assert np.isin(drawn, [8, 9]).sum() in (int(share), int(share) + 1)


def test_without_groups_a_short_epoch_may_miss_what_is_rare() -> None:
    """What the guarantee is worth: the same chances, drawn alike, sometimes leave both out."""
    plain = Frequency(np.array([0.35] * 8 + [0.6, 0.6]))
    counts = [np.isin(plain.draw(np.random.default_rng(seed)), [8, 9]).sum() for seed in range(200)]
    assert min(counts) == 0


def test_scenes_alike(store: Store) -> None:
    shares = np.array([1 / 6] * 6 + [3 / 4] * 4)
    assert expected(store, sampling="scenes") == pytest.approx((10 * shares / shares.sum()).tolist())


def test_columns_of_samples_and_of_scenes(store: Store) -> None:
    assert expected(store, sampling="quality") == pytest.approx((10 * np.arange(10) / 45).tolist())
    shares = np.array([2] * 6 + [5] * 4)
    assert expected(store, sampling="rank") == pytest.approx((10 * shares / shares.sum()).tolist())


@pytest.mark.parametrize(
    ("sampling", "words"),
    [("balancd", "expected uniform, balanced, scenes or a column such as position"), ("split", "column split")],
)
def test_a_column_that_is_none_is_refused(store: Store, sampling: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.batch_sampling: found .*" + words):
        expected(store, sampling=sampling)


@pytest.mark.parametrize("values", [-1.0, np.nan, 0.0])
def test_numbers_that_are_no_weights_are_refused(store: Store, values: float) -> None:
    store.index["quality"] = values
    with pytest.raises(ConfigError, match="numbers of at least 0"):
        expected(store, sampling="quality")


def test_an_index_without_counts_says_so(store: Store) -> None:
    del store.index["class_1"]
    with pytest.raises(DataError, match="no counts of classes"):
        expected(store, sampling="balanced")


def test_pixels_of_the_samples_that_hold_a_class(store: Store) -> None:
    assert pixels_around(store, "trn") == [1000, 200]


def test_every_item_gets_its_share_rounded_up_or_down() -> None:
    frequency = Frequency(np.array([0.5, 2.25, 1.0, 0.25]))
    draws = [np.bincount(frequency.draw(np.random.default_rng(seed)), minlength=4) for seed in range(400)]
    assert set(map(int, pd.unique(np.array(draws)[:, 1]))) == {2, 3}
    assert np.mean(draws, axis=0).tolist() == pytest.approx([0.5, 2.25, 1.0, 0.25], abs=0.1)
