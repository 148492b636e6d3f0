"""Splits and windows of whole stores: no two splits share ground, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from conftest import TRANSFORM, make_polygons, pixel_box
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenery import CLASSES, make_options, make_scene, make_store

from geoseg.data import sampling
from geoseg.data.building import Build, build_store
from geoseg.data.editing import plan_update
from geoseg.data.sampling import SampleOptions
from geoseg.data.splits import Length, SplitOptions
from geoseg.data.store import Store, open_store
from geoseg.data.survey import survey
from geoseg.data.windows import WindowOptions
from geoseg.errors import DataError

BLOCKS = SplitOptions("blocks", size=Length(48, "px"), fractions=(("trn", 0.5), ("val", 0.25), ("tst", 0.25)), seed=3)


def _options(stride: int = 8, remove_background: bool = False, **more: Any) -> SampleOptions:
    base = make_options()
    return SampleOptions(base.survey, CLASSES, 16, stride, remove_background, **more)


def _scene(folder: Path, name: str = "a", shape: tuple[int, int] = (150, 200), seed: int = 0, **raster: Any) -> Any:
    rng = np.random.default_rng(seed)
    place = raster.get("transform", TRANSFORM)
    image = rng.integers(1, 250, (2, *shape)).astype(np.uint8)
    boxes = [
        (r, c, 6, 9, k) for r, c, k in zip(rng.integers(0, 140, 40), rng.integers(0, 190, 40), [1, 2] * 20, strict=True)
    ]
    scene = make_scene(folder, name, "trn", image, boxes=[], **raster)
    make_polygons(scene.labels, [pixel_box(*map(int, b[:4]), place) for b in boxes], {"cls": [b[4] for b in boxes]})
    return scene


def _shared_pixels(store: Store) -> int:
    """Return how many pixels of the ground (one metre each) lie in samples of two splits."""
    frame = geopandas.read_parquet(store.folder / "index.parquet").to_crs("EPSG:32618")
    grids = {}
    for split, rows in frame.groupby("split"):
        ground = np.zeros((600, 600), bool)
        for left, bottom, right, top in rows.geometry.bounds.round().astype(int).to_numpy():
            ground[5000000 - top : 5000000 - bottom, left - 500000 : right - 500000] = True
        grids[split] = ground
    return sum(int((grids[a] & grids[b]).sum()) for a, b in combinations(grids, 2))


def test_blocks_share_no_ground_and_all_splits_hold_all_classes(tmp_path: Path) -> None:
    store = make_store(tmp_path / "data", [_scene(tmp_path)], _options(splits=BLOCKS))

    info = store.info
    assert min(info.samples.values()) > 0
    assert _shared_pixels(store) == 0
    assert min(info.splitting["distance_m"].values()) >= 4  # a quarter of a sample's side, pixels of a metre
    assert all(min(info.class_pixels[split][1:]) > 0 for split in ("trn", "val", "tst"))


def test_statistics_come_from_training_ground_alone(tmp_path: Path) -> None:
    scene = _scene(tmp_path)

    store = make_store(tmp_path / "data", [scene], _options(splits=BLOCKS))

    with rasterio.open(scene.image) as dataset:
        image = dataset.read().astype(float)
    covered = np.zeros(image.shape[1:], bool)
    for row in store.samples("trn").itertuples():
        covered[row.row_off : row.row_off + 16, row.col_off : row.col_off + 16] = True
    for band, stats in zip(image, store.info.statistics, strict=True):
        assert stats["count"] == covered.sum()
        assert stats["mean"] == pytest.approx(band[covered].mean(), rel=1e-12)


def test_scenes_on_one_another_follow_the_first(tmp_path: Path) -> None:
    shifted = TRANSFORM * Affine.translation(30, 17)
    scenes = [_scene(tmp_path, "first"), _scene(tmp_path, "second", seed=1, transform=shifted)]

    store = make_store(tmp_path / "data", scenes, _options(splits=BLOCKS))

    assert _shared_pixels(store) == 0
    assert set(store.index["scene"]) == {scene.scene_id for scene in scenes}


def test_workers_and_block_sizes_do_not_change_drawn_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _scene(tmp_path)
    options = _options(splits=BLOCKS, windows=WindowOptions("random", 30, seed=5))
    first = make_store(tmp_path / "one", [scene], options)
    monkeypatch.setattr(sampling, "BLOCK_SIDE", 40)

    second = make_store(tmp_path / "two", [scene], options)

    columns = ["split", "row_off", "col_off", "class_0", "class_1", "class_2"]
    assert sorted(map(tuple, first.index[columns].to_numpy())) == sorted(map(tuple, second.index[columns].to_numpy()))


@pytest.mark.parametrize("mode", ["random", "classes", "objects"])
def test_modes_make_the_same_store_again(tmp_path: Path, mode: str) -> None:
    scene = _scene(tmp_path)
    options = _options(windows=WindowOptions(mode, 20, seed=1))

    first, second = (make_store(tmp_path / name, [scene], options) for name in ("one", "two"))

    assert (first.folder / "index.parquet").read_bytes() == (second.folder / "index.parquet").read_bytes()
    assert 10 <= first.info.samples["trn"] <= 20
    assert first.info.statistics[0]["count"] == 150 * 200  # the whole scene is training ground


def test_windows_along_objects_hold_every_pixel_of_them(tmp_path: Path) -> None:
    scene = _scene(tmp_path)

    store = make_store(tmp_path / "data", [scene], _options(windows=WindowOptions("objects")))

    with rasterio.open(store.folder / "labels" / f"{scene.scene_id}.tif") as dataset:
        label = dataset.read(1)
    covered = np.zeros(label.shape, bool)
    for row in store.samples("trn").itertuples():
        covered[row.row_off : row.row_off + 16, row.col_off : row.col_off + 16] = True
    assert covered[label > 0].all()
    assert (store.index[["class_1", "class_2"]].sum(axis=1) > 0).all()


def test_rare_classes_are_seen_more_often(tmp_path: Path) -> None:
    image = np.ones((1, 200, 200), np.uint8)
    scene = make_scene(tmp_path, image=image, boxes=((0, 0, 120, 200, 1), (180, 180, 3, 3, 2)))

    grid = make_store(tmp_path / "grid", [scene], _options(16)).info.class_pixels["trn"]
    aimed = make_store(tmp_path / "aimed", [scene], _options(16, windows=WindowOptions("classes", 90))).info

    assert aimed.class_pixels["trn"][2] / sum(aimed.class_pixels["trn"]) > 5 * grid[2] / sum(grid)


@pytest.mark.parametrize("names", [["trn", "val", "tst"], ["Training", "VALIDATION", "test"]])
def test_polygons_decide_the_split(names: list[str], tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    angle = shapely.union(pixel_box(90, 110, 60, 90), pixel_box(80, 190, 10, 10))
    areas = [pixel_box(0, 0, 150, 100), pixel_box(0, 110, 80, 90), angle]
    path = make_polygons(tmp_path / "areas.gpkg", areas, {"part": names}, crs="EPSG:32618")
    splits = SplitOptions("polygons", file=path, attribute="part")

    store = make_store(tmp_path / "data", [scene], _options(splits=splits))

    assert _shared_pixels(store) == 0
    assert min(store.info.samples.values()) > 0
    assert store.info.splitting["apart"] > 0
    training = store.samples("trn")
    assert (training["col_off"] + 16).max() <= 100


def test_a_polygon_as_wide_as_a_sample_gives_samples_wherever_it_lies(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    areas = [pixel_box(0, 0, 150, 100), pixel_box(3, 107, 34, 17)]  # no window of the scene's grid lies in the second
    path = make_polygons(tmp_path / "areas.gpkg", areas, {"part": ["trn", "val"]}, crs="EPSG:32618")

    store = make_store(
        tmp_path / "data", [scene], _options(splits=SplitOptions("polygons", file=path, attribute="part"))
    )

    found = store.samples("val")
    assert set(zip(found["row_off"], found["col_off"], strict=True)) == {
        (row, col) for row in (3, 11, 19, 21) for col in (107, 108)
    }


def test_polygons_of_a_split_that_there_is_not(tmp_path: Path) -> None:
    path = make_polygons(tmp_path / "areas.gpkg", [pixel_box(0, 0, 20, 20)], {"part": ["holdout"]}, crs="EPSG:32618")

    with pytest.raises(DataError, match=r"'holdout'.*sample.split.attribute"):
        make_store(
            tmp_path / "data",
            [_scene(tmp_path)],
            _options(splits=SplitOptions("polygons", file=path, attribute="part")),
        )


def test_polygons_of_two_splits_on_common_ground_are_refused(tmp_path: Path) -> None:
    areas = [pixel_box(0, 0, 150, 100), pixel_box(0, 90, 80, 90)]
    path = make_polygons(tmp_path / "areas.gpkg", areas, {"split": ["trn", "val"]})

    with pytest.raises(DataError, match=r"areas\.gpkg.*trn and val that overlap"):
        make_store(tmp_path / "data", [_scene(tmp_path)], _options(splits=SplitOptions("polygons", file=path)))


def test_random_split_of_overlapping_windows_is_refused_and_blocks_are_offered(tmp_path: Path) -> None:
    scene = _scene(tmp_path)

    with pytest.raises(DataError, match=r"overlap.*method: blocks"):
        make_store(tmp_path / "data", [scene], _options(8, splits=SplitOptions("random")))
    with pytest.raises(DataError, match=r"overlap.*method: blocks"):  # the last row is shifted back inside
        make_store(tmp_path / "data", [scene], _options(16, splits=SplitOptions("random")))
    assert not (tmp_path / "data").exists()


def test_random_split_of_windows_side_by_side(tmp_path: Path) -> None:
    scene = _scene(tmp_path, shape=(160, 208))

    store = make_store(tmp_path / "data", [scene], _options(16, splits=SplitOptions("random", seed=4)))

    assert store.info.samples == {"trn": 91, "val": 19, "tst": 20}  # of 130
    assert _shared_pixels(store) == 0


def _pair(folder: Path) -> list[Any]:
    return [
        make_scene(folder, "one", "trn", np.ones((1, 64, 64), np.uint8)),
        make_scene(
            folder,
            "two",
            "val",
            np.ones((1, 64, 64), np.uint8),
            boxes=((40, 40, 9, 9, 1),),
            transform=TRANSFORM * Affine.translation(32, 32),
        ),
    ]


def test_scenes_of_two_splits_on_common_ground(tmp_path: Path) -> None:
    scenes = _pair(tmp_path)
    # Of the 16 windows of the second scene the four in its upper left corner lie on the first.
    told: list[str] = []
    options = _options(16)
    build_store(survey(scenes, options.survey), options, tmp_path / "a" / "samples", Build(on_warning=told.append))
    assert len(told) == 1
    assert "4 of 16 val and tst windows" in told[0]
    assert open_store(tmp_path / "a").info.splitting["shared"] == {"trn-val": 4}

    with pytest.raises(DataError, match="4 of 16 val and tst windows"):
        make_store(tmp_path / "b", scenes, _options(16, splits=SplitOptions(shared_ground="error")))

    store = make_store(tmp_path / "c", scenes, _options(16, splits=SplitOptions(shared_ground="drop")))
    assert store.info.samples == {"trn": 12, "val": 16, "tst": 0}
    assert store.info.splitting["apart"] == 4
    assert store.info.statistics[0]["count"] == 12 * 256
    assert _shared_pixels(store) == 0


@given(st.integers(20, 90), st.integers(20, 90), st.integers(1, 16), st.integers(20, 60), st.integers(0, 9))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_splits_share_no_ground(
    tmp_path_factory: pytest.TempPathFactory, height: int, width: int, stride: int, side: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    splits = SplitOptions("blocks", size=Length(side, "px"), fractions=(("trn", 0.6), ("val", 0.4)), seed=seed)
    scene = make_scene(folder, image=np.ones((1, height, width), np.uint8))
    try:
        store = make_store(folder / "data", [scene], _options(stride, splits=splits))
    except DataError as error:
        assert "1 blocks for 2 splits" in str(error)  # noqa: PT017
        return

    assert _shared_pixels(store) == 0
    with rasterio.open(store.folder / "labels" / f"{scene.scene_id}.tif") as dataset:
        label = dataset.read(1)
    padded = np.pad(label, (0, 16), constant_values=255)
    for row in store.index.itertuples():
        place = (slice(row.row_off, row.row_off + 16), slice(row.col_off, row.col_off + 16))
        np.testing.assert_array_equal(store.labels(row.scene)[row.position], padded[place])


def test_shares_of_annotated_and_valid_pixels(tmp_path: Path) -> None:
    """Ten per cent of the valid pixels: 25 of 256 are too few, 26 enough; 13 of 128 valid ones are enough too."""
    image = np.ones((1, 16, 64), np.int16)
    image[:, :, 40:48] = -1  # half of the third window
    boxes = ((0, 0, 5, 5, 1), (0, 16, 2, 13, 1), (0, 32, 1, 8, 1), (1, 32, 1, 5, 1), (0, 48, 16, 16, 2))
    scene = make_scene(tmp_path, image=image, nodata=-1, boxes=boxes)

    store = make_store(tmp_path / "a", [scene], _options(16, min_annotated=10.0))
    assert store.index["col_off"].tolist() == [16, 32, 48]
    assert store.info.dropped["trn"]["unannotated"] == 1

    store = make_store(tmp_path / "b", [scene], _options(16, min_valid=50.1))
    assert store.index["col_off"].tolist() == [0, 16, 48]
    assert store.info.dropped["trn"]["invalid"] == 1


def _added(folder: Path, first: Any, second: Any, options: SampleOptions) -> tuple[Store, list[str]]:
    """Make a store of the first scene, then append the second; return it and what was told."""
    make_store(folder, [first], options)
    final = folder / "samples"
    found = survey([second], replace(options.survey, needs_training=False))
    update = plan_update(final, found, options, append=True)
    told: list[str] = []
    store = build_store(found, options, final, Build(on_warning=told.append), update.kept)
    assert store is not None
    return store, told


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "with jitter"])
def test_scenes_that_are_added_share_ground_with_those_of_the_store_by_the_same_rule(
    tmp_path: Path, plain: bool
) -> None:
    trn, val = _pair(tmp_path)
    more: dict[str, Any] = {} if plain else {"windows": WindowOptions(jitter=1, seed=0)}

    store, told = _added(tmp_path / "a", trn, val, _options(16, **more))
    (line,) = told
    assert "of 16 val and tst windows on ground of trn windows" in line
    assert all(str(scene.image) in line for scene in (trn, val))
    if plain:
        assert "4 of 16" in line
        assert store.info.splitting["shared"] == {"trn-val": 4}

    with pytest.raises(DataError, match="of 16 val and tst windows"):
        _added(tmp_path / "b", trn, val, _options(16, splits=SplitOptions(shared_ground="error"), **more))


def test_what_is_dropped_of_scenes_that_are_added(tmp_path: Path) -> None:
    trn, val = _pair(tmp_path)
    options = _options(16, splits=SplitOptions(shared_ground="drop"))
    # A store needs training samples: `base`, which lies apart, holds some.
    place = TRANSFORM * Affine.translation(300, 300)
    base = make_scene(tmp_path, "base", "trn", np.ones((1, 32, 32), np.uint8), transform=place)
    make_polygons(base.labels, [pixel_box(2, 2, 9, 9, place)], {"cls": [1]})
    make_store(tmp_path / "a", [base, val], options)
    final = tmp_path / "a" / "samples"
    found = survey([trn], options.survey)
    update = plan_update(final, found, options, append=True)
    store = build_store(found, options, final, kept=update.kept)
    assert store is not None
    assert (store.index[store.index["scene"] == trn.scene_id].shape[0], store.info.samples["val"]) == (12, 16)
    assert _shared_pixels(store) == 0

    with pytest.raises(DataError, match=r"4 trn samples of the store on ground of new ones .*one.tif, .*two.tif"):
        _added(tmp_path / "b", trn, val, options)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_scenes_that_are_added_follow_those_of_the_store(tmp_path: Path, seed: int) -> None:
    """The second scene lies 37 rows and 61 columns off the first, with other labels."""
    first = _scene(tmp_path, "a")
    second = _scene(tmp_path, "b", seed=seed + 1, transform=TRANSFORM * Affine.translation(61, 37))
    store, _ = _added(tmp_path / "s", first, second, _options(splits=replace(BLOCKS, seed=seed)))
    assert _shared_pixels(store) == 0
    assert (store.index["scene"] == second.scene_id).sum() > 40
    assert store.info.splitting["shared"] == {}
