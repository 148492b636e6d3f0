"""What one pass over the validation samples finds, and which figure of it decides.

Everything is counted in whole numbers and added up before it is divided (the loss alone is a sum of fractions), so
batches and processes change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoseg.errors import ConfigError, problem
from geoseg.learn.boundaryiou import boundary_iou, count_boundaries
from geoseg.learn.calibration import BINS, calibration_error, calibration_table, count_confidence
from geoseg.learn.metrics import Scores, scores

# Figure of the validation -> whether more is better.
MONITORS = {
    "mean_iou": True,
    "mean_f1": True,
    "mean_precision": True,
    "mean_recall": True,
    "fw_iou": True,
    "accuracy": True,
    "kappa": True,
    "ece": False,
    "boundary_iou": True,
    "loss": False,
}
# Figures of one class, as in iou:roof; more is better.
CLASS_MONITORS = ("iou", "f1", "precision", "recall")
_MOST_CELLS = 1 << 24  # of all scenes' matrices: 128 MiB


def more_is_better(monitor: str) -> bool:
    """Whether a better validation has more of the figure."""
    return MONITORS.get(monitor, True)


def check_monitor(monitor: str, class_names: Sequence[str], boundary: int) -> None:
    """Refuse a figure that validation will not find.

    Args:
        monitor: As in the config's `training.monitor`.
        class_names: Names of the classes.
        boundary: Width for the boundary IoU; 0 leaves that out.

    Raises:
        ConfigError: An unknown class, or the boundary IoU without a width.
    """
    name, _, wanted = monitor.partition(":")
    if wanted and wanted not in class_names:
        expected = f"{name}: and one of {', '.join(class_names)}"
        raise ConfigError(problem("training.monitor", monitor, expected, "correct the name of the class"))
    if monitor == "boundary_iou" and not boundary:
        remedy = "set training.boundary_iou, such as to 3"
        raise ConfigError(problem("training.monitor", "boundary_iou, which is not computed", "its width", remedy))


@dataclass(frozen=True)
class Findings:
    """What a validation found.

    Attributes:
        loss: Mean loss over the known pixels; NaN where there is none.
        scores: Of the confusion matrix over all samples.
        confusion: The matrix, (C, C), rows reference.
        ece: Expected calibration error.
        calibration: One mapping per bin, see `calibration_table`.
        boundary: (C,) boundary IoU, or None if not asked for.
        scenes: Matrix of each scene, by name.
    """

    loss: float
    scores: Scores
    confusion: NDArray[np.int64]
    ece: float
    calibration: Sequence[Mapping[str, Any]]
    boundary: NDArray[np.float64] | None
    scenes: Mapping[str, NDArray[np.int64]]

    def figures(self) -> dict[str, float]:
        """Return every figure of MONITORS that there is, by name."""
        result = self.scores
        found = {"loss": self.loss, "accuracy": result.overall_accuracy, "mean_iou": result.mean_iou}
        found |= {name: getattr(result, name) for name in ("mean_f1", "mean_precision", "mean_recall", "fw_iou")}
        found |= {"kappa": result.kappa, "ece": self.ece}
        if self.boundary is not None:
            defined = self.boundary[~np.isnan(self.boundary)]
            found["boundary_iou"] = float(defined.mean()) if defined.size else math.nan
        return found

    def value(self, monitor: str, class_names: Sequence[str]) -> float:
        """Return the figure that a name in MONITORS, or such as iou:roof, stands for."""
        name, _, wanted = monitor.partition(":")
        if not wanted:
            return self.figures()[name]
        return float(getattr(self.scores, name)[list(class_names).index(wanted)])

    def row(self, class_names: Sequence[str]) -> dict[str, float]:
        """Return the columns of `metrics.csv`."""
        row = {f"val_{name}": value for name, value in self.figures().items()}
        for name in CLASS_MONITORS:
            values = getattr(self.scores, name).tolist()
            row |= {f"val_{name}_{of}": value for of, value in zip(class_names, values, strict=True)}
        if self.boundary is not None:
            pairs = zip(class_names, self.boundary.tolist(), strict=True)
            row |= {f"val_boundary_iou_{of}": value for of, value in pairs}
        return row

    def to_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return plain values for JSON, None for what is undefined."""
        return {
            "classes": list(class_names),
            **{name: _plain(value) for name, value in self.figures().items()},
            **{name: self.scores.to_dict()[name] for name in CLASS_MONITORS},
            "boundary_iou_by_class": None if self.boundary is None else [_plain(x) for x in self.boundary.tolist()],
            "confusion": self.confusion.tolist(),
            "calibration": [dict(entry) for entry in self.calibration],
            "scenes": [_scene(name, matrix) for name, matrix in self.scenes.items()],
        }


