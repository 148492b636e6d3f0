"""Maps of runs that were killed: nothing looks whole, and resuming ends in the same bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from conftest import make_raster

# Parts of 4 x 4 tiles of 16 pixels, so that a small scene has many; the process kills itself at a given window.
_RUN = """
import json, os, signal, sys
from pathlib import Path
import torch
from torch import nn
from geoseg.geo.raster import overviews
overviews.TILE = 16
from geoseg.predict import plan
plan.PART = 64
plan._WIDEST = 2
from geoseg.predict.output import MapDescription
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, classify_scene

torch.set_num_threads(1)


def classify(image, folder, kill_at=0, window=48, blending="none", resume=True):
    torch.manual_seed(0)
    network = nn.Conv2d(2, 3, 5, padding=2).requires_grad_(False)
    windows = []

    def killing(batch):
        windows.append(1)
        if len(windows) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return network(batch)

    result = classify_scene(
        image, Predictor(killing, 3, size_divisor=8, receptive_radius=2), (1, 2), Path(folder),
        MapDescription(tuple("abc"), ("#000000", "#ff0000", "#00ff00")),
        ClassifyOptions(
            SlidingOptions(window=window, overlap=8, blending=blending), ("classes", "confidence"), resume=resume
        ),
    )
    return [len(windows), result.already, result.class_pixels.tolist()]


# A process each, forked, since they are killed; what happened goes to its standard output.
for job in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        print(json.dumps(classify(**job)), flush=True)
        os._exit(0)
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        print("null", flush=True)
"""


def run(*jobs: dict) -> list:
    """Classify in a process for each job; return windows computed, whether all was there, and pixels per class."""
    words = [sys.executable, "-c", _RUN, json.dumps(jobs, default=str)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def maps(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).integers(0, 255, (2, 230, 330), dtype=np.uint8)
    values[:, 100:140, 20:200] = 0
    return make_raster(tmp_path / "scene.tif", values, nodata=0)


def test_a_killed_run_is_resumed_to_the_same_bytes(image: Path, tmp_path: Path):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    job = {"image": image, "blending": "hann"}
    killed = {**job, "folder": folder, "kill_at": 35}
    (windows, _, pixels), nothing = run({**job, "folder": whole, "resume": False}, killed)
    assert (nothing, maps(folder)) == (None, {})
    assert len(list(folder.glob(".scene_parts/*/r*"))) > 0
    (rest, _, counted), again = run({**job, "folder": folder}, {**job, "folder": folder})
    assert rest < 0.9 * windows
    assert counted == pixels
    assert maps(folder) == maps(whole)
    assert not (folder / ".scene_parts").exists()
    assert again[:2] == [0, True]
    with rasterio.open(folder / "scene_classes.tif") as made:
        assert len(made.overviews(1)) == 5
        values = made.read(1)
        assert np.bincount(values.ravel(), minlength=256)[:3].tolist() == pixels
        assert (values[100:140, 20:200] == 255).all()


@pytest.mark.slow
@pytest.mark.parametrize("blending", ["none", "hann", "gaussian"])
def test_twenty_random_kills(image: Path, tmp_path: Path, blending: str):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    job = {"image": image, "blending": blending}
    draw = random.Random(blending)
    kills = [{**job, "folder": folder, "kill_at": draw.randint(1, 9)} for _ in range(20)]
    _, *found, last = run({**job, "folder": whole, "resume": False}, *kills, {**job, "folder": folder})
    assert found.count(None) > 3
    assert last is not None
    assert maps(folder) == maps(whole)


@pytest.mark.slow
def test_parts_of_another_run_are_not_used(image: Path, tmp_path: Path):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    other = {"image": image, "window": 32}
    jobs = ({**other, "folder": whole}, {"image": image, "folder": folder, "kill_at": 20}, {**other, "folder": folder})
    first, nothing, second = run(*jobs)
    assert nothing is None
    assert second == first
    assert maps(folder) == maps(whole)
