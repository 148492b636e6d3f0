"""Counting: worked out by hand, the same for any cut into blocks, unknown pixels left out everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import TRANSFORM, UTM18, make_polygons, make_raster, pixel_box

from geoseg.assess import blocks as module
from geoseg.assess.confusion import Reference, SceneConfusion, confusion_of, count_blocks, whole_set
from geoseg.errors import DataError
from geoseg.geo.ground import Ground
from geoseg.geo.vector import ClassMapping, LabelRules, read_labels
from geoseg.learn.metrics import scores

IGNORE = 255


def reference(folder: Path, boxes, classes, outside: int = 0, **more) -> Reference:
    """Return reference polygons that cover boxes (row, col, height, width)."""
    path = make_polygons(folder / "ref.gpkg", [pixel_box(*box) for box in boxes], {"cls": classes})
    labels = read_labels(path, "cls", UTM18, ClassMapping(num_classes=3, ignore_values=frozenset({9})))
    return Reference(Ground(labels, None, IGNORE, LabelRules(mask_outside=outside == IGNORE)), **more)


def class_map(folder: Path, classes: np.ndarray, transform=TRANSFORM) -> Path:
    return make_raster(folder / "a_classes.tif", classes.astype(np.uint8), transform, nodata=255)


def test_counts_by_hand(tmp_path: Path):
    mapped = np.zeros((10, 10))
    mapped[0:5] = 1  # rows 0-4 are class 1
    mapped[5, 0:4] = 255
    made = confusion_of(class_map(tmp_path, mapped), reference(tmp_path, [(2, 0, 6, 10)], [2]), 3)
    # Reference: rows 2-7 class 2, others background. Rows 0-1: 0 mapped 1; 2-4: 2 mapped 1; row 5: 4 unclassified,
    # 6 mapped 0; rows 6-7: 2 mapped 0; rows 8-9: right.
    np.testing.assert_array_equal(made.matrix, [[20, 20, 0], [0, 0, 0], [26, 30, 0]])
    np.testing.assert_array_equal(made.unclassified, [0, 0, 4])
    assert made.unknown == 0
    assert made.name == "a_classes"


def test_unknown_pixels_never_count(tmp_path: Path):
    mapped = np.full((10, 10), 1)
    mapped[:, 5:] = 2  # wrong, but nobody knows
    ref = reference(tmp_path, [(0, 0, 10, 5), (0, 5, 10, 5)], [1, 9])
    made = confusion_of(class_map(tmp_path, mapped), ref, 3)
    assert made.matrix.sum() == 50
    assert made.unknown == 50
    result = scores(made.matrix)
    assert result.overall_accuracy == result.mean_iou == 1


def test_outside_of_polygons_may_be_unknown(tmp_path: Path):
    mapped = np.full((10, 10), 1)
    ref = reference(tmp_path, [(0, 0, 4, 10)], [1], outside=IGNORE)
    made = confusion_of(class_map(tmp_path, mapped), ref, 3)
    np.testing.assert_array_equal(made.matrix, [[0, 0, 0], [0, 40, 0], [0, 0, 0]])
    assert made.unknown == 60


def test_invalid_image_pixels_are_unknown(tmp_path: Path):
    pixels = np.full((2, 10, 10), 7, dtype=np.int16)
    pixels[1, 0] = -9999
    image = make_raster(tmp_path / "image.tif", pixels, nodata=-9999)
    mapped = np.zeros((10, 10))
    mapped[0] = 255
    made = confusion_of(class_map(tmp_path, mapped), reference(tmp_path, [], [], image=image), 3)
    assert (made.matrix[0, 0], made.unclassified[0], made.unknown) == (90, 0, 10)
    made = confusion_of(class_map(tmp_path, mapped), reference(tmp_path, [], [], image=image, bands=[1]), 3)
    assert (made.matrix[0, 0], made.unclassified[0], made.unknown) == (90, 10, 0)


def test_a_map_of_another_grid_than_its_image_is_refused(tmp_path: Path):
    image = make_raster(tmp_path / "image.tif", np.ones((1, 10, 12), np.uint8))
    with pytest.raises(DataError, match=r"map of 10 x 10 pixels.*image\.tif: 12 x 10 at"):
        confusion_of(class_map(tmp_path, np.zeros((10, 10))), reference(tmp_path, [], [], image=image), 3)


def test_ids_beyond_the_classes_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="class id 4"):
        confusion_of(class_map(tmp_path, np.full((4, 4), 4)), reference(tmp_path, [], []), 3)


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator):
    mapped = rng.integers(0, 3, size=(50, 61))
    path = class_map(tmp_path, mapped)
    boxes = [(*rng.integers(0, 40, 2), *rng.integers(1, 20, 2)) for _ in range(20)]
    ref = reference(tmp_path, boxes, [*range(3)] * 6 + [1, 9])
    steps: list[int] = []
    whole = confusion_of(path, ref, 3, "x", steps.append)
    assert len(steps) == count_blocks(path) == 1
    monkeypatch.setattr(module, "BLOCK", 16)
    cut = confusion_of(path, ref, 3, "x", steps.append)
    assert len(steps) == 1 + count_blocks(path) == 1 + 4 * 4
    np.testing.assert_array_equal(whole.matrix, cut.matrix)
    assert whole.unknown == cut.unknown
    # Brute force: paint the boxes in order.
    label = np.zeros((50, 61), int)
    for (row, col, height, width), value in zip(boxes, [*range(3)] * 6 + [1, 9], strict=True):
        label[row : row + height, col : col + width] = value
    for true in range(3):
        for found in range(3):
            assert whole.matrix[true, found] == ((label == true) & (mapped == found)).sum()


def test_pixels_weigh_the_same_in_every_scene():
    small = SceneConfusion("a", np.array([[1, 0], [0, 0]]), np.array([0, 1]), 5)
    large = SceneConfusion("b", np.array([[0, 0], [9, 0]]), np.array([2, 0]), 1)
    both = whole_set([small, large])
    np.testing.assert_array_equal(both.matrix, [[1, 0], [9, 0]])
    np.testing.assert_array_equal(both.unclassified, [2, 1])
    assert both.unknown == 6
    assert scores(both.matrix).overall_accuracy == 0.1
