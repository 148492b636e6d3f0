"""Memory of a step of the book's U-Net under torch.compile's activation budget: python tools/bench_compiled.py.

The same work as `bench_memory.py`, and the same counter, which runs inside the two compiled graphs. Nothing is fused
here: the partitioner's choice of what to keep is measured, not a code generator's. Batch norm keeps no running
statistics, which saves nothing that counts and lets the graphs run outside the generator.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config as partitioner
from functorch.compile import min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F

import bench_networks as nets
from bench_memory import BANDS, CLASSES, MIB, batch
from geoseg.memory import LiveBytes


def counted(live: LiveBytes) -> Callable[..., Any]:
    """Return a compiler of graphs that runs them operation by operation, counting; values go after their last use."""

    def compiler(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        def run(args: list[Any]) -> Any:
            with torch.no_grad(), live:
                return torch.fx.Interpreter(graph).boxed_run(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return compiler


def measure(budget: float, count: int, size: int) -> tuple[float, float]:
    """Return MiB per image after the forward pass and at the peak, beyond weights and gradients."""
    torch._dynamo.reset()
    partitioner.activation_memory_budget = budget
    torch.manual_seed(0)
    net = nets.PlainUNet(BANDS, CLASSES)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.num_batches_tracked = False, None
            module.running_mean = module.running_var = None
    images, labels = batch(count, size, "cpu", torch.contiguous_format)
    live = LiveBytes()
    backend = aot_autograd(
        fw_compiler=counted(live), bw_compiler=counted(live), partition_fn=min_cut_rematerialization_partition
    )
    loss = torch.compile(lambda x, y: F.cross_entropy(net(x), y), backend=backend)(images, labels)
    saved = live.now()
    loss.backward()
    gradients = sum(p.numel() * p.element_size() for p in net.parameters())
    return saved / MIB / count, (live.peak - gradients) / MIB / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 0.5, 0.2, 0.1, 0.0])
    args = parser.parse_args()
    print("| activation budget | saved MiB | peak MiB |")
    print("|---|---|---|")
    for budget in args.budgets:
        saved, peak = measure(budget, args.batch, args.size)
        print(f"| {budget} | {saved:.1f} | {peak:.1f} |", flush=True)


if __name__ == "__main__":
    main()
