"""A tiny network, a tiny set and a job to train one on the other."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from geoseg.data.normalise import Normalisation
from geoseg.learn import engine, runtime
from geoseg.learn.modelfile import ModelSpec

BANDS, CLASSES, SIZE, IGNORE = 2, 2, 16, 255


class ToyBatches:
    """Samples in memory, in an order drawn from the epoch; class 1 is where the first band is positive."""

    def __init__(self, n: int = 6, batch_size: int = 3, shuffle: bool = True) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(n, BANDS, SIZE, SIZE, generator=generator)
        self.labels = (self.images[:, 0] > 0).long()
        self.labels[:, 0] = IGNORE
        self.batch_size, self.shuffle, self.epoch, self.start = batch_size, shuffle, 0, 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        self.epoch, self.start = epoch, start

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n = len(self.images)
        order = (
            torch.randperm(n, generator=torch.Generator().manual_seed(self.epoch)) if self.shuffle else torch.arange(n)
        )
        first, self.start = self.start * self.batch_size, 0
        for start in range(first, n, self.batch_size):
            chosen = torch.as_tensor(order[start : start + self.batch_size])
            yield self.images[chosen], self.labels[chosen]


def toy_net(seed: int = 0) -> nn.Module:
    """Convolution, batch norm, dropout: one of everything that has a state or draws numbers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(BANDS, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, CLASSES, 1)
    )


def make_spec(**changes) -> ModelSpec:
    values = {
        "model_name": "unetsmall",
        "model_options": {},
        "in_channels": BANDS,
        "num_classes": CLASSES,
        "classes": ({"id": 0, "name": "background"}, {"id": 1, "name": "roof", "value": 7, "colour": "#ff0000"}),
        "bands": (1, 3),
        "band_names": ("red", None),
        "dtype": "uint16",
        "normalisation": Normalisation((10.0, 0.1), (3.0, 0.0)),
        "ignore_value": IGNORE,
        "samples_size": SIZE,
        "resolution": (0.5, 0.5),
        "crs": "EPSG:32645",
        "trained": {"epoch": 3, "iou": [0.5, None]},
    }
    return ModelSpec(**(values | changes))


def make_job(root: Path, folder: str = "run", precision: str = "32-true", **changes) -> engine.Job:
    """Return a job with its run folder below `root`; keywords are `TrainOptions`, or fields of the job."""
    fields = {
        "runtime": runtime.setup(seed=3, device="cpu", precision=precision),
        "model": toy_net(),
        "spec": make_spec(),
        "trn": ToyBatches(),
        "val": ToyBatches(shuffle=False),
        "folder": root / folder,
    }
    fields["folder"].mkdir(exist_ok=True)
    fields |= {name: changes.pop(name) for name in list(changes) if name in engine.Job.__dataclass_fields__}
    options = {"num_epochs": 2, "learning_rate": 1e-2} | changes
    return engine.Job(options=engine.TrainOptions(**options), **fields)
