"""Parts of a network by name: which are the encoder, and which stay as they are while the rest is trained."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from geoseg.errors import ConfigError, problem

ENCODER = "encoder"
SHOWN = 8


def in_encoder(model: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to the encoder: the modules that the model's `encoder_parts` names, else `encoder`.

    Args:
        model: The network.
        name: The parameter's name in it.
    """
    parts: Sequence[str] = getattr(model, "encoder_parts", (ENCODER,))
    return any(name.startswith(f"{part}.") for part in parts)


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze parts of a network; call before its optimiser is made.

    `train_mode` then also keeps the statistics of batch norms whose weights are all frozen.

    Args:
        model: The network.
        patterns: "encoder", names of modules or parameters, or patterns of names with * and ?.

    Returns:
        Number of frozen weights.

    Raises:
        ConfigError: A pattern fits nothing, or nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    chosen = {pattern: {name for name in names if _fits(model, name, pattern)} for pattern in patterns}
    parts = ", ".join(list(dict.fromkeys([ENCODER, *(name.split(".")[0] for name in names)]))[:SHOWN])
    problems = [
        problem("training.freeze", repr(pattern), f"a part of the network such as {parts}", "correct the name")
        for pattern, found in chosen.items()
        if not found
    ]
    frozen = set().union(*chosen.values())
    if len(frozen) == len(names):
        problems.append(problem("training.freeze", "all weights", "some that are trained", "leave a part out"))
    if problems:
        raise ConfigError(problems)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name in frozen)


def _fits(model: nn.Module, name: str, pattern: str) -> bool:
    if pattern == ENCODER and in_encoder(model, name):
        return True
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def train_mode(model: nn.Module) -> None:
    """Put a network into training mode, except modules whose parameters are all frozen.

    A frozen batch norm in training mode would go on moving its statistics.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
