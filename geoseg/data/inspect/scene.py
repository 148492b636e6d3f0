"""One scene looked at closely, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geoseg.data.inspect.expect import SampleCount
from geoseg.data.inspect.offset import REACH, Offset, label_edges, label_offset
from geoseg.data.inspect.pixels import SIDE, PixelFacts, inspect_pixels, scaled_differently
from geoseg.data.inspect.polygons import NOTHING, PolygonFacts, inspect_polygons
from geoseg.data.sampling import SampleOptions
from geoseg.data.scenes import Scene
from geoseg.data.survey import Findings, SceneFindings, conclude, look, scene_ground
from geoseg.errors import GeosegError
from geoseg.geo.grid import Window
from geoseg.geo.ground import Ground
from geoseg.geo.raster import RasterInfo, open_raster
from geoseg.geo.vector import LabelSet

_PATCH = 768  # side, pixels, of a part of the scene in which edges are compared
_PATCHES = 3


@dataclass(frozen=True)
class SceneReport:
    """What there is to say of a scene.

    Attributes:
        scene: As listed.
        info: What the raster says of itself; None where it cannot be opened.
        bands: Numbers of the bands to use; empty where they cannot be chosen.
        pixels: What its pixels show; None where they cannot be read.
        polygons: What its polygons are like; None where there are none to look at.
        offset: How far the labels lie beside the image's edges, if they do.
        expected: The samples to expect; None where it cannot be sampled.
        problems: What is wrong.
        warnings: What the user should know.
    """

    scene: Scene
    info: RasterInfo | None
    bands: tuple[int, ...]
    pixels: PixelFacts | None
    polygons: PolygonFacts | None
    offset: Offset | None
    expected: SampleCount | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """All scenes, and what concerns them together."""

    scenes: tuple[SceneReport, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def all_problems(self) -> list[str]:
        """Every problem once."""
        return list(dict.fromkeys([p for s in self.scenes for p in s.problems] + list(self.problems)))

    @property
    def all_warnings(self) -> list[str]:
        """Every warning once."""
        return list(dict.fromkeys([w for s in self.scenes for w in s.warnings] + list(self.warnings)))


def inspect_scenes(
    scenes: Sequence[Scene], options: SampleOptions, key: str, on_progress: Callable[[int], None] | None = None
) -> tuple[Findings, Inspection]:
    """Look at all scenes closely; samples are counted apart (see `with_counts`).

    Args:
        scenes: As listed.
        options: How they would be sampled.
        key: Names this state of files and options, for the cache of labels.
        on_progress: Called with the number of scenes that were looked at.

    Returns:
        What the fast part found, which says whether all can be sampled, and what a close look has shown.
    """
    findings, reports = [], []
    for scene in scenes:
        found = look(scene, options.survey, key)
        findings.append(found)
        reports.append(_inspect(found, options, key))
        if on_progress:
            on_progress(1)
    together = conclude(findings, options.survey)
    reports = [_in_order(report, found.bands) for report, found in zip(reports, together.scenes, strict=True)]
    warnings = [*together.warnings, *_scales(reports)]
    return together, Inspection(tuple(reports), together.problems, tuple(warnings))


def _in_order(report: SceneReport, bands: tuple[int, ...]) -> SceneReport:
    """Return a report with its bands in the order common to all scenes."""
    if not bands or report.bands == bands:
        return report
    pixels = report.pixels
    if pixels is not None:
        ranges = {found.band: found for found in pixels.ranges}
        pixels = replace(pixels, ranges=tuple(ranges[band] for band in bands))
    return replace(report, bands=bands, pixels=pixels)


def with_counts(inspection: Inspection, counts: Mapping[str, SampleCount | list[str]]) -> Inspection:
    """Return the inspection with what sampling would yield, by scene id."""
    reports = []
    for report in inspection.scenes:
        found = counts.get(report.scene.scene_id)
        if isinstance(found, SampleCount):
            warnings = report.warnings
            if not found.samples:
                left_out = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items())
                warnings += (f"{report.scene.image}: no samples to expect (left out: {left_out})",)
            share = None if report.info is None or report.polygons is not None else found.labelled(report.info)
            if share is not None and share < NOTHING:
                warnings += (f"{report.scene.labels}: only {100 * share:.1f} % of the image are labelled",)
            report = replace(report, expected=found, warnings=warnings)
        elif found is not None:
            problems = dict.fromkeys([*report.problems, *_located(report.scene, found)])
            report = replace(report, problems=tuple(problems))
        reports.append(report)
    return replace(inspection, scenes=tuple(reports))


def _located(scene: Scene, problems: Sequence[str]) -> list[str]:
    return [f"{scene.where}: {line}" if scene.where else line for line in problems]


def _inspect(found: SceneFindings, options: SampleOptions, key: str) -> SceneReport:
    problems, warnings = list(found.problems), list(found.warnings)
    info, scene = found.info, found.scene
    report = SceneReport(scene, info, (), None, None, None, None, (), ())
    if info is not None:
        bands = found.bands or info.image_bands
        report = replace(report, bands=bands)
        try:
            with open_raster(info.path, bands, reading=info.reading) as raster:
                pixels = inspect_pixels(info, bands, raster.thumbnail(SIDE))
            report = replace(report, pixels=pixels)
            warnings += pixels.warnings
        except GeosegError as error:
            problems += _located(scene, error.problems)
        report = replace(report, **_inspect_labels(scene, info, bands, options, key))
        warnings += report.polygons.warnings if report.polygons else ()
        warnings += _offset_warning(report)
    return replace(report, problems=tuple(dict.fromkeys(problems)), warnings=tuple(dict.fromkeys(warnings)))


def _inspect_labels(
    scene: Scene, info: RasterInfo, bands: Sequence[int], options: SampleOptions, key: str
) -> dict[str, Any]:
    """Return the fields of the report that come from the labels; what is wrong with them the survey has said."""
    try:
        ground = scene_ground(scene, info, options.survey, key)
        found: dict[str, Any] = {"offset": _offset(info, bands, ground)}
        if isinstance(ground.labels, LabelSet) and len(ground.labels):
            found["polygons"] = inspect_polygons(str(scene.labels), ground.labels, info)
        return found
    except GeosegError:
        return {}


def _offset(info: RasterInfo, bands: Sequence[int], ground: Ground) -> Offset | None:
    """Return the offset of labels, found in the parts of the scene where most of their edges lie."""
    patches = []
    with open_raster(info.path, list(bands)[:4], reading=info.reading) as raster:
        for window in _busiest(ground, info):
            image, valid = raster.read(window)
            patches.append((image, valid, ground.read(window, info)))
    return label_offset(patches)


def _busiest(ground: Ground, info: RasterInfo) -> list[Window]:
    """Return the parts of a scene that hold most edges of labels."""
    height, width = min(_PATCH, info.height), min(_PATCH, info.width)
    if min(height, width) <= 2 * REACH:
        return []
    factor = max(1.0, max(info.height, info.width) / SIDE)
    shape = max(1, round(info.height / factor)), max(1, round(info.width / factor))
    rows, cols = np.nonzero(label_edges(ground.thinned(info, shape)))
    cells = np.column_stack([rows * info.height // shape[0] // height, cols * info.width // shape[1] // width])
    places, counts = np.unique(cells, axis=0, return_counts=True)
    windows = []
    for row, col in places[np.argsort(-counts, kind="stable")[:_PATCHES]].tolist():
        top, left = min(row * height, info.height - height), min(col * width, info.width - width)
        windows.append(Window(top, left, height, width))
    return list(dict.fromkeys(windows))


def _offset_warning(report: SceneReport) -> list[str]:
    if report.offset is None or not report.offset.shifted:
        return []
    text = f"the labels seem to lie {offset_text(report.offset)} what the image shows"
    return [f"{report.scene.labels}: {text}; lay one over the other, and check CRS and datum of both"]


def offset_text(offset: Offset) -> str:
    """Return direction and length in words: '5 pixels right of and 3 pixels above'."""
    across = f"{abs(offset.columns)} pixels {'right' if offset.columns > 0 else 'left'} of" if offset.columns else ""
    down = f"{abs(offset.rows)} pixels {'below' if offset.rows > 0 else 'above'}" if offset.rows else ""
    return " and ".join(part for part in (across, down) if part)


def _scales(reports: Sequence[SceneReport]) -> list[str]:
    """Compare the ranges of images of one type."""
    by_type: dict[tuple[str, int], list[tuple[str, Any]]] = {}
    for report in reports:
        if report.info is not None and report.pixels is not None:
            key = report.info.dtype, len(report.bands)
            by_type.setdefault(key, []).append((str(report.scene.image), report.pixels.ranges))
    return [line for group in by_type.values() for line in scaled_differently(group)]


def orientation(info: RasterInfo) -> str:
    """Return how a raster lies on the ground, in words."""
    if not info.georeferenced:
        if info.gcps:
            return f"{len(info.gcps)} ground control points, no transform"
        return "rational polynomial coefficients, no transform" if info.rpcs else "no georeference"
    t = info.transform
    if t.b or t.d:
        angle = abs(math.degrees(math.atan2(t.d, t.a)))
        words = [f"rotated by {min(angle, 180 - angle):.1f} degrees" + (", mirrored" if t.determinant > 0 else "")]
    else:
        words = ["north-up" if t.e < 0 else "south-up"] + (["mirrored"] if t.a < 0 else [])
    x, y = info.resolution
    if not math.isclose(x, y, rel_tol=0.01):
        words.append("pixels not square")
    return ", ".join(words)


def unit(info: RasterInfo) -> str:
    """Return the unit of a raster's coordinates."""
    if info.crs is None:
        return "units"
    return "degrees" if info.crs.is_geographic else str(info.crs.linear_units or "units")


def crs_name(info: RasterInfo) -> str:
    """Return what a raster's CRS is called; "no CRS" for none."""
    if info.crs is None:
        return "no CRS"
    code = info.crs.to_epsg()
    if code is not None:
        return f"EPSG:{code}"
    text = info.crs.to_wkt()
    quoted = text.split('"')
    return quoted[1] if len(quoted) > 1 else text
