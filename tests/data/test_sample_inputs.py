"""Every way in which images and labels may come, from the files to the samples that are stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from conftest import make_polygons, make_raster, pixel_box
from scenery import CLASSES, make_options, make_scene, make_store

from geoseg.data.classes import class_mapping
from geoseg.data.records import fingerprint
from geoseg.data.scenes import Scene
from geoseg.data.store import Store
from geoseg.data.survey import survey
from geoseg.errors import DataError
from geoseg.geo.raster import Reading
from geoseg.geo.vector import LabelRules
from geoseg.learn.prepare import make_spec

SIZE = 16


def scene(folder: Path, image: Path | str, boxes: Any = ((2, 2, 6, 6, 1),), **more: Any) -> Scene:
    polygons = [pixel_box(*box[:4]) for box in boxes]
    labels = make_polygons(folder / "labels.gpkg", polygons, {"cls": [box[4] for box in boxes]})
    return Scene(image, labels, "cls", "trn", **more)


def raster(folder: Path, name: str, array: np.ndarray, **options: Any) -> Path:
    return make_raster(folder / name, array, **options)


def single(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Return image and label of a store's only sample."""
    row = store.samples("trn").iloc[0]
    return np.array(store.images(row["scene"])[0]), np.array(store.labels(row["scene"])[0])


def ramp(value: int = 0, dtype: str = "uint16") -> np.ndarray:
    return (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) + value).astype(dtype)


def test_one_file_per_band_by_name(tmp_path: Path) -> None:
    paths = [raster(tmp_path, f"s_{name}.tif", ramp(1000 * n)) for n, name in enumerate(("blue", "green", "nir"), 1)]
    stack = scene(tmp_path, "|".join(map(str, paths)))
    store = make_store(tmp_path, [stack], make_options(bands=("nir", "blue")))
    image, label = single(store)
    np.testing.assert_array_equal(image, [ramp(3000), ramp(1000)])
    assert (label == 1).sum() == 36
    assert (store.info.bands, store.info.band_names) == ((3, 1), ("nir", "blue"))


def test_bands_of_a_row_go_before_those_of_the_config(tmp_path: Path) -> None:
    path = raster(tmp_path, "a.tif", np.stack([ramp(), ramp(500)]))
    store = make_store(tmp_path, [scene(tmp_path, path, bands=(2,))], make_options(bands=(1,)))
    np.testing.assert_array_equal(single(store)[0], [ramp(500)])


def test_images_of_several_types_become_one(tmp_path: Path) -> None:
    scenes = [
        make_scene(tmp_path, "a", image=np.full((1, SIZE, SIZE), 200, np.uint8)),
        make_scene(tmp_path, "b", image=np.full((1, SIZE, SIZE), 4000, np.uint16)),
    ]
    with pytest.raises(DataError, match=r"dtype uint8 in 1 of 2 images but .*uint16.*set sample.dtype"):
        make_store(tmp_path, scenes)
    store = make_store(tmp_path, scenes, make_options(reading=Reading(dtype="uint16")))
    assert store.info.dtype == "uint16"
    values = [store.images(name)[0].max() for name in sorted(store.samples("trn")["scene"].unique())]
    assert values == [200, 4000]
    with pytest.raises(DataError, match="uint16 values, which uint8 does not hold without loss"):
        make_store(tmp_path, scenes, make_options(reading=Reading(dtype="uint8")))


def test_scale_and_statistics_in_the_same_units(tmp_path: Path) -> None:
    path = raster(tmp_path, "a.tif", ramp())
    with rasterio.open(path, "r+") as dataset:
        dataset.scales, dataset.offsets = (0.01,), (-1.0,)
    store = make_store(tmp_path, [scene(tmp_path, path)], make_options(reading=Reading(apply_scale=True)))
    expected = (ramp() * 0.01 - 1).astype(np.float32)
    np.testing.assert_array_equal(single(store)[0][0], expected)
    assert store.info.statistics[0]["mean"] == pytest.approx(expected.mean(), rel=1e-6)
    assert store.info.dtype == "float32"


