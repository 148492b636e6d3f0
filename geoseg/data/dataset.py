"""Samples for torch: the dataset, the order of an epoch, and the loader.

Every draw is a function of (seed, epoch, sample) alone, so a run does not depend on the number of worker processes and
can be taken up again at any epoch.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from geoseg.data.augment import Augmentation, paste
from geoseg.data.frequency import Frequency
from geoseg.data.normalise import Normalisation
from geoseg.data.store import Store


def choose(n: int, limit: int | None, seed: int) -> NDArray[np.int64]:
    """Return which of `n` samples to use, ascending: all, or `limit` of them drawn with the seed."""
    if limit is None or limit >= n:
        return np.arange(n)
    if limit < 1:
        raise ValueError(f"at least one sample must be chosen, got {limit}")
    return np.sort(np.random.default_rng(seed).permutation(n)[:limit])


def item_seed(seed: int, epoch: int, index: int, purpose: int = 0) -> int:
    """Return the seed of one sample in one epoch: 64 bits, unrelated between neighbours and between purposes."""
    words = [seed, epoch, index] + ([purpose] if purpose else [])
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


class SampleDataset(Dataset[tuple[Tensor, Tensor]]):
    """The samples of one split.

    An item is `(image, label)`: image (bands, size, size) float32, normalised, contiguous, 0 where invalid; label
    (size, size) int64 of class ids and the store's ignore value.

    Args:
        store: An opened store.
        split: trn, val or tst.
        augment: Random change, or None; never give one to validation.
        indices: Which samples of the split to use (see `choose`); None: all.
        seed: Of the augmentation's draws.
        cutmix: Share of the samples in which a rectangle of another one is pasted; never for validation.

    Raises:
        DataError: The split has no samples.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        augment: Augmentation | None = None,
        indices: Sequence[int] | NDArray[np.integer] | None = None,
        seed: int = 0,
        cutmix: float = 0.0,
    ) -> None:
        rows = store.samples(split)
        self.store = store
        self.split = split
        self.augment = augment
        self.seed = seed
        self.cutmix = cutmix
        self.normalisation = Normalisation.from_statistics(store.info.statistics)
        self.indices = np.arange(len(rows)) if indices is None else np.asarray(indices, dtype=np.int64)
        # Plain arrays and one list of names: a data frame would cost 100 times a sample's read per item.
        names, codes = np.unique(rows["scene"].to_numpy(dtype=str), return_inverse=True)
        self._scenes: list[str] = names.tolist()
        self._scene = codes
        self._position = rows["position"].to_numpy(np.int64)
        self._valid_position = rows["valid_position"].to_numpy(np.int64)
        # In shared memory, so that worker processes that live on see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose draws are made, in this process and its workers."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.indices)

    def scene_of(self, item: int) -> str:
        """Return the id of the scene that an item was cut from."""
        return self._scenes[self._scene[int(self.indices[item])]]

    def stored(self, item: int) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.bool_] | None]:
        """Return image (in the source's data type) and label of an item as they are stored, and what is valid."""
        row, scene = int(self.indices[item]), self.scene_of(item)
        position, valid = self._position[row], self.store.valid(scene, int(self._valid_position[row]))
        return self.store.images(scene)[position], self.store.labels(scene)[position], valid

    def read(self, item: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return image and label of an item as arrays, normalised, not augmented."""
        image, label, valid = self.stored(item)
        return self.normalisation.apply(image, valid), np.array(label)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        image, label = self._augmented(item, item_seed(*self._draw(item)))
        if self.cutmix:
            rng = np.random.default_rng(item_seed(*self._draw(item), purpose=1))
            if rng.random() < self.cutmix:
                other, seeds = int(rng.integers(len(self))), rng.integers(0, 2**63, 2).tolist()
                paste(image, label, self._augmented(other, seeds[0]), seeds[1])
        return torch.from_numpy(image), torch.from_numpy(label.astype(np.int64))

    def _draw(self, item: int) -> tuple[int, int, int]:
        return self.seed, int(self._epoch), int(self.indices[item])

    def _augmented(self, item: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        image, label = self.read(item)
        return (image, label) if self.augment is None else self.augment(image, label, seed)


def batch_sizes(n: int, batch_size: int, keep_single: bool = False) -> list[int]:
    """Return the sizes of an epoch's batches: never larger than `batch_size`, and no last batch of one sample.

    Batch norm trains badly on one sample, and fails where its map is down to one pixel. A remainder of one shares the
    batch before it (9 in batches of 8: 5 + 4). With `batch_size` 2 there is nothing to share, so the odd sample sits
    out the epoch; a shuffled order leaves out another one next time. Fewer samples than `batch_size` make one batch.

    Args:
        n: Samples, at least 1.
        batch_size: Upper bound, at least 1.
        keep_single: Use every sample and allow a last batch of one (evaluation).
    """
    if n < 1 or batch_size < 1:
        raise ValueError(f"no batches of {batch_size} from {n} samples")
    full, rest = divmod(n, batch_size)
    if rest != 1 or full == 0 or keep_single:
        return [batch_size] * full + ([rest] if rest else [])
    if batch_size == 2:
        return [2] * full
    half = (batch_size + 1) // 2
    return [batch_size] * (full - 1) + [batch_size + 1 - half, half]


class EpochSampler(Sampler[list[int]]):
    """The batches of an epoch, as lists of items; a `batch_sampler` for torch's loader.

    Args:
        n: Number of items.
        batch_size: Upper bound per process.
        seed: Of the order.
        shuffle: Draw a new order every epoch (training); else 0..n-1, every item once.
        rank: This process of `world`; the processes share out the items. When shuffling they do the same number of
            steps, for which up to world - 1 items are used twice.
        world: Number of processes.
        frequency: How often an epoch holds each item. When shuffling alone; None: once each.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        frequency: Frequency | None = None,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        self._frequency = frequency if shuffle else None
        if self._frequency is not None:
            n = self._frequency.length
        self.n, self.batch_size, self.seed, self.shuffle = n, batch_size, seed, shuffle
        self.rank, self.world = rank, world
        self._epoch = 0
        self._start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and the first batch of its next pass (to resume inside an epoch)."""
        self._epoch, self._start = epoch, start

    def order(self) -> NDArray[np.int64]:
        """Return this process's items of the current epoch, in order."""
        if not self.shuffle:
            return np.arange(self.n)[self.rank :: self.world]
        rng = np.random.default_rng([self.seed, self._epoch])
        drawn = rng.permutation(self.n) if self._frequency is None else self._frequency.draw(rng)
        share = -(-self.n // self.world)
        return np.resize(drawn, share * self.world)[self.rank :: self.world]

    def _sizes(self) -> list[int]:
        items = len(range(self.rank, self.n, self.world)) if not self.shuffle else -(-self.n // self.world)
        return batch_sizes(items, self.batch_size, keep_single=not self.shuffle) if items else []

    def __iter__(self) -> Iterator[list[int]]:
        order, stop, start = self.order().tolist(), 0, self._start
        self._start = 0
        for number, size in enumerate(self._sizes()):
            stop += size
            if number >= start:
                yield order[stop - size : stop]

    def __len__(self) -> int:
        return len(self._sizes())


def make_loader(
    dataset: SampleDataset, sampler: EpochSampler, workers: int = 0, pin_memory: bool = False
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return a loader of batches: images (N, bands, size, size) float32 and labels (N, size, size) int64.

    Workers live on between epochs. Call `set_epoch` of both dataset and sampler before each epoch.
    """
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_quiet_worker if workers else None,
    )


def _quiet_worker(_: int) -> None:
    """One thread per worker: OpenCV's and torch's own threads would fight over the same cores."""
    import cv2

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the training process decides
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
