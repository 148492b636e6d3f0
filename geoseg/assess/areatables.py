"""Estimated areas and accuracies as tables: text for the terminal and the report, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from geoseg.assess.area import Z95, Estimates
from geoseg.assess.tables import NOT_PRESENT, text_table

AREA_COLUMNS = ("class", "map area", "estimated area", "95 % interval", "user's accuracy", "producer's accuracy")


def shown_area(value: float, unit: str) -> str:
    """Return an area for people: hectares, or square metres below one; pixels where there is no CRS."""
    if math.isnan(value):
        return NOT_PRESENT
    if unit == "px":
        return f"{value:,.0f} px"
    return f"{value / 1e4:,.2f} ha" if abs(value) >= 1e4 else f"{value:,.1f} m²"


def area_rows(result: Estimates, names: Sequence[str], unit: str) -> list[list[str]]:
    """Return one row of text per class and one for the whole, by `AREA_COLUMNS`; "-" where nothing can be said."""
    rows = [
        [
            name,
            shown_area(result.mapped[i], unit),
            shown_area(result.area[i], unit),
            f"± {shown_area(result.half_width[i], unit)}",
            _with_error(result.users[i], result.users_error[i]),
            _with_error(result.producers[i], result.producers_error[i]),
        ]
        for i, name in enumerate(names)
    ]
    total = shown_area(float(result.mapped.sum()), unit)
    return [*rows, ["sum, overall", total, total, "", _with_error(result.overall, result.overall_error), ""]]


def point_rows(result: Estimates, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the points: a row per class in the map, a column per true class."""
    rows = [
        [name, *(f"{n:,}" for n in line), f"{line.sum():,}"] for name, line in zip(names, result.counts, strict=True)
    ]
    return ["map \\ true", *names, "points"], rows


def share_rows(result: Estimates, names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the estimated shares of the whole area, in the same layout."""
    shares = np.column_stack([result.proportions, result.proportions.sum(axis=1)])
    rows = [[name, *(_number(share, ".4f") for share in line)] for name, line in zip(names, shares, strict=True)]
    return ["map \\ true", *names, "sum"], rows


def area_lines(result: Estimates, names: Sequence[str], unit: str) -> list[str]:
    """Return the lines for the terminal."""
    tables = [text_table(AREA_COLUMNS, area_rows(result, names, unit)), text_table(*point_rows(result, names))]
    last = (
        f"overall accuracy {_with_error(result.overall, result.overall_error)} (95 %), {result.counts.sum():,} points"
    )
    return [*"\n\n".join(tables).splitlines(), "", last]


def area_csv(result: Estimates, names: Sequence[str], unit: str) -> str:
    """Return CSV text with a row per class; what cannot be said is empty. Areas are in `unit`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("mapped", "area", "area_error", "users", "users_error", "producers", "producers_error")
    writer.writerow(["class_id", "class", "unit", *kinds, "area_low_95", "area_high_95", "points"])
    for number, name in enumerate(names):
        values = [getattr(result, kind)[number] for kind in kinds]
        values += [result.area[number] - result.half_width[number], result.area[number] + result.half_width[number]]
        cells = ["" if math.isnan(value) else repr(float(value)) for value in values]
        writer.writerow([number, name, unit, *cells, int(result.counts[number].sum())])
    return out.getvalue()


def area_json(result: Estimates, names: Sequence[str], unit: str, facts: Mapping[str, Any]) -> str:
    """Return JSON text with facts and all estimates; what cannot be said is null."""
    content = {**facts, "unit": unit, "classes": list(names), "interval": "95 %", "z": Z95, **result.to_dict()}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _with_error(value: float, error: float) -> str:
    if math.isnan(value):
        return NOT_PRESENT
    return f"{value:.3f} ± {_number(Z95 * error, '.3f')}"


def _number(value: float, form: str) -> str:
    return NOT_PRESENT if math.isnan(value) else format(value, form)
