"""One epoch of TorchGeo's sampling on the fly: PYTHON tools/peer_torchgeo.py image labels count.

For tools/bench_sample.py, by an interpreter that has TorchGeo. Its data sets need torchvision only for what is not used
here; where it is missing, placeholders take its place:

    pip install --no-deps torchgeo==0.8.1 kornia kornia_rs
    pip install einops geopandas matplotlib rasterio torch

`labels` is a vector file with the attribute `class`, or a label raster. The windows are those of a grid of 256 pixels;
`count` of them are read, evenly spread, so that a slow epoch need not be waited for.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import time
from unittest.mock import MagicMock


def placeholders() -> None:
    """Let torchvision be imported where it is not installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    names = ("", ".datasets", ".datasets.folder", ".datasets.utils", ".ops", ".transforms", ".transforms.functional")
    for name in (*names, ".utils", ".models", ".models._api"):
        sys.modules["torchvision" + name] = MagicMock()
    sys.modules["torchvision.datasets"].ImageFolder = type("ImageFolder", (), {})


def main(image: str, labels: str, count: int) -> None:
    """Print CPU seconds per window and how many windows an epoch has, as JSON."""
    placeholders()
    from torchgeo.datasets import RasterDataset, VectorDataset
    from torchgeo.samplers import GridGeoSampler

    class Labels(RasterDataset):
        is_image = False

    pixels = RasterDataset(image)
    if labels.endswith(".tif"):
        truth = Labels(labels)
    else:
        truth = VectorDataset(labels, crs=pixels.crs, res=pixels.res, label_name="class")
    both = pixels & truth
    windows = list(GridGeoSampler(pixels, size=256, stride=256))
    chosen = windows[:: max(1, len(windows) // count)]
    before, started = _cpu(), time.monotonic()
    for window in chosen:
        sample = both[window]
        assert sample["image"].shape[-2:] == sample["mask"].shape[-2:] == (256, 256)
    spent = {"cpu": (_cpu() - before) / len(chosen), "seconds": (time.monotonic() - started) / len(chosen)}
    print("RESULT " + json.dumps(spent | {"windows": len(windows), "read": len(chosen)}))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
