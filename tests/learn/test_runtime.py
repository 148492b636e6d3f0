"""Device, precision and seed are resolved once, never to something else than was asked for."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from geoseg.errors import ConfigError
from geoseg.learn import runtime

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
def test_a_gpu_that_is_not_there_is_an_error_that_says_what_was_found():
    with pytest.raises(ConfigError, match=r"training\.device: found 'cuda', but no usable GPU \(torch .* is built for"):
        runtime.setup(device="cuda")


@no_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert runtime.setup(seed=1, device="auto", precision="32-true").device == "cpu"


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runtime.resolve_device("auto") == "cuda"
    assert runtime.resolve_device("cpu") == "cpu"


@pytest.mark.parametrize("supported", [True, False])
def test_auto_precision_on_a_cpu_is_bfloat16_only_with_matrix_units(monkeypatch, supported):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: supported, raising=False)
    assert runtime.resolve_precision("auto", "cpu") == ("bf16-mixed" if supported else "32-true")


@pytest.mark.parametrize("supported", [True, False])
def test_auto_precision_on_a_gpu(monkeypatch, supported):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert runtime.resolve_precision("auto", "cuda") == ("bf16-mixed" if supported else "32-true")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_what_was_asked_for_is_what_is_used(precision):
    made = runtime.setup(seed=1, device="cpu", precision=precision)
    assert made.precision == precision
    computed_in = []
    layer = torch.nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, args, output: computed_in.append(output.dtype))
    made.fabric.setup(layer)(torch.zeros(1, 4))
    assert computed_in == [torch.bfloat16 if precision == "bf16-mixed" else torch.float32]


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"precision": "16-mixed", "device": "cpu"}, "precision"),
        ({"precision": "64"}, "precision"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_what_cannot_be_had_is_refused(setting, key):
    with pytest.raises(ConfigError, match=rf"training\.{key}: found"):
        runtime.setup(**setting)


def test_torchrun_decides_how_many_processes_there_are(monkeypatch):
    assert runtime.resolve_processes(2, 3, "cpu") == (2, 3)
    started = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert runtime.resolve_processes(1, 1, "cpu") == runtime.resolve_processes(4, 2, "cpu") == (4, 2)
    with pytest.raises(ConfigError, match=r"devices: found 3 on 1 machines, expected the 4 on 2 that torchrun"):
        runtime.resolve_processes(3, 1, "cpu")


def test_more_gpus_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"training\.devices: found 3, expected at most 2"):
        runtime.resolve_processes(3, 1, "cuda")


@pytest.mark.parametrize("name", ["unetsmall", "reversible_unet"])
def test_norms_over_several_processes_are_refused_on_a_cpu_with_the_reason(name):
    from geoseg.models import build_model

    with pytest.raises(ConfigError, match=r"sync_batchnorm: found true on a CPU, where torch has no batch"):
        runtime.synchronised(build_model(name, 2, 2), runtime.setup(seed=1, device="cpu", precision="32-true"))


def test_deterministic_operations_are_switched_on_and_off_again():
    assert runtime.setup(seed=1, device="cpu", precision="32-true", deterministic=True).seed == 1
    assert torch.are_deterministic_algorithms_enabled()
    runtime.setup(seed=1, device="cpu", precision="32-true")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_seed_is_drawn_and_can_be_used_again():
    first = runtime.setup(device="cpu", precision="32-true")
    drawn = torch.rand(3), np.random.rand(3), random.random()
    again = runtime.setup(seed=first.seed, device="cpu", precision="32-true")
    assert torch.equal(drawn[0], torch.rand(3))
    assert (drawn[1] == np.random.rand(3)).all()
    assert drawn[2] == random.random()
    assert first.seed != runtime.setup(device="cpu", precision="32-true").seed
    assert again.facts()["seed"] == first.seed


def test_the_largest_seed_of_the_config_is_taken():
    assert runtime.setup(seed=2**32 - 1, device="cpu", precision="32-true").seed == 2**32 - 1


MAPPED = """
import ctypes
from geoseg.learn import runtime

assert runtime.keep_freed_memory()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
block = libc.malloc(2**26)
size = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
print(size & 2)  # the flag of a block that was mapped
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has mallopt")
def test_freed_memory_is_kept():
    """A large block comes from the heap, which is kept, instead of a mapping of its own, which is given back.

    In a process of its own: one that was once refused memory takes large blocks from elsewhere.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", MAPPED], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == "0"