class Validation:
    """Adds up what the batches of a validation say.

    Args:
        num_classes: Number of classes.
        ignore_value: Label of unknown pixels.
        device: Where the sums are kept.
        scenes: Scene of each sample of this process, in the order of its batches; None: all of one.
        names: Name of each scene, the same in all processes.
        boundary: Width for the boundary IoU in pixels; 0 leaves it out.

    Attributes:
        sums: What to add up over processes, by name: tensors of int64 and, for the loss, float64.
    """

    def __init__(
        self,
        num_classes: int,
        ignore_value: int,
        device: torch.device | str = "cpu",
        scenes: Sequence[int] | None = None,
        names: Sequence[str] = (),
        boundary: int = 0,
    ) -> None:
        self._classes, self._ignore, self._boundary, self._seen = num_classes, ignore_value, boundary, 0
        by_scene = scenes is not None and len(names) * num_classes**2 <= _MOST_CELLS
        self._names = tuple(names) if by_scene else ()
        self._scenes = torch.as_tensor(scenes, dtype=torch.int64, device=device) if by_scene else None
        cells = max(1, len(self._names)) * num_classes**2
        self.sums = {
            "loss": torch.zeros(2, dtype=torch.float64, device=device),
            "confusion": torch.zeros(cells, dtype=torch.int64, device=device),
            "calibration": torch.zeros(BINS, 3, dtype=torch.int64, device=device),
            "boundary": torch.zeros(num_classes, 3, dtype=torch.int64, device=device),
        }

    @torch.no_grad()
    def update(self, logits: Tensor, label: Tensor, total: Tensor, weight: Tensor) -> None:
        """Add a batch.

        Args:
            logits: (N, C, H, W).
            label: (N, H, W) int64.
            total: Loss times weight.
            weight: Of the known pixels.
        """
        # Not argmax, which is ten times slower over a strided dimension.
        predicted = logits.max(dim=1)[1]
        self.sums["loss"] += torch.stack([total.double(), weight.double()])
        self.sums["confusion"] += self._count(predicted, label)
        self.sums["calibration"] += count_confidence(logits, label, self._ignore)
        if self._boundary:
            self.sums["boundary"] += count_boundaries(predicted, label, self._ignore, self._classes, self._boundary)
        self._seen += len(label)

    def _count(self, predicted: Tensor, label: Tensor) -> Tensor:
        known = label != self._ignore
        pairs = label * self._classes + predicted
        if self._scenes is not None:
            scene = self._scenes[self._seen : self._seen + len(label)]
            pairs += scene[:, None, None] * self._classes**2
        return torch.bincount(pairs[known], minlength=len(self.sums["confusion"]))

    def findings(self) -> Findings:
        """Return what the sums say."""
        sums = {name: tensor.cpu().numpy() for name, tensor in self.sums.items()}
        matrices = sums["confusion"].reshape(-1, self._classes, self._classes)
        total, weight = sums["loss"].tolist()
        return Findings(
            loss=total / weight if weight > 0 else math.nan,
            scores=scores(matrices.sum(axis=0)),
            confusion=matrices.sum(axis=0),
            ece=calibration_error(sums["calibration"]),
            calibration=calibration_table(sums["calibration"]),
            boundary=boundary_iou(sums["boundary"]) if self._boundary else None,
            scenes=dict(zip(self._names, matrices, strict=True)) if self._names else {},
        )


def _scene(name: str, matrix: NDArray[np.int64]) -> dict[str, Any]:
    result = scores(matrix)
    plain = result.to_dict()
    figures = {key: plain[key] for key in ("mean_iou", "mean_f1", "kappa", "iou")}
    return {"scene": name, "pixels": int(matrix.sum()), "accuracy": plain["overall_accuracy"], **figures}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
