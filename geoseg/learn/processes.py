"""What several processes that train together have to say to one another; with one process, nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn


def join_after_restart(backend: str, timeout: timedelta) -> None:
    """Join the other processes if torchrun has started them again; the first time is left to Fabric.

    The store through which they find one another may be that of the first time (it is, without `--rdzv-backend` or
    `--standalone`), and still hold the addresses of the processes that died. A prefix keeps the attempts apart.
    """
    environment = os.environ
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or _together():
        return
    number = int(environment["RANK"])
    hosts = number == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if backend == "nccl":
        torch.cuda.set_device(int(environment["LOCAL_RANK"]))
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = distributed.PrefixStore(
        f"attempt{attempt}", distributed.TCPStore(address, port, is_master=hosts, timeout=timeout)
    )
    world = int(environment["WORLD_SIZE"])
    distributed.init_process_group(backend, store=store, rank=number, world_size=world, timeout=timeout)


def count() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if _together() else 1


def rank() -> int:
    """Return the number of this one, from 0."""
    return distributed.get_rank() if _together() else 0


def summed(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, in each of them; every process must call it."""
    if count() == 1:
        return tensor
    total = tensor.clone()
    distributed.all_reduce(total)
    return total


def least(value: int, device: torch.device) -> int:
    """Return the smallest of all processes' values; every process must call it."""
    if count() == 1:
        return value
    tensor = torch.tensor(value, device=device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN)
    return int(tensor)


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Give all processes the first one's buffers: batch norms saw other batches in each of them."""
    if count() > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)


class Agreement:
    """A wish of any process that all learn of at the same moment, one call late: nobody waits for a collective.

    Args:
        wish: Whether this process has it.
        device: Where the processes' tensors lie.
    """

    def __init__(self, wish: Callable[[], bool], device: torch.device) -> None:
        self._wish, self._device = wish, device
        self._wishes: Tensor | None = None

    def reached(self) -> bool:
        """Return whether some process had the wish at the call before; every process must call it as often."""
        if count() == 1:
            return self._wish()
        before, self._wishes = self._wishes, summed(torch.tensor(int(self._wish()), device=self._device))
        return before is not None and bool(before)


def _together() -> bool:
    return distributed.is_available() and distributed.is_initialized()
