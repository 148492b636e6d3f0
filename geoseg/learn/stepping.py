"""A step of the optimiser: over one batch or several, in one process or several, always as over one large batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from geoseg.errors import ConfigError, problem
from geoseg.learn import processes
from geoseg.learn.average import Average
from geoseg.learn.checkpoint import Checkpoint
from geoseg.learn.losses import mean
from geoseg.learn.optimise import make_optimizer, set_rate
from geoseg.learn.runtime import Runtime

Batch = tuple[Tensor, Tensor]
# Maps a batch to total and weight of its loss; what follows is not looked at.
BatchLoss = Callable[[Tensor, Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class StepOptions:
    """How a step is made; see the config's section `training`.

    Attributes:
        optimizer: A name in OPTIMIZERS.
        learning_rate: Of the first step.
        weight_decay: Pull of the weights towards zero.
        encoder_factor: Factor of the learning rate in the encoder.
        clip_norm: Largest norm of all gradients together; None leaves them.
        ema: Decay of the average of the weights; None keeps none.
        compiled: Whether to compile the network.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    encoder_factor: float = 1.0
    clip_norm: float | None = None
    ema: float | None = None
    compiled: bool = False


class Stepper:
    """A network with its optimiser, its loss scaling and the average of its weights.

    Args:
        runtime: Where they are placed.
        network: The network; it is trained in place.
        options: How.

    Attributes:
        model: The network as it is to be called while training.
        average: The average of the weights, or None.
    """

    def __init__(self, runtime: Runtime, network: nn.Module, options: StepOptions) -> None:
        self.fabric, self.network, self.options = runtime.fabric, network, options
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = make_optimizer(
            options.optimizer, network, options.learning_rate, options.weight_decay, options.encoder_factor
        )
        prepared = torch.compile(network) if options.compiled else network
        self.model, self.optimizer = self.fabric.setup(prepared, optimizer)
        self.average = Average(network, options.ema) if options.ema is not None else None
        self._scaling: Any = self.fabric.strategy.precision  # holds the loss scaling of 16-mixed

    def take(self, window: Sequence[Batch], loss: BatchLoss, rate: float) -> Tensor:
        """Do one step of the optimiser over some batches.

        The gradient is that of the mean loss over all of them, in all processes: the sum of the totals divided by the
        sum of the weights. Those are not known before the last batch has been seen, so what has been gathered is
        scaled whenever the divisor changes.

        Args:
            window: The batches, at least one; every process has as many.
            loss: Maps a batch to (total, weight, ...).
            rate: The learning rate.

        Returns:
            (3,) float64: total, weight and number of samples, over all batches and processes.
        """
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64, device=self.fabric.device)
        share = torch.ones((), dtype=torch.float64, device=self.fabric.device)
        for number, (image, label) in enumerate(window, start=1):
            last = number == len(window)
            with self.fabric.no_backward_sync(self.model, enabled=not last):
                total, weight = loss(image, label)[:2]
                sums = sums + torch.stack([total.detach().double(), weight.double(), sums.new_tensor(len(image))])
                if last:
                    sums = processes.summed(sums)
                before, share = share, mean(sums.new_tensor(processes.count() if last else 1), sums[1])
                if number > 1:
                    self._scale_gradients(share / before)
                self.fabric.backward(total * share.to(total.dtype))
        self._update()
        return sums

    def _scale_gradients(self, factor: Tensor) -> None:
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))

    def _update(self) -> None:
        if self.options.clip_norm is not None:
            # Half precision overflows now and then: its loss scaling skips that step, and no norm is needed for it.
            norm = self.options.clip_norm
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=norm, error_if_nonfinite=False)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs: tensors and plain values."""
        return {
            "model": self.network.state_dict(),
            "optimizer": {"names": self._names(), **self.optimizer.optimizer.state_dict()},
            "scaler": self._scaling.state_dict(),
            "average": self.average.state() if self.average is not None else {},
        }

    def load(self, saved: Checkpoint, where: object) -> None:
        """Take up the state beside the network's weights; learning rates and weight decay are the options'.

        Raises:
            ConfigError: The optimiser's state belongs to other parts of the network.
        """
        optimizer = self.optimizer.optimizer
        if saved.optimizer["names"] != self._names():
            found = "the state of an optimiser that trained other parts of the network"
            remedy = "resume with the same training.freeze and encoder_learning_rate, or start a new run"
            raise ConfigError(problem(where, found, "the parts that are trained now", remedy))
        optimizer.load_state_dict(
            {"state": saved.optimizer["state"], "param_groups": optimizer.state_dict()["param_groups"]}
        )
        if saved.scaler:
            self._scaling.load_state_dict(dict(saved.scaler))
        if self.average is not None and self.options.ema is not None:
            self.average = Average(self.network, self.options.ema)  # of the weights that were loaded since
            if saved.average:
                self.average.load(saved.average)

    def _names(self) -> list[str]:
        names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        return [names[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield the batches of each step: `size` of them, the last time perhaps fewer."""
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window
