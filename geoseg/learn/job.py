"""What a training works on, and how: what the loop of `engine` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from geoseg.learn.losses import LossSetting
from geoseg.learn.modelfile import ModelSpec
from geoseg.learn.runtime import Runtime


class Batches(Protocol):
    """What the loop asks of a loader: batches of images (N, B, H, W) float32 and labels (N, H, W) int64."""

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, from 0, whose order and augmentations are drawn, and the first batch of the next pass."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class TrainOptions:
    """How to train; see the config's section `training` for the meaning of each."""

    num_epochs: int
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    optimizer: str = "adam"
    encoder_learning_rate: float = 1.0
    scheduler: str = "step"
    step_size: int = 4
    gamma: float = 0.9
    warmup_epochs: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    patience: int | None = None
    compile: bool = False
    checkpoint_minutes: float = 15.0
    loss: LossSetting = "cross_entropy"
    label_smoothing: float = 0.0
    hard_examples: float = 1.0
    monitor: str = "mean_iou"
    boundary_iou: int = 0
    val_every: int = 1
    log_every: int = 10


@dataclass
class Job:
    """Everything that a training works on.

    Attributes:
        runtime: Device, precision and seed.
        model: The network; it is trained in place.
        spec: What its weights will mean.
        trn: Training batches.
        val: Validation batches, the same every epoch.
        options: How to train.
        folder: The run folder.
        class_weights: (C,) weights of the loss, or None.
        batch_size: Samples per step at most, as decided; kept in the checkpoint for the run that goes on from it.
    """

    runtime: Runtime
    model: nn.Module
    spec: ModelSpec
    trn: Batches
    val: Batches
    options: TrainOptions
    folder: Path
    class_weights: Tensor | None = None
    batch_size: int = 0

    @property
    def steps(self) -> int:
        """Steps of the optimiser in an epoch."""
        return -(-len(self.trn) // self.options.accumulate)


@dataclass(frozen=True)
class Hooks:
    """Called by the loop as it goes on.

    Attributes:
        on_batch: At each batch.
        on_epoch: With the metrics of each epoch.
        stop: To ask whether to stop.
        on_validated: With the number of steps so far, while the network has the weights that were just validated.
    """

    on_batch: Callable[[], None] = lambda: None
    on_epoch: Callable[[Mapping[str, float]], None] = lambda row: None
    stop: Callable[[], bool] = lambda: False
    on_validated: Callable[[int], None] = lambda step: None
