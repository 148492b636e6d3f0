"""What holds for a raster of any size, cut in any way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.features
from conftest import TRANSFORM, make_polygons
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenery import CLASSES, make_options, make_scene, make_store
from shapely import Polygon

from geoseg.data import sampling
from geoseg.data.sampling import SampleOptions, reason_to_drop


def _options(size: int = 256, **more: Any) -> SampleOptions:
    return SampleOptions(make_options().survey, CLASSES, size, size, False, **more)


@pytest.mark.parametrize(
    ("annotated", "valid", "reason"),
    [(6553, 65536, "unannotated"), (6554, 65536, None), (3277, 32768, None), (3276, 32768, "unannotated")],
)
def test_ten_per_cent_of_the_valid_pixels(annotated: int, valid: int, reason: str | None) -> None:
    counts = [valid - annotated, annotated, 0]

    assert reason_to_drop(counts, valid, _options(min_annotated=10.0)) == reason


def test_background_polygons_are_annotation_where_the_rest_is_unknown() -> None:
    options = SampleOptions(make_options(mask_outside=True).survey, CLASSES, 256, 256, False, min_annotated=50.0)

    assert reason_to_drop([40000, 0, 0], 65536, options) is None
    assert reason_to_drop([30000, 0, 0], 65536, options) == "unannotated"


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    size=st.integers(1, 24),
    side=st.integers(8, 64),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_samples_are_the_scene(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, int],
    size: int,
    side: int,
    seed: int,
    data: st.DataObject,
) -> None:
    """Every valid pixel is covered; images, labels and counts are those of the whole scene, burnt at once."""
    stride = data.draw(st.integers(1, size))
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 9, (2, *shape)).astype(np.int16)
    image[:, rng.random(shape) < 0.1] = -1
    image[0, 0, 0] = 5
    image[1, 0, 0] = 5
    scene = make_scene(folder, image=image, nodata=-1, boxes=[])
    corners = rng.uniform(-5, 75, (12, 3, 2)).round(3)
    corners[0] = [(-9, -9), (9, -9), (-9, 20)]  # one lies on the raster for certain
    shapes = [Polygon([TRANSFORM @ (col, row) for row, col in triangle]) for triangle in corners]
    make_polygons(scene.labels, shapes, {"cls": [1, 2] * 6})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK_SIDE", side)
        store = make_store(folder / "data", [scene], make_options(size, stride))

    pairs = zip(shapes, [1, 2] * 6, strict=True)
    whole = rasterio.features.rasterize(pairs, out_shape=shape, transform=TRANSFORM, dtype="uint8")
    valid = (image >= 0).all(axis=0)
    label = np.pad(np.where(valid, whole, 255), (0, size), constant_values=255)
    padded = np.pad(np.where(valid, image, 0), ((0, 0), (0, size), (0, size)))
    covered = np.zeros_like(label, bool)
    for row in store.index.itertuples():
        place = (slice(row.row_off, row.row_off + size), slice(row.col_off, row.col_off + size))
        covered[place] = True
        np.testing.assert_array_equal(store.images(row.scene)[row.position], padded[:, *place])
        np.testing.assert_array_equal(store.labels(row.scene)[row.position], label[place])
        assert [row.class_0, row.class_1, row.class_2] == [int((label[place] == i).sum()) for i in range(3)]
    assert covered[: shape[0], : shape[1]][valid].all()
