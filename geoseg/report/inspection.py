"""What `check` says: lines for people, and plain values for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from geoseg.data.inspect import Inspection, SampleCount, SceneReport, crs_name, offset_text, orientation, unit
from geoseg.data.inspect.offset import Offset
from geoseg.data.inspect.pixels import PixelFacts
from geoseg.data.inspect.polygons import PolygonFacts
from geoseg.data.splitnames import SPLITS
from geoseg.geo.raster import RasterInfo

_BANDS_SHOWN = 8
_HEAD = 12  # width of the names in front of the lines


def scene_lines(report: SceneReport, class_names: Sequence[str]) -> list[str]:
    """Return the table of one scene: a line per subject, then warnings and the verdict."""
    rows: list[tuple[str, str]] = [("image", str(report.scene.image))]
    if report.info is not None:
        rows += _raster_rows(report.info, report.bands)
    if report.pixels is not None and report.info is not None:
        rows += _pixel_rows(report.info, report.pixels, report.expected)
    rows += _label_rows(report)
    if report.polygons is not None:
        rows += _polygon_rows(report, report.polygons, class_names)
    elif report.expected is not None and report.info is not None:
        rows.append(("overlap", f"{100 * report.expected.labelled(report.info):.1f} % of the pixels are labelled"))
    if report.polygons is not None or report.offset is not None:
        rows.append(("offset", _offset_text(report.offset)))
    if report.expected is not None:
        rows.append(("samples", samples_text(report.expected)))
    rows += [("warning", text) for text in report.warnings]
    rows += [("error", text) for text in report.problems]
    rows.append(("verdict", verdict(len(report.problems), len(report.warnings))))
    heading = f"{report.scene.scene_id} ({report.scene.split})"
    return [heading, *(f"  {name:<{_HEAD}}{text}" for name, text in rows), ""]


def verdict(problems: int, warnings: int) -> str:
    """Return the judgement in words."""
    words = [
        f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((problems, "error"), (warnings, "warning"))
    ]
    return ", ".join(text for text, count in zip(words, (problems, warnings), strict=True) if count) or "good"


def samples_text(found: SampleCount) -> str:
    """Return what a scene would yield."""
    left_out = "".join(f", {count:,} left out: {reason}" for reason, count in found.dropped.items())
    kept = ", ".join(f"{count:,} {split}" for split, count in found.kept.items() if count) or "none"
    how = "exact" if found.exact else f"about, from {found.blocks_read} of {found.blocks} blocks"
    return f"{kept}{left_out} ({how})"


def _raster_rows(info: RasterInfo, bands: Sequence[int]) -> list[tuple[str, str]]:
    names = [f"{band} {name}" if (name := info.band_names[band - 1]) else str(band) for band in bands]
    shown = ", ".join(names[:_BANDS_SHOWN]) + (f" and {len(names) - _BANDS_SHOWN} more" if names[_BANDS_SHOWN:] else "")
    x, y = info.resolution
    place = f"{crs_name(info)}, {orientation(info)}"
    if info.georeferenced:
        place += f", pixels of {x:.6g} x {y:.6g} {unit(info)}"
    return [
        ("size", f"{info.width} x {info.height} pixels (across, down), {info.count} bands of {info.dtype}"),
        ("bands", f"{shown or 'none'} are used"),
        ("ground", place),
        ("no data", _nodata_text(info)),
    ]


def _nodata_text(info: RasterInfo) -> str:
    values = sorted({f"{value:g}" for value in info.nodata_values if value is not None})
    parts = [f"nodata value {', '.join(values)}" if values else "no nodata value"]
    if info.alpha_band:
        parts.append(f"alpha band {info.alpha_band}")
    if info.masked or info.band_masks:
        parts.append("a mask" if info.masked else "a mask for each band")
    return ", ".join(parts)


def _pixel_rows(info: RasterInfo, pixels: PixelFacts, expected: SampleCount | None) -> list[tuple[str, str]]:
    ranges = [(r.band, r.low, r.high) for r in pixels.ranges]
    share, how = pixels.valid_fraction, _thinned_text(pixels)
    if expected is not None and expected.exact:
        ranges = [
            (r.band, low, high) for r, low, high in zip(pixels.ranges, expected.lows, expected.highs, strict=True)
        ]
        share, how = expected.valid_fraction, "of all pixels"
    texts = [f"band {band} {low:g} to {high:g}" for band, low, high in ranges if low is not None and high is not None]
    shown = "; ".join(texts[:_BANDS_SHOWN]) + (f" and {len(texts) - _BANDS_SHOWN} more" if texts[_BANDS_SHOWN:] else "")
    return [("data", f"{100 * share:.1f} % {how} hold data"), ("values", shown or "none")]


def _thinned_text(pixels: PixelFacts) -> str:
    if pixels.thinning <= 1:
        return "of all pixels"
    return f"of every {pixels.thinning:.0f}th pixel of every {pixels.thinning:.0f}th row"


def _label_rows(report: SceneReport) -> list[tuple[str, str]]:
    scene = report.scene
    if scene.labels is None:
        return [("labels", "none")]
    layer = scene.layer or (report.polygons.layer if report.polygons else None)
    parts = [str(scene.labels)] + ([f"layer {layer}"] if layer else [])
    return [("labels", ", ".join([*parts, f"attribute {scene.attribute}" if scene.attribute else "no attribute"]))]


def _polygon_rows(report: SceneReport, facts: PolygonFacts, class_names: Sequence[str]) -> list[tuple[str, str]]:
    named = dict(enumerate(class_names))
    classes = [f"{named[i]} {count:,}" for i, count in facts.classes.items() if i in named]
    unknown = {"without a value": facts.null_value, "to ignore": facts.ignored, "of no class": facts.unmapped}
    flaws = {
        "without geometry": facts.null_geometry + facts.empty,
        "points or lines": facts.not_polygon,
        "invalid (repaired)": facts.repaired,
        "there twice": facts.duplicates,
        "overlaps of different classes": facts.overlapping,
        "overlaps of one class": facts.overlapping_same,
        "too thin to burn": facts.unburnt,
    }
    crs = {"none": "no CRS on either side: the same coordinates are assumed", "equal": "that of the image"}
    return [
        ("label CRS", crs.get(facts.crs, f"{facts.crs}")),
        ("geometries", f"{facts.features:,} features; " + (_counts(flaws) or "none flawed")),
        ("classes", ", ".join(classes + [f"{count:,} {text}" for text, count in unknown.items() if count]) or "none"),
        ("overlap", f"{100 * facts.on_image:.1f} % of the polygons' area lies on the image{_covered(report.expected)}"),
    ]


def _covered(found: SampleCount | None) -> str:
    known = sum(found.scene_pixels) if found else 0
    return (
        f"; {100 * (1 - found.scene_pixels[0] / known):.1f} % of the known pixels are of a class"
        if known and found
        else ""
    )


def _counts(named: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {text}" for text, count in named.items() if count)


def _offset_text(offset: Offset | None) -> str:
    if offset is None:
        return "not to be told: too few edges of labels"
    if not offset.clear:
        return f"not to be told: the image shows no edges there (score {offset.score:.0f})"
    if not offset.shifted:
        return f"none: edges of labels lie on edges of the image (score {offset.score:.0f})"
    return f"labels lie {offset_text(offset)} what the image shows (score {offset.score:.0f})"


def together_lines(expected: Mapping[str, Any], needs: Mapping[str, Any]) -> list[str]:
    """Return the table of all scenes: samples and pixels per split and class, then what sampling needs.

    Args:
        expected: From `expected_values`.
        needs: Name and text of each further line.
    """
    splits = list(expected["splits"])
    rows = [["all scenes", *splits]]
    rows.append(["  samples", *(f"{expected['splits'][split]['samples']:,}" for split in splits)])
    for number, name in enumerate(expected["classes"]):
        cells = []
        for split in splits:
            counts = expected["splits"][split]["class_pixels"]
            cells.append(f"{counts[number]:,} ({100 * counts[number] / (sum(counts) or 1):5.1f} %)")
        rows.append([f"  {number} {name}", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
    return [*lines, *(f"  {name:<{_HEAD}}{text}" for name, text in needs.items()), ""]


def expected_values(inspection: Inspection, class_names: Sequence[str]) -> dict[str, Any]:
    """Return samples and pixels per split and class, as plain values."""
    splits: dict[str, dict[str, Any]] = {}
    exact = True
    for report in inspection.scenes:
        found = report.expected
        if found is None:
            continue
        for split in SPLITS:
            if found.kept[split] or split == report.scene.split:
                entry = splits.setdefault(split, {"samples": 0, "class_pixels": [0] * len(class_names)})
                entry["samples"] += found.kept[split]
                pairs = zip(entry["class_pixels"], found.class_pixels[split], strict=True)
                entry["class_pixels"] = [a + b for a, b in pairs]
        exact = exact and found.exact
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return {"classes": list(class_names), "exact": exact, "splits": ordered}


def scene_values(report: SceneReport) -> dict[str, Any]:
    """Return all there is to say of a scene as plain values, fit for JSON."""
    scene, info = report.scene, report.info
    return {
        "id": scene.scene_id,
        "split": scene.split,
        "image": str(scene.image),
        "labels": None if scene.labels is None else str(scene.labels),
        "attribute": scene.attribute,
        "raster": None if info is None else _raster_values(info, report.bands),
        "pixels": None if report.pixels is None else asdict(report.pixels),
        "polygons": None if report.polygons is None else asdict(report.polygons),
        "offset": None if report.offset is None else _offset_values(report.offset),
        "expected": None if report.expected is None else asdict(report.expected) | {"exact": report.expected.exact},
        "errors": list(report.problems),
        "warnings": list(report.warnings),
    }


def _offset_values(offset: Offset) -> dict[str, Any]:
    return asdict(offset) | {"clear": offset.clear, "shifted": offset.shifted}


def _raster_values(info: RasterInfo, bands: Sequence[int]) -> dict[str, Any]:
    return {
        "height": info.height,
        "width": info.width,
        "bands": info.count,
        "used": list(bands),
        "band_names": list(info.band_names),
        "dtype": info.dtype,
        "nodata": [None if value is None else str(value) for value in info.nodata_values],
        "alpha_band": info.alpha_band,
        "mask": info.masked or info.band_masks,
        "crs": crs_name(info) if info.crs else None,
        "orientation": orientation(info),
        "resolution": list(info.resolution) if info.georeferenced else None,
        "unit": unit(info),
    }
