"""A last look at the validation samples with the weights that a run kept: by scene, by sample, and how sure it was."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from geoseg.assess.calibration import Reliability, reliability_of, whole_reliability
from geoseg.assess.confusion import SceneConfusion, whole_set
from geoseg.data.dataset import SampleDataset
from geoseg.learn.metrics import scores

LEAST_SHARE = 0.01
SHOWN = 6  # best and worst samples that are kept with their predictions
_AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Judged:
    """One sample and what was made of it.

    Attributes:
        item: Its number in the dataset.
        scene: Its scene.
        mean_iou: Over the classes that have a hundredth of its known pixels, in the label or the prediction: a class
            of three pixels would decide alone.
        accuracy: Share of its known pixels that are right.
        predicted: (size, size) uint8 class ids.
    """

    item: int
    scene: str
    mean_iou: float
    accuracy: float
    predicted: NDArray[np.uint8]


@dataclass(frozen=True)
class Review:
    """What a model does with the samples of a split.

    Attributes:
        scenes: Counts by scene, in the order of the samples.
        worst: Samples with the lowest mean IoU, the lowest first.
        best: Those with the highest, the highest first; of several classes, if there are such.
        reliability: Known pixels by the probability of the predicted class.
    """

    scenes: tuple[SceneConfusion, ...]
    worst: tuple[Judged, ...]
    best: tuple[Judged, ...]
    reliability: Reliability


@torch.no_grad()
def review(
    model: nn.Module,
    dataset: SampleDataset,
    device: torch.device | str = "cpu",
    precision: str = "32-true",
    batch_size: int = 8,
    on_batch: Callable[[], None] = lambda: None,
) -> Review:
    """Run a model over a split, in evaluation mode; memory does not grow with the number of samples.

    Args:
        model: The network; it is moved to the device.
        dataset: Samples, not augmented.
        device: Where to compute.
        precision: As `training.precision`, resolved.
        batch_size: Samples at a time.
        on_batch: Called after each.
    """
    info = dataset.store.info
    model.to(device).eval()
    scenes: dict[str, SceneConfusion] = {}
    judged = _Extremes()
    sure: list[Reliability] = []
    for items in _batches(len(dataset), batch_size):
        pairs = [dataset[item] for item in items]
        images, labels = (torch.stack([pair[i] for pair in pairs]) for i in (0, 1))
        kind = torch.device(device).type
        with torch.autocast(kind, _AUTOCAST.get(precision), enabled=precision in _AUTOCAST):
            logits = model(images.to(device))
        probability, predicted = (found.cpu() for found in torch.softmax(logits.float(), dim=1).max(dim=1))
        known = labels != info.ignore_value
        found = reliability_of(probability[known].numpy(), (predicted == labels)[known].numpy())
        sure = [whole_reliability([*sure, found])]
        for item, label, classes in zip(items, labels.numpy(), predicted.numpy().astype(np.uint8), strict=True):
            scene = dataset.scene_of(item)
            counts = _count(label, classes, info.num_classes, info.ignore_value)
            one = SceneConfusion(scene, counts, np.zeros(info.num_classes, np.int64), label.size - int(counts.sum()))
            scenes[scene] = whole_set([scenes[scene], one], scene) if scene in scenes else one
            judged.add(item, scene, counts, classes)
        on_batch()
    return Review(tuple(scenes.values()), *judged.found(), *sure)


class _Extremes:
    """The samples with the lowest and the highest mean IoU, found in one pass; of equal ones the first."""

    def __init__(self) -> None:
        self._worst: list[tuple[Any, Judged]] = []
        self._best: list[tuple[Any, Judged]] = []

    def add(self, item: int, scene: str, counts: NDArray[np.int64], predicted: NDArray[np.uint8]) -> None:
        if not counts.any():
            return
        result = scores(counts)
        counted = np.maximum(result.reference, result.predicted) >= LEAST_SHARE * counts.sum()
        mean_iou = float(result.iou[counted].mean())
        sample = Judged(item, scene, mean_iou, result.overall_accuracy, predicted)
        several = bool((counts.sum(axis=1) > 0).sum() > 1)  # a sample of one class is right too easily
        _push(self._worst, (-mean_iou, -item), sample)
        _push(self._best, (several, mean_iou, -item), sample)

    def found(self) -> tuple[tuple[Judged, ...], tuple[Judged, ...]]:
        worst, best = (tuple(sample for _, sample in sorted(h, reverse=True)) for h in (self._worst, self._best))
        return worst, best


def _push(heap: list[tuple[Any, Judged]], key: tuple[Any, ...], sample: Judged) -> None:
    """Keep the SHOWN samples with the greatest keys; keys end in the sample's number, so none are equal."""
    if len(heap) < SHOWN:
        heapq.heappush(heap, (key, sample))
    else:
        heapq.heappushpop(heap, (key, sample))


def _batches(count: int, batch_size: int) -> Iterator[Sequence[int]]:
    for start in range(0, count, batch_size):
        yield range(start, min(start + batch_size, count))


def _count(
    label: NDArray[np.integer], predicted: NDArray[np.uint8], num_classes: int, ignore_value: int
) -> NDArray[np.int64]:
    known = label != ignore_value
    pairs = label[known].astype(np.int64) * num_classes + predicted[known]
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
