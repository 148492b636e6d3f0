"""The list of scenes: which image goes with which labels, and into which split.

A CSV file with the columns image, labels, attribute, split and, optionally, layer. A header is optional; with one, the
columns may come in any order. The separator is a comma, a semicolon or a tab. Cells are text, always: an attribute may
be called NA. Relative paths are relative to the CSV's folder.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from geoseg.errors import DataError, problem

Split = Literal["trn", "val", "tst"]
SPLITS: tuple[Split, ...] = ("trn", "val", "tst")
COLUMNS = ("image", "labels", "attribute", "split", "layer")
_REQUIRED = ("image", "split")
_LOOKALIKES = {"train": "trn", "training": "trn", "valid": "val", "validation": "val", "test": "tst"}


@dataclass(frozen=True)
class Scene:
    """One raster with its polygons.

    Attributes:
        image: The raster.
        labels: The vector file; None where there is none (a scene to classify).
        attribute: The attribute that holds the class; None: every polygon is class 1.
        split: trn, val or tst.
        layer: The layer of the vector file; None: its only one.
        where: Where the scene is listed, for messages; not part of its identity.
    """

    image: Path
    labels: Path | None
    attribute: str | None
    split: Split
    layer: str | None = None
    where: str = field(default="", compare=False)

    @property
    def scene_id(self) -> str:
        """The image's stem and 8 hex digits of a hash of what makes the scene: a file name, stable between runs."""
        parts = [_resolved(self.image), _resolved(self.labels), self.attribute or "", self.layer or ""]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
        stem = re.sub(r"[^\w.-]", "_", self.image.stem)
        return f"{stem}-{digest}"


def read_scenes(csv_path: str | Path) -> list[Scene]:
    """Read the list of scenes, in the file's order.

    Files that are named need not exist; who opens them says so.

    Raises:
        DataError: The file is missing, no text, or empty; one line per row that is wrong.
    """
    csv_path = Path(csv_path)
    rows = _read_rows(csv_path)
    columns, rows = _split_header(csv_path, rows)
    scenes: list[Scene] = []
    problems: list[str] = []
    for line, cells in rows:
        where = f"{csv_path}, line {line}"
        found = _row_problems(where, columns, cells)
        problems += found
        if not found:
            scenes.append(_scene(csv_path.parent, where, dict(zip(columns, cells, strict=False))))
    problems += _repeated(scenes)
    if not rows:
        problems.append(problem(csv_path, "no scene", "at least one row: image,labels,attribute,split", "add one"))
    if problems:
        raise DataError(problems)
    return scenes


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
    names = [cell.lower() for cell in rows[0][1]]
    # A row of data ends in a split; no header does, since no column is called trn.
    if not set(names) & set(COLUMNS) or set(names) & set(SPLITS):
        return COLUMNS, rows
    missing = [name for name in _REQUIRED if name not in names]
    unknown = [name for name in names if name and name not in COLUMNS]
    if missing or unknown or len(set(names)) < len(names):
        guesses = [f"{name} for {guess[0]}" for name in unknown if (guess := difflib.get_close_matches(name, COLUMNS))]
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
    split = row["split"].lower()
    if split not in SPLITS:
        remedy = f"write {_LOOKALIKES[split]}" if split in _LOOKALIKES else "correct the split"
        problems.append(problem(where, f"split {row['split']!r}", "trn, val or tst", remedy))
    return problems


def _scene(folder: Path, where: str, row: Mapping[str, str]) -> Scene:
    def path(cell: str) -> Path:
        return folder.absolute() / cell

    return Scene(
        image=path(row["image"]),
        labels=path(row["labels"]) if row.get("labels") else None,
        attribute=row.get("attribute") or None,
        split=cast(Split, row["split"].lower()),
        layer=row.get("layer") or None,
        where=where,
    )


def _repeated(scenes: Sequence[Scene]) -> list[str]:
    """The same image with the same labels twice would count twice, or lie in two splits."""
    first: dict[str, Scene] = {}
    problems = []
    for scene in scenes:
        other = first.setdefault(scene.scene_id, scene)
        if other is not scene:
            found = f"the scene of {other.where.rpartition(', ')[2]} again"
            problems.append(problem(scene.where, found, "each scene once", "remove one of the two"))
    return problems


def _resolved(path: Path | None) -> str:
    return "" if path is None else str(path.resolve())
