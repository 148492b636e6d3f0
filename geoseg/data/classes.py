"""The table of classes that store, model file and class maps share, and what attribute values mean by it."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from geoseg.errors import DataError, problem
from geoseg.geo.vector import ClassMapping

ClassTable = tuple[dict[str, Any], ...]

# Light grey for background, then colours that people with any colour vision tell apart (after Okabe and Ito).
_COLOURS = ("#d9d9d9", "#d55e00", "#0072b2", "#009e73", "#f0e442", "#56b4e9", "#cc79a7", "#e69f00")
_GOLDEN = 0.618034
_NAMES_OF_BACKGROUND = ("background", "other", "others", "none", "nothing", "rest", "no class")


def default_colour(index: int) -> str:
    """Return the colour of a class id that was given none, as "#rrggbb"; different for all ids."""
    if index < len(_COLOURS):
        return _COLOURS[index]
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1, 0.45 + 0.5 * (index % 2), 0.95 - 0.1 * (index % 3))
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def class_table(num_classes: int, entries: Iterable[Mapping[str, Any]] | None = None) -> ClassTable:
    """Return one entry per class id: id, name, value, colour.

    Args:
        num_classes: Background included.
        entries: name, value, colour of each class in the order of their ids; None: classes are known by their ids.
    """
    if entries is None:
        entries = ({"name": _default_name(index)} for index in range(num_classes))
    table = tuple(
        {
            "id": index,
            "name": str(entry["name"]),
            "value": _plain(entry.get("value")),
            "colour": entry.get("colour") or default_colour(index),
        }
        for index, entry in enumerate(entries)
    )
    if len(table) != num_classes:
        raise ValueError(f"{len(table)} entries for {num_classes} classes")
    return table


def background_doubts(
    classes: Sequence[Mapping[str, Any]],
    where: str = "global.classes",
    then: str = ", and reports leave it out; if it is a class like the others, put 'background' before it",
) -> list[str]:
    """Return a warning if the first class, which is background, looks like one of the others.

    A class of wall-to-wall land cover in its place would be given to all ground without a polygon, and be left out
    where maps and scores leave background out.

    Args:
        classes: The table of classes.
        where: Who says what the classes are.
        then: How the warning ends: what follows from it, and what the user can do.
    """
    name, value = str(classes[0]["name"]), classes[0].get("value")
    if value is None or name.strip().lower() in _NAMES_OF_BACKGROUND:
        return []
    return [
        f"{where}: the first class, {name}, is taken for background: ground without a polygon is of it, unless "
        f"sample.mask_input_image is set{then}"
    ]


def class_mapping(
    classes: Sequence[Mapping[str, Any]],
    ignore_value: int = 255,
    ignore_values: Iterable[int | str] = (),
    unmapped: Literal["error", "ignore", "background"] = "error",
) -> ClassMapping:
    """Return what the values of a label attribute mean.

    A class stands for its `value`, or each of its values; one without stands for its id and for its name. A table that
    `class_table` made from a number alone takes attributes of ids.

    Raises:
        DataError: Two classes claim the same value, or the ignore value is a class.
    """
    options: dict[str, Any] = {
        "num_classes": len(classes),
        "ignore_value": ignore_value,
        "ignore_values": frozenset(ignore_values),
        "unmapped": unmapped,
    }
    if all(c.get("value") is None and c["name"] == _default_name(c["id"]) for c in classes):
        return ClassMapping(by_value=None, **options)
    by_value: dict[int | str, int] = {}
    for entry in classes:
        for value in _values(entry.get("value")):
            owner = by_value.setdefault(value, int(entry["id"]))
            if owner != int(entry["id"]):
                found = f"value {value!r} for {classes[owner]['name']} and {entry['name']}"
                raise DataError(problem("global.classes", found, "each value in one class", "remove it from one"))
    # What was stated comes before what is implied, and ids before names (a class may be called "2").
    unstated = [entry for entry in classes if entry.get("value") is None]
    for key in ("id", "name"):
        for entry in unstated:
            if str(entry[key]) not in {str(value) for value in by_value}:
                by_value[entry[key]] = int(entry["id"])
    return ClassMapping(by_value=by_value, **options)


def _default_name(index: int) -> str:
    return "background" if index == 0 else f"class {index}"


def _values(value: Any) -> list[int | str]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
