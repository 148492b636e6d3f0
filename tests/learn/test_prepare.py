"""From a store to batches and the spec of a model."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from sample_store import make_store

from geoseg.data.store import open_store
from geoseg.errors import ConfigError, DataError, ModelFileError
from geoseg.learn.prepare import Draws, StoreBatches, check_same_samples, check_store, make_spec


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(make_store(tmp_path_factory.mktemp("data"), trn=9))


def drawn(batches: StoreBatches, epoch: int) -> list[torch.Tensor]:
    batches.set_epoch(epoch)
    return [image for image, _ in batches]


def test_training_batches_are_shuffled_augmented_and_repeatable(store):
    batches = StoreBatches(store, "trn", 4, seed=1, draws=Draws("geometric"))
    first, second = drawn(batches, 0), drawn(batches, 1)
    assert [len(image) for image in first] == [4, 3, 2]  # nine in fours, and no batch of one
    assert len(batches) == 3
    assert not torch.equal(torch.cat(first), torch.cat(second))
    again = drawn(StoreBatches(store, "trn", 4, seed=1, draws=Draws("geometric")), 1)
    assert torch.equal(torch.cat(second), torch.cat(again))


def test_workers_change_nothing(store):
    alone = StoreBatches(store, "trn", 4, seed=1, draws=Draws("light"))
    helped = StoreBatches(store, "trn", 4, seed=1, draws=Draws("light"), workers=2)
    for epoch in (0, 1):
        pairs = zip(drawn(alone, epoch), drawn(helped, epoch), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_validation_batches_are_the_same_every_time(store):
    batches = StoreBatches(store, "val", 8, draws=Draws("light"))
    assert torch.equal(drawn(batches, 0)[0], drawn(batches, 1)[0])
    plain = torch.from_numpy(batches.dataset.read(0)[0])
    assert torch.equal(drawn(batches, 0)[0][0], plain)


def test_a_limit_draws_samples_with_the_seed(store):
    chosen = [StoreBatches(store, "trn", 4, limit=5, seed=seed).dataset.indices.tolist() for seed in (1, 1, 2)]
    assert len(chosen[0]) == 5
    assert chosen[0] == chosen[1] != chosen[2]


def test_an_unknown_augmentation_lists_the_choices(store):
    with pytest.raises(ConfigError, match=r"training\.augmentation: found wild, expected one of none,"):
        StoreBatches(store, "trn", 4, draws=Draws("wild"))


def test_the_spec_says_what_the_store_says(store):
    spec = make_spec(store.info, "unetsmall", {"dropout": False})
    assert (spec.in_channels, spec.bands, spec.band_names) == (2, (1, 3), ("red", "nir"))
    assert (spec.class_names, spec.ignore_value, spec.samples_size) == (("background", "roof"), 255, 32)
    assert spec.normalisation.mean == (1000.0, 3000.0)
    assert json.loads(spec.to_json())["crs"] == "EPSG:32618"


def test_a_config_that_agrees_or_says_nothing(store):
    check_store(
        store.info, "store", number_of_bands=2, bands=(1, 3), class_names=["background", "roof"], class_values=[None, 7]
    )
    check_store(store.info, "store", number_of_bands=None, bands=None, band_names=None)


@pytest.mark.parametrize(
    ("said", "found", "expected"),
    [
        ({"ignore_value": 0}, "ignore value 255", "expected 0"),
        ({"num_classes": 3}, "num classes 2", "expected 3"),
        ({"samples_size": 256}, "samples size 32", "expected 256"),
        ({"bands": (1, 2)}, "bands [1, 3]", "expected [1, 2]"),
        ({"bands": (1, 3, 4)}, "bands [1, 3]", "expected [1, 3, 4]"),
        ({"band_names": ("red", "green")}, "band names ['red', 'nir']", "expected ['red', 'green']"),
        ({"number_of_bands": 4}, "number of bands 2", "expected 4"),
        ({"class_names": ["background", "tree"]}, "'roof'", "'tree'"),
        ({"class_values": [None, 8]}, "[None, 7]", "[None, 8]"),
    ],
)
def test_a_config_that_says_otherwise_is_refused_naming_both(store, said, found, expected):
    with pytest.raises(DataError) as caught:
        check_store(store.info, "store", **said)
    assert len(caught.value.problems) == 1
    assert found in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(("trn", "val"), [(0, 2), (3, 0), (0, 0)])
def test_an_empty_split_is_an_error_that_lists_the_counts(tmp_path, trn, val):
    info = open_store(make_store(tmp_path, trn=trn, val=val)).info
    with pytest.raises(DataError, match=f"found samples: trn {trn}, val {val}, tst 0, expected trn and val"):
        check_store(info, "store")


def test_a_run_does_not_go_on_with_other_samples(store):
    spec = make_spec(store.info, "unetsmall", {})
    check_same_samples(spec, spec, "last.ckpt")
    moved = [{"mean": 1.0, "std": 1.0}, {"mean": 2.0, "std": 1.0}]
    other = make_spec(dataclasses.replace(store.info, statistics=tuple(moved)), "unetsmall", {})
    with pytest.raises(ModelFileError, match=r"found band means \[1000, 3000\], expected the samples' \[1, 2\]"):
        check_same_samples(spec, other, "last.ckpt")
    other = make_spec(dataclasses.replace(store.info, bands=(1, 2)), "unetsmall", {})
    with pytest.raises(ModelFileError, match=r"found bands \[1, 3\], expected \[1, 2\]"):
        check_same_samples(spec, other, "last.ckpt")


def test_samples_of_a_scene_with_a_weight_come_more_often(tmp_path: Path) -> None:
    folder = make_store(tmp_path, trn=3, scenes=({"id": "trn", "weight": 2.0},))
    batches = StoreBatches(open_store(folder), "trn", batch_size=2)
    assert sorted(item for batch in batches.sampler for item in batch) == [0, 0, 1, 1, 2, 2]
    plain = make_store(tmp_path / "plain", trn=3, scenes=({"id": "trn", "weight": 1.0},))
    assert sorted(item for batch in StoreBatches(open_store(plain), "trn", 3).sampler for item in batch) == [0, 1, 2]


def test_validation_batches_say_which_scene_each_sample_is_of(tmp_path: Path) -> None:
    store = open_store(make_store(tmp_path, val=4))
    store.index.loc[store.index["split"] == "val", "scene"] = ["b", "a", "b", "c"]
    batches = StoreBatches(store, "val", 8)
    assert batches.scenes == ([1, 0, 1, 2], ["a", "b", "c"])
