"""Window arithmetic: every pixel is covered, blocks and tiles partition, sides are bounded."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoseg.geo.grid import Window, axis_offsets, bounding, sample_blocks, sample_windows, tiles

SIDES = st.integers(1, 90)


@st.composite
def grids(draw):
    """Height, width, size, stride."""
    size = draw(st.integers(2, 40))
    return draw(SIDES), draw(SIDES), size, draw(st.integers((size + 2) // 3, size))


@pytest.mark.parametrize(
    ("length", "stride", "count"),
    [(600, 256, 3), (1591, 256, 7), (300, 256, 2), (257, 256, 2), (256, 256, 1), (100, 256, 1), (600, 128, 4)],
)
def test_number_of_windows_of_an_axis(length, stride, count):
    assert len(axis_offsets(length, 256, stride)) == count


def test_offsets_by_hand():
    assert axis_offsets(10, 4, 3) == (0, 3, 6)
    assert axis_offsets(11, 4, 3) == (0, 3, 6, 7)
    assert axis_offsets(3, 4, 3) == (0,)
    assert axis_offsets(4, 4, 1) == (0,)


def test_offsets_do_not_depend_on_pixel_size():
    # From floating bounds of 0.1 m pixels, 24 of these 40 offsets come out one too small.
    assert axis_offsets(40 * 256, 256, 256) == tuple(256 * i for i in range(40))


@pytest.mark.parametrize(("length", "size", "stride"), [(0, 4, 4), (10, 0, 1), (10, 4, 0), (10, 4, 5), (10, 4, -1)])
def test_impossible_axes_are_refused(length, size, stride):
    with pytest.raises(ValueError, match="no windows"):
        axis_offsets(length, size, stride)


@given(st.integers(1, 3000), st.integers(1, 300), st.data())
def test_axis_is_covered_with_the_stated_number_of_windows(length, size, data):
    stride = data.draw(st.integers(1, size))
    offsets = axis_offsets(length, size, stride)
    assert len(offsets) == (math.ceil((length - size) / stride) + 1 if length > size else 1)
    assert list(offsets) == sorted(set(offsets))
    assert offsets[0] == 0
    assert all(after - before <= size for before, after in pairwise(offsets))
    assert offsets[-1] + size == max(length, size)


@given(grids())
def test_every_pixel_lies_in_a_sample(grid):
    height, width, size, stride = grid
    covered = np.zeros((height, width), bool)
    for window in sample_windows(height, width, size, stride):
        assert window.shape == (size, size)
        covered[window.row_off : window.row_stop, window.col_off : window.col_stop] = True
    assert covered.all()


def test_a_scene_smaller_than_a_sample_has_one():
    assert sample_windows(100, 180, 256, 200) == [Window(0, 0, 256, 256)]
    assert sample_windows(100, 300, 256, 256) == [Window(0, 0, 256, 256), Window(0, 44, 256, 256)]


@given(grids(), st.integers(1, 300))
def test_blocks_partition_the_samples_and_are_bounded(grid, max_side):
    height, width, size, stride = grid
    blocks = sample_blocks(height, width, size, stride, max_side)
    windows = [window for block in blocks for window in block.windows]
    assert sorted(windows) == sample_windows(height, width, size, stride)
    scene = Window(0, 0, height, width)
    for block in blocks:
        assert max(block.window.shape) <= max(stride, max_side) + size - stride
        assert block.window == bounding(block.windows).intersection(scene)
        assert list(block.windows) == sorted(block.windows)
    corners = [(block.window.row_off, block.window.col_off) for block in blocks]
    assert corners == sorted(corners)


def test_blocks_of_overlapping_samples_begin_where_tiles_do():
    """Strides of 128 add up to 2,048; the last sample was moved back to 9,744, and begins a block of its own."""
    rows = sorted({block.window.row_off for block in sample_blocks(10_000, 256, 256, 128)})
    assert rows == [0, 2048, 4096, 6144, 8192]
    assert {block.window.height for block in sample_blocks(10_000, 256, 256, 128)[:4]} == {2048 + 128}


def test_a_very_wide_scene_is_cut_in_both_directions():
    blocks = sample_blocks(300, 100_000, 256, 256)
    assert len(blocks) == 49  # 391 columns of windows, 8 to a block; 2 rows of windows in one
    assert max(block.window.width for block in blocks) == 2048


@given(SIDES, SIDES, st.integers(5, 60), st.integers(0, 40), st.integers(1, 32))
def test_tiles_partition_the_scene_and_read_windows_are_aligned(height, width, side, context, multiple):
    written = np.zeros((height, width), int)
    for tile in tiles(height, width, side, context, multiple):
        written[tile.write.within(Window(0, 0, height, width))] += 1
        read, write = tile.read, tile.write
        assert all(value % multiple == 0 for value in (read.row_off, read.col_off, read.height, read.width))
        needed = Window(
            write.row_off - context, write.col_off - context, write.height + 2 * context, write.width + 2 * context
        )
        assert read.contains(needed)
        assert read.height < needed.height + 2 * multiple
        assert read.width < needed.width + 2 * multiple
    assert (written == 1).all()


def test_tiles_by_hand():
    first, second = tiles(512, 700, 512, 56, 8)
    assert (first.write, first.read) == (Window(0, 0, 512, 512), Window(-56, -56, 624, 624))
    assert (second.write, second.read) == (Window(0, 512, 512, 188), Window(-56, 456, 624, 304))


@pytest.mark.parametrize("arguments", [(0, 5, 4, 0, 1), (5, 5, 0, 0, 1), (5, 5, 4, -1, 1), (5, 5, 4, 0, 0)])
def test_impossible_tiles_are_refused(arguments):
    with pytest.raises(ValueError, match="no tiles"):
        tiles(*arguments)


def test_window_relations():
    outer, inner = Window(2, 3, 10, 10), Window(4, 5, 3, 2)
    assert outer.contains(inner)
    assert not inner.contains(outer)
    assert inner.within(outer) == (slice(2, 5), slice(2, 4))
    assert outer.intersection(Window(0, 0, 4, 5)) == Window(2, 3, 2, 2)
    assert outer.intersection(Window(12, 3, 1, 1)) is None
    assert inner.shifted(-4, 1) == Window(0, 6, 3, 2)
    assert sorted([Window(1, 0, 1, 1), Window(0, 5, 1, 1)])[0].col_off == 5
    with pytest.raises(ValueError, match="does not lie inside"):
        outer.within(inner)
