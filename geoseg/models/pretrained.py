"""Start a network from weights trained elsewhere, with another number of bands or classes if need be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from geoseg.errors import ModelFileError, problem

SHOWN = 5


@dataclass(frozen=True)
class Loaded:
    """What became of the weights of a file.

    Attributes:
        path: The file.
        same: Weights taken as they are.
        adapted: Weights fitted to another number of bands, with both numbers.
        fresh: Weights of the network that the file could not give: they keep what they were drawn with.
        unused: Weights of the file that the network has no place for.
    """

    path: Path
    same: tuple[str, ...]
    adapted: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.same)} weights as they are"]
        kinds = (("adapted", self.adapted), ("drawn anew", self.fresh), ("of the file not used", self.unused))
        parts += [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds if names]
        return f"starting from {self.path}: {', '.join(parts)}"


def load_pretrained(net: nn.Module, path: str | Path) -> Loaded:
    """Load weights of the same architecture into a network, or of a part of it that its files are made of.

    The bands may differ: the first convolution's filters for the bands that both have are taken as they are, further
    bands start from the mean filter; for fewer bands, each takes the mean filter, scaled so that the sum stays. If the
    classes differ, the layer that makes them keeps its fresh weights.

    Args:
        net: The network, with attributes `in_channels` and `num_classes`. A network that starts from files of others
            has a method `own_names`, which returns a file's weights under the network's names and the names of
            those it has no place for, and lists in `may_be_fresh` its parts that such files lack.
        path: A safetensors file, a model file of geoseg among them, or a PyTorch file of a state dict (read without
            running code).

    Returns:
        What was loaded, adapted, and left.

    Raises:
        ModelFileError: The file cannot be read, or its weights are those of another architecture.
    """
    path = Path(path)
    state, own = read_weights(path), net.state_dict()
    foreign = not any(name in own for name in state)
    optional = getattr(net, "may_be_fresh", ()) if foreign else ()
    state, unused = net.own_names(state) if hasattr(net, "own_names") else (state, [])  # type: ignore[operator]
    fresh = [name for name in own if name not in state]
    missing = sorted(name for name in fresh if name.split(".")[0] not in optional)
    _refuse(path, net, {"missing": missing, "unknown": [name for name in state if name not in own]})
    same, adapted, wrong = [], [], []
    last_layer = list(own)[-1].rpartition(".")[0]
    for key, value in state.items():
        fitted = _fitted(value, own[key], net.in_channels, key.startswith(f"{last_layer}."))  # type: ignore[arg-type]
        if fitted is None:
            wrong.append(f"{key} {tuple(value.shape)} for {tuple(own[key].shape)}")
        elif fitted is own[key]:
            fresh.append(f"{key}, of other classes")
        elif fitted is value:
            same.append(key)
        else:
            adapted.append(f"{key} from {value.shape[1]} to {net.in_channels} bands")
        own[key] = own[key] if fitted is None else fitted
    _refuse(path, net, {"of another shape": wrong})
    net.load_state_dict(own)
    return Loaded(path, tuple(same), tuple(adapted), tuple(fresh), tuple(unused))


def _refuse(path: Path, net: nn.Module, differences: dict[str, list[str]]) -> None:
    """Raise if there are differences; what is not of this architecture would train badly without a word."""
    found = "; ".join(f"{len(names)} weights {kind} ({_some(names)})" for kind, names in differences.items() if names)
    if found:
        expected = f"weights of this {type(net).__name__}"
        raise ModelFileError(problem(path, found, expected, "choose its file, its model or its width"))


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict; names lose the prefixes of wrappers.

    Raises:
        ModelFileError: Not there, or neither a safetensors file nor a PyTorch file that is safe to open.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(problem(path, "no file", "pretrained weights", "correct the path, or set it to false"))
    try:
        loaded: Any = load_file(path) if path.suffix == ".safetensors" else _torch_file(path)
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, KeyError) as error:
        found = f"a file that cannot be read ({(str(error).splitlines() or ['empty'])[0][:150]})"
        raise ModelFileError(problem(path, found, "a safetensors or PyTorch file of weights", "replace it")) from error
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ModelFileError(problem(path, f"a {type(loaded).__name__}", "a dict of weights by name", "replace it"))
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in loaded.items()}


def _torch_file(path: Path) -> Any:
    import pickle

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from error


def adapt_bands(weight: Tensor, bands: int) -> Tensor:
    """Return first-layer filters (out, bands, kh, kw) made from filters for another number of bands."""
    given = weight.shape[1]
    mean = weight.mean(dim=1, keepdim=True)
    if bands < given:
        return (mean * given / bands).repeat(1, bands, 1, 1)
    return torch.cat([weight, mean.expand(-1, bands - given, -1, -1)], dim=1)


def _fitted(value: Tensor, own: Tensor, bands: int, makes_classes: bool) -> Tensor | None:
    """Return a weight of the file as the network needs it, its own if the classes differ, or None if it cannot be."""
    if value.shape == own.shape:
        return value
    if value.ndim != own.ndim:
        return None
    differ = [axis for axis in range(own.ndim) if value.shape[axis] != own.shape[axis]]
    if differ == [1] and own.ndim == 4 and own.shape[1] == bands:
        return adapt_bands(value, bands)
    return own if differ == [0] and makes_classes else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
