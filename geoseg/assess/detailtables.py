"""Boundaries, objects and calibration as tables: text, CSV, and plain values for JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from geoseg.assess.calibration import Reliability
from geoseg.assess.details import Details, whole_details
from geoseg.assess.tables import NOT_PRESENT

DETAIL_COLUMNS = (
    "class",
    "boundary IoU",
    "objects in reference",
    "in map",
    "matched",
    "object precision",
    "recall",
    "F1",
    "IoU of pairs",
)
RELIABILITY_COLUMNS = ("confidence", "pixels", "mean confidence", "accuracy")


def detail_rows(details: Details, names: Sequence[str]) -> list[list[str]]:
    """Return one row of text per class, by `DETAIL_COLUMNS`; undefined scores are "-", background has no objects."""
    objects = details.objects
    rows = []
    for i, name in enumerate(names):
        counts = [f"{int(n):,}" for n in (objects.reference[i], objects.mapped[i], objects.matched[i])]
        shares = [_share(v[i]) for v in (objects.precision, objects.recall, objects.f1, objects.mean_iou)]
        rows.append([name, _share(details.boundary[i]), *(counts if i else [NOT_PRESENT] * 3), *shares])
    return rows


def reliability_rows(reliability: Reliability) -> list[list[str]]:
    """Return one row of text per bin that holds pixels, by `RELIABILITY_COLUMNS`."""
    bins = len(reliability.pixels)
    return [
        [
            f"{number / bins:.2f} to {(number + 1) / bins:.2f}",
            f"{int(reliability.pixels[number]):,}",
            _share(reliability.mean_confidence[number]),
            _share(reliability.accuracy[number]),
        ]
        for number in range(bins)
        if reliability.pixels[number]
    ]


def details_csv(details: Mapping[str, Details], names: Sequence[str]) -> str:
    """Return CSV text with one row per scene and class, the whole set first; undefined scores are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    counts = ["reference_objects", "map_objects", "matched_objects"]
    shares = ["object_precision", "object_recall", "object_f1", "matched_iou"]
    writer.writerow(["scene", "class_id", "class", "boundary_iou", *counts, *shares])
    for scene, part in {"all scenes": whole_details(list(details.values())), **details}.items():
        for number, entry in enumerate(_classes(part, names)):
            keys = ["boundary_iou", *counts, *shares]
            writer.writerow([scene, number, names[number], *("" if entry[k] is None else entry[k] for k in keys)])
    return out.getvalue()


def reliability_csv(reliability: Reliability) -> str:
    """Return CSV text with one row per bin."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "to", "pixels", "mean_confidence", "accuracy"])
    bins = len(reliability.pixels)
    for number in range(bins):
        values = [_plain(v[number]) for v in (reliability.mean_confidence, reliability.accuracy)]
        row = [number / bins, (number + 1) / bins, int(reliability.pixels[number])]
        writer.writerow([*row, *("" if value is None else value for value in values)])
    return out.getvalue()


def details_plain(details: Mapping[str, Details], names: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values for JSON, the whole set and scene by scene; undefined scores are null."""
    parts = {"all scenes": whole_details(list(details.values())), **details}
    return {
        scene: {
            "classes": _classes(part, names),
            "expected_calibration_error": None if part.reliability is None else part.reliability.expected_error,
            "largest_calibration_error": None if part.reliability is None else part.reliability.largest_error,
        }
        for scene, part in parts.items()
    }


def _classes(details: Details, names: Sequence[str]) -> list[dict[str, Any]]:
    objects = details.objects
    return [
        {
            "name": name,
            "boundary_iou": _plain(details.boundary[i]),
            "reference_objects": int(objects.reference[i]),
            "map_objects": int(objects.mapped[i]),
            "matched_objects": int(objects.matched[i]),
            "object_precision": _plain(objects.precision[i]),
            "object_recall": _plain(objects.recall[i]),
            "object_f1": _plain(objects.f1[i]),
            "matched_iou": _plain(objects.mean_iou[i]),
        }
        for i, name in enumerate(names)
    ]


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _share(value: float) -> str:
    return NOT_PRESENT if math.isnan(value) else f"{value:.3f}"
