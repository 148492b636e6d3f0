"""The store as a whole: what is in it, who may make it, and that it appears complete or not at all."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from conftest import make_raster
from scenery import file_hashes, make_options, make_scene, make_store

from geoseg.data import building, sampling
from geoseg.data.building import Build, build_store, count_blocks, existing_store, fingerprint
from geoseg.data.scenes import Scene
from geoseg.data.survey import Survey, survey
from geoseg.errors import DataError
from geoseg.execution import LocalProcesses, map_tasks
from geoseg.geo.grid import sample_windows


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even tiny scenes into many blocks."""
    monkeypatch.setattr(sampling, "BLOCK_SIDE", 16)


def _scenes(folder: Path) -> list[Scene]:
    rng = np.random.default_rng(5)
    images = {name: rng.integers(0, 90, (3, *shape)).astype(np.int16) for name, shape in SHAPES.items()}
    images["one"][:, 5:9, 20:40] = -1
    return [
        make_scene(folder, "one", "trn", images["one"], nodata=-1),
        make_scene(folder, "two", "trn", images["two"], nodata=-1),
        make_scene(folder, "three", "val", images["three"], nodata=-1),
        make_scene(folder, "four", "tst", images["four"], nodata=-1),
    ]


SHAPES = {"one": (61, 75), "two": (40, 33), "three": (30, 50), "four": (10, 12)}


def _surveyed(folder: Path, **options: Any) -> tuple[Survey, sampling.SampleOptions]:
    chosen = make_options(stride=11, **options)
    return survey(_scenes(folder), chosen.survey), chosen


def _read(path: Path) -> np.ndarray:
    with rasterio.open(path) as dataset:
        return dataset.read()


@pytest.mark.usefixtures("small_blocks")
def test_every_sample_is_the_window_that_the_index_says(tmp_path: Path) -> None:
    found, options = _surveyed(tmp_path)
    assert count_blocks(found, options) > 10

    store = build_store(found, options, tmp_path / "data" / "samples")

    assert [len(store.samples(split)) for split in ("trn", "val", "tst")] == [
        len(sample_windows(*SHAPES["one"], 16, 11)) + len(sample_windows(*SHAPES["two"], 16, 11)),
        len(sample_windows(*SHAPES["three"], 16, 11)),
        1,
    ]
    for facts in found.facts:
        image = np.pad(_read(facts.scene.image), ((0, 0), (0, 16), (0, 16)), constant_values=-1)
        label = np.pad(_read(store.folder / "labels" / f"{facts.scene.scene_id}.tif")[0], (0, 16), constant_values=255)
        rows = store.index[store.index["scene"] == facts.scene.scene_id]
        windows = sample_windows(facts.info.height, facts.info.width, 16, 11)
        assert sorted(zip(rows["row_off"], rows["col_off"], strict=True)) == [(w.row_off, w.col_off) for w in windows]
        for row in rows.itertuples():
            place = (slice(row.row_off, row.row_off + 16), slice(row.col_off, row.col_off + 16))
            valid = image[0][place] >= 0
            stored = store.images(row.scene)[row.position]
            np.testing.assert_array_equal(stored, np.where(valid, image[:, *place], 0))
            np.testing.assert_array_equal(store.labels(row.scene)[row.position], label[place])
            kept = store.valid(row.scene, row.valid_position)
            np.testing.assert_array_equal(np.ones((16, 16), bool) if kept is None else kept, valid)
            assert row.valid_fraction == valid.mean()
            counts = [(label[place] == index).sum() for index in range(3)]
            assert [row.class_0, row.class_1, row.class_2] == counts


def test_label_raster_lies_on_the_image_and_shows_later_polygons_on_top(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "one", image=np.ones((1, 20, 20), np.uint8), boxes=((0, 0, 6, 6, 1), (4, 4, 6, 6, 2)))

    store = make_store(tmp_path / "data", [scene])

    path = store.folder / "labels" / f"{scene.scene_id}.tif"
    with rasterio.open(path) as label, rasterio.open(scene.image) as image:
        assert (label.transform, label.crs, label.shape) == (image.transform, image.crs, image.shape)
        assert label.nodata == 255
        assert np.bincount(label.read(1).ravel(), minlength=3).tolist() == [400 - 32 - 36, 32, 36]
        assert label.colormap(1)[1][:3] == (0xD5, 0x5E, 0x00)


@pytest.mark.usefixtures("small_blocks")
def test_statistics_count_every_valid_training_pixel_once(tmp_path: Path) -> None:
    found, options = _surveyed(tmp_path, remove_background=True)

    info = build_store(found, options, tmp_path / "data" / "samples").info

    pixels = np.concatenate([_read(f.scene.image).reshape(3, -1) for f in found.facts[:2]], axis=1).astype(float)
    pixels = pixels[:, pixels[0] >= 0]
    for band, stats in zip(pixels, info.statistics, strict=True):
        assert stats["count"] == len(band) == 61 * 75 + 40 * 33 - 80
        assert stats["mean"] == pytest.approx(band.mean(), rel=1e-12)
        assert stats["std"] == pytest.approx(band.std(), rel=1e-12)
        assert (stats["min"], stats["max"]) == (band.min(), band.max())
        # So few pixels are all in the subsample.
        assert stats["p2"] == np.percentile(band, 2)
        assert stats["p98"] == np.percentile(band, 98)


