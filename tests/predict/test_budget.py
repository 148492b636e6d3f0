"""Plans within a limit of memory: larger limits give larger windows, and what a process takes is what was said."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import make_raster
from torch import nn

from geoseg.errors import CapacityError
from geoseg.memory.measure import resident_bytes
from geoseg.predict.budget import FIXED, bytes_per_pixel, plan_within
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.predictor import Predictor

MIB = 2**20


def predictor() -> Predictor:
    network = nn.Conv2d(4, 8, 3, padding=1).requires_grad_(False)
    return Predictor(network, 8, size_divisor=8, receptive_radius=1, bands=4)


def test_bytes_of_a_pixel_are_counted_by_hand():
    # Made by the forward pass: the batch, 4 floats, and 8 floats of scores.
    made = bytes_per_pixel(predictor(), 4, 4) - (4 + 1 + 2 * 4 * 4 + 4 * (2 * 8 + 2))
    assert 8 * 4 <= made <= 8 * 4 + 2 * 4 * 4


def test_windows_grow_with_the_limit():
    held = resident_bytes() or 0
    sides = []
    for more in (8, 32, 128, 4096):
        plan = plan_within(predictor(), (5000, 5000), SlidingOptions(window=None), (4, 4), held + FIXED + more * MIB)
        sides.append(plan.side)
    assert sides == sorted(sides)
    assert (sides[0] < 512, sides[-1]) == (True, 512)


def test_what_the_user_fixed_stays_or_is_refused():
    limit = (resident_bytes() or 0) + FIXED + 16 * MIB
    with pytest.raises(CapacityError, match="at least"):
        plan_within(predictor(), (5000, 5000), SlidingOptions(window=2048), (4, 4), limit)
    assert plan_within(predictor(), (5000, 5000), SlidingOptions(window=64), (4, 4), limit).side == 64


_RUN = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from geoseg.learn.runtime import keep_freed_memory
from geoseg.memory.measure import peak_resident_bytes, resident_bytes
from geoseg.models import build_model
from geoseg.predict.output import MapDescription
from geoseg.predict.plan import SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.scene import ClassifyOptions, classify_scene
keep_freed_memory()
net = build_model("unetsmall", 2, 3).eval().requires_grad_(False).to(memory_format=torch.channels_last)
predictor = Predictor(net, 3, None, net.size_divisor, net.receptive_radius, channels_last=True, bands=2)
limit = resident_bytes() + 300 * 2**20
description = MapDescription(tuple("abc"), ("#000000", "#ff0000", "#00ff00"))
options = ClassifyOptions(SlidingOptions(blending=sys.argv[3]), ("classes", "probabilities"), max_memory=limit)
classify_scene(sys.argv[1], predictor, (1, 2), Path(sys.argv[2]), description, options)
print(peak_resident_bytes() - limit)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells it for a program")
@pytest.mark.parametrize("blending", ["none", "hann"])
def test_a_process_keeps_the_limit(blending: str, tmp_path):
    image = make_raster(tmp_path / "scene.tif", np.ones((2, 800, 1200), np.uint8))
    words = [sys.executable, "-c", _RUN, str(image), str(tmp_path / "maps"), blending]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert int(printed) <= 0
