"""Device, precision, seed and allocator: decided here, once, before anything else of a training."""

from __future__ import annotations

import ctypes
import random
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geoseg.errors import ConfigError, problem

if TYPE_CHECKING:  # takes seconds to import, and `classify` needs this module's decisions without it
    from lightning_fabric import Fabric

PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")
DEVICES = ("auto", "cpu", "cuda")
# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = (2**30, 2**25)  # newer versions take any size, older ones at most 32 MiB


@dataclass(frozen=True)
class Runtime:
    """What a training runs on, resolved: nothing in here says "auto".

    Attributes:
        fabric: Launched Lightning Fabric, which places models and batches and applies the precision.
        device: "cpu" or "cuda".
        precision: "32-true", "bf16-mixed" or "16-mixed".
        seed: Given, or drawn.
    """

    fabric: Fabric
    device: str
    precision: str
    seed: int

    def facts(self) -> dict[str, Any]:
        """Return what was resolved, for the record of a run."""
        hardware = torch.cuda.get_device_name() if self.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
        return {
            "device": self.device,
            "hardware": hardware,
            "precision": self.precision,
            "seed": self.seed,
            "torch": str(torch.__version__),
        }


def setup(seed: int | None = None, device: str = "auto", precision: str = "auto", devices: int = 1) -> Runtime:
    """Resolve device, precision and seed, and start Fabric.

    Args:
        seed: Any integer from 0; None draws one, which the result carries so that the run can be repeated.
        device: "auto" is a GPU where there is one; "cuda" insists.
        precision: "auto" is bf16-mixed where the hardware computes in it, else 32-true.
        devices: Number of processes; 1 for now.

    Raises:
        ConfigError: A device that is not there, or a precision that it cannot compute in.
    """
    from lightning_fabric import Fabric

    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    if devices != 1:
        raise ConfigError(problem("training.devices", str(devices), "1", "several devices are not supported yet"))
    if device == "cpu":
        keep_freed_memory()
    seed = secrets.randbelow(2**31) if seed is None else seed
    seed_everything(seed)
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    fabric.launch()
    return Runtime(fabric, device, precision, seed)


def resolve_device(device: str, section: str = "training") -> str:
    """Return "cpu" or "cuda"; never another one than was asked for. `section` is the config's, for the message.

    Raises:
        ConfigError: "cuda" without a usable GPU, or an unknown name.
    """
    if device not in DEVICES:
        raise ConfigError(
            problem(f"{section}.device", repr(device), f"one of {', '.join(DEVICES)}", "use one of these")
        )
    if device == "cuda" and not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
        raise ConfigError(
            problem(
                f"{section}.device",
                f"'cuda', but no usable GPU (torch {torch.__version__} is built for {built})",
                "a GPU that torch can use",
                "use auto or cpu, or install torch and a driver for your GPU",
            )
        )
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def resolve_precision(precision: str, device: str, section: str = "training") -> str:
    """Return the precision to compute in on "cpu" or "cuda"; `section` is the config's, for the message.

    Raises:
        ConfigError: An unknown name, or 16-mixed on a CPU.
    """
    if precision not in PRECISIONS:
        choices = ", ".join(PRECISIONS)
        raise ConfigError(problem(f"{section}.precision", repr(precision), f"one of {choices}", "use one of these"))
    if precision == "16-mixed" and device == "cpu":
        # Fabric would quietly compute in bfloat16 instead.
        raise ConfigError(
            problem(f"{section}.precision", "16-mixed on a CPU", "a GPU for it", "use bf16-mixed, 32-true or auto")
        )
    if precision != "auto":
        return precision
    fast = torch.cuda.is_bf16_supported(including_emulation=False) if device == "cuda" else _cpu_multiplies_bfloat16()
    return "bf16-mixed" if fast else "32-true"


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), numpy and Python; any integer from 0 will do."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for the next batch instead of giving it back.

    By default glibc maps every large block anew and unmaps it when it is freed. A network's activations are such
    blocks, so each batch would fault in, and the kernel zero, every page of them again: a sixth of the processor time
    of a float32 training step of unetsmall (tools/allocator_gain.py measures it). The price: memory once used stays
    with the process until it ends, and its peak is a third higher.

    Returns:
        Whether it took effect; False outside glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return any(mallopt(_M_MMAP_THRESHOLD, size) == 1 and mallopt(_M_TRIM_THRESHOLD, size) == 1 for size in _KEEP_BYTES)


def _cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has matrix units for bfloat16 (AMX); with less, bfloat16 is slower than float32."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(supported and supported())
