"""A trained model as a STAC item with the Machine Learning Model extension (version 1.4.0)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from geoseg.learn.modelfile import ModelSpec

EXTENSIONS = (
    "https://stac-extensions.github.io/mlm/v1.4.0/schema.json",
    "https://stac-extensions.github.io/classification/v1.1.0/schema.json",
    "https://stac-extensions.github.io/file/v2.1.0/schema.json",
)
# File suffix to media type, kind of artifact, title, and whether the file normalises its input by itself.
_KINDS = {
    ".onnx": ("application/octet-stream; application=onnx", "onnx", "ONNX graph, normalisation inside", True),
    ".pt2": ("application/octet-stream; application=pytorch", "torch.export.save", "torch.export program", True),
    ".safetensors": ("application/octet-stream; application=safetensors", "safetensors", "geoseg model file", False),
    ".md": ("text/markdown", None, "Model card", False),
}


@dataclass(frozen=True)
class ItemFile:
    """A file that the item names: its path, and the SHA-256 of its content in hexadecimal."""

    path: Path
    sha256: str


def model_item(
    spec: ModelSpec, files: Sequence[ItemFile], parameters: int, written: datetime, at: Path
) -> dict[str, Any]:
    """Return the item, fit for JSON.

    Args:
        spec: What the model file says.
        files: The model in its forms, the preferred one first, and its card.
        parameters: Number of weights that were trained.
        written: When the model was written.
        at: Where the item will lie; files are named relative to it.
    """
    name = f"geoseg-{spec.model_name}"
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": list(EXTENSIONS),
        "id": f"{name}-{files[0].sha256[:12]}",
        "geometry": None,
        "properties": {
            "datetime": written.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "description": f"Semantic segmentation into {', '.join(spec.class_names)}.",
            "bands": [{"name": band} for band in band_names(spec)],
            "mlm:name": name,
            "mlm:architecture": spec.model_name,
            "mlm:framework": "PyTorch",
            "mlm:framework_version": torch.__version__,
            "mlm:tasks": ["semantic-segmentation"],
            "mlm:total_parameters": parameters,
            "mlm:pretrained": bool(spec.model_options.get("pretrained")),
            "mlm:pretrained_source": _pretrained(spec),
            "mlm:accelerator": None,
            "mlm:accelerator_constrained": False,
            "mlm:input": [_input(spec, normalises=any(_KINDS[file.path.suffix][3] for file in files))],
            "mlm:output": [_output(spec)],
            "mlm:hyperparameters": {"geoseg_version": spec.geoseg_version, "samples_size": spec.samples_size},
        },
        "links": [],
        "assets": {_key(file): _asset(file, at) for file in files},
    }


def band_names(spec: ModelSpec) -> list[str]:
    """Return a name for each band, in the order that the network takes them: its own, or band-<number>."""
    names = [name or f"band-{number}" for number, name in zip(spec.bands, spec.band_names, strict=True)]
    return [name if names.count(name) == 1 else f"{name}-{spec.bands[i]}" for i, name in enumerate(names)]


def _input(spec: ModelSpec, normalises: bool) -> dict[str, Any]:
    scaling = [
        {"type": "z-score", "mean": mean, "stddev": std if std > 0 else 1.0}
        for mean, std in zip(spec.normalisation.mean, spec.normalisation.std, strict=True)
    ]
    words = f"Pixel values as in the raster ({spec.dtype}), as float32; NaN where there are no data."
    inside = "The graph normalises them by itself." if normalises else "Pixels without data are 0 after scaling."
    return {
        "name": "images",
        "description": f"{words} {inside} Height and width are multiples of the network's size divisor.",
        "bands": band_names(spec),
        "variables": [],
        "input": {
            "shape": [-1, spec.in_channels, -1, -1],
            "dim_order": ["batch", "channel", "height", "width"],
            "data_type": "float32",
        },
        "value_scaling": None if normalises else scaling,
        "resize_type": None,
        "pre_processing_function": None,
    }


def _output(spec: ModelSpec) -> dict[str, Any]:
    classes = []
    for number, entry in enumerate(spec.classes):
        name = str(entry["name"])
        plain = re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") or f"class-{number}"
        colour = str(entry.get("colour") or "").removeprefix("#").upper()
        hint = {"color_hint": colour} if re.fullmatch("[0-9A-F]{6}", colour) else {}
        classes.append({"value": number, "name": plain, "description": name, **hint})
    return {
        "name": "logits",
        "description": "The class with the largest logit is the pixel's; softmax over classes gives probabilities.",
        "tasks": ["semantic-segmentation"],
        "bands": [],
        "variables": [],
        "result": {
            "shape": [-1, spec.num_classes, -1, -1],
            "dim_order": ["batch", "class", "height", "width"],
            "data_type": "float32",
        },
        "classification:classes": classes,
        "post_processing_function": None,
    }


def _asset(file: ItemFile, at: Path) -> dict[str, Any]:
    media, artifact, title, normalises = _KINDS[file.path.suffix]
    relative = Path(os.path.relpath(file.path.absolute(), at.absolute().parent)).as_posix()
    asset: dict[str, Any] = {
        "href": relative if relative.startswith("../") else f"./{relative}",
        "type": media,
        "title": title,
        "roles": ["metadata"] if artifact is None else ["mlm:model", *([] if normalises else ["mlm:weights"])],
        "file:checksum": f"1220{file.sha256}",  # a multihash: SHA-256, 32 bytes
    }
    return asset if artifact is None else {**asset, "mlm:artifact_type": artifact}


def _key(file: ItemFile) -> str:
    return {".onnx": "onnx", ".pt2": "torch", ".safetensors": "weights", ".md": "card"}[file.path.suffix]


def _pretrained(spec: ModelSpec) -> str | None:
    source = spec.model_options.get("pretrained")
    return Path(str(source)).name if source and source is not True else None


def trained_facts(spec: ModelSpec) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Return the facts about the training that are single values, and those that are lists of one value per class."""
    single: dict[str, Any] = {}
    lists: dict[str, Sequence[Any]] = {}
    for key, value in spec.trained.items():
        if isinstance(value, list | tuple) and len(value) == spec.num_classes:
            lists[key] = value
        elif not isinstance(value, Mapping | list | tuple):
            single[key] = value
    return single, lists
