"""Device, precision, seed and allocator: decided here, once, before anything else of a training."""

from __future__ import annotations

import ctypes
import math
import os
import random
import secrets
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from geoseg.errors import ConfigError, problem
from geoseg.learn import processes
from geoseg.memory.measure import peak_resident_bytes

if TYPE_CHECKING:  # takes seconds to import, and `classify` needs this module's decisions without it
    from lightning_fabric import Fabric

PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")
DEVICES = ("auto", "cpu", "cuda")
#: A process that hears nothing from the others for so long gives up. One of them may be writing, or validating longer.
PATIENCE = timedelta(minutes=30)
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
            "processes": processes.count(),
            "torch": str(torch.__version__),
        }


def setup(
    seed: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    deterministic: bool = False,
) -> Runtime:
    """Resolve device, precision and seed, and start Fabric and with it the other processes, if there shall be any.

    Args:
        seed: Any integer from 0; None draws one, which the result carries so that the run can be repeated.
        device: "auto" is a GPU where there is one; "cuda" insists.
        precision: "auto" is bf16-mixed where the hardware computes in it, else 32-true.
        devices: Number of processes on this machine; under torchrun its number counts, and others than 1 must agree.
        num_nodes: Number of machines, likewise.
        deterministic: Whether to take operations that give the same bits each time; where there is none, torch warns.

    Raises:
        ConfigError: A device that is not there, or a precision that it cannot compute in.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    devices, num_nodes = resolve_processes(devices, num_nodes, device)
    if device == "cpu":
        keep_freed_memory()
    set_deterministic(deterministic)
    if devices * num_nodes > 1:
        processes.join_after_restart("nccl" if device == "cuda" else "gloo", PATIENCE)
    strategy = DDPStrategy(timeout=PATIENCE) if devices * num_nodes > 1 else "auto"
    fabric = Fabric(
        accelerator=device,
        strategy=strategy,
        devices=devices,
        num_nodes=num_nodes,
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    # After the launch: a drawn seed is the first process's.
    seed = int(fabric.broadcast(secrets.randbelow(2**31) if seed is None else seed))
    seed_everything(seed)
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


def resolve_processes(devices: int, num_nodes: int, device: str) -> tuple[int, int]:
    """Return how many processes run on each machine, and on how many machines.

    Raises:
        ConfigError: torchrun has started others than the config says, or there are fewer GPUs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
        if (devices, num_nodes) not in ((1, 1), started):
            expected = f"the {started[0]} on {started[1]} that torchrun started"
            found = f"{devices} on {num_nodes} machines"
            raise ConfigError(problem("training.devices", found, expected, "leave devices and num_nodes out"))
        devices, num_nodes = started
    if device == "cuda" and devices > torch.cuda.device_count():
        expected = f"at most {torch.cuda.device_count()}, the GPUs of this machine"
        raise ConfigError(problem("training.devices", str(devices), expected, "lower it"))
    return devices, num_nodes


def synchronised(model: nn.Module, runtime: Runtime) -> nn.Module:
    """Return a network whose batch norms work over the batches of all processes; its weights keep their names.

    Raises:
        ConfigError: On a CPU, or a reversible network with batch norm.
    """
    from geoseg.memory import ReversibleSequence  # not needed by `classify`, which asks this module for its device

    found, remedy = "", "leave it out"
    if runtime.device == "cpu":
        found = "true on a CPU, where torch has no batch norm over several processes"
    elif any(isinstance(part, ReversibleSequence) and _has_batch_norm(part) for part in model.modules()):
        found = "true for a reversible network, which runs its norms again in the backward pass"
        remedy = "leave it out, or set norm: group, which needs no other process"
    if found:
        raise ConfigError(problem("training.sync_batchnorm", found, "false", remedy))
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def set_deterministic(wanted: bool) -> None:
    """Switch torch to operations that give the same bits each time, or back; torch warns where it has none."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is worked out
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    torch.backends.cudnn.deterministic = wanted


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


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` count anew, on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """Return the most bytes: on a GPU of tensors since the reset (a driver's figure would count the cache as well), on
    a CPU of the whole process so far, NaN where the system does not tell.
    """
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    resident = peak_resident_bytes()
    return math.nan if resident is None else float(resident)


def _cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has matrix units for bfloat16 (AMX); with less, bfloat16 is slower than float32."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(supported and supported())
