"""The model file: weights and what they mean, in one safetensors file that opens without running code.

The metadata (JSON under the key "geoseg") carries every decision that was taken when the samples were made, so that
`classify` needs nothing but the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from geoseg import __version__
from geoseg.data.normalise import Normalisation
from geoseg.errors import GeosegError, ModelFileError, problem
from geoseg.geo.raster import Reading
from geoseg.learn.files import replacing
from geoseg.models import build_model

METADATA_KEY = "geoseg"
# What wrappers (several processes, torch.compile) put in front of every name.
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_forward_module.")
MAX_NAMED_KEYS = 5


@dataclass(frozen=True)
class ModelSpec:
    """What a model file says about its weights.

    Attributes:
        model_name: Name in `geoseg.models.MODELS`.
        model_options: Options given to `build_model`.
        in_channels: Number of image bands.
        num_classes: Number of classes, background included.
        classes: One mapping per class id: id, name, value (in the labels' attribute), colour.
        bands: Band numbers of the raster, from 1, in the order the network takes them.
        band_names: Their names, None where a raster names none.
        dtype: Data type of the rasters, as numpy names it.
        normalisation: How pixel values become network inputs.
        ignore_value: Label value of unknown pixels.
        samples_size: Side of the training samples, pixels.
        resolution: Pixel sides (x, y) of the training rasters, in units of their CRS.
        crs: Their CRS as WKT or authority code.
        geoseg_version: Version that wrote the file.
        trained: Plain facts about the training: epoch, scores, seed, ...
        reading: What was done to the values of the rasters (conversion, scale, palette, valid range).
    """

    model_name: str
    model_options: Mapping[str, Any]
    in_channels: int
    num_classes: int
    classes: tuple[Mapping[str, Any], ...]
    bands: tuple[int, ...]
    band_names: tuple[str | None, ...]
    dtype: str
    normalisation: Normalisation
    ignore_value: int
    samples_size: int
    resolution: tuple[float, float] | None = None
    crs: str | None = None
    geoseg_version: str = __version__
    trained: Mapping[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes by id."""
        return tuple(str(entry["name"]) for entry in self.classes)

    def to_json(self) -> str:
        """Return the metadata as strict JSON (no NaN)."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain["normalisation"] = self.normalisation.to_dict()
        plain["reading"] = self.reading.to_dict()
        return json.dumps(plain, sort_keys=True, allow_nan=False, default=str)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Rebuild a spec; keys that this version does not know are passed over.

        Raises:
            KeyError, TypeError, ValueError: The text is not such a spec.
        """
        plain = json.loads(text)
        known = {entry.name: plain[entry.name] for entry in fields(cls) if entry.name in plain}
        known["normalisation"] = Normalisation.from_dict(known["normalisation"])
        known["reading"] = Reading.from_dict(known.get("reading"))
        for name in ("classes", "bands", "band_names"):
            known[name] = tuple(known[name])
        if known.get("resolution") is not None:
            known["resolution"] = tuple(known["resolution"])
        return cls(**known)


def save_model_file(path: Path, model: nn.Module, spec: ModelSpec) -> None:
    """Write a model file under a temporary name beside `path`, then rename it.

    The same weights and spec give the same bytes: the format keeps metadata in a hash map, so there is one key.
    """
    # safetensors refuses channels_last and shared storage; a contiguous copy is neither.
    weights = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in strip_prefixes(model.state_dict()).items()
    }
    with replacing(path) as file:
        file.write(save(weights, metadata={METADATA_KEY: spec.to_json()}))


