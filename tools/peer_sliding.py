"""A whole raster through others' tiled inference: PYTHON tools/peer_sliding.py monai|monai-overlap|torchgeo image map.

For tools/bench_classify.py, by an interpreter that has MONAI and TorchGeo (see tools/peer_torchgeo.py):

    pip install --no-deps monai==1.6.1

The network is one 3 x 3 convolution from 4 bands to 5 classes, windows have 512 pixels, one thread. MONAI's sliding
window wants the raster in memory, so it is read, classified and written as a whole; TorchGeo has a grid sampler, and
the windows it gives are stitched here into a tiled GeoTIFF, batch 1, as its tutorials do.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from rasterio.windows import Window

from peer_torchgeo import placeholders

SIDE = 512


def main(method: str, image: str, target: str) -> None:
    """Print CPU seconds per MPix and memory above imports in MB, as JSON."""
    placeholders()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = torch.nn.Conv2d(4, 5, 3, padding=1).eval().requires_grad_(False)
    run = _torchgeo if method == "torchgeo" else _monai
    run_imports(method)
    base, before = _resident("VmRSS"), time.process_time()
    with torch.inference_mode():
        run(network, image, target, 0.25 if method == "monai-overlap" else 0.0)
    spent = time.process_time() - before
    with rasterio.open(target) as written:
        pixels = written.height * written.width / 1e6
    print("RESULT " + json.dumps({"cpu": spent / pixels, "mb": (_resident("VmHWM") - base) / 1024}))


def run_imports(method: str) -> None:
    """Import what the method needs: imports are not what is measured."""
    if method == "torchgeo":
        import torchgeo.datasets
        import torchgeo.samplers  # noqa: F401
    else:
        import monai.inferers  # noqa: F401


def _monai(network: Any, image: str, target: str, overlap: float) -> None:
    from monai.inferers import sliding_window_inference

    with rasterio.open(image) as source:
        batch, profile = torch.from_numpy((source.read().astype(np.float32) - 110) / 40)[None], source.profile
    mode = "gaussian" if overlap else "constant"
    scores = sliding_window_inference(batch, (SIDE, SIDE), 1, network, overlap=overlap, mode=mode)
    best = scores.max(1).indices[0].to(torch.uint8).numpy()
    with rasterio.open(target, "w", **_like(profile)) as out:
        out.write(best, 1)


def _torchgeo(network: Any, image: str, target: str, overlap: float) -> None:
    from torchgeo.datasets import RasterDataset
    from torchgeo.samplers import GridGeoSampler

    pixels = RasterDataset(image)
    with rasterio.open(image) as source:
        profile, inverse = source.profile, ~source.transform
    with rasterio.open(target, "w", **_like(profile)) as out:
        for window in GridGeoSampler(pixels, size=SIDE, stride=SIDE):
            batch = (pixels[window]["image"][None] - 110) / 40
            best = network(batch).max(1).indices[0].to(torch.uint8).numpy()
            col, row = (round(value) for value in inverse * (window[0].start, window[1].stop))
            height, width = min(SIDE, profile["height"] - row), min(SIDE, profile["width"] - col)
            top, left = max(0, -row), max(0, -col)
            part = best[top:height, left:width]
            out.write(part, 1, window=Window(max(0, col), max(0, row), part.shape[1], part.shape[0]))


def _like(profile: dict[str, Any]) -> dict[str, Any]:
    tiled = {"tiled": True, "blockxsize": SIDE, "blockysize": SIDE, "compress": "deflate", "predictor": 1}
    return profile | tiled | {"count": 1, "nodata": 255, "photometric": "MINISBLACK"}


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    main(*sys.argv[1:4])
