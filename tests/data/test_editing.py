"""Stores that change: scenes added, replaced, taken out; several makers at once; damage that is found."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_polygons, make_raster, pixel_box
from scenery import file_hashes, make_options, make_scene, make_store

from geoseg.data import building, disk, sampling
from geoseg.data.building import Build, build_store
from geoseg.data.disk import bytes_needed, check_room
from geoseg.data.editing import plan_update, remove_scenes
from geoseg.data.scenes import Scene
from geoseg.data.splits import Length, SplitOptions
from geoseg.data.store import Store, open_store
from geoseg.data.survey import survey
from geoseg.data.verify import verify_store
from geoseg.errors import DataError

OPTIONS = make_options(stride=11)


def _scene(folder: Path, name: str, split: str = "trn", shape: tuple[int, int] = (40, 50)) -> Scene:
    image = np.random.default_rng(sum(map(ord, name))).integers(0, 90, (2, *shape)).astype(np.int16)
    image[:, 3:7, 5:9] = -1
    return make_scene(folder, name, split, image, nodata=-1)


@pytest.fixture
def scenes(tmp_path: Path) -> list[Scene]:
    return [_scene(tmp_path, "a"), _scene(tmp_path, "b", "val"), _scene(tmp_path, "c"), _scene(tmp_path, "d", "tst")]


def _update(folder: Path, scenes: list[Scene], options: Any = OPTIONS, **how: Any) -> Store:
    found = survey(scenes, replace(options.survey, needs_training=False))
    final = folder / "samples"
    update = plan_update(final, found, options, **how)
    if update.done:
        return update.done
    store = build_store(found, options, final, kept=update.kept)
    assert store is not None
    return store


def test_adding_a_scene_ends_in_the_bytes_of_sampling_all_at_once(tmp_path: Path, scenes: list[Scene]) -> None:
    whole = file_hashes(make_store(tmp_path / "whole", scenes, OPTIONS).folder)
    first = make_store(tmp_path / "data", scenes[:2], OPTIONS)
    shard = first.folder / "shards" / f"{scenes[0].scene_id}.images.npy"
    before = shard.stat()

    store = _update(tmp_path / "data", scenes)

    assert file_hashes(store.folder) == whole
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["samples"]


def test_appending_keeps_what_is_not_listed(tmp_path: Path, scenes: list[Scene]) -> None:
    whole = file_hashes(make_store(tmp_path / "whole", scenes, OPTIONS).folder)
    make_store(tmp_path / "data", scenes[:3], OPTIONS)

    with pytest.raises(DataError, match=r"3 scenes that are not in the list.*--append"):
        _update(tmp_path / "data", [scenes[3], _scene(tmp_path, "e")])
    store = _update(tmp_path / "data", scenes[3:], append=True)

    assert file_hashes(store.folder) == whole
    assert _update(tmp_path / "data", scenes[3:], append=True).info == store.info


def test_a_scene_whose_files_changed_is_made_again_when_asked(tmp_path: Path, scenes: list[Scene]) -> None:
    make_store(tmp_path / "data", scenes, OPTIONS)
    make_raster(scenes[1].image, np.full((2, 40, 50), 7, np.int16), nodata=-1)

    with pytest.raises(DataError, match="1 scenes whose files have changed"):
        _update(tmp_path / "data", scenes)
    store = _update(tmp_path / "data", scenes, append=True)

    assert (store.images(scenes[1].scene_id) == 7).all()
    assert file_hashes(store.folder) == file_hashes(make_store(tmp_path / "whole", scenes, OPTIONS).folder)


def test_replacing_a_scene_by_name(tmp_path: Path, scenes: list[Scene]) -> None:
    reference = file_hashes(make_store(tmp_path / "data", scenes, OPTIONS).folder)
    shard = tmp_path / "data" / "samples" / "shards" / f"{scenes[2].scene_id}.images.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)

    store = _update(tmp_path / "data", scenes, append=True, again=[scenes[2].scene_id])

    assert file_hashes(store.folder) == reference


def test_removing_a_scene_needs_none_of_its_files(tmp_path: Path, scenes: list[Scene]) -> None:
    whole = file_hashes(make_store(tmp_path / "whole", [scenes[0], *scenes[2:]], OPTIONS).folder)
    make_store(tmp_path / "data", scenes, OPTIONS)
    for scene in scenes:
        Path(scene.image).unlink()

    store = remove_scenes(tmp_path / "data" / "samples", ["b"], OPTIONS, Build())

    assert file_hashes(store.folder) == whole
    with pytest.raises(DataError, match=r"no scene 'b'.*a-"):
        remove_scenes(store.folder, ["b"], OPTIONS, Build())
    with pytest.raises(DataError, match="trn 0"):
        remove_scenes(store.folder, ["a", "c"], OPTIONS, Build())
    assert file_hashes(store.folder) == whole


def test_overwriting_keeps_what_is_listed_and_unchanged(tmp_path: Path, scenes: list[Scene]) -> None:
    make_store(tmp_path / "data", scenes, OPTIONS)

    store = _update(tmp_path / "data", scenes[:2], overwrite=True)

    assert file_hashes(store.folder) == file_hashes(make_store(tmp_path / "whole", scenes[:2], OPTIONS).folder)


def test_other_settings_are_not_added_to(tmp_path: Path, scenes: list[Scene]) -> None:
    make_store(tmp_path / "data", scenes[:2], OPTIONS)

    with pytest.raises(DataError, match=r"other settings.*--overwrite"):
        _update(tmp_path / "data", scenes, make_options(stride=12), append=True)
    with pytest.raises(DataError, match=r"other settings.*--overwrite"):
        _update(tmp_path / "data", scenes, make_options(stride=12))


def test_blocks_that_were_dealt_stay_when_scenes_are_added(tmp_path: Path) -> None:
    splits = SplitOptions("blocks", size=Length(24, "px"), fractions=(("trn", 0.5), ("val", 0.5)))
    base = make_options()
    options = sampling.SampleOptions(base.survey, base.classes, 16, 8, False, splits=splits)
    first, second = _scene(tmp_path, "a", shape=(70, 80)), _scene(tmp_path, "b", shape=(70, 80))
    before = make_store(tmp_path / "data", [first], options).index

    store = _update(tmp_path / "data", [first, second], options)

    after = store.index[store.index["scene"] == first.scene_id]
    assert after.to_numpy().tolist() == before.to_numpy().tolist()
    # The second scene lies on the first one's ground: its blocks follow.
    assert store.info.splitting["distance_m"]["trn-val"] >= 4


def test_shares_end_in_the_same_store_whoever_is_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BLOCK_SIDE", 24)
    scenes = [_scene(tmp_path, "a", shape=(61, 75)), _scene(tmp_path, "b", "val")]
    found = survey(scenes, OPTIONS.survey)
    reference = file_hashes(make_store(tmp_path / "whole", scenes, OPTIONS).folder)
    final = tmp_path / "data" / "samples"

    assert build_store(found, OPTIONS, final, Build(share=(3, 3))) is None
    assert build_store(found, OPTIONS, final, Build(share=(1, 3))) is None
    assert not final.exists()
    store = build_store(found, OPTIONS, final, Build(share=(2, 3)))

    assert store is not None
    assert file_hashes(store.folder) == reference
    assert [path.name for path in final.parent.iterdir()] == ["samples"]


@pytest.mark.parametrize("in_place", [False, True])
def test_several_makers_at_once_end_in_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setattr(sampling, "BLOCK_SIDE", 24)
    scenes = [_scene(tmp_path, "a", shape=(61, 75)), _scene(tmp_path, "b", "val")]
    found = survey(scenes, OPTIONS.survey)
    reference = file_hashes(make_store(tmp_path / "whole", scenes, OPTIONS).folder)
    final = tmp_path / "data" / "samples"
    results: list[Any] = []

    def make() -> None:
        try:
            results.append(build_store(found, OPTIONS, final, Build(in_place=in_place)))
        except BaseException as error:
            results.append(error)

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()

    assert [type(result) for result in results] == [Store] * 3, results
    assert file_hashes(final) == reference
    assert [path.name for path in final.parent.iterdir()] == ["samples"]


def test_the_folder_of_a_run_in_progress_is_left_alone(tmp_path: Path, scenes: list[Scene]) -> None:
    seen: list[str] = []

    def other_settings(_: int) -> None:
        if not seen:
            make_store(tmp_path, scenes[:1], make_options(stride=5))
            seen.extend(path.name for path in tmp_path.glob(".samples-*"))

    found = survey(scenes, OPTIONS.survey)
    store = build_store(found, OPTIONS, tmp_path / "samples", Build(on_progress=other_settings))

    assert len(seen) == 1
    assert store is not None
    assert store.info.stride == 11


def test_a_sound_store_is_found_sound(tmp_path: Path, scenes: list[Scene]) -> None:
    assert verify_store(make_store(tmp_path / "data", scenes, OPTIONS)) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shards/{}.images.npy", "images.npy: found samples"),
        ("shards/{}.labels.npy", "labels.npy: found samples"),
        ("shards/{}.valid.npy", "valid.npy: found samples"),
        ("labels/{}.tif", "tif: found other bytes"),
        ("scenes/{}.rows.npy", "rows.npy: found other bytes"),
        ("scenes/{}.subsample.npy", "subsample.npy: found other bytes"),
    ],
)
def test_a_single_wrong_bit_is_found(tmp_path: Path, scenes: list[Scene], name: str, words: str) -> None:
    store = make_store(tmp_path / "data", scenes[:1], OPTIONS)
    path = store.folder / name.format(scenes[0].scene_id)
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)

    assert any(words in line and "--append --replace" in line for line in verify_store(open_store(store.folder)))


def test_a_missing_file_is_found(tmp_path: Path, scenes: list[Scene]) -> None:
    store = make_store(tmp_path / "data", scenes[:1], OPTIONS)
    (store.folder / "labels" / f"{scenes[0].scene_id}.tif").unlink()

    (line,) = verify_store(store)
    assert "no file" in line


def _as_version_1(store: Store) -> None:
    path = store.folder / "store.json"
    data = json.loads(path.read_text())
    data = {key: value for key, value in data.items() if key not in ("splitting", "files")} | {"schema_version": 1}
    path.write_text(json.dumps(data))
    shutil.rmtree(store.folder / "scenes")


def test_a_store_of_the_first_schema_is_read_but_not_added_to(tmp_path: Path, scenes: list[Scene]) -> None:
    made = make_store(tmp_path / "data", scenes, OPTIONS)
    _as_version_1(made)

    store = open_store(tmp_path / "data")

    assert store.info.schema_version == 1
    assert store.info.statistics == made.info.statistics
    assert verify_store(store) == []
    with pytest.raises(DataError, match=r"older schema.*--overwrite"):
        _update(tmp_path / "data", scenes, append=True)


def test_room_is_asked_for_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _scene(tmp_path, "a")
    options = make_options()
    facts = survey([scene], options.survey).facts

    needed = bytes_needed(facts, options) - disk._SPARE
    store = make_store(tmp_path / "data", [scene], options)

    used = sum(path.stat().st_size for path in (store.folder / "shards").iterdir())
    assert 2 * used * 0.9 < needed < 2 * used * 1.4
    check_room(tmp_path / "not" / "yet" / "there", 1000)
    with pytest.raises(DataError, match=r"GiB free, expected .* GiB"):
        check_room(tmp_path, 2**60)


def test_a_failing_share_leaves_the_work_of_others(tmp_path: Path) -> None:
    good, bad = _scene(tmp_path, "good"), make_scene(tmp_path, "bad", image=np.ones((2, 300, 300), np.int16))
    found = survey([good, bad], OPTIONS.survey)
    content = bad.image.read_bytes()
    bad.image.write_bytes(content[: len(content) // 2])

    with pytest.raises(DataError, match=r"bad\.tif"):
        build_store(found, OPTIONS, tmp_path / "data" / "samples", Build(share=(2, 2)))

    assert list((tmp_path / "data").glob(".samples-*"))
    assert building.existing_store(tmp_path / "data" / "samples", "x", overwrite=False) is None


def test_what_a_killed_process_left_half_written_is_not_in_the_store(tmp_path: Path, scenes: list[Scene]) -> None:
    def leave(_: int) -> None:
        (building_folder,) = (tmp_path / "data").glob(".samples-*")
        (building_folder / "shards" / ".x.images.npy.01234567").write_bytes(b"half")

    found = survey(scenes, OPTIONS.survey)
    store = build_store(found, OPTIONS, tmp_path / "data" / "samples", Build(on_progress=leave))

    assert store is not None
    assert not list(store.folder.rglob(".*"))


def test_what_a_row_says_of_a_scene_stays_with_it(tmp_path: Path) -> None:
    """Weight and area of interest of a scene that is kept are those it was made with, and act as before."""
    area = make_polygons(tmp_path / "aoi.gpkg", [pixel_box(0, 0, 20, 30)])
    first = replace(_scene(tmp_path, "a"), weight=2.5, aoi=area)
    second = _scene(tmp_path, "b", "val")
    whole = make_store(tmp_path / "whole", [first, second], OPTIONS)
    make_store(tmp_path / "data", [first], OPTIONS)
    area.unlink()

    store = _update(tmp_path / "data", [second], append=True)

    entry = next(scene for scene in store.info.scenes if scene["id"] == first.scene_id)
    assert (entry["weight"], entry["aoi"]) == (2.5, str(area))
    assert store.info == replace(whole.info, provenance=store.info.provenance)
    assert file_hashes(store.folder) == file_hashes(whole.folder)
    # 20 x 30 pixels of the area of interest, without the 4 x 4 that are nodata.
    assert store.info.statistics[0]["count"] == 20 * 30 - 16