def test_what_the_store_says_of_its_reading_reaches_the_model_file(tmp_path: Path) -> None:
    reading = Reading(dtype="float32", valid_range=(1.0, 9.0))
    store = make_store(tmp_path, [make_scene(tmp_path)], make_options(reading=reading))
    assert make_spec(store.info, "unet", {}).reading == reading
    spec = make_spec(store.info, "unet", {})
    assert type(spec).from_json(spec.to_json()).reading == reading


def test_user_validity_reaches_label_statistics_and_counts(tmp_path: Path) -> None:
    store = make_store(
        tmp_path,
        [scene(tmp_path, raster(tmp_path, "a.tif", ramp()))],
        make_options(reading=Reading(valid_range=(100, 199))),
    )
    image, label = single(store)
    good = (ramp() >= 100) & (ramp() <= 199)
    np.testing.assert_array_equal(label == 255, ~good)
    np.testing.assert_array_equal(image[0], np.where(good, ramp(), 0))
    assert store.info.statistics[0]["count"] == 100
    assert store.info.statistics[0]["min"] == 100
    assert sum(store.info.class_pixels["trn"]) == 100


def test_nodata_of_a_row_counts_instead_of_the_files(tmp_path: Path) -> None:
    path = raster(tmp_path, "a.tif", ramp(), nodata=7)
    _, label = single(make_store(tmp_path, [scene(tmp_path, path, nodata=9.0)]))
    assert np.argwhere(label.ravel() == 255).ravel().tolist() == [9]


def test_a_palette_is_expanded_when_asked(tmp_path: Path) -> None:
    path = raster(tmp_path, "a.tif", (ramp() % 2).astype(np.uint8), photometric="PALETTE")
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {0: (10, 20, 30, 255), 1: (40, 50, 60, 255)})
    image, _ = single(make_store(tmp_path, [scene(tmp_path, path)], make_options(reading=Reading(expand_palette=True))))
    np.testing.assert_array_equal(image[:, 0, :2].T, [[10, 20, 30], [40, 50, 60]])


def test_an_area_of_interest_reaches_label_statistics_and_counts(tmp_path: Path) -> None:
    aoi = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 4, SIZE)])
    store = make_store(tmp_path, [scene(tmp_path, raster(tmp_path, "a.tif", ramp()), aoi=aoi)])
    image, label = single(store)
    assert (label[4:] == 255).all()
    assert (label[:4] == 1).sum() == 12
    np.testing.assert_array_equal(image[0], ramp())  # what lies outside may still be looked at
    assert store.info.class_pixels["trn"] == (64 - 12, 12, 0)
    assert store.info.statistics[0]["count"] == 64
    assert store.info.statistics[0]["max"] == 63


def test_a_label_raster_gives_what_its_polygons_would(tmp_path: Path) -> None:
    boxes = ((2, 2, 6, 6, 1), (9, 3, 4, 12, 2))
    values = np.zeros((SIZE, SIZE), np.uint8)
    values[2:8, 2:8], values[9:13, 3:15] = 1, 2
    polygons = scene(tmp_path, raster(tmp_path, "a.tif", ramp()), boxes)
    labels = replace(polygons, labels=raster(tmp_path, "labels.tif", values), attribute=None)
    one, two = make_store(tmp_path / "x", [polygons]), make_store(tmp_path / "y", [labels])
    np.testing.assert_array_equal(single(one)[1], single(two)[1])
    assert one.info.class_pixels == two.info.class_pixels


def test_label_values_of_no_class_are_found_before_anything_is_written(tmp_path: Path) -> None:
    labels = raster(tmp_path, "labels.tif", (ramp() % 5).astype(np.uint8))
    bad = Scene(raster(tmp_path, "a.tif", ramp()), labels, None, "trn")
    with pytest.raises(DataError, match=r"labels.tif: found class ids [34], expected class ids from 0 to 2"):
        make_store(tmp_path / "data", [bad])
    assert not (tmp_path / "data").exists()


