"""Reversible networks in two processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from geoseg.memory.reversible import (
    AdditiveCoupling,
    MergeSkip,
    PixelShuffleUp,
    PixelUnshuffleDown,
    ReversibleSequence,
    SplitSkip,
)


def network(unused: bool) -> nn.Module:
    torch.manual_seed(0)

    def part(width: int) -> nn.Module:
        return nn.Sequential(nn.GroupNorm(2, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))

    steps = [
        *(AdditiveCoupling(part(4), part(4)), SplitSkip(), PixelUnshuffleDown()),
        *(AdditiveCoupling(part(8), part(8)), PixelShuffleUp(), MergeSkip(), AdditiveCoupling(part(4))),
    ]
    net = nn.Sequential(ReversibleSequence(steps), nn.Conv2d(8, 2, 1)).double()
    if unused:
        net.register_parameter("never", nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    return net


def samples() -> torch.Tensor:
    return torch.randn(4, 8, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name.removeprefix("module."): p.grad for name, p in net.named_parameters() if p.grad is not None}


def work(rank: int, folder: str, find_unused: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    net = DistributedDataParallel(network(find_unused), find_unused_parameters=find_unused)
    for _ in range(2):
        net.zero_grad()
        net(samples()[2 * rank : 2 * rank + 2]).square().mean().backward()
    if rank == 0:
        torch.save(gradients(net), f"{folder}/gradients.pt")
    dist.barrier()
    # Not by the way of destructors: the wrapper's may wait for a thread of the group that waits for the interpreter,
    # and a thread that is not joined in time aborts the process. How torch goes down is not what is tested.
    os._exit(0)


@pytest.mark.parametrize("find_unused", [False, True])
def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path, find_unused: bool) -> None:
    mp.spawn(work, (str(tmp_path), find_unused), nprocs=2)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    net = network(find_unused)
    net(samples()).square().mean().backward()
    right = gradients(net)
    assert len(right) == len(list(network(False).parameters()))
    for name, gradient in right.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12, msg=name)
