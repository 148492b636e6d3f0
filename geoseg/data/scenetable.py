"""A CSV file as a list of scenes.

Columns are image, labels, attribute, split and, optionally, layer, aoi, bands, nodata, weight. A header is optional
for the first five; with one, the columns may come in any order. The separator is a comma, a semicolon or a tab. Cells
are text, always: an attribute may be called NA. Relative paths are relative to the CSV's folder.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Sequence
from pathlib import Path

from geoseg.data.scene import Scene
from geoseg.data.scenefiles import scenes_of_row
from geoseg.data.splitnames import split_named
from geoseg.errors import DataError, problem

COLUMNS = ("image", "labels", "attribute", "split", "layer")
EXTRA = ("aoi", "bands", "nodata", "weight")
_KNOWN = COLUMNS + EXTRA
_REQUIRED = ("image", "split")
_ALIASES = {"area_of_interest": "aoi", "area of interest": "aoi", "label_raster": "labels", "label raster": "labels"}


def read_table(csv_path: Path) -> tuple[list[Scene], list[str]]:
    """Return the scenes of a CSV file, in its order, and what is wrong with its rows.

    Raises:
        DataError: The file is missing or no text, or its header is wrong.
    """
    columns, rows = _split_header(csv_path, _read_rows(csv_path))
    scenes: list[Scene] = []
    problems: list[str] = []
    for line, cells in rows:
        where = f"{csv_path}, line {line}"
        found = _row_problems(where, columns, cells)
        if not found:
            made, found = scenes_of_row(csv_path.parent, where, dict(zip(columns, cells, strict=False)))
            scenes += made
        problems += found
    if not rows:
        problems.append(problem(csv_path, "no scene", "at least one row: image,labels,attribute,split", "add one"))
    return scenes, problems


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, trimmed cells) of every row that is not blank."""
    remedy = "check sample.prep_csv_file"
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark would become part of the first cell
    except OSError as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise DataError(problem(path.absolute(), found, "a CSV list of scenes", remedy)) from error
    except UnicodeDecodeError as error:
        raise DataError(problem(path, "bytes that are not UTF-8", "a CSV list of scenes in UTF-8", remedy)) from error
    reader = csv.reader(io.StringIO(text), delimiter=_separator(text), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise DataError(problem(path, f"no CSV ({error})", "a CSV list of scenes", remedy)) from error
    return [(line, cells) for line, cells in rows if any(cells)]


def _separator(text: str) -> str:
    """Return the separator that cuts the first row into most cells; the comma where they tie."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark, skipinitialspace=True))))


def _split_header(
    path: Path, rows: Sequence[tuple[int, list[str]]]
) -> tuple[Sequence[str], Sequence[tuple[int, list[str]]]]:
    """Return the columns and the rows below the header, if there is one."""
    if not rows:
        return COLUMNS, rows
    names = [_ALIASES.get(cell.lower(), cell.lower()) for cell in rows[0][1]]
    # A row of data ends in a split; no header does, since no column is called trn.
    if not set(names) & set(_KNOWN) or any(map(split_named, names)):
        return COLUMNS, rows
    missing = [name for name in _REQUIRED if name not in names]
    unknown = [name for name in names if name and name not in _KNOWN]
    if missing or unknown or len(set(names)) < len(names):
        guesses = [f"{name} for {guess[0]}" for name in unknown if (guess := difflib.get_close_matches(name, _KNOWN))]
        remedy = f"was {', '.join(guesses)}?" if guesses else "correct the header, and separate its columns by commas"
        found = f"a header of {', '.join(repr(name) for name in names)}"
        raise DataError(problem(f"{path}, line {rows[0][0]}", found, f"columns {', '.join(COLUMNS[:4])}", remedy))
    return names, rows[1:]


def _row_problems(where: str, columns: Sequence[str], cells: Sequence[str]) -> list[str]:
    problems = []
    if len(cells) > len(columns) and any(cells[len(columns) :]):
        found = f"{len(cells)} cells"
        return [problem(where, found, f"{len(columns)}: {', '.join(columns)}", "put quotes around a path with commas")]
    row = dict(zip(columns, cells, strict=False))
    if "split" not in row:
        return [problem(where, f"{len(cells)} cell(s)", "image, labels, attribute, split", "add what is missing")]
    if not row.get("image"):
        problems.append(problem(where, "no image", "the path of a raster", "add it"))
    if split_named(row["split"]) is None:
        problems.append(problem(where, f"split {row['split']!r}", "trn, val or tst", "correct the split"))
    for name, expected in (("nodata", "a number or nan"), ("weight", "a number above 0")):
        if row.get(name) and not _fits(name, row[name]):
            problems.append(problem(where, f"{name} {row[name]!r}", expected, f"correct the {name}"))
    return problems


def _fits(name: str, cell: str) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return False
    return name == "nodata" or (math.isfinite(value) and value > 0)
