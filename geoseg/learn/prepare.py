"""From a sample store to what the training loop takes: the spec of the model and the batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geoseg.data.augment import AUGMENTATIONS, Augmentation, build_augmentation
from geoseg.data.dataset import EpochSampler, SampleDataset, choose, make_loader
from geoseg.data.frequency import sample_frequency
from geoseg.data.normalise import Normalisation
from geoseg.data.store import Store, StoreInfo
from geoseg.errors import ConfigError, DataError, ModelFileError, problem
from geoseg.geo.raster import Reading
from geoseg.learn import processes
from geoseg.learn.modelfile import ModelSpec, check_matches

# What a run and the samples it goes on with must have in common.
_DECIDED_IN_SAMPLE = ("num_classes", "class_names", "bands", "dtype", "ignore_value", "samples_size", "reading")


@dataclass(frozen=True)
class Draws:
    """What is drawn of the training samples; of others nothing is.

    Attributes:
        augmentation: Name of the random changes, or a pipeline, see `geoseg.data.augment`.
        cutmix: Share of the samples in which a rectangle of another one is pasted.
        sampling: How often an epoch holds each sample, see `geoseg.data.frequency`.
        epoch_samples: Samples in an epoch; None is all.
    """

    augmentation: str | Mapping[str, Any] = "none"
    cutmix: float = 0.0
    sampling: str = "uniform"
    epoch_samples: int | None = None


class StoreBatches:
    """Batches of one split of a store, in an order and with augmentations drawn from (seed, epoch).

    Args:
        store: An opened store.
        split: "trn" is shuffled and augmented; any other comes whole, in order, as it is.
        batch_size: Upper bound; see `geoseg.data.dataset.batch_sizes`.
        limit: Use so many samples, drawn with the seed; None uses all.
        seed: Of everything drawn.
        draws: What is drawn of training samples.
        workers: Processes that load; the batches do not depend on it.

    Raises:
        ConfigError: There is no augmentation or column of that name, or a pipeline does not work.
        DataError: The split is empty.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        batch_size: int,
        limit: int | None = None,
        seed: int = 0,
        draws: Draws = Draws(),
        workers: int = 0,
    ) -> None:
        training = split == "trn"
        augment = _augmentation(draws, store.info) if training else None
        chosen = choose(store.info.samples[split], limit, seed)
        self.dataset = SampleDataset(store, split, augment, chosen, seed, draws.cutmix if training else 0.0)
        uneven = sample_frequency(store, split, chosen, draws.sampling, draws.epoch_samples) if training else None
        rank, world = processes.rank(), processes.count()
        self.sampler = EpochSampler(len(chosen), batch_size, seed, training, rank, world, uneven)
        self._loader = make_loader(self.dataset, self.sampler, workers, pin_memory=torch.cuda.is_available())

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, from 0, and the first batch of its next pass."""
        self.dataset.set_epoch(epoch)
        self.sampler.set_epoch(epoch, start)

    @property
    def scenes(self) -> tuple[list[int], list[str]]:
        """The number of each sample's scene, in the order of this process's next pass, and the name of each scene."""
        of_item = [self.dataset.scene_of(item) for item in range(len(self.dataset))]
        numbers = {name: number for number, name in enumerate(sorted(set(of_item)))}
        return [numbers[of_item[item]] for item in self.sampler.order().tolist()], list(numbers)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self.sampler)


def _augmentation(draws: Draws, info: StoreInfo) -> Augmentation | None:
    try:
        return build_augmentation(draws.augmentation, info.ignore_value, len(info.bands), info.samples_size)
    except ValueError as error:
        expected = f"one of {', '.join(AUGMENTATIONS)}"
        raise ConfigError(problem("training.augmentation", draws.augmentation, expected, "use one of these")) from error


def check_store(info: StoreInfo, where: object, **expected: Any) -> None:
    """Refuse a config that says something else than the samples were made with, and a store one cannot train on.

    Args:
        info: What the store says.
        where: The store, for the message.
        **expected: What the config says, by name: any attribute of `StoreInfo`, `number_of_bands`, `class_names` or
            `class_values`. None means that the config says nothing, also inside a list.

    Raises:
        DataError: One line per difference, naming both; or no training or no validation samples.
    """
    stored = vars(info) | {
        "number_of_bands": len(info.bands),
        "class_names": [entry["name"] for entry in info.classes],
        "class_values": [entry.get("value") for entry in info.classes],
    }
    problems = [
        problem(
            where,
            f"samples made with {name.replace('_', ' ')} {_plain(stored[name])}",
            f"{_plain(wanted)} as the config says",
            "change the config, or run `python -m geoseg.sample` again",
        )
        for name, wanted in expected.items()
        if not _agree(_plain(stored[name]), _plain(wanted))
    ]
    counts = ", ".join(f"{split} {info.samples.get(split, 0)}" for split in ("trn", "val", "tst"))
    if not (info.samples.get("trn") and info.samples.get("val")):
        remedy = "give scenes of both splits in the list of scenes and run `python -m geoseg.sample` again"
        problems.append(problem(where, f"samples: {counts}", "trn and val samples", remedy))
    if problems:
        raise DataError(problems)


def make_spec(info: StoreInfo, model_name: str, model_options: Mapping[str, Any]) -> ModelSpec:
    """Return what a network trained on a store means; training adds its own facts."""
    return ModelSpec(
        model_name=model_name,
        model_options=model_options,
        in_channels=len(info.bands),
        num_classes=info.num_classes,
        classes=info.classes,
        bands=info.bands,
        band_names=info.band_names,
        dtype=info.dtype,
        normalisation=Normalisation.from_statistics(info.statistics),
        ignore_value=info.ignore_value,
        samples_size=info.samples_size,
        resolution=info.resolution,
        crs=info.crs,
        reading=Reading.from_dict(info.reading),
    )


def check_same_samples(saved: ModelSpec, spec: ModelSpec, where: Path) -> None:
    """Refuse to go on with a run on samples that mean something else.

    Raises:
        ModelFileError: One line per difference.
    """
    check_matches(saved, where, **{name: getattr(spec, name) for name in _DECIDED_IN_SAMPLE})
    if saved.normalisation != spec.normalisation:
        found = f"band means {_short(saved.normalisation.mean)}"
        expected = f"the samples' {_short(spec.normalisation.mean)}"
        raise ModelFileError(problem(where, found, expected, "the samples were made anew since: start a new run"))


def _agree(stored: Any, wanted: Any) -> bool:
    if wanted is None:
        return True
    if isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        return all(_agree(*pair) for pair in zip(stored, wanted, strict=True))
    return bool(stored == wanted)


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _short(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values[:4]) + (", ...]" if len(values) > 4 else "]")