@pytest.mark.usefixtures("small_blocks")
def test_counts_add_up(tmp_path: Path) -> None:
    found, options = _surveyed(tmp_path, remove_background=True)

    store = build_store(found, options, tmp_path / "data" / "samples")

    info = store.info
    for split in ("trn", "val", "tst"):
        rows = store.samples(split)
        assert info.samples[split] == len(rows)
        assert info.class_pixels[split] == tuple(int(rows[f"class_{i}"].sum()) for i in range(3))
        assert (rows[["class_1", "class_2"]].sum(axis=1) > 0).all()
        windows = sum(
            len(sample_windows(f.info.height, f.info.width, 16, 11)) for f in found.facts if f.scene.split == split
        )
        assert info.samples[split] + sum(info.dropped[split].values()) == windows
    for facts, entry in zip(found.facts, info.scenes, strict=True):
        label = _read(store.folder / "labels" / f"{facts.scene.scene_id}.tif")
        assert entry["class_pixels"] == [int((label == i).sum()) for i in range(3)]


@pytest.mark.usefixtures("small_blocks")
def test_the_bytes_do_not_depend_on_who_makes_the_parts_or_when(tmp_path: Path) -> None:
    found, options = _surveyed(tmp_path)
    reference = file_hashes(build_store(found, options, tmp_path / "a" / "samples").folder)
    assert len(reference) > 12

    def backwards(function: Any, tasks: Any) -> Any:
        return building.run_here(function, list(tasks)[::-1])

    assert file_hashes(build_store(found, options, tmp_path / "b" / "samples", Build(backwards)).folder) == reference
    with LocalProcesses(4) as executor:
        parallel = build_store(found, options, tmp_path / "c" / "samples", Build(partial(map_tasks, executor)))
    assert file_hashes(parallel.folder) == reference


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("remove_background", [False, True])
def test_samples_written_in_place_end_in_the_same_bytes(tmp_path: Path, remove_background: bool) -> None:
    found, options = _surveyed(tmp_path, remove_background=remove_background)
    reference = file_hashes(build_store(found, options, tmp_path / "a" / "samples").folder)
    done: list[int] = []

    def stop(_: int) -> None:
        done.append(1)
        if len(done) == 20:
            raise KeyboardInterrupt

    for name, in_place in (("b", True), ("c", False)):  # taken up by a run that writes as the first did, or not
        done.clear()
        with pytest.raises(KeyboardInterrupt):
            build_store(found, options, tmp_path / name / "samples", Build(on_progress=stop, in_place=True))
        store = build_store(found, options, tmp_path / name / "samples", Build(in_place=in_place))
        assert file_hashes(store.folder) == reference


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_run_leaves_the_old_store_and_is_taken_up_again(tmp_path: Path) -> None:
    found, options = _surveyed(tmp_path)
    reference = file_hashes(build_store(found, options, tmp_path / "a" / "samples").folder)
    final = tmp_path / "b" / "samples"
    old = make_store(tmp_path / "b", [make_scene(tmp_path / "old", "old")])
    before = file_hashes(old.folder)
    done: list[int] = []

    def stop_after(blocks: int) -> Any:
        def count(n: int) -> None:
            done.append(n)
            if sum(done) >= blocks:
                raise KeyboardInterrupt

        return count

    with pytest.raises(KeyboardInterrupt):
        build_store(found, options, final, Build(on_progress=stop_after(20)))
    assert file_hashes(final) == before
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "b").rglob("summary.json")}
    assert made

    build_store(found, options, final)

    assert file_hashes(final) == reference
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["samples"]


