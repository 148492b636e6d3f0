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
from geoseg.geo.raster import Reading, open_raster, read_info


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
    """The measures of one scene; `made` returns their result when all blocks were given to them."""

    def __init__(self, boundary: BoundaryOverlap, objects: ObjectMatcher, calibration: Calibration | None) -> None:
        self._boundary, self._objects, self._calibration = boundary, objects, calibration
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
        if confidence := confidence_beside(class_map):
            raster = stack.enter_context(open_raster(confidence, reading=Reading(apply_scale=True)))
            calibration = Calibration(raster) if raster.info.window == info.window else None
        boundary = BoundaryOverlap(num_classes, options.boundary_width)
        measures = DetailMeasures(boundary, ObjectMatcher(num_classes, info.width, options.object_iou), calibration)
        if difference is not None:
            measures.measures.append(stack.enter_context(difference_map(difference, info)))
        yield measures


def confidence_beside(class_map: Path) -> Path | None:
    """Return the map of confidence, or else of probabilities, that `classify` wrote with a class map."""
    stem = class_map.stem.removesuffix("_classes")
    places = (class_map.with_name(f"{stem}_{kind}{class_map.suffix}") for kind in ("confidence", "probabilities"))
    return next((path for path in places if path.is_file() and path != class_map), None)


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
