"""ResNets and RevNets on CIFAR-shaped data, and what each of their training steps keeps in memory.

    python tools/revnet.py                          # all pairs, batch 256, bytes counted without computing
    python tools/revnet.py --depth 32 --train       # one pair, really trained on random images
    python tools/revnet.py --depth 164 --device cuda --train

A line per iteration: weights and their statistics; activations alive after the forward pass and the loss; the peak of
the step beyond weights, gradients and optimiser state; what is left after the optimiser's step; on CUDA what its
allocator and driver say. Every figure should be the same at each iteration.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from geoseg.memory import LiveBytes
from geoseg.memory.reversible import AdditiveCoupling, ReversibleSequence

MIB = 2**20
CLASSES = 10


@dataclass(frozen=True)
class Plan:
    """A network of three stages.

    Attributes:
        reversible: Couplings instead of residual blocks.
        blocks: Residual blocks, or couplings of two branches each, per stage.
        stem: Channels after the first convolution.
        widths: Channels of the stages, before `expansion`.
        bottleneck: Branches of three convolutions, 1x1, 3x3, 1x1, that end in four times the width.
    """

    reversible: bool
    blocks: int
    stem: int
    widths: tuple[int, int, int]
    bottleneck: bool = False

    @property
    def channels(self) -> list[int]:
        """Channels of the stages."""
        return [width * (4 if self.bottleneck else 1) for width in self.widths]


PLANS = {
    "ResNet-32": Plan(False, 5, 16, (16, 32, 64)),
    "RevNet-38": Plan(True, 3, 32, (32, 64, 112)),
    "ResNet-110": Plan(False, 18, 16, (16, 32, 64)),
    "RevNet-110": Plan(True, 9, 32, (32, 64, 128)),
    "ResNet-164": Plan(False, 18, 16, (16, 32, 64), bottleneck=True),
    "RevNet-164": Plan(True, 9, 32, (32, 64, 128), bottleneck=True),
}
PAIRS = {32: ("ResNet-32", "RevNet-38"), 110: ("ResNet-110", "RevNet-110"), 164: ("ResNet-164", "RevNet-164")}


def branch(channels: int, bottleneck: bool) -> nn.Sequential:
    """Return a pre-activation branch that keeps its input's shape."""
    inner = channels // 4 if bottleneck else channels
    sizes = [(channels, channels, 3)] * 2
    if bottleneck:
        sizes = [(channels, inner, 1), (inner, inner, 3), (inner, channels, 1)]
    layers: list[nn.Module] = []
    for inputs, outputs, side in sizes:
        layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)]
        layers.append(nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, channels: int, bottleneck: bool) -> None:
        super().__init__()
        self.branch = branch(channels, bottleneck)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def build(plan: Plan) -> nn.Sequential:
    """Return a network from images (N, 3, 32, 32) to logits (N, 10)."""
    layers: list[nn.Module] = [nn.Conv2d(3, plan.stem, 3, padding=1, bias=False)]
    inputs = plan.stem
    for number, channels in enumerate(plan.channels):
        if number or inputs != channels:
            stride = 2 if number else 1
            layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)]
            layers.append(nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False))
        layers.append(_stage(plan, channels))
        inputs = channels
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inputs, CLASSES))


def _stage(plan: Plan, channels: int) -> nn.Module:
    if not plan.reversible:
        return nn.Sequential(*(Residual(channels, plan.bottleneck) for _ in range(plan.blocks)))
    half = channels // 2
    couplings = [
        AdditiveCoupling(branch(half, plan.bottleneck), branch(half, plan.bottleneck)) for _ in range(plan.blocks)
    ]
    return ReversibleSequence(couplings, channels=channels)


@dataclass(frozen=True)
class Iteration:
    """Bytes at the moments of one step; the CUDA figures are None elsewhere."""

    weights: int
    saved: int
    peak: int
    after_step: int
    allocated: int | None = None
    reserved: int | None = None
    used: int | None = None


def iterations(net: nn.Module, batch: int, count: int, device: str) -> Iterator[Iteration]:
    """Train `count` steps on random images and yield what each had in memory."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, CLASSES, (batch,), device=device)
    weights = _bytes(net.parameters()) + _bytes(net.buffers())
    gradients = _bytes(net.parameters())
    cuda = device == "cuda"
    for _ in range(count):
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with LiveBytes() as live:
            loss = F.cross_entropy(net(images), labels)
            saved = live.now()
            loss.backward()
            peak = live.peak - gradients
            # The momentum is made in the first step and stays; it is not an activation.
            live.label = "optimizer"
            optimizer.step()
            after = live.by_label().get("", 0) - gradients
        del loss
        yield Iteration(weights, saved, peak, after, *(_cuda() if cuda else ()))


def _cuda() -> tuple[int, int, int]:
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free


def _bytes(tensors: Iterator[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--depth", type=int, choices=sorted(PAIRS), action="append", help="pairs to run; all by default"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="compute, instead of counting bytes under fake tensors")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    print("network      step  weights   saved    peak  after step  allocated  reserved   used   (MiB)")
    for depth in options.depth or sorted(PAIRS):
        for name in PAIRS[depth]:
            torch.manual_seed(0)
            with contextlib.nullcontext() if options.train else FakeTensorMode(), torch.device(options.device):
                steps = iterations(build(PLANS[name]), options.batch, options.iterations, options.device)
                for number, found in enumerate(steps):
                    print(_line(name, number, found), flush=True)


def _line(name: str, number: int, found: Iteration) -> str:
    cells = (found.weights, found.saved, found.peak, found.after_step, found.allocated, found.reserved, found.used)
    widths = (9, 8, 8, 12, 11, 10, 7)
    texts = ("-" if value is None else f"{value / MIB:.1f}" for value in cells)
    return f"{name:12} {number:4}" + "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


if __name__ == "__main__":
    main()
