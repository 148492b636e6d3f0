"""Boundaries, objects, calibration and the difference map, against whole-scene computations and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from conftest import make_raster
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.assess import blocks as module
from geoseg.assess.blocks import ComparedBlock, block_tiles
from geoseg.assess.boundary import BoundaryOverlap
from geoseg.assess.calibration import Calibration, reliability_of, whole_reliability
from geoseg.assess.difference import COLOURS, KINDS, difference_map
from geoseg.assess.objects import ObjectMatcher
from geoseg.geo.grid import tiles
from geoseg.geo.raster import open_raster, read_info


def cut(label, predicted, known=None, classified=None, side=1024, margin=0):
    """Yield arrays as blocks with a margin, as a pass over files does."""
    height, width = label.shape
    known = np.ones(label.shape, bool) if known is None else known
    classified = np.ones(label.shape, bool) if classified is None else classified
    arrays = [np.pad(a.astype(t), margin) for a, t in
              ((label, np.uint8), (known, bool), (predicted, np.uint8), (classified, bool))]  # fmt: skip
    for tile in tiles(height, width, side, margin):
        rows = slice(tile.read.row_off + margin, tile.read.row_stop + margin)
        cols = slice(tile.read.col_off + margin, tile.read.col_stop + margin)
        yield ComparedBlock(tile.write, tile.write.within(tile.read), *(a[rows, cols] for a in arrays))


def measured(measure, *arrays, side=1024, **more):
    for block in cut(*arrays, side=side, margin=measure.margin, **more):
        measure.add(block)
    return measure


def patches(rng: np.random.Generator, shape=(50, 60), classes=3, size=5) -> np.ndarray:
    coarse = rng.integers(0, classes, (shape[0] // size + 1, shape[1] // size + 1))
    return np.kron(coarse, np.ones((size, size), int))[: shape[0], : shape[1]]


def test_boundaries_by_hand():
    label = np.zeros((20, 20), int)
    label[5:15, 5:15] = 1
    shifted = np.roll(label, 2, axis=1)
    made = measured(BoundaryOverlap(2, 1), label, shifted)
    # Each outline has 36 pixels. Common: of the top and bottom rows columns 7 to 14, 8 each; no side column lies on the
    # other's outline but at those rows.
    assert (made.common[1], made.either[1]) == (16, 56)
    assert measured(BoundaryOverlap(2, 1), label, label).iou()[1] == 1
    filled = label.copy()
    filled[5:15, 5:15] = 1
    wide = measured(BoundaryOverlap(2, 5), label, filled)
    assert wide.either[1] == 100  # the whole square is within 5 pixels of its outline


def test_edges_of_the_scene_and_of_the_unknown_are_no_boundary():
    label = np.ones((20, 20), int)
    known = np.ones((20, 20), bool)
    known[:, 10:] = False
    made = measured(BoundaryOverlap(2, 2), label, label, known=known)
    assert made.either[1] == 0
    assert np.isnan(made.iou()).all()


def brute_boundary(label, predicted, both, number, width):
    def band(area):
        padded = np.pad(area | ~both, width, constant_values=True)
        inner = np.ones(area.shape, bool)
        for i in range(2 * width + 1):
            for j in range(2 * width + 1):
                inner &= padded[i : i + area.shape[0], j : j + area.shape[1]]
        return area & ~inner

    a, b = band(both & (label == number)), band(both & (predicted == number))
    return (a & b).sum(), (a | b).sum()


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("side", [7, 16, 1024])
def test_boundaries_against_brute_force(rng: np.random.Generator, width: int, side: int):
    label, predicted = patches(rng), patches(rng)
    predicted = np.where(rng.random(label.shape) < 0.7, label, predicted)
    known, classified = rng.random(label.shape) < 0.97, rng.random(label.shape) < 0.98
    made = measured(BoundaryOverlap(3, width), label, predicted, known=known, classified=classified, side=side)
    for number in range(3):
        expected = brute_boundary(label, predicted, known & classified, number, width)
        assert (made.common[number], made.either[number]) == expected


def test_objects_by_hand():
    label, predicted = np.zeros((2, 30, 30), int)
    label[0:10, 0:10] = 1
    predicted[0:10, 0:8] = 1  # IoU 0.8
    label[20:25, 0:5] = 1  # missed
    label[0:4, 20:24] = 1
    predicted[2:6, 20:24] = 1  # IoU 8 / 24: missed and invented
    predicted[20:22, 20:22] = 1  # invented
    predicted[22, 22] = 1  # touches it at a corner
    label[15:18, 15:18] = 2
    predicted[15:18, 15:18] = 2
    made = measured(ObjectMatcher(4, 30), label, predicted).scores()
    np.testing.assert_array_equal(made.reference, [0, 3, 1, 0])
    np.testing.assert_array_equal(made.mapped, [0, 3, 1, 0])
    np.testing.assert_array_equal(made.matched, [0, 1, 1, 0])
    np.testing.assert_allclose(made.mean_iou[1:3], [0.8, 1])
    assert made.precision[1] == made.recall[1] == made.f1[1] == pytest.approx(1 / 3)
    assert np.isnan(made.f1[3])
    doubled = made + made
    assert doubled.reference[1] == 6


def test_halves_of_one_object_make_one_pair():
    label, predicted = np.ones((2, 10, 11), int)
    predicted[:, 5] = 0
    label[:, 5] = 0
    predicted[4:6, 5] = 0
    label[5, 5] = 1  # the reference is one object, the map two
    made = measured(ObjectMatcher(2, 11, 0.49 + 0.01), label, predicted).scores()
    assert (made.reference[1], made.mapped[1], made.matched[1]) == (1, 2, 0)  # 50 / 101 each: below a half
    label[5, 5] = 0
    label[:, 5:] = 0
    made = measured(ObjectMatcher(2, 11), label, np.ones((10, 11), int) * (np.arange(11) < 10)).scores()
    assert made.matched[1] == 1  # 50 of 100: a half is enough


def brute_objects(label, predicted, known, threshold=0.5):
    """Flood fill, then every pair."""

    def objects(classes):
        found, left = [], {(r, c) for r, c in zip(*np.nonzero(classes), strict=True)}
        while left:
            todo = [left.pop()]
            kind, area = classes[todo[0]], set(todo)
            while todo:
                r, c = todo.pop()
                for near in ((r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)):
                    if near in left and classes[near] == kind:
                        left.remove(near)
                        todo.append(near)
                        area.add(near)
            found.append((kind, area))
        return found

    first, second = objects(np.where(known, label, 0)), objects(np.where(known, predicted, 0))
    matched = [
        len(a & b) / len(a | b)
        for kind, a in first
        for other, b in second
        if kind == other and len(a & b) >= threshold * len(a | b)
    ]
    return len(first), len(second), len(matched), sum(matched)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([3, 5, 8, 64]), st.floats(0.2, 0.95))
def test_objects_against_flood_fill(seed: int, side: int, share: float):
    rng = np.random.default_rng(seed)
    label = patches(rng, (23, 19), size=2) * (rng.random((23, 19)) < share)
    predicted = np.where(rng.random(label.shape) < 0.9, label, patches(rng, (23, 19), size=3))
    known = rng.random(label.shape) < 0.97
    made = measured(ObjectMatcher(3, 19, 0.6), label, predicted, known=known, side=side).scores()
    expected = brute_objects(label, predicted, known, 0.6)
    found = (made.reference.sum(), made.mapped.sum(), made.matched.sum(), pytest.approx(made.overlap.sum()))
    assert expected == found


def test_a_spiral_is_one_object_whatever_the_blocks():
    spiral = np.zeros((41, 41), int)
    low, high = 0, 40
    while low < high:
        spiral[low, low : high + 1] = spiral[low : high + 1, high] = spiral[high, low + 2 : high + 1] = 1
        spiral[low + 2 : high + 1, low + 2] = 1
        low, high = low + 2, high - 2
    for side in (4, 9, 64):
        made = measured(ObjectMatcher(2, 41), spiral, spiral, side=side).scores()
        assert (made.reference[1], made.matched[1], made.overlap[1]) == (1, 1, 1.0)


def test_a_threshold_below_a_half_is_refused():
    with pytest.raises(ValueError, match=r"0\.5 to 1"):
        ObjectMatcher(2, 10, 0.4)


def test_calibration_by_hand(tmp_path: Path):
    confidence = np.full((10, 10), 0.95, np.float32)
    confidence[5:] = 0.55
    confidence[0, 0] = np.nan
    label = np.zeros((10, 10), int)
    label[5:, :4] = 1  # wrong in 20 of 50 of the less certain half
    path = make_raster(tmp_path / "c.tif", confidence, nodata=float("nan"))
    with open_raster(path) as raster:
        made = measured(Calibration(raster, 10), label, np.zeros((10, 10), int), side=4).reliability()
    np.testing.assert_array_equal(made.pixels[[5, 9]], [50, 49])
    assert made.pixels.sum() == 99
    np.testing.assert_allclose(made.accuracy[[5, 9]], [0.6, 1])
    assert made.expected_error == pytest.approx((50 * 0.05 + 49 * 0.05) / 99, rel=1e-5)
    assert made.largest_error == pytest.approx(0.05, rel=1e-5)
    assert whole_reliability([made, made]).pixels[5] == 100


def test_probabilities_give_the_same_as_confidence(tmp_path: Path, rng: np.random.Generator):
    values = rng.dirichlet([1, 1, 1], (12, 9)).transpose(2, 0, 1).astype(np.float32)
    label = rng.integers(0, 3, (12, 9))
    made = []
    for name, array in (("p", values), ("c", values.max(axis=0))):
        with open_raster(make_raster(tmp_path / f"{name}.tif", array)) as raster:
            made.append(measured(Calibration(raster), label, values.argmax(axis=0)).reliability())
    np.testing.assert_array_equal(made[0].pixels, made[1].pixels)
    np.testing.assert_allclose(made[0].expected_error, made[1].expected_error)


def test_the_difference_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    label = np.array([[0, 1, 1, 0, 2, 1, 1]])
    predicted = np.array([[0, 1, 0, 2, 1, 1, 1]])
    known, classified = np.ones((2, 1, 7), bool)
    known[0, 5], classified[0, 6] = False, False
    info = read_info(make_raster(tmp_path / "m.tif", predicted.astype(np.uint8), nodata=255))
    with difference_map(tmp_path / "d.tif", info) as writer:
        measured(writer, label, predicted, known=known, classified=classified, side=3)
    with rasterio.open(tmp_path / "d.tif") as made:
        assert made.read(1).tolist() == [[0, 1, 2, 3, 4, 255, 255]]
        assert made.nodata == 255
        assert made.transform == info.transform
        assert made.colormap(1)[2][:3] == tuple(bytes.fromhex(COLOURS[2][1:]))
    assert "omission" in (tmp_path / "d.tif.aux.xml").read_text()
    assert KINDS[2] == "omission"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(RuntimeError, match="stop"), difference_map(tmp_path / "e.tif", info):
        raise RuntimeError("stop")
    assert not (tmp_path / "e.tif").exists()


def test_blocks_have_the_margin_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK", 16)
    info = read_info(make_raster(tmp_path / "m.tif", np.zeros((20, 20), np.uint8)))
    assert [tile.read.shape for tile in block_tiles(info, 2)] == [(20, 20), (20, 8), (8, 20), (8, 8)]


def test_a_confidence_on_the_border_of_bins_is_in_the_lower_one_as_in_training() -> None:
    """Intervals open below and closed above, as Guo et al. define them."""
    values = np.array([0.0, 0.25, 0.250001, 0.5, 0.75, 0.9, 1.0])

    found = reliability_of(values, np.ones(7, bool), bins=4)

    assert found.pixels.tolist() == [2, 2, 1, 2]
