"""How often an epoch holds each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from geoseg.data.store import Store
from geoseg.errors import ConfigError, DataError, problem

BATCH_SAMPLINGS = ("uniform", "balanced", "scenes")
_KEY = "training.batch_sampling"


@dataclass(frozen=True)
class Frequency:
    """How often an epoch holds each item, on average: 2.5 is twice or three times.

    Attributes:
        expected: One number per item, at least 0; their sum, rounded, is the length of an epoch.
        groups: One number per item, or None. Every epoch draws from each group its share of the epoch, rounded up or
            down; without groups that holds for each item alone.
    """

    expected: NDArray[np.float64]
    groups: NDArray[np.integer] | None = None

    @property
    def length(self) -> int:
        """Items in an epoch."""
        return max(1, round(float(self.expected.sum())))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the items of an epoch in random order."""
        order = rng.permutation(len(self.expected))
        if self.groups is not None:
            order = order[np.argsort(self.groups[order], kind="stable")]
        # Evenly spaced marks along the numbers: whatever lies together gets its share, and every epoch as many.
        ends = np.cumsum(self.expected[order])
        marks = (np.arange(self.length) + rng.random()) * (ends[-1] / self.length)
        places = np.minimum(np.searchsorted(ends, marks, side="right"), len(order) - 1)
        drawn: NDArray[np.int64] = rng.permutation(order[places])
        return drawn


def sample_frequency(
    store: Store, split: str, chosen: NDArray[np.integer], sampling: str = "uniform", length: int | None = None
) -> Frequency | None:
    """Return how often an epoch holds each chosen sample, or None for once each.

    Args:
        store: An opened store.
        split: The split.
        chosen: Which of its samples are used.
        sampling: `uniform`: all alike; `balanced`: every class alike, by its pixels; `scenes`: every scene alike; or
            the name of a column: in proportion to its numbers, per sample in the index or per scene in the list of
            scenes. A scene's weight multiplies the first three.
        length: Samples in an epoch; None is as many as are chosen (or as the scenes' weights add up to).

    Raises:
        ConfigError: There is no such column, or it does not hold numbers of at least 0, some above 0.
        DataError: The store does not say which classes a sample holds.
    """
    rows, groups = store.samples(split).iloc[np.asarray(chosen)], None
    if sampling == "uniform":
        shares = np.ones(len(rows))
    elif sampling == "scenes":
        shares = 1 / rows.groupby("scene")["scene"].transform("size").to_numpy(np.float64)
    elif sampling == "balanced":
        shares, groups = _balanced(class_counts(store, rows))
    else:
        shares = _column(store, rows, sampling)
    if sampling in BATCH_SAMPLINGS:
        shares = shares * _scene_weights(store, rows)
    whole = shares.sum() if sampling == "uniform" else len(rows)
    expected = shares * ((length or whole) / shares.sum())
    return None if np.allclose(expected, 1) else Frequency(expected, groups)


def class_counts(store: Store, rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return (n, C) known pixels of each class in samples of the index.

    Raises:
        DataError: The index has no such columns.
    """
    names = [f"class_{number}" for number in range(store.info.num_classes)]
    if not set(names) <= set(rows.columns):
        remedy = "run `python -m geoseg.sample` again"
        raise DataError(problem(store.folder / "index.parquet", "no counts of classes", ", ".join(names), remedy))
    return rows[names].to_numpy(np.int64)


def pixels_around(store: Store, split: str) -> list[int]:
    """Return, for each class, the known pixels of the samples of a split that hold it."""
    counts = class_counts(store, store.samples(split))
    known = counts.sum(axis=1)
    return [int(known[counts[:, number] > 0].sum()) for number in range(counts.shape[1])]


def _balanced(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Return the chance of a sample if a class is drawn first and then one of its pixels, and its rarest class.

    The rarest classes make the groups: however short the epoch, it has its share of samples of the rarest class.
    """
    totals = counts.sum(axis=0)
    present = np.flatnonzero(totals)
    if not len(present):
        return np.ones(len(counts)), np.zeros(len(counts), np.int64)
    by_rarity = present[np.argsort(totals[present], kind="stable")]
    rarest = (counts[:, by_rarity] > 0).argmax(axis=1)
    return (counts[:, present] / totals[present]).mean(axis=1), rarest


def _scene_weights(store: Store, rows: pd.DataFrame) -> NDArray[np.float64]:
    by_scene = {str(entry["id"]): float(entry.get("weight", 1.0)) for entry in store.info.scenes if "id" in entry}
    return np.array([by_scene.get(scene, 1.0) for scene in rows["scene"]])


def _column(store: Store, rows: pd.DataFrame, name: str) -> NDArray[np.float64]:
    by_scene = {str(entry["id"]): entry[name] for entry in store.info.scenes if "id" in entry and name in entry}
    if name in rows.columns:
        values: Sequence[object] = rows[name].tolist()
    elif set(rows["scene"]) <= set(by_scene):
        values = [by_scene[scene] for scene in rows["scene"]]
    else:
        numeric = [str(column) for column in rows.select_dtypes("number").columns]
        expected = f"{', '.join(BATCH_SAMPLINGS)} or a column such as {', '.join(numeric)}"
        raise ConfigError(problem(_KEY, repr(name), expected, "use one of these"))
    try:
        shares = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        shares = np.full(1, np.nan)
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
        found = f"column {name}, which holds other things than numbers of at least 0, or nothing but 0"
        raise ConfigError(problem(_KEY, found, "numbers of at least 0, some above 0", "choose another column"))
    return shares
