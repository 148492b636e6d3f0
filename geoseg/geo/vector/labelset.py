"""Label polygons that are ready to be burnt, and what was done to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoseg.geo.vector.reproject import as_pyproj
from geoseg.geo.vector.turns import laid, turn_of


@dataclass(frozen=True)
class LabelReport:
    """What was done to the features of a label file.

    Attributes:
        read: Features in the layer.
        null_geometry: Features without a geometry (left out).
        empty: Features with an empty geometry, or none left after repair (left out).
        not_polygon: Points and lines that no buffer makes wider (left out).
        repaired: Self-crossing or otherwise invalid polygons that were repaired.
        null_value: Polygons without an attribute value (unknown ground).
        ignored: Polygons with a value to ignore (unknown ground).
        unmapped: Polygons whose value stands for no class.
        vanished: Polygons of which a negative buffer leaves nothing (left out).
        around: Polygons with edges of more than half the globe.
        reprojected: Whether they were in another CRS than the image.
        datum_shift: Whether that CRS is tied to the earth differently.
    """

    read: int
    null_geometry: int = 0
    empty: int = 0
    not_polygon: int = 0
    repaired: int = 0
    null_value: int = 0
    ignored: int = 0
    unmapped: int = 0
    vanished: int = 0
    around: int = 0
    reprojected: bool = False
    datum_shift: bool = False


@dataclass
class LabelSet:
    """Polygons with class ids, in the image's CRS.

    Attributes:
        geometries: (features,) shapely polygons and multipolygons in the order in which they are burnt.
        ids: (features,) uint8 class ids or the ignore value.
        layer: Name of the layer they came from.
        counts: What was done to them.
        warnings: What the user should know, one line each.
        all_touched: Whether they burn all pixels they touch.
        cache: Pixel coordinates for burning; not carried to other processes.
    """

    geometries: NDArray[Any]
    ids: NDArray[np.uint8]
    layer: str
    counts: LabelReport
    warnings: list[str] = field(default_factory=list)
    all_touched: bool = False
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.geometries)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}


def on_map(labels: LabelSet, crs: Any, transform: Affine, shape: tuple[int, int]) -> LabelSet:
    """Return labels on the turns of the globe that a raster shows (0 to 360 degrees, say, where they end at 180).

    Args:
        labels: In the raster's CRS.
        crs: That CRS (rasterio, pyproj, or anything pyproj reads), or None.
        transform: Of the raster.
        shape: Its height and width.
    """
    turn = turn_of(as_pyproj(crs, "the image"))
    if turn is None or not len(labels):
        return labels
    corners = [transform.c + transform.a * col + transform.b * row for col in (0, shape[1]) for row in (0, shape[0])]
    return replace(labels, geometries=laid(labels.geometries, turn, min(corners), max(corners)), cache={})
