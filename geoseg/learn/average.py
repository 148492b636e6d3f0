"""Exponential moving average of a network's weights: what is evaluated and kept, while the network itself trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """The running average of a network's weights and of its floating-point buffers; other buffers are copied.

    Batch-norm statistics are averaged like the weights that they belong to. The first updates count for more, by
    min(decay, (1 + n) / (10 + n)): else a short run would keep much of its random start.

    Args:
        model: The network, on its device.
        decay: Weight of the average so far, in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.count = decay, 0
        self._own = model.state_dict()  # the tensors themselves, which optimisers change in place
        self.values = {name: value.detach().clone() for name, value in self._own.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the network's weights as they are now."""
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        floats = [name for name, value in self.values.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.values[name] for name in floats], [self._own[name] for name in floats], 1 - decay)
        for name, value in self.values.items():
            if not value.is_floating_point():
                value.copy_(self._own[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network the averaged weights for as long as this lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self.values.items():
            kept = value.clone()
            value.copy_(self._own[name])
            self._own[name].copy_(kept)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"count": self.count, "values": self.values}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.count = int(state["count"])
        saved: Mapping[str, Tensor] = state["values"]
        for name, value in self.values.items():
            value.copy_(saved[name])