def test_borders_agree_between_samples_that_overlap(tmp_path: Path) -> None:
    boxes = ((0, 10, 40, 9, 1), (12, 30, 15, 15, 2), (20, 5, 9, 30, 1))
    made = make_scene(tmp_path, boxes=boxes)
    options = make_options(stride=5, boundary_ignore=2)
    store = make_store(tmp_path, [made], options)
    plain = make_store(tmp_path / "plain", [made], make_options(stride=5))
    whole: dict[tuple[int, int], int] = {}
    for row, label in zip(store.samples("trn").itertuples(), store.labels(made.scene_id), strict=True):
        for (y, x), value in np.ndenumerate(label):
            assert whole.setdefault((row.row_off + y, row.col_off + x), value) == value
    assert store.info.class_pixels["trn"] < plain.info.class_pixels["trn"]


@pytest.mark.parametrize(
    "change",
    [
        {"reading": Reading(dtype="float32")},
        {"reading": Reading(apply_scale=True)},
        {"reading": Reading(expand_palette=True)},
        {"reading": Reading(valid_range=(0, 5))},
        {"priority": "class"},
        {"all_touched": True},
        {"buffers": (0.0, 1.0)},
        {"boundary_ignore": 1},
        {"assume_crs": True},
    ],
)
def test_every_choice_is_part_of_the_fingerprint(tmp_path: Path, change: dict[str, Any]) -> None:
    made = make_scene(tmp_path)
    marks = {
        fingerprint(survey([made], options.survey), options) for options in (make_options(), make_options(**change))
    }
    assert len(marks) == 2


def test_the_scenes_own_choices_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    made = make_scene(tmp_path)
    aoi = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 9, 9)])
    options = make_options()
    scenes = [
        made,
        replace(made, nodata=3.0),
        replace(made, weight=2.0),
        replace(made, aoi=aoi),
        replace(made, bands=(2, 1)),
    ]
    assert len({fingerprint(survey([one], options.survey), options) for one in scenes}) == len(scenes)


def test_a_changed_area_of_interest_is_another_store(tmp_path: Path) -> None:
    aoi = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 9, 9)])
    made, options = replace(make_scene(tmp_path), aoi=aoi), make_options()
    before = fingerprint(survey([made], options.survey), options)
    make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 9, 8)])
    assert fingerprint(survey([made], options.survey), options) != before


def test_all_of_a_rows_troubles_together(tmp_path: Path) -> None:
    bad = Scene(tmp_path / "no.tif", tmp_path / "no.gpkg", "cls", "trn", where="prep.csv, line 2")
    worse = replace(make_scene(tmp_path), labels=tmp_path / "none.gpkg", aoi=tmp_path / "no_aoi.gpkg", where="line 3")
    with pytest.raises(DataError) as caught:
        survey([bad, worse], make_options().survey)
    assert [line.split(": found")[0] for line in caught.value.problems] == [
        f"prep.csv, line 2: {tmp_path}/no.tif",
        f"line 3: {tmp_path}/none.gpkg",
        f"line 3: {tmp_path}/no_aoi.gpkg",
    ]


def test_one_image_by_two_names_in_two_splits_is_a_leak(tmp_path: Path) -> None:
    made = make_scene(tmp_path)
    (tmp_path / "link.tif").symlink_to(tmp_path / "scene.tif")
    other = replace(made, image=tmp_path / "link.tif", attribute=None, split="val")
    options = make_options(mapping=class_mapping(CLASSES[:2]), rules=LabelRules())
    with pytest.raises(DataError, match="in another row, in trn"):
        survey([replace(made, attribute=None), other], options.survey)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_greatest_numbers_have_finite_statistics(tmp_path: Path, dtype: str) -> None:
    """A float64 pixel of 1e300 holds no data; 3e38 and -3e38 are the greatest and least that count."""
    array = np.full((SIZE, SIZE), 3e38, dtype)
    array[: SIZE // 2] = -3e38
    if dtype == "float64":
        array[0, :2] = 1e300, -1e300
    store = make_store(tmp_path, [scene(tmp_path, raster(tmp_path, "a.tif", array))])
    (found,) = store.info.statistics
    assert found["count"] == SIZE * SIZE - (2 if dtype == "float64" else 0)
    assert (found["min"], found["max"]) == (float(np.array(-3e38, dtype)), float(np.array(3e38, dtype)))
    assert found["std"] == pytest.approx(3e38, rel=0.01)
