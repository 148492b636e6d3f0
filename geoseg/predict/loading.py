"""From a model file to a predictor on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from geoseg.learn.modelfile import ModelSpec, load_model_file
from geoseg.learn.runtime import keep_freed_memory, resolve_device, resolve_precision
from geoseg.predict.predictor import Predictor

_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def load_predictor(path: Path, device: str = "auto", precision: str = "auto") -> tuple[Predictor, ModelSpec]:
    """Load a model file for classification.

    Args:
        path: The model file.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "32-true", "bf16-mixed" or "16-mixed".

    Raises:
        ModelFileError: No model file, a damaged one, or weights that do not fit the model it names.
        ConfigError: A device or precision that this machine does not have.
    """
    place = resolve_device(device, section="classification")
    autocast = _AUTOCAST[resolve_precision(precision, place, section="classification")]
    network, spec = load_model_file(path)
    if place == "cpu":
        keep_freed_memory()
    # Convolutions of this layout need no copies into the layout that the libraries compute in.
    network = network.to(place).to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
    predictor = Predictor(
        network=network,
        num_classes=spec.num_classes,
        normalisation=spec.normalisation,
        size_divisor=network.size_divisor,
        receptive_radius=network.receptive_radius,
        device=torch.device(place),
        autocast=autocast,
        channels_last=True,
    )
    return predictor, spec
