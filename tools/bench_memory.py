"""Memory, time and gradient error of a training step, ours and others': python tools/bench_memory.py [names].

All do the same work: images of 256 x 256 pixels and 4 bands, 5 classes, cross entropy. Figures are per image, by
`measure_step`; time is CPU time, in alternation with unetsmall's. Peers are measured where they are installed:

    pip install --no-deps --target DIR memcnn==1.5.2 revtorch==0.2.4 iunets==0.1
    python tools/bench_memory.py --peers DIR
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import bench_networks as nets
from geoseg.memory import StepMemory, measure_step
from geoseg.models import MODELS, build_model

BANDS, CLASSES, MIB = 4, 5, 1 << 20
Make = Callable[[], nn.Module]


def ours(name: str, **options: object) -> Make:
    """Return what builds one of our models."""
    return lambda: build_model(name, BANDS, CLASSES, **options)


def networks() -> dict[str, tuple[Make, str]]:
    """Return builders by name, each with the package that it needs, or ''."""
    found: dict[str, tuple[Make, str]] = {name: (ours(name), "") for name in MODELS}
    found["checkpointed_unet, base unet"] = (ours("checkpointed_unet", base="unet"), "")
    if "reversible_unet" in MODELS:
        found["reversible_unet, kept (its oracle)"] = (ours("reversible_unet", save_memory=False), "")
    others: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
        "plain U-Net, by the book": (nets.PlainUNet, ""),
        "the same, recompute from outside": (nets.WrappedUNet, ""),
        "the same, torch checkpoint per level": (nets.checkpointed_by_torch, ""),
        "the same, save_on_cpu": (lambda b, c: nets.SavedOnCpu(nets.PlainUNet(b, c)), "cuda"),
        "partly reversible, MemCNN 1.5.2": (lambda b, c: nets.PartlyReversible(b, c, nets.memcnn_sequence), "memcnn"),
        "partly reversible, RevTorch 0.2.4": (
            lambda b, c: nets.PartlyReversible(b, c, nets.revtorch_sequence),
            "revtorch",
        ),
        "iunets 0.1": (nets.iunet, "iunets"),
    }
    for name, (make, package) in others.items():
        found[name] = ((lambda make=make: make(BANDS, CLASSES)), package)
    return found


def batch(count: int, size: int, device: str, layout: torch.memory_format) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels made from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, BANDS, size, size, generator=generator)
    labels = torch.randint(0, CLASSES, (count, size, size), generator=generator)
    return images.to(device, memory_format=layout), labels.to(device)


def step_seconds(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the seconds of one training step: CPU time, or the device's."""
    net.zero_grad(set_to_none=True)
    clock = time.perf_counter if images.is_cuda else time.process_time
    started = clock()
    F.cross_entropy(net(images), labels).backward()
    if images.is_cuda:
        torch.cuda.synchronize()
    return clock() - started


def time_ratio(net: nn.Module, base: nn.Module, work: tuple[torch.Tensor, torch.Tensor], rounds: int) -> float:
    """Return the median of the ratios of steps done in turn."""
    ratios = []
    for turn in range(rounds + 1):
        one, two = step_seconds(base, *work), step_seconds(net, *work)
        if turn:
            ratios.append(two / one)
    return statistics.median(ratios)


def gradient_error(make: Make, device: str) -> float:
    """Return the error of the float32 gradients against float64 ones of the same network, relative to their norm."""
    torch.manual_seed(0)
    low = make().to(device)
    high = copy.deepcopy(low).double()
    images, labels = batch(2, 64, device, torch.contiguous_format)
    grads = []
    for net in (low, high):
        F.cross_entropy(net(images.to(next(net.parameters()).dtype)), labels).backward()
        grads.append(torch.cat([p.grad.double().flatten() for p in net.parameters()]))
    return float((grads[0] - grads[1]).norm() / grads[1].norm())


def row(name: str, make: Make, args: argparse.Namespace) -> dict[str, object]:
    """Measure one network."""
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    torch.manual_seed(0)
    net = make().to(args.device, memory_format=layout)
    work = batch(args.batch, args.size, args.device, layout)
    memory: StepMemory = measure_step(net, *work, precision=args.precision)
    smaller = batch(min(args.batch, 4), args.size, args.device, layout)
    base = ours("unetsmall")().to(args.device, memory_format=layout)
    per_image = args.batch * MIB
    return {
        "network": name,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "saved": memory.saved / per_image,
        "peak": memory.peak / per_image,
        "resident": None if memory.resident is None else memory.resident / per_image,
        "reserved": None if memory.reserved is None else memory.reserved / per_image,
        "time": time_ratio(net, base, smaller, args.rounds) if args.rounds else None,
        "error": gradient_error(make, args.device),
    }


def markdown(rows: Sequence[dict[str, object]]) -> list[str]:
    """Return the rows as a table; MiB per image."""
    base = next((r["peak"] for r in rows if r["network"] == "unetsmall"), None)
    lines = [
        "| network | parameters | saved | peak | peak / unetsmall | resident | time / unetsmall | gradient error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [
            str(r["network"]),
            f"{r['parameters'] / 1e6:.2f} M",
            f"{r['saved']:.1f}",
            f"{r['peak']:.1f}",
            f"{r['peak'] / base:.2f}" if base else "",
            "" if r["resident"] is None else f"{r['resident']:.0f}",
            "" if r["time"] is None else f"{r['time']:.2f}",
            f"{r['error']:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks whose names begin so; all of them if left out")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each network; 0 times none")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers", type=Path, help="folder that the peers' packages were installed into")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args(argv)
    if args.peers is not None:
        sys.path.append(str(args.peers))
    warnings.filterwarnings("ignore")
    rows = []
    for name, (make, needs) in networks().items():
        if args.names and not any(name.startswith(start) for start in args.names):
            continue
        if needs and not (args.device == "cuda" if needs == "cuda" else importlib.util.find_spec(needs)):
            print(f"{name}: left out, it needs {needs}", file=sys.stderr)
            continue
        rows.append(row(name, make, args))
        print(markdown(rows)[-1], file=sys.stderr, flush=True)
    layout = "channels_last" if args.channels_last else "contiguous"
    print(
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {args.device}, {torch.get_num_threads()} "
        f"threads; batch {args.batch}, {args.size} x {args.size}, {args.precision}, {layout}\n"
    )
    print("\n".join(markdown(rows)))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
