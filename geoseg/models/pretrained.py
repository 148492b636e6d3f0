"""Start a network from weights trained elsewhere, with another number of bands or classes if need be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from geoseg.errors import ModelFileError, problem

SHOWN = 5


def load_pretrained(net: nn.Module, path: str | Path) -> None:
    """Load weights of the same architecture into a network.

    The bands may differ: the first convolution's filters for the bands that both have are taken as they are, further
    bands start from the mean filter; for fewer bands, each takes the mean filter, scaled so that the sum stays. If the
    classes differ, the layer that makes them keeps its fresh weights.

    Args:
        net: The network, with attributes `in_channels` and `num_classes`.
        path: A safetensors file, or a PyTorch file of a state dict (read without running code).

    Raises:
        ModelFileError: The file cannot be read, or its weights are those of another architecture.
    """
    state, own = read_weights(path), net.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        found = "; ".join(
            f"{len(keys)} {kind} ({_some(keys)})"
            for kind, keys in (("weights missing", missing), ("unknown weights", extra))
            if keys
        )
        raise ModelFileError(
            problem(path, found, f"weights of this {type(net).__name__}", "choose its file or its model")
        )
    wrong = []
    for key, value in state.items():
        fitted = _fitted(value, own[key], net)
        if fitted is None:
            wrong.append(f"{key} {tuple(value.shape)} for {tuple(own[key].shape)}")
        else:
            own[key] = fitted
    if wrong:
        found = f"{len(wrong)} weights of another shape ({_some(wrong)})"
        raise ModelFileError(
            problem(path, found, f"weights of this {type(net).__name__}", "choose its file or its width")
        )
    net.load_state_dict(own)


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


def _fitted(value: Tensor, own: Tensor, net: nn.Module) -> Tensor | None:
    """Return a weight of the file as the network needs it, or None if it cannot be."""
    if value.shape == own.shape:
        return value
    if value.ndim != own.ndim:
        return None
    differ = [axis for axis in range(own.ndim) if value.shape[axis] != own.shape[axis]]
    if differ == [1] and own.ndim == 4 and own.shape[1] == net.in_channels:
        return adapt_bands(value, own.shape[1])
    if differ == [0] and own.shape[0] == net.num_classes:
        return own
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
