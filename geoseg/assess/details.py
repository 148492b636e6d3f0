"""What is measured of a scene beside its confusion matrix, in the same pass, and its sum over scenes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoseg.assess.blocks import Measure
from geoseg.assess.boundary import BoundaryOverlap, boundary_iou
from geoseg.assess.calibration import Calibration, Reliability, whole_reliability
from geoseg.assess.difference import difference_map
from geoseg.assess.objects import ObjectMatcher, ObjectScores
from geoseg.geo.raster import Reading, open_raster, read_info, read_tags


@dataclass(frozen=True)
class DetailOptions:
    """What is measured.

    Attributes:
        boundary_width: Pixels, see `BoundaryOverlap`.
        object_iou: Threshold, see `ObjectMatcher`.
    """

    boundary_width: int = 3
    object_iou: float = 0.5


@dataclass(frozen=True)
class Details:
    """What was measured of one scene or of several.

    Attributes:
        boundary_common: (C,) pixels, see `BoundaryOverlap`.
        boundary_either: (C,) pixels.
        objects: Objects per class.
        reliability: None where no map of confidence or probabilities lies beside the class map.
    """

    boundary_common: NDArray[np.int64]
    boundary_either: NDArray[np.int64]
    objects: ObjectScores
    reliability: Reliability | None = None

    @property
    def boundary(self) -> NDArray[np.float64]:
        """Boundary IoU of each class, NaN where there is no boundary."""
        return boundary_iou(self.boundary_common, self.boundary_either)


class DetailMeasures:
    """The measures of one scene; `made` returns their result when all blocks were given to them.

    `warnings` says, one line each, what was left out.
    """

    def __init__(self, boundary: BoundaryOverlap, objects: ObjectMatcher, calibration: Calibration | None) -> None:
        self._boundary, self._objects, self._calibration = boundary, objects, calibration
        self.warnings: list[str] = []
        self.measures: list[Measure] = [boundary, objects, *([calibration] if calibration else [])]

    def made(self) -> Details:
        """Return what was measured."""
        reliability = self._calibration.reliability() if self._calibration else None
        return Details(self._boundary.common, self._boundary.either, self._objects.scores(), reliability)


@contextlib.contextmanager
def detail_measures(
    class_map: Path, num_classes: int, options: DetailOptions, difference: Path | None = None
) -> Iterator[DetailMeasures]:
    """Prepare the measures of a scene.

    Args:
        class_map: The class map; confidence or probabilities are looked for beside it, as `classify` names them.
        num_classes: Number of classes.
        options: What is measured.
        difference: Where to write the difference map; None: nowhere.
    """
    info = read_info(class_map, allow_palette=True)
    with contextlib.ExitStack() as stack:
        calibration = None
        confidence, warnings = confidence_beside(class_map)
        if confidence is not None:
            raster = stack.enter_context(open_raster(confidence, reading=Reading(apply_scale=True)))
            calibration = Calibration(raster)
        boundary = BoundaryOverlap(num_classes, options.boundary_width)
        measures = DetailMeasures(boundary, ObjectMatcher(num_classes, info.width, options.object_iou), calibration)
        measures.warnings += warnings
        if difference is not None:
            measures.measures.append(stack.enter_context(difference_map(difference, info)))
        yield measures


def confidence_beside(class_map: Path) -> tuple[Path | None, list[str]]:
    """Return the map of confidence, or else of probabilities, that `classify` wrote with a class map.

    Also returned is a warning for each that lies there but was made with another class map.
    """
    stem = class_map.stem.removesuffix("_classes")
    warnings = []
    for kind in ("confidence", "probabilities"):
        path = class_map.with_name(f"{stem}_{kind}{class_map.suffix}")
        if not path.is_file() or path == class_map:
            continue
        stranger = _stranger(path, class_map)
        if stranger is None:
            return path, warnings
        remedy = "it is not used for calibration; classify again with outputs of both"
        warnings.append(f"{path}: {stranger} than {class_map}; {remedy}")
    return None, warnings


def _stranger(path: Path, class_map: Path) -> str | None:
    """Return what shows that a map was not made with the class map; None where nothing does."""
    tags, others = read_tags(class_map), read_tags(path)
    key = "RUN" if "RUN" in tags and "RUN" in others else "MODEL_HASH"
    if tags.get(key) != others.get(key):
        return f"made by another {'run of classify' if key == 'RUN' else 'model'}"
    info, other = read_info(class_map, allow_palette=True), read_info(path)
    near = info.transform.almost_equals(other.transform, 1e-9)
    return None if other.window == info.window and other.crs == info.crs and near else "of another grid"


def whole_details(parts: Sequence[Details]) -> Details:
    """Return the sum over scenes (at least one); reliability over those that have it."""
    objects = parts[0].objects
    for part in parts[1:]:
        objects = objects + part.objects
    known = [part.reliability for part in parts if part.reliability is not None]
    return Details(
        boundary_common=np.sum([part.boundary_common for part in parts], axis=0),
        boundary_either=np.sum([part.boundary_either for part in parts], axis=0),
        objects=objects,
        reliability=whole_reliability(known) if known else None,
    )
