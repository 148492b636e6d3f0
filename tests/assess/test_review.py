"""A model's look at a split, against counting pixel by pixel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sample_store import make_store
from torch import Tensor, nn

from geoseg.assess import review as module
from geoseg.assess.confusion import whole_set
from geoseg.assess.review import review
from geoseg.data.dataset import SampleDataset
from geoseg.data.store import Store, open_store


class Threshold(nn.Module):
    """Says roof where the first band is bright, and is the surer the further it is from the threshold."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.never = classes - 2
        self.level = nn.Parameter(torch.tensor(0.9))

    def forward(self, images: Tensor) -> Tensor:
        away = 3 * (images[:, 0] - self.level)
        return torch.stack([-away, away, *[away - 99] * self.never], dim=1)


@pytest.fixture
def dataset(tmp_path: Path) -> SampleDataset:
    """Seven samples of two scenes; the third has no known pixel, the fifth background alone."""
    folder = make_store(tmp_path, val=7)
    samples = folder / "samples"
    labels = np.load(samples / "shards" / "val.labels.npy")
    labels[2], labels[4] = 255, 0
    np.save(samples / "shards" / "val.labels.npy", labels)
    for kind in ("images", "labels"):  # the last two become a scene of their own
        content = np.load(samples / "shards" / f"val.{kind}.npy")
        np.save(samples / "shards" / f"other.{kind}.npy", content[5:])
    index = pd.read_parquet(samples / "index.parquet")
    last = index.index[-2:]
    index.loc[last, "scene"], index.loc[last, "position"] = "other", [0, 1]
    index.to_parquet(samples / "index.parquet")
    return SampleDataset(open_store(folder), "val")


def by_hand(dataset: SampleDataset) -> tuple[dict[str, np.ndarray], list[tuple[float, float, int, bool]], np.ndarray]:
    """Count in float64, pixel by pixel: matrices by scene, (IoU, accuracy, item, several classes), (p, right)."""
    matrices: dict[str, np.ndarray] = {}
    judged, pairs = [], []
    for item in range(len(dataset)):
        image, label = dataset.read(item)
        away = 3 * (image[0].astype(np.float64) - np.float64(np.float32(0.9)))
        matrix = matrices.setdefault(dataset.scene_of(item), np.zeros((2, 2), int))
        own = np.zeros((2, 2), int)
        for truth, value in zip(label.ravel(), away.ravel(), strict=True):
            if truth != 255:
                own[truth, int(value > 0)] += 1
                pairs.append((1 / (1 + np.exp(-2 * abs(value))), truth == (value > 0)))
        matrix += own
        if own.any():
            unions = [own[c].sum() + own[:, c].sum() - own[c, c] for c in (0, 1)]
            large = [max(own[c].sum(), own[:, c].sum()) >= own.sum() / 100 for c in (0, 1)]
            ious = [own[c, c] / unions[c] for c in (0, 1) if large[c]]
            judged.append((np.mean(ious), np.trace(own) / own.sum(), item, bool((own.sum(axis=1) > 0).all())))
    return matrices, judged, np.array(pairs, float)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_counts_scores_and_sureness_are_those_by_hand(dataset: SampleDataset, batch_size: int) -> None:
    calls: list[int] = []
    found = review(Threshold(), dataset, batch_size=batch_size, on_batch=lambda: calls.append(1))
    matrices, judged, pairs = by_hand(dataset)
    assert len(calls) == -(-7 // batch_size)
    assert {scene.name: scene.matrix.tolist() for scene in found.scenes} == {k: m.tolist() for k, m in matrices.items()}
    assert sum(scene.unknown for scene in found.scenes) == 7 * 32 * 32 - len(pairs)
    assert whole_set(found.scenes).matrix.sum() == len(pairs)
    worst = sorted(judged, key=lambda one: (one[0], one[2]))[:6]
    assert [(sample.item, sample.scene) for sample in found.worst] == [(i, dataset.scene_of(i)) for _, _, i, _ in worst]
    assert [sample.mean_iou for sample in found.worst] == pytest.approx([one[0] for one in worst])
    assert [sample.accuracy for sample in found.worst] == pytest.approx([one[1] for one in worst])
    best = sorted(judged, key=lambda one: (not one[3], -one[0], one[2]))[:6]
    assert [sample.item for sample in found.best] == [one[2] for one in best]
    place = np.minimum((pairs[:, 0] * 15).astype(int), 14)
    gaps = [abs(pairs[place == b, 0].sum() - pairs[place == b, 1].sum()) for b in range(15)]
    assert found.reliability.expected_error == pytest.approx(sum(gaps) / len(pairs), abs=1e-6)


def test_a_class_of_a_few_pixels_does_not_decide(dataset: SampleDataset) -> None:
    samples = dataset.store.folder / "shards"
    labels = np.load(samples / "val.labels.npy")
    image = dataset.read(0)[0][0]
    labels[0] = image > np.float32(0.9)  # all right,
    row, col = np.argwhere(labels[0] == 0)[0]
    labels[0, row, col] = 2  # but for a pixel of a class that is never said
    np.save(samples / "val.labels.npy", labels)
    store = open_store(samples.parent.parent)
    third = {"id": 2, "name": "well", "value": 9, "colour": "#0000ff"}
    info = replace(store.info, num_classes=3, classes=(*store.info.classes, third))
    found = review(Threshold(3), SampleDataset(Store(store.folder, info, store.index), "val"))
    (first,) = [sample for sample in found.best if sample.item == 0]
    assert first.mean_iou > 0.99
    assert (found.scenes[0].matrix[2] == [1, 0, 0]).all()


def test_few_samples_are_kept_and_their_predictions_with_them(
    dataset: SampleDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN", 2)
    found = review(Threshold(), dataset)
    assert (len(found.worst), len(found.best)) == (2, 2)
    for sample in (*found.worst, *found.best):
        image, _ = dataset.read(sample.item)
        assert np.array_equal(sample.predicted, image[0] > np.float32(0.9))


def test_the_model_is_left_in_evaluation_and_without_gradients(dataset: SampleDataset) -> None:
    model = Threshold().train()
    review(model, dataset)
    assert not model.training
    assert model.level.grad is None
