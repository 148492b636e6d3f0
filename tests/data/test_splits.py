"""Ground of the splits: blocks, gaps, shares, and what lies on common ground."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from conftest import TRANSFORM, make_raster
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.data.scenes import Scene
from geoseg.data.splits import Cell, Length, SplitOptions, cells_of, deal, deal_at_random, pixels_of, regions_of
from geoseg.data.survey import SceneFacts
from geoseg.errors import DataError
from geoseg.geo.grid import Window
from geoseg.geo.raster import read_info

SHARES = {"trn": 0.5, "val": 0.25, "tst": 0.25}


def _facts(folder: Path, shape: tuple[int, int] = (300, 500), **raster: object) -> SceneFacts:
    path = make_raster(folder / "a.tif", np.zeros((1, *shape), np.uint8), **raster)  # type: ignore[arg-type]
    return SceneFacts(Scene(path, None, None, "trn"), read_info(path), (1,), 0)


def test_metres_become_pixels(tmp_path: Path) -> None:
    half = TRANSFORM * Affine.scale(0.5, 0.25)

    assert pixels_of(Length(100, "m"), _facts(tmp_path, transform=half)) == (400, 200)
    assert pixels_of(Length(100, "px"), _facts(tmp_path, transform=half)) == (100, 100)


def test_metres_become_pixels_of_degrees(tmp_path: Path) -> None:
    place = Affine(0.001, 0, 10, 0, -0.001, 60.15)  # 300 rows around 60 degrees north, where a degree is half as long

    rows, cols = pixels_of(Length(11132, "m"), _facts(tmp_path, crs="EPSG:4326", transform=place))

    assert rows == 100
    assert cols == pytest.approx(200, abs=1)


def test_metres_without_a_crs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no CRS.*1024 px"):
        pixels_of(Length(100, "m"), _facts(tmp_path, crs=None))


def test_cells_partition_the_scene_and_have_room_for_a_sample_and_the_gap(tmp_path: Path) -> None:
    facts = _facts(tmp_path, (300, 500))

    cells = cells_of(0, facts, SplitOptions("blocks", size=Length(90, "px")), 64)

    hits = np.zeros((300, 500), int)
    for cell in cells:
        hits[cell.window.within(facts.info.window)] += 1
        assert min(cell.window.shape) >= 64 + 16
    assert (hits == 1).all()
    assert len(cells) == 3 * 6


def test_a_scene_smaller_than_a_sample_is_one_cell(tmp_path: Path) -> None:
    (cell,) = cells_of(0, _facts(tmp_path, (40, 50)), SplitOptions("blocks", size=Length(10, "px")), 64)

    assert cell.window == Window(0, 0, 40, 50)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_regions_of_different_splits_are_apart_by_the_gap(rows: int, cols: int, half: int, data: st.DataObject) -> None:
    side, gap = 20, 2 * half
    cells = [
        Cell(0, (row, col), Window(row * side, col * side, side, side)) for row in range(rows) for col in range(cols)
    ]
    splits = [data.draw(st.sampled_from(["trn", "val", "tst"])) for _ in cells]

    regions = regions_of(cells, splits, (gap, gap))

    for one in regions:
        assert min(one.window.shape) >= side - gap
        for other in regions:
            if one.split != other.split:
                down = max(one.window.row_off, other.window.row_off) - min(one.window.row_stop, other.window.row_stop)
                across = max(one.window.col_off, other.window.col_off) - min(one.window.col_stop, other.window.col_stop)
                assert max(down, across) >= gap
    if len(set(splits)) == 1:  # nothing is given away for nothing
        assert [region.window for region in regions] == [cell.window for cell in cells]


def test_every_split_has_its_share_of_a_rare_class() -> None:
    rng = np.random.default_rng(3)
    counts = np.zeros((40, 3))
    counts[:, 0] = 1000
    counts[rng.choice(40, 8, replace=False), 2] = 50
    counts[rng.choice(40, 20, replace=False), 1] = 200

    splits = np.array(deal(counts, SHARES, seed=1))

    assert [int(counts[splits == s, 2].sum()) for s in SHARES] == [200, 100, 100]
    assert [int(counts[splits == s, 1].sum()) for s in SHARES] == [2000, 1000, 1000]
    assert [int((splits == s).sum()) for s in SHARES] == [20, 10, 10]


def test_the_same_seed_deals_the_same() -> None:
    counts = np.random.default_rng(0).integers(0, 100, (30, 4)).astype(float)

    assert deal(counts, SHARES, 5) == deal(counts, SHARES, 5)
    assert deal(counts, SHARES, 5) != deal(np.ones((30, 4)), SHARES, 6)


def test_every_split_gets_a_block_if_there_are_three() -> None:
    counts = np.array([[1000.0, 900], [10, 0], [10, 0]])

    assert sorted(deal(counts, {"trn": 0.9, "val": 0.05, "tst": 0.05}, 0)) == ["trn", "tst", "val"]


def test_fewer_blocks_than_splits_are_refused() -> None:
    with pytest.raises(DataError, match=r"2 blocks for 3 splits.*lower it"):
        deal(np.ones((2, 2)), SHARES, 0)


def test_what_a_split_has_already_is_counted() -> None:
    had = {"trn": np.array([0.0, 100]), "val": np.array([0.0, 0])}

    assert deal(np.array([[0.0, 60], [0, 40]]), {"trn": 0.5, "val": 0.5}, 0, had) == ["val", "val"]


def test_windows_are_dealt_in_proportion() -> None:
    names = deal_at_random(101, SHARES, np.random.default_rng(0))

    assert [names.count(split) for split in SHARES] == [50, 26, 25]
    assert names[:50] != ["trn"] * 50
