"""Scores as tables: text for the terminal, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from geoseg.assess.confusion import SceneConfusion, whole_set
from geoseg.learn.metrics import frequency_weighted_iou, kappa, scores

SCORE_COLUMNS = ("class", "IoU", "precision", "recall", "F1", "reference px", "map px", "unclassified px")
NOT_PRESENT = "-"


def score_rows(confusion: SceneConfusion, names: Sequence[str]) -> list[list[str]]:
    """Return one row of text per class and one for the whole, by `SCORE_COLUMNS`; undefined scores are "-"."""
    result = scores(confusion.matrix)
    rows = []
    for number, name in enumerate(names):
        values = [column[number] for column in (result.iou, result.precision, result.recall, result.f1)]
        pixels = [result.reference[number], result.predicted[number], confusion.unclassified[number]]
        rows.append([name, *map(_share, values), *(f"{int(count):,}" for count in pixels)])
    sums = [result.reference.sum(), result.predicted.sum(), confusion.unclassified.sum()]
    whole = ["mean, sum", _share(result.mean_iou), "", "", _share(result.mean_f1)]
    rows.append([*whole, *(f"{int(count):,}" for count in sums)])
    return rows


def scene_rows(scenes: Sequence[SceneConfusion], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows with one row per scene: accuracy, mean IoU, IoU of each class."""
    rows = []
    for scene in scenes:
        result = scores(scene.matrix)
        rows.append([scene.name, _share(result.overall_accuracy), _share(result.mean_iou), *map(_share, result.iou)])
    return ["scene", "accuracy", "mean IoU", *(f"IoU {name}" for name in names)], rows


def confusion_rows(confusion: SceneConfusion, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the confusion matrix: a row per reference class, a column per class in the map."""
    rows = [
        [name, *(f"{int(count):,}" for count in confusion.matrix[number]), f"{int(confusion.unclassified[number]):,}"]
        for number, name in enumerate(names)
    ]
    return ["reference \\ map", *names, "unclassified"], rows


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned text: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = []
    for row in (columns, *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def score_lines(scenes: Sequence[SceneConfusion], names: Sequence[str]) -> list[str]:
    """Return the lines for the terminal: scores by class, each scene if there are several, the confusion matrix."""
    everything = whole_set(scenes)
    result = scores(everything.matrix)
    tables = [text_table(SCORE_COLUMNS, score_rows(everything, names))]
    if len(scenes) > 1:
        tables.append(text_table(*scene_rows(scenes, names)))
    tables.append(text_table(*confusion_rows(everything, names)))
    last = f"overall accuracy {_share(result.overall_accuracy)}, mean IoU {_share(result.mean_iou)}"
    last += f", kappa {_share(kappa(everything.matrix))}"
    known = f"{int(everything.matrix.sum()):,} pixels compared, {everything.unknown:,} without a known class left out"
    return [*"\n\n".join(tables).splitlines(), "", f"{last}; {known}"]


def scores_csv(scenes: Sequence[SceneConfusion], names: Sequence[str]) -> str:
    """Return CSV text with one row per scene and class, the whole set first; undefined scores are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["scene", "class_id", "class", "iou", "precision", "recall", "f1", "reference", "map", "unclassified"]
    )
    for scene in (whole_set(scenes), *scenes):
        result = scores(scene.matrix)
        for number, name in enumerate(names):
            values = [column[number] for column in (result.iou, result.precision, result.recall, result.f1)]
            counts = [int(result.reference[number]), int(result.predicted[number]), int(scene.unclassified[number])]
            writer.writerow(
                [scene.name, number, name, *("" if math.isnan(v) else repr(float(v)) for v in values), *counts]
            )
    return out.getvalue()


def confusion_csv(confusion: SceneConfusion, names: Sequence[str]) -> str:
    """Return CSV text of the confusion matrix: rows reference, columns map."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["reference", *names, "unclassified"])
    for number, name in enumerate(names):
        writer.writerow([name, *map(int, confusion.matrix[number]), int(confusion.unclassified[number])])
    return out.getvalue()


def scores_json(scenes: Sequence[SceneConfusion], names: Sequence[str], facts: Mapping[str, Any]) -> str:
    """Return JSON text with everything: facts, then counts and scores of the whole set and of each scene.

    Undefined scores are null.
    """
    content = {**facts, **_plain(whole_set(scenes), names), "scenes": [_plain(scene, names) for scene in scenes]}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(confusion: SceneConfusion, names: Sequence[str]) -> dict[str, Any]:
    result = scores(confusion.matrix).to_dict()
    per_class = ("iou", "precision", "recall", "f1", "reference", "predicted")
    return {
        "name": confusion.name,
        "overall_accuracy": result["overall_accuracy"],
        "mean_iou": result["mean_iou"],
        "mean_f1": result["mean_f1"],
        "kappa": _defined(kappa(confusion.matrix)),
        "frequency_weighted_iou": _defined(frequency_weighted_iou(confusion.matrix)),
        "classes": [
            {
                "id": number,
                "name": name,
                **{key: result[key][number] for key in per_class},
                "unclassified": int(confusion.unclassified[number]),
            }
            for number, name in enumerate(names)
        ],
        "matrix": confusion.matrix.tolist(),
        "known": int(confusion.matrix.sum() + confusion.unclassified.sum()),
        "unknown": confusion.unknown,
    }


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _share(value: float) -> str:
    return NOT_PRESENT if math.isnan(value) else f"{value:.3f}"
