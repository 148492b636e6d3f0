"""Better scores from several looks: turned and mirrored windows, several networks, a temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geoseg.predict.layout import shares

#: (quarter turns, mirrored) of the looks that a window is given.
VIEWS: dict[str, tuple[tuple[int, bool], ...]] = {
    "none": ((0, False),),
    "flips": ((0, False), (0, True), (2, False), (2, True)),
    "all": tuple((turns, mirrored) for turns in range(4) for mirrored in (False, True)),
}


@dataclass(frozen=True)
class Combination:
    """How scores are made of a network's, or several networks', answers.

    Attributes:
        views: A key of `VIEWS`: which turns and mirror images of each window are averaged.
        temperature: Scores are divided by it; above 1 probabilities become less extreme, classes stay the same.
    """

    views: str = "none"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.views not in VIEWS:
            raise ValueError(f"views are {self.views!r}, expected one of {', '.join(VIEWS)}")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, expected more than 0")


class Combined:
    """Several looks as one network: (N, bands, H, W) -> (N, classes, H, W) scores.

    The probabilities are the mean of those of all networks and views, and the scores their logarithms; with a single
    look they are the network's own scores, divided by the temperature.

    Args:
        networks: Networks of the same bands and classes.
        combination: Views and temperature.
    """

    def __init__(self, networks: Sequence[Callable[[Tensor], Tensor]], combination: Combination) -> None:
        self._networks, self._temperature = tuple(networks), combination.temperature
        self._views = VIEWS[combination.views]

    def __call__(self, batch: Tensor) -> Tensor:
        """Return the scores of a batch."""
        looks = [(network, view) for network in self._networks for view in self._views]
        if len(looks) == 1:
            return self._networks[0](batch) / self._temperature
        total: Tensor | None = None
        for network, view in looks:
            scores = _restored(network(_seen(batch, *view)), *view)
            scores = scores if scores.dtype == torch.float64 else scores.float()
            found = shares(scores / self._temperature, 1)
            total = found if total is None else total.add_(found)
        assert total is not None
        # A share that is too small for a float would have a logarithm that is not finite.
        return (total / len(looks)).clamp_min_(torch.finfo(total.dtype).tiny).log_()


def _seen(batch: Tensor, turns: int, mirrored: bool) -> Tensor:
    return torch.rot90(batch.flip(-1) if mirrored else batch, turns, (-2, -1))


def _restored(scores: Tensor, turns: int, mirrored: bool) -> Tensor:
    back = torch.rot90(scores, -turns, (-2, -1))
    return back.flip(-1) if mirrored else back
