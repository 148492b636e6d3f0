"""Where samples lie: grid, jitter, chance, classes, objects; blocks that hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.data.windows import (
    Places,
    Region,
    WindowOptions,
    any_overlap,
    blocks_of,
    choose_windows,
    fitted,
    grid_in,
)
from geoseg.geo.grid import Window, sample_windows

WHOLE = Window(0, 0, 100, 140)


def _choose(options: WindowOptions, regions: list[Region] | None = None, **more: object) -> dict[Window, str]:
    return choose_windows(regions or [Region(WHOLE, "trn")], 16, 8, options, "scene-1", **more)  # type: ignore[arg-type]


def test_the_plain_grid_is_that_of_the_scene() -> None:
    assert list(_choose(WindowOptions())) == sample_windows(100, 140, 16, 8)


def test_jitter_moves_windows_by_no_more_than_asked_and_keeps_them_inside() -> None:
    grid, moved = sample_windows(100, 140, 16, 8), list(_choose(WindowOptions(jitter=3, seed=1)))

    assert moved != grid
    assert all(WHOLE.contains(window) for window in moved)
    for window in moved:
        assert min(max(abs(window.row_off - g.row_off), abs(window.col_off - g.col_off)) for g in grid) <= 3
    assert moved == list(_choose(WindowOptions(jitter=3, seed=1)))
    assert moved != list(_choose(WindowOptions(jitter=3, seed=2)))


def test_random_windows_are_spread_over_the_ground() -> None:
    windows = list(_choose(WindowOptions("random", count=4000)))

    rows = np.array([w.row_off for w in windows])
    assert (rows.min(), rows.max()) == (0, 84)
    # Corners are drawn evenly from 0 to 84; 4000 of them, less those drawn twice, have their mean near the middle.
    assert abs(rows.mean() - 42) < 2


def test_only_training_ground_is_drawn_from_at_random() -> None:
    regions = [Region(Window(0, 0, 100, 60), "val"), Region(Window(0, 64, 100, 76), "trn")]

    chosen = _choose(WindowOptions("random", count=50), regions)

    validation = [window for window, split in chosen.items() if split == "val"]
    assert validation == grid_in(Window(0, 0, 100, 60), 16, 8)
    assert all(window.col_off >= 64 for window, split in chosen.items() if split == "trn")


def test_every_class_gets_as_many_windows_however_rare_it_is() -> None:
    # A class of one pixel at (50, 70), and one of thousands elsewhere, of which 100 points are known.
    points = np.array([[50, 70, 2], *([5, col, 1] for col in range(20, 120))])
    places = Places(points, np.array([1.0, *[50.0] * 100]))

    chosen = _choose(WindowOptions("classes", count=40), places=places)

    rare = [w for w in chosen if w.row_off <= 50 < w.row_stop and w.col_off <= 70 < w.col_stop]
    assert len(chosen) <= 40
    assert len(rare) >= 17  # 20, less those drawn twice
    assert all(any(w.contains(Window(r, c, 1, 1)) for r, c, _ in points.tolist()) for w in chosen)


def test_windows_along_objects_are_centred_on_them_but_stay_inside() -> None:
    points = np.array([[50, 70, 1], [0, 0, 1], [99, 139, 1]])

    chosen = _choose(WindowOptions("objects"), places=Places(points, np.ones(3)))

    assert list(chosen) == [Window(0, 0, 16, 16), Window(42, 62, 16, 16), Window(84, 124, 16, 16)]


def test_a_window_larger_than_its_region_starts_where_the_region_does() -> None:
    assert fitted(Window(7, 9, 16, 16), Window(3, 4, 10, 40)) == Window(3, 9, 16, 16)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 20), st.integers(1, 60), st.data())
@settings(max_examples=80, deadline=None)
def test_blocks_hold_every_window_once_and_own_every_pixel_once(
    height: int, width: int, size: int, side: int, data: st.DataObject
) -> None:
    rows, cols = st.integers(0, max(0, height - size)), st.integers(0, max(0, width - size))
    windows = [Window(data.draw(rows), data.draw(cols), size, size) for _ in range(data.draw(st.integers(0, 12)))]
    hits = np.zeros((height, width), int)

    held = []
    for block, owned in blocks_of(windows, height, width, size, side):
        hits[owned.row_off : owned.row_stop, owned.col_off : owned.col_stop] += 1
        held += block.windows
        for window in (owned, *block.windows):
            inside = window.intersection(Window(0, 0, height, width))
            assert inside is not None
            assert block.window.contains(inside)
        assert max(block.window.shape) <= max(2 * size, side)

    assert (hits == 1).all()
    assert sorted(held) == sorted(windows)


@pytest.mark.parametrize(("stride", "overlapping"), [(10, False), (9, True)])
def test_overlap_is_seen(stride: int, overlapping: bool) -> None:
    assert any_overlap(dict.fromkeys(sample_windows(30, 40, 10, stride), "trn")) is overlapping
    assert any_overlap(dict.fromkeys(sample_windows(31, 40, 10, 10), "trn"))
