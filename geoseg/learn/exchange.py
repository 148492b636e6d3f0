"""A trained network for other software: one graph with the normalisation inside, as ONNX or as a torch.export program.

The graph takes what is in the raster and gives logits. Reading a model file runs no code, and neither does this.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from geoseg.data.normalise import Normalisation
from geoseg.errors import ConfigError, problem
from geoseg.learn.files import replacing
from geoseg.learn.modelfile import METADATA_KEY, ModelSpec

INPUT, OUTPUT = "images", "logits"
_ONNX_PACKAGES = ("onnx", "onnxscript")


class InferenceGraph(nn.Module):
    """Normalisation and network as one module.

    Args:
        network: A network in eval mode; memory saving for training is switched off in it.
        normalisation: How pixel values become the network's inputs.
    """

    mean: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, network: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.network = _plain(network.eval())
        std = np.asarray(normalisation.std, np.float64)
        self.register_buffer("mean", _per_band(np.asarray(normalisation.mean, np.float64)))
        self.register_buffer("scale", _per_band(1.0 / np.where(std > 0, std, 1.0)))
        self.register_buffer("zero", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes, H, W) of pixel values (N, bands, H, W) float32; NaN stands for no data.

        A pixel that is NaN in any band is 0 in all of them after the normalisation, as in training.
        """
        values = (images - self.mean) * self.scale
        lost = torch.isnan(values.sum(dim=1, keepdim=True))
        logits: Tensor = self.network(torch.where(lost, self.zero, values))
        return logits


def export_program(graph: InferenceGraph, spec: ModelSpec) -> torch.export.ExportedProgram:
    """Return the graph as a torch.export program for any batch, height and width.

    Height and width are multiples of the network's size divisor: 1 or more of them, and at least 16 pixels.
    """
    divisor = int(graph.network.size_divisor)  # type: ignore[arg-type]
    example = torch.zeros(2, spec.in_channels, 4 * divisor, 5 * divisor)
    least = -(-16 // divisor)
    rows, columns = (torch.export.Dim(name, min=least, max=2**16) for name in ("rows", "columns"))
    shapes = {"images": {0: torch.export.Dim("batch", min=1, max=2**16), 2: divisor * rows, 3: divisor * columns}}
    # With gradients the networks change no tensor in place, which the way to ONNX could not follow.
    with torch.enable_grad():
        return torch.export.export(graph, (example,), dynamic_shapes=shapes, strict=False)


def save_program(path: Path, program: torch.export.ExportedProgram) -> None:
    """Write a torch.export program (.pt2); it appears whole or not at all."""
    out = io.BytesIO()
    torch.export.save(program, out)
    with replacing(path) as file:
        file.write(out.getvalue())


def save_onnx(path: Path, program: torch.export.ExportedProgram, spec: ModelSpec) -> None:
    """Write a program as ONNX, with the model's metadata as JSON under the key "geoseg"; whole or not at all.

    Raises:
        ConfigError: The packages for it are not installed.
    """
    require_onnx()
    with _quiet():
        made = torch.onnx.export(program, (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False)
    assert made is not None
    model: Any = made.model_proto
    for axis in (0, 2, 3):
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[axis].dim_param = ("batch", "", "height", "width")[axis]
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, spec.to_json()
    with replacing(path) as file:
        file.write(model.SerializeToString())


def require_onnx() -> None:
    """Check that ONNX can be written.

    Raises:
        ConfigError: The packages for it are not installed.
    """
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "pip install 'geoseg[export]', or leave onnx out of --formats"
        raise ConfigError(problem("ONNX", f"no package {', '.join(missing)}", "both installed", remedy))


def onnx_difference(path: Path, graph: InferenceGraph, spec: ModelSpec) -> float | None:
    """Return how far onnxruntime's logits are from torch's on a random image; None where it is not installed.

    The largest difference, relative to the largest logit.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    images = example_images(spec, graph)
    found = session.run([OUTPUT], {INPUT: images.numpy()})[0]
    return relative_difference(found, graph, images)


def program_difference(path: Path, graph: InferenceGraph, spec: ModelSpec) -> float:
    """Return the same of a program that was saved."""
    images = example_images(spec, graph)
    with torch.no_grad():
        found = torch.export.load(path).module()(images)
    return relative_difference(found.numpy(), graph, images)


def example_images(spec: ModelSpec, graph: InferenceGraph) -> Tensor:
    """Return one random image of another size than the graph was traced with, some of its pixels without data."""
    divisor = int(graph.network.size_divisor)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    side = max(6 * divisor, 48 // divisor * divisor)
    images = torch.randn(1, spec.in_channels, side, side + 2 * divisor, generator=generator)
    images = images / graph.scale + graph.mean
    images[:, 0, :3, :5] = torch.nan
    return images


def relative_difference(found: NDArray[np.float32], graph: InferenceGraph, images: Tensor) -> float:
    """Return the largest difference from the graph's logits, relative to the largest of them."""
    with torch.no_grad():
        expected = graph(images).numpy()
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _plain(network: nn.Module) -> nn.Module:
    """Switch off what only training needs, so that nothing but the plain forward pass is traced."""
    for module in network.modules():
        for name in ("save_memory", "recomputing"):
            if hasattr(module, name):
                setattr(module, name, False)
    return network.requires_grad_(True)


def _per_band(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).view(1, -1, 1, 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter from telling which packages it could do more with, and what torch will change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own use of what it will change
            yield
    finally:
        logger.setLevel(level)
