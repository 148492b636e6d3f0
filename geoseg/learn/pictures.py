"""Pictures of samples as a model sees them: image, label, prediction and errors; in TensorBoard as training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from geoseg.data.dataset import SampleDataset
from geoseg.data.preview import UNKNOWN, coloured, shown_bands, stretched
from geoseg.learn.checkpoint import CURVES
from geoseg.learn.job import Job
from geoseg.learn.prepare import StoreBatches
from geoseg.learn.runtime import Runtime

RIGHT, WRONG = (236, 240, 243), (214, 0, 140)
GAP = 4  # white pixels between the pictures
COUNT = 4  # samples in TensorBoard
_SIDE = 256  # of their pictures at most, pixels


class SampleImages:
    """Writes pictures of a few samples to TensorBoard, always the same ones, evenly spread over the split.

    They lie in a folder of their own within that of the curves: TensorBoard reads one file of a folder at a time.

    Args:
        folder: The run folder.
        dataset: The samples of validation.
        runtime: Where the model computes, and how.
    """

    def __init__(self, folder: Path, dataset: SampleDataset, runtime: Runtime) -> None:
        self._folder, self._dataset, self._runtime = folder / CURVES / "samples", dataset, runtime
        count = min(COUNT, len(dataset))
        self.items = [(2 * number + 1) * len(dataset) // (2 * count) for number in range(count)]

    @torch.no_grad()
    def add(self, model: nn.Module, step: int) -> None:
        """Add what the model, which is left in evaluation mode, says at a step."""
        from torch.utils.tensorboard import SummaryWriter

        model.eval()
        fabric = self._runtime.fabric
        images = torch.stack([self._dataset[item][0] for item in self.items]).to(fabric.device)
        with fabric.autocast():
            predicted = model(images).max(dim=1)[1].cpu().numpy()
        side = min(_SIDE, images.shape[-1])
        with SummaryWriter(str(self._folder), purge_step=step) as writer:
            for item, classes in zip(self.items, predicted, strict=True):
                picture = sample_picture(self._dataset, item, classes, side, across=True)
                writer.add_image(f"validation/{item}", picture, step, dataformats="HWC")


def sample_pictures(job: Job) -> Callable[[int], None]:
    """Return what puts pictures of some validation samples into TensorBoard, given the step; the first process does.

    Args:
        job: What is trained; its validation batches are those of a sample store.
    """
    if not job.runtime.fabric.is_global_zero:
        return lambda step: None
    images = SampleImages(job.folder, cast(StoreBatches, job.val).dataset, job.runtime)
    return lambda step: images.add(job.model, step)


def sample_picture(
    dataset: SampleDataset, item: int, predicted: NDArray[np.integer], side: int, across: bool = False
) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8: image, label, prediction and errors of a sample, one below the other or side by side.

    Args:
        dataset: Where the sample is.
        item: Its number there.
        predicted: (size, size) class ids.
        side: Of each picture, pixels.
        across: Whether they are side by side.
    """
    info = dataset.store.info
    image, label, valid = dataset.stored(item)
    bands = shown_bands(info.band_names)
    pictures = [
        stretched(image[bands], [_stretch(info.statistics[band]) for band in bands], valid),
        coloured(label, info.classes),
        coloured(predicted.astype(np.uint8), info.classes),
        errors(label, predicted, info.ignore_value),
    ]
    sized = [_resized(picture, side, smooth=place == 0) for place, picture in enumerate(pictures)]
    axis = 1 if across else 0
    gap = np.full((side, GAP, 3) if across else (GAP, side, 3), 255, np.uint8)
    parts = [part for picture in sized for part in (picture, gap)][:-1]
    return np.concatenate(parts, axis=axis)


def errors(label: NDArray[np.integer], predicted: NDArray[np.integer], ignore_value: int) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8: what is right pale, what is wrong magenta, what is unknown dark."""
    picture = np.where((label == predicted)[..., None], np.array(RIGHT, np.uint8), np.array(WRONG, np.uint8))
    return np.where((label == ignore_value)[..., None], np.array(UNKNOWN, np.uint8), picture)


def _stretch(statistics: Mapping[str, float]) -> Mapping[str, float]:
    """Return a band's statistics with percentiles to stretch by; about those of a bell if it has none."""
    mean, std = statistics["mean"], statistics["std"]
    return {"p2": mean - 2 * std, "p98": mean + 2 * std, **statistics}


def _resized(picture: NDArray[np.uint8], side: int, smooth: bool) -> NDArray[np.uint8]:
    how = Image.Resampling.BILINEAR if smooth and picture.shape[0] > side else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(picture).resize((side, side), how))
