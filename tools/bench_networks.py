"""Networks that `bench_memory.py` compares with: plain U-Nets in other wrappings, and peers' reversible ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from geoseg.memory import run_recomputed

WIDTHS = (32, 64, 128, 256)


def conv_norm_act(inputs: int, outputs: int) -> nn.Sequential:
    """Return convolution, batch norm and ReLU in place, the usual way."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class PlainUNet(nn.Module):
    """unetsmall by the book: modules one after another, skips concatenated.

    Args:
        in_channels: Bands.
        num_classes: Classes.
        run: Runs a part of it on tensors, such as `torch.utils.checkpoint`; None calls it.
    """

    def __init__(self, in_channels: int, num_classes: int, run: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.run = run or (lambda part, *inputs: part(*inputs))
        pairs = zip((in_channels, *WIDTHS[:-1]), WIDTHS, strict=True)
        self.down = nn.ModuleList(nn.Sequential(conv_norm_act(i, o), conv_norm_act(o, o)) for i, o in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in WIDTHS[:-1])
        self.join = nn.ModuleList(nn.Sequential(conv_norm_act(2 * w, w), conv_norm_act(w, w)) for w in WIDTHS[:-1])
        self.head = nn.Conv2d(WIDTHS[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        skips = []
        for level in range(len(WIDTHS)):
            x = self.run(self._lower(level), x)
            skips.append(x)
        skips.pop()
        for level in reversed(range(len(skips))):
            x = self.run(self._upper(level), skips.pop(), x)
        return x

    def _lower(self, level: int) -> Callable[[Tensor], Tensor]:
        return lambda x: self.down[level](F.max_pool2d(x, 2) if level else x)

    def _upper(self, level: int) -> Callable[[Tensor, Tensor], Tensor]:
        def part(skip: Tensor, below: Tensor) -> Tensor:
            x = self.join[level](torch.cat([skip, self.up[level](below)], 1))
            return x if level else self.head(x)

        return part


class WrappedUNet(PlainUNet):
    """The same, recomputed from outside alone: its finest decoder in parts that begin with a norm's input."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__(in_channels, num_classes, lambda part, *inputs: run_recomputed(part, *inputs, modules=[self]))

    def _upper(self, level: int) -> Callable[[Tensor, Tensor], Tensor]:
        if level:
            return super()._upper(level)
        (conv1, *rest1), (conv2, *rest2) = self.join[0]
        later = nn.Sequential(*rest1, conv2)
        last = nn.Sequential(*rest2, self.head)

        def start(skip: Tensor, below: Tensor) -> Tensor:
            return conv1(torch.cat([skip, self.up[0](below)], 1))

        def part(skip: Tensor, below: Tensor) -> Tensor:
            # Each part is itself recomputed when the whole is, so that only their inputs live together.
            x = self.run(start, skip, below)
            return self.run(last, self.run(later, x))

        return part


def checkpointed_by_torch(in_channels: int, num_classes: int) -> nn.Module:
    """Return the U-Net with torch's checkpoint around every level."""
    return PlainUNet(in_channels, num_classes, lambda part, *inputs: checkpoint(part, *inputs, use_reentrant=False))


class SavedOnCpu(nn.Module):
    """A network whose saved tensors are moved to the CPU's memory; a saving on CUDA alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
            return self.net(x)


class PartlyReversible(nn.Module):
    """A U-Net whose levels are sequences of additive couplings, as peers' libraries build them.

    Args:
        in_channels: Bands.
        num_classes: Classes.
        sequence: Makes a sequence of couplings of so many channels.
    """

    def __init__(self, in_channels: int, num_classes: int, sequence: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1)
        self.down = nn.ModuleList(sequence(w, 4) for w in WIDTHS)
        self.widen = nn.ModuleList(nn.Conv2d(w, 2 * w, 1) for w in WIDTHS[:-1])
        self.narrow = nn.ModuleList(nn.Conv2d(2 * w, w, 1) for w in WIDTHS[:-1])
        self.up = nn.ModuleList(sequence(w, 4) for w in WIDTHS[:-1])
        self.head = nn.Conv2d(WIDTHS[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x, skips = self.stem(x), []
        for level, part in enumerate(self.down):
            x = part(x)
            if level < len(self.widen):
                skips.append(x)
                x = self.widen[level](F.max_pool2d(x, 2))
        for level in reversed(range(len(skips))):
            x = F.interpolate(self.narrow[level](x), scale_factor=2.0) + skips.pop()
            x = self.up[level](x)
        return self.head(x)


def memcnn_sequence(width: int, depth: int) -> nn.Module:
    """Return couplings wrapped by MemCNN."""
    import memcnn

    def coupling() -> nn.Module:
        halves = [conv_norm_act(width // 2, width // 2) for _ in range(2)]
        fn = memcnn.AdditiveCoupling(*halves)
        return memcnn.InvertibleModuleWrapper(fn=fn, keep_input=False, keep_input_inverse=False)

    return nn.Sequential(*[coupling() for _ in range(depth)])


def revtorch_sequence(width: int, depth: int) -> nn.Module:
    """Return couplings run by RevTorch."""
    import revtorch

    blocks = [
        revtorch.ReversibleBlock(*[conv_norm_act(width // 2, width // 2) for _ in range(2)]) for _ in range(depth)
    ]
    return revtorch.ReversibleSequence(nn.ModuleList(blocks))


def iunet(in_channels: int, num_classes: int) -> nn.Module:
    """Return the invertible U-Net of iunets between a stem and a head."""
    import iunets

    body = iunets.iUNet(in_channels=WIDTHS[0], architecture=(4, 4, 4, 4), dim=2)
    head = nn.Conv2d(WIDTHS[0], num_classes, 1)
    return nn.Sequential(nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1), body, head)