def test_a_damaged_image_fails_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    good, bad = make_scene(tmp_path, "good"), make_scene(tmp_path, "bad", image=np.ones((2, 300, 300), np.uint8))
    options = make_options()
    found = survey([good, bad], options.survey)
    content = bad.image.read_bytes()
    bad.image.write_bytes(content[: len(content) // 2])

    with pytest.raises(DataError, match=r"bad\.tif"):
        build_store(found, options, tmp_path / "data" / "samples")

    assert not (tmp_path / "data").exists()


def test_no_training_sample_is_an_error_with_the_counts(tmp_path: Path) -> None:
    nothing = make_scene(tmp_path, "n", "trn", np.zeros((2, 40, 50), np.uint8), nodata=0)
    scenes = [nothing, make_scene(tmp_path, "v", "val")]

    with pytest.raises(DataError, match=r"trn 0, val 12, tst 0.* 12 no known pixel"):
        make_store(tmp_path / "data", scenes)

    assert not (tmp_path / "data").exists()


def test_pixels_without_data_are_unknown_even_below_a_polygon(tmp_path: Path) -> None:
    image = np.ones((1, 32, 32), np.int16)
    image[:, :, :10] = -9
    scene = make_scene(tmp_path, image=image, nodata=-9, boxes=((4, 4, 20, 20, 1),))

    store = make_store(tmp_path / "data", [scene])

    label = _read(store.folder / "labels" / f"{scene.scene_id}.tif")[0]
    assert (label[:, :10] == 255).all()
    assert (label[:, 10:] != 255).all()
    assert (label == 1).sum() == 20 * 14


def test_pixels_outside_every_polygon_can_be_unknown_and_files_stay_as_they_are(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, boxes=((0, 0, 10, 10, 1), (0, 20, 5, 5, 0)))
    before = file_hashes(tmp_path)

    store = make_store(tmp_path / "data", [scene], make_options(mask_outside=True))

    assert {k: v for k, v in file_hashes(tmp_path).items() if not k.startswith("data")} == before
    label = _read(store.folder / "labels" / f"{scene.scene_id}.tif")[0]
    assert [(label == i).sum() for i in (0, 1, 255)] == [25, 100, 40 * 50 - 125]
    assert store.info.dropped["trn"]["unknown"] == 12 - store.info.samples["trn"] > 0


def test_a_layer_without_features_is_background(tmp_path: Path) -> None:
    store = make_store(tmp_path / "data", [make_scene(tmp_path, boxes=())])

    assert store.info.class_pixels["trn"][1:] == (0, 0)
    assert store.info.samples["trn"] == 12


def test_bands_are_stored_in_the_order_asked_for(tmp_path: Path) -> None:
    image = np.repeat(np.array([10, 20, 30, 40], np.uint16), 400).reshape(4, 20, 20)
    scene = make_scene(tmp_path, image=image)

    store = make_store(tmp_path / "data", [scene], make_options(bands=(3, 1)))

    images = store.images(scene.scene_id)
    assert images.dtype == np.uint16
    assert (images[:, 0] == 30).all()
    assert (images[:, 1] == 10).all()
    assert store.info.bands == (3, 1)


@pytest.mark.parametrize(
    "values", [np.array([-5, 0, 10000], np.int16), np.array([0.0, 0.25, 1.0], np.float32)], ids=["int16", "float32"]
)
def test_values_are_stored_unchanged(tmp_path: Path, values: np.ndarray) -> None:
    scene = make_scene(tmp_path, image=np.resize(values, (1, 16, 16)))

    images = make_store(tmp_path / "data", [scene]).images(scene.scene_id)

    np.testing.assert_array_equal(np.unique(images), values)
    assert images.dtype == values.dtype


def test_existing_store_of_the_same_call_is_recognised(tmp_path: Path) -> None:
    scene, options = make_scene(tmp_path), make_options()
    found = survey([scene], options.survey)
    final = tmp_path / "data" / "samples"
    mark = fingerprint(found, options)
    assert existing_store(final, mark, overwrite=False) is None
    build_store(found, options, final)

    assert existing_store(final, mark, overwrite=False) is not None
    with pytest.raises(DataError, match="overwrite"):
        existing_store(final, "another", overwrite=False)
    assert existing_store(final, "another", overwrite=True) is None


def test_fingerprint_follows_options_and_files(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    options = make_options()

    def mark(chosen: Any = options) -> str:
        return fingerprint(survey([scene], chosen.survey), chosen)

    first = mark()
    assert mark() == first
    assert len({first, mark(make_options(stride=8)), mark(make_options(bands=(1,))), mark(make_options(size=17))}) == 4
    os.utime(scene.labels, ns=(1, 1))
    assert mark() != first
    make_raster(scene.image, np.ones((2, 41, 50), np.uint8))
    assert mark() != first


def test_files_of_the_user_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "mine.txt").touch()

    with pytest.raises(DataError, match="no complete sample store"):
        existing_store(tmp_path / "samples", "x", overwrite=False)


def test_a_run_that_died_between_the_renames_is_mended(tmp_path: Path) -> None:
    store = make_store(tmp_path, [make_scene(tmp_path)])
    store.folder.rename(tmp_path / ".samples-former")

    assert existing_store(tmp_path / "samples", store.info.provenance["fingerprint"], overwrite=False) is not None


def test_replacing_a_store(tmp_path: Path) -> None:
    make_store(tmp_path / "data", [make_scene(tmp_path, "a"), make_scene(tmp_path, "b")])

    store = make_store(tmp_path / "data", [make_scene(tmp_path, "c")])

    assert len(list((store.folder / "labels").glob("*.tif"))) == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["samples"]