def load_model_file(path: Path | str) -> tuple[nn.Module, ModelSpec]:
    """Build the network that a model file describes, with its weights, on the CPU and in eval mode.

    Raises:
        ModelFileError: No such file, not a geoseg model file, or its weights do not fit the network it names.
    """
    path = Path(path)
    spec, weights = _read(path, with_weights=True)
    # Weights that the network started from are in the file already; the path they came from may be gone.
    options = {**spec.model_options, **({"pretrained": False} if "pretrained" in spec.model_options else {})}
    try:
        model = build_model(spec.model_name, spec.in_channels, spec.num_classes, **options)
    except (GeosegError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(
            problem(
                path,
                f"model {spec.model_name!r} (written by geoseg {spec.geoseg_version}; {error})",
                f"a model of geoseg {__version__}",
                "use the version that wrote the file",
            )
        ) from error
    load_weights(model, weights, path, spec.model_name)
    return model.eval(), spec


def read_model_spec(path: Path | str) -> ModelSpec:
    """Read a model file's metadata alone.

    Raises:
        ModelFileError: No such file, or not a geoseg model file.
    """
    return _read(Path(path), with_weights=False)[0]


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: object, model_name: str) -> None:
    """Load weights that must fit exactly; wrapper prefixes are dropped first.

    Raises:
        ModelFileError: Missing or unexpected names, or other shapes: one line that lists them.
    """
    given, wanted = strip_prefixes(weights), model.state_dict()
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in wanted
        if name in given and given[name].shape != wanted[name].shape
    ]
    differences = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": shapes,
    }
    found = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in differences.items() if names)
    if found:
        raise ModelFileError(
            problem(
                where,
                f"weights that do not fit ({found})",
                f"the {len(wanted)} weights of {model_name!r} as configured",
                "name the model and the options that these weights were trained with",
            )
        )
    model.load_state_dict(given)


def check_matches(spec: ModelSpec, where: object, **expected: Any) -> None:
    """Refuse a config that says something else than the model file.

    Args:
        spec: What the file says.
        where: The file, for the message.
        **expected: What the config says, by `ModelSpec` attribute (`model_name`, `in_channels`, `num_classes`,
            `bands`, `ignore_value`, `class_names`, ...). None means that the config says nothing.

    Raises:
        ModelFileError: One line per difference, naming both.
    """
    problems = [
        problem(
            where,
            f"{name.replace('_', ' ')} {_show(getattr(spec, name))}",
            f"{_show(wanted)} as the config says",
            "change the config or give the model file that belongs to it",
        )
        for name, wanted in expected.items()
        if wanted is not None and _comparable(getattr(spec, name)) != _comparable(wanted)
    ]
    if problems:
        raise ModelFileError(problems)


def model_hash(path: Path | str) -> str:
    """Return the SHA-256 of a model file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strip_prefixes(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what wrappers put in front of every name."""
    stripped = dict(weights)
    while prefix := next((p for p in WRAPPER_PREFIXES if stripped and all(n.startswith(p) for n in stripped)), None):
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
    return stripped


def _read(path: Path, with_weights: bool) -> tuple[ModelSpec, dict[str, Tensor]]:
    expected = "a geoseg model file (best.safetensors of a run)"
    if not path.is_file():
        raise ModelFileError(problem(path, "no such file", expected, "train first, or correct the path"))
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()} if with_weights else {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        found = f"a file that is damaged or of another format ({error})"
        raise ModelFileError(problem(path, found, expected, "give a model file that geoseg trained")) from error
    if METADATA_KEY not in metadata:
        found = "a safetensors file without geoseg's metadata"
        raise ModelFileError(problem(path, found, expected, "give a model file that geoseg trained"))
    try:
        return ModelSpec.from_json(metadata[METADATA_KEY]), weights
    except (KeyError, TypeError, ValueError) as error:
        found = f"metadata that cannot be understood ({type(error).__name__}: {error})"
        raise ModelFileError(problem(path, found, expected, f"use geoseg {__version__} or newer")) from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED_KEYS} more" if len(names) > MAX_NAMED_KEYS else ""
    return ", ".join(names[:MAX_NAMED_KEYS]) + more


def _comparable(value: Any) -> Any:
    """Lists and tuples say the same."""
    return tuple(_comparable(entry) for entry in value) if isinstance(value, (list, tuple)) else value


def _show(value: Any) -> str:
    return repr(list(value)) if isinstance(value, (list, tuple)) else repr(value)
