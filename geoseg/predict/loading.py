"""From model files to a predictor on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from geoseg.errors import ModelFileError, problem
from geoseg.learn.modelfile import ModelSpec, load_model_file
from geoseg.learn.runtime import keep_freed_memory, resolve_device, resolve_precision
from geoseg.predict.combine import Combination, Combined
from geoseg.predict.predictor import Predictor

_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
#: What models that are averaged must have in common.
_COMMON = ("in_channels", "num_classes", "classes", "bands", "band_names", "dtype", "normalisation", "reading")


def load_predictor(
    paths: Path | Sequence[Path],
    device: str = "auto",
    precision: str = "auto",
    combination: Combination | None = None,
    worker: int | None = None,
) -> tuple[Predictor, ModelSpec]:
    """Load a model file, or several whose probabilities are averaged, for classification.

    Args:
        paths: The model file or files.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "32-true", "bf16-mixed" or "16-mixed".
        combination: Further looks at every window; None: one.
        worker: The number of this process among those that work side by side, which share out the GPUs; None: alone.

    Returns:
        The predictor, and what the first file says.

    Raises:
        ModelFileError: No model file, a damaged one, weights that do not fit the model it names, or files that were
            trained on different samples.
        ConfigError: A device or precision that this machine does not have.
    """
    place = resolve_device(device, section="classification")
    autocast = _AUTOCAST[resolve_precision(precision, place, section="classification")]
    place = gpu_of(place, worker, torch.cuda.device_count() if place == "cuda" else 0)
    files = [paths] if isinstance(paths, Path) else list(paths)
    loaded = [load_model_file(path) for path in files]
    spec = loaded[0][1]
    refuse_strangers(files, [other for _, other in loaded])
    if place == "cpu":
        keep_freed_memory()
    # Convolutions of this layout need no copies into the layout that the libraries compute in.
    networks: list[Any] = [
        network.to(place).to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
        for network, _ in loaded
    ]
    radii = [network.receptive_radius for network in networks]
    plain = len(networks) == 1 and combination in (None, Combination())
    predictor = Predictor(
        network=networks[0] if plain else Combined(networks, combination or Combination()),
        num_classes=spec.num_classes,
        normalisation=spec.normalisation,
        size_divisor=math.lcm(*(network.size_divisor for network in networks)),
        receptive_radius=None if None in radii else max(radii),
        device=torch.device(place),
        autocast=autocast,
        channels_last=True,
        bands=spec.in_channels,
    )
    return predictor, spec


def gpu_of(device: str, worker: int | None, count: int) -> str:
    """Return where a worker computes: of several GPUs worker k takes the k-th, and begins anew after the last.

    Args:
        device: "cpu" or "cuda".
        worker: From 0; None: it is alone.
        count: GPUs of this machine.
    """
    return f"cuda:{worker % count}" if device == "cuda" and worker is not None and count > 1 else device


def refuse_strangers(files: Sequence[Path], specs: Sequence[ModelSpec]) -> None:
    """Refuse models that cannot be averaged.

    Raises:
        ModelFileError: One line for each that differs from the first in bands, classes or normalisation.
    """
    problems = []
    for path, spec in zip(files[1:], specs[1:], strict=True):
        differing = [name for name in _COMMON if getattr(spec, name) != getattr(specs[0], name)]
        if differing:
            found = f"another {', '.join(differing)} than in {files[0]}"
            remedy = "average models that were trained on the same samples"
            problems.append(problem(path, found, "the same in all models", remedy))
    if problems:
        raise ModelFileError(problems)
