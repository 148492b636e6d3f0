from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scenery import make_options, make_scene, make_store

from geoseg.data.augment import build_augmentation
from geoseg.data.dataset import EpochSampler, SampleDataset, batch_sizes, choose, item_seed, make_loader
from geoseg.data.frequency import Frequency
from geoseg.data.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Eight equal samples with an invalid corner, and one odd validation scene."""
    folder = tmp_path_factory.mktemp("store")
    pattern = np.random.default_rng(0).integers(1, 3000, (2, 16, 16)).astype(np.uint16)
    pattern[:, :4, :4] = 0
    scenes = [
        make_scene(folder, "a", "trn", np.tile(pattern, (1, 2, 4)), nodata=0),
        make_scene(folder, "b", "val", np.tile(pattern, (1, 1, 3)), nodata=0),
    ]
    return make_store(folder / "data", scenes, make_options())


def test_item_is_the_normalised_sample(store: Store) -> None:
    dataset = SampleDataset(store, "trn")
    image, label = dataset[3]

    assert (image.shape, image.dtype, label.shape, label.dtype) == ((2, 16, 16), torch.float32, (16, 16), torch.int64)
    assert image.is_contiguous()
    row = store.samples("trn").iloc[3]
    raw = store.images(row["scene"])[row["position"]].astype(np.float64)
    for band, stats in enumerate(store.info.statistics):
        expected = (raw[band] - stats["mean"]) / stats["std"]
        expected[:4, :4] = 0  # the band's mean, not the stored 0, which would be -1.7 standard deviations
        np.testing.assert_allclose(image[band].numpy(), expected, atol=1e-5)
    assert (label[:4, :4] == 255).all()
    np.testing.assert_array_equal(label.numpy(), store.labels(row["scene"])[row["position"]])


def test_training_images_have_mean_0_and_deviation_1_where_valid(store: Store) -> None:
    images = torch.stack([image for image, _ in (SampleDataset(store, "trn")[i] for i in range(8))])
    valid = images != 0

    for band in range(2):
        values = images[:, band][valid[:, band]].double()
        assert abs(float(values.mean())) < 1e-5
        assert float(values.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_indices_choose_samples(store: Store) -> None:
    full, part = SampleDataset(store, "trn"), SampleDataset(store, "trn", indices=[6, 1])

    assert len(part) == 2
    assert torch.equal(part[0][1], full[6][1])
    assert torch.equal(part[1][1], full[1][1])


def _epoch(store: Store, workers: int, epoch: int, seed: int = 1) -> list[bytes]:
    dataset = SampleDataset(store, "trn", build_augmentation("light", 255), seed=seed)
    sampler = EpochSampler(len(dataset), 4, seed, shuffle=False)
    dataset.set_epoch(epoch)
    return [image.numpy().tobytes() for images, _ in make_loader(dataset, sampler, workers) for image in images]


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_samples_are_augmented_differently_each_time_and_reproducibly(store: Store, workers: int) -> None:
    first, second = _epoch(store, workers, 0), _epoch(store, workers, 1)

    assert len(set(first)) == len(set(second)) == 8
    assert not set(first) & set(second)
    assert _epoch(store, workers, 0) == first
    assert not set(_epoch(store, workers, 0, seed=2)) & set(first)
    assert _epoch(store, 0, 1) == second  # whatever the number of workers


def test_workers_that_live_on_see_the_new_epoch(store: Store) -> None:
    dataset = SampleDataset(store, "trn", build_augmentation("light", 255))
    loader = make_loader(dataset, EpochSampler(8, 4, shuffle=False), workers=1)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append(torch.cat([images for images, _ in loader]))

    dataset.set_epoch(1)
    assert torch.equal(epochs[1], torch.stack([dataset[i][0] for i in range(8)]))
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_many_forked_workers_read_the_right_bytes(store: Store) -> None:
    dataset = SampleDataset(store, "trn")
    expected = [dataset[i] for i in range(8)]  # maps are open in the parent before the fork
    repeated = SampleDataset(store, "trn", indices=np.arange(384) % 8)
    loader = make_loader(repeated, EpochSampler(384, 16, shuffle=False), workers=4)

    read = [pair for images, labels in loader for pair in zip(images, labels, strict=True)]

    assert len(read) == 384
    for number, (image, label) in enumerate(read):
        assert torch.equal(image, expected[number % 8][0])
        assert torch.equal(label, expected[number % 8][1])


def test_validation_gives_the_same_twice(store: Store) -> None:
    dataset = SampleDataset(store, "val")

    assert all(torch.equal(dataset[i][0], dataset[i][0]) for i in range(3))


def test_choose_is_random_by_seed_ascending_and_without_repeats() -> None:
    assert choose(5, None, 0).tolist() == choose(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = choose(1000, 100, 1)
    assert len(set(drawn.tolist())) == 100
    assert (np.diff(drawn) > 0).all()
    assert drawn.max() > 800
    assert drawn.tolist() == choose(1000, 100, 1).tolist() != choose(1000, 100, 2).tolist()
    with pytest.raises(ValueError, match="at least one"):
        choose(3, 0, 0)


def test_item_seeds_differ() -> None:
    seeds = {item_seed(s, e, i) for s in range(4) for e in range(20) for i in range(50)}

    assert len(seeds) == 4 * 20 * 50


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"),
    [(9, 8, [5, 4]), (3, 8, [3]), (1, 8, [1]), (16, 8, [8, 8]), (17, 8, [8, 5, 4]), (10, 4, [4, 4, 2]), (5, 2, [2, 2])]
    + [(3, 1, [1, 1, 1]), (4, 3, [2, 2]), (2, 1, [1, 1])],
)
def test_batch_sizes_by_hand(n: int, batch_size: int, sizes: list[int]) -> None:
    assert batch_sizes(n, batch_size) == sizes


@given(st.integers(1, 500), st.integers(1, 40))
def test_batches_are_bounded_and_never_end_in_one(n: int, batch_size: int) -> None:
    sizes = batch_sizes(n, batch_size)

    assert sizes
    assert max(sizes) <= batch_size
    assert sum(sizes) == n - (batch_size == 2 and n % 2 == 1 and n > 1)
    if batch_size > 1 and n > 1:
        assert min(sizes) > 1
    assert sum(batch_sizes(n, batch_size, keep_single=True)) == n


def _flat(sampler: EpochSampler) -> list[int]:
    return [item for batch in sampler for item in batch]


def test_epochs_have_orders_of_their_own() -> None:
    sampler = EpochSampler(40, 8, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(_flat(sampler))

    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert _flat(EpochSampler(40, 8, seed=4)) != orders[0]


def test_odd_sample_left_out_of_pairs_changes_with_the_epoch() -> None:
    sampler = EpochSampler(5, 2, seed=0)
    left_out = set()
    for epoch in range(30):
        sampler.set_epoch(epoch)
        left_out |= set(range(5)) - set(_flat(sampler))

    assert left_out == set(range(5))


def test_an_epoch_is_taken_up_in_its_middle() -> None:
    sampler = EpochSampler(20, 6, seed=1)
    sampler.set_epoch(7)
    whole = list(sampler)

    sampler.set_epoch(7, start=2)

    assert list(sampler) == whole[2:]
    assert list(sampler) == whole
    assert len(sampler) == len(whole) == 4


@pytest.mark.parametrize("n", [7, 8, 9])
def test_processes_share_out_the_items(n: int) -> None:
    training = [EpochSampler(n, 2, seed=1, rank=rank, world=3) for rank in range(3)]
    validating = [EpochSampler(n, 2, shuffle=False, rank=rank, world=3) for rank in range(3)]

    assert len({len(sampler) for sampler in training}) == 1
    counted = Counter(item for sampler in training for item in sampler.order().tolist())
    assert set(counted) == set(range(n))
    assert max(counted.values()) <= 2
    assert sorted(item for sampler in validating for item in _flat(sampler)) == list(range(n))


def test_real_folder_is_not_needed_to_count_batches(tmp_path: Path) -> None:
    assert len(EpochSampler(9, 8)) == 2
    with pytest.raises(ValueError, match="rank"):
        EpochSampler(9, 8, rank=2, world=2)


def test_weights_say_how_often_an_epoch_holds_an_item() -> None:
    sampler = EpochSampler(4, 4, seed=3, frequency=Frequency(np.array([1.0, 2.0, 0.25, 0.75])))
    counts = np.zeros(4)
    for epoch in range(400):
        sampler.set_epoch(epoch)
        order = [item for batch in sampler for item in batch]
        found = np.bincount(order, minlength=4)
        assert len(order) == 4  # the sum of the weights
        assert found[0] == 1
        assert found[1] == 2
        counts += found
    assert counts[2] / 400 == pytest.approx(0.25, abs=0.07)
    assert counts[3] / 400 == pytest.approx(0.75, abs=0.07)


def test_weights_of_one_use_every_item_and_validation_knows_none() -> None:
    even = EpochSampler(5, 3, seed=1, frequency=Frequency(np.ones(5)))
    assert sorted(item for batch in even for item in batch) == [0, 1, 2, 3, 4]
    plain = EpochSampler(3, 2, shuffle=False, frequency=Frequency(np.array([9.0, 1.0, 1.0])))
    assert [item for batch in plain for item in batch] == [0, 1, 2]


def test_cutmix_pastes_another_sample_and_is_a_function_of_seed_epoch_and_sample(store: Store) -> None:
    plain, mixing = SampleDataset(store, "val", seed=1), SampleDataset(store, "val", seed=1, cutmix=1.0)
    again = SampleDataset(store, "val", seed=1, cutmix=1.0)
    # Constant planes tell where each pixel comes from.
    for dataset in (plain, mixing, again):
        dataset.read = lambda item: (np.full((2, 16, 16), item + 1, np.float32), np.full((16, 16), item, np.uint8))  # type: ignore[method-assign]
    seen = set()
    for epoch in range(20):
        mixing.set_epoch(epoch)
        again.set_epoch(epoch)
        image, label = mixing[0]
        assert torch.equal(image[0], label + 1.0)
        assert torch.equal(again[0][0], image)
        seen.add(image.numpy().tobytes())
    assert len(seen) > 10
    assert {int(value) for value in plain[0][1].unique()} == {0}


def test_cutmix_leaves_its_share_of_the_samples(store: Store) -> None:
    mixing = SampleDataset(store, "trn", cutmix=0.25)
    mixing.read = lambda item: (np.full((2, 16, 16), item + 1, np.float32), np.full((16, 16), item, np.uint8))  # type: ignore[method-assign]
    changed = 0
    for epoch in range(100):
        mixing.set_epoch(epoch)
        changed += sum(len(mixing[item][1].unique()) > 1 for item in range(4))
    # A few rectangles are empty, and an eighth come from the sample itself.
    assert 0.12 < changed / 400 < 0.28
