from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from scenery import make_scene, make_store

from geoseg.data.store import Store, StoreInfo, open_store
from geoseg.errors import DataError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("original")
    image = np.random.default_rng(0).integers(1, 200, (2, 40, 50)).astype(np.uint8)
    image[:, :3, :4] = 0
    scenes = [make_scene(folder, "a", "trn", image, nodata=0), make_scene(folder, "b", "val", image, nodata=0)]
    return make_store(folder / "data", scenes)


@pytest.fixture
def store(original: Store, tmp_path: Path) -> Store:
    shutil.copytree(original.folder, tmp_path / "data" / "samples")
    return open_store(tmp_path / "data")


def test_opened_by_its_folder_or_by_the_data_path(store: Store) -> None:
    assert open_store(store.folder).folder == open_store(store.folder.parent).folder == store.folder


def test_description_survives_json(store: Store) -> None:
    assert StoreInfo.from_json(store.info.to_json()) == store.info
    assert json.loads((store.folder / "store.json").read_text())["schema_version"] == 2


def test_shards_are_plain_files_in_the_source_type(store: Store) -> None:
    scene = store.info.scenes[0]["id"]

    images = np.load(store.folder / "shards" / f"{scene}.images.npy")

    assert images.shape == (12, 2, 16, 16)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(store.images(scene), images)
    assert isinstance(store.images(scene), np.memmap)
    assert not store.images(scene).flags.writeable


def test_validity_is_kept_for_the_samples_that_need_it(store: Store) -> None:
    scene = store.info.scenes[0]["id"]
    assert store.samples("trn")["valid_position"].tolist() == [0] + [-1] * 11

    valid = store.valid(scene, 0)

    assert valid is not None
    assert (~valid[:3, :4]).all()
    assert valid.sum() == 256 - 12
    assert store.valid(scene, -1) is None


def test_pickled_without_its_maps(store: Store) -> None:
    scene = store.info.scenes[0]["id"]
    store.images(scene)

    copy = pickle.loads(pickle.dumps(store))

    assert len(pickle.dumps(store)) < 200_000
    np.testing.assert_array_equal(copy.images(scene), store.images(scene))


def test_empty_split_names_the_counts(store: Store) -> None:
    with pytest.raises(DataError, match=r"no tst sample \(trn 12, val 12, tst 0\)"):
        store.samples("tst")


def test_missing_store_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"geoseg\.sample"):
        open_store(tmp_path / "nothing")


def test_damaged_parts_are_named(store: Store) -> None:
    shard = next((store.folder / "shards").glob("*.images.npy"))
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    next((store.folder / "shards").glob("*.labels.npy")).unlink()

    with pytest.raises(DataError) as caught:
        open_store(store.folder)

    assert len(caught.value.problems) == 2
    assert str(shard) in " ".join(caught.value.problems)
    assert "no file" in " ".join(caught.value.problems)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("store.json", "{", "unusable text"),
        ("store.json", "[]", "no JSON object"),
        ("store.json", '{"schema_version": 99}', "schema version 99"),
        ("store.json", '{"schema_version": 1}', "no classes"),
        ("index.parquet", "PAR1", "no readable index"),
    ],
)
def test_damaged_descriptions(store: Store, name: str, text: str, message: str) -> None:
    (store.folder / name).write_text(text)

    with pytest.raises(DataError, match=message):
        open_store(store.folder)


def test_index_of_another_store_is_refused(store: Store, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", [make_scene(tmp_path, "c")])
    (store.folder / "index.parquet").write_bytes((other.folder / "index.parquet").read_bytes())

    with pytest.raises(DataError, match="12 rows for 24 samples"):
        open_store(store.folder)
