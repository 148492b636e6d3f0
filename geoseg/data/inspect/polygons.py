"""What the polygons of a label file are like: their classes, their flaws, and how they lie on the image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from geoseg.geo.raster import RasterInfo
from geoseg.geo.vector import LabelSet, coverage
from geoseg.geo.vector.burning import in_pixels

MOST_PAIRS = 200_000  # that are intersected; more take minutes and tell no more
NOTHING = 0.001  # a share that is shown as 0.0 or 0.1 %
_SHARED = 0.5  # pixels: less is what digitising along a common border leaves


@dataclass(frozen=True)
class PolygonFacts:
    """What a scene's polygons are like.

    Attributes:
        layer: Where they come from.
        features: Features in the layer.
        classes: Polygons per class id.
        crs: "none", "equal", "reprojected" or "reprojected, datum differs".
        null_geometry: Features without a geometry.
        empty: Features with an empty one.
        not_polygon: Points and lines.
        repaired: Invalid polygons, repaired.
        null_value: Polygons without a value: unknown ground.
        ignored: Polygons with a value to ignore: unknown ground.
        unmapped: Polygons with a value of no class.
        duplicates: Polygons equal to an earlier one.
        overlapping: Pairs of different classes that share ground; the later polygon wins there.
        overlapping_same: Pairs of one class that share ground.
        pairs_complete: Whether all pairs were looked at.
        unburnt: Polygons on the image that cover no pixel centre.
        outside: Polygons off the image.
        on_image: Share of the polygons' area that lies on the image, 0..1.
        warnings: What the user should know.
    """

    layer: str
    features: int
    classes: Mapping[int, int]
    crs: str
    null_geometry: int
    empty: int
    not_polygon: int
    repaired: int
    null_value: int
    ignored: int
    unmapped: int
    duplicates: int
    overlapping: int
    overlapping_same: int
    pairs_complete: bool
    unburnt: int
    outside: int
    on_image: float
    warnings: tuple[str, ...] = field(default=())


def inspect_polygons(name: str, labels: LabelSet, info: RasterInfo) -> PolygonFacts:
    """Return what polygons are like.

    Args:
        name: Of their file, for messages.
        labels: In the CRS of the image.
        info: Of the image.
    """
    counts = labels.counts
    geometries, _ = in_pixels(labels, info.transform)
    area, inside = shapely.area(geometries).sum(), _area_inside(geometries, info)
    first, duplicates = _duplicates(geometries)
    overlapping, same, complete = _overlaps(geometries[first], labels.ids[first])
    lying = coverage(labels, info.transform, info.height, info.width)
    facts: dict[str, Any] = {
        "duplicates": duplicates,
        "overlapping": overlapping,
        "overlapping_same": same,
        "unburnt": lying.unburnt,
        "outside": lying.outside,
        "on_image": float(inside / area) if area > 0 else 0.0,
    }
    return PolygonFacts(
        layer=labels.layer,
        features=counts.read,
        classes=dict(sorted(Counter(labels.ids.tolist()).items())),
        crs=_crs_text(counts.reprojected, counts.datum_shift, info.crs is not None),
        null_geometry=counts.null_geometry,
        empty=counts.empty,
        not_polygon=counts.not_polygon,
        repaired=counts.repaired,
        null_value=counts.null_value,
        ignored=counts.ignored,
        unmapped=counts.unmapped,
        pairs_complete=complete,
        warnings=tuple(f"{name}: {text}" for text in _warnings(facts, len(labels), complete)),
        **facts,
    )


def _crs_text(reprojected: bool, datum_shift: bool, known: bool) -> str:
    if reprojected:
        return "reprojected, datum differs" if datum_shift else "reprojected"
    return "equal" if known else "none"


def _warnings(facts: Mapping[str, Any], polygons: int, complete: bool) -> list[str]:
    lines = []
    if facts["duplicates"]:
        lines.append(f"{facts['duplicates']} polygons are there twice; the later one counts")
    if facts["overlapping"]:
        more = "" if complete else "at least "
        lines.append(f"{more}{facts['overlapping']} pairs of polygons of different classes overlap; the later one wins")
    # Polygons that no image could show whole are fine; but where next to nothing is on it, something is likely wrong.
    if facts["on_image"] < (0.5 if facts["outside"] else NOTHING):
        share = 100 * facts["on_image"]
        lines.append(
            f"only {share:.1f} % of the polygons' area lies on the image ({facts['outside']} of {polygons} off)"
        )
    return lines


def _area_inside(geometries: NDArray[Any], info: RasterInfo) -> float:
    """Return the area, in pixels, that lies on the image."""
    left, top, right, bottom = shapely.bounds(geometries).T.reshape(4, -1)
    whole = (left >= 0) & (top >= 0) & (right <= info.width) & (bottom <= info.height)
    partly = ~whole & (left < info.width) & (top < info.height) & (right > 0) & (bottom > 0)
    cut = shapely.clip_by_rect(geometries[partly], 0, 0, info.width, info.height)
    return float(shapely.area(geometries[whole]).sum() + shapely.area(cut).sum())


def _duplicates(geometries: NDArray[Any]) -> tuple[NDArray[np.intp], int]:
    """Return the places of geometries that equal no earlier one, and how many do."""
    texts = shapely.to_wkb(shapely.normalize(geometries))
    seen: dict[bytes, int] = {}
    for index, text in enumerate(texts):
        seen.setdefault(text, index)
    first = np.fromiter(seen.values(), np.intp, len(seen))
    return first, len(geometries) - len(first)


def _overlaps(geometries: NDArray[Any], ids: NDArray[np.uint8]) -> tuple[int, int, bool]:
    """Return the pairs that share ground, of different classes and of one, and whether all pairs were looked at."""
    if len(geometries) < 2:
        return 0, 0, True
    valid = shapely.is_valid(geometries)
    if not valid.all():  # rounding to the pixel grid may fold a spike
        geometries = geometries.copy()
        geometries[~valid] = shapely.make_valid(geometries[~valid], method="structure", keep_collapsed=False)
    one, other = shapely.STRtree(geometries).query(geometries, predicate="intersects")
    one, other = one[one < other], other[one < other]
    complete = len(one) <= MOST_PAIRS
    one, other = one[:MOST_PAIRS], other[:MOST_PAIRS]
    touching = shapely.relate_pattern(geometries[one], geometries[other], "T********")
    one, other = one[touching], other[touching]
    shared = shapely.area(shapely.intersection(geometries[one], geometries[other])) > _SHARED
    differ = ids[one] != ids[other]
    return int((shared & differ).sum()), int((shared & ~differ).sum()), complete
