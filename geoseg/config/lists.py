"""Rules for the keys that hold lists: classes, bands, outputs, attribute values, images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geoseg.config.rules import RefusedError, Rule, as_list, as_number, as_whole, nearest, resolve_path

OUTPUTS = ("classes", "probabilities", "confidence", "entropy")


def class_list() -> Rule:
    """Return the rule of `global.classes`: names, or mappings with name, value and colour."""

    def convert(value: Any, folder: Path) -> list[Any]:
        entries = as_list(value, example="[background, {name: building, value: 1}]")
        result = []
        for entry in entries:
            if isinstance(entry, bool | int | float) or entry is None:
                shown = "null" if entry is None else str(entry).lower() if isinstance(entry, bool) else str(entry)
                raise RefusedError(f"class names are text: put {shown} in quotes")
            result.append({"name": entry} if isinstance(entry, str) else entry)
        if not 2 <= len(result) <= 255:
            raise RefusedError("list background first, then the others")
        return result

    return Rule("a list of 2 to 255 classes, background first", convert, optional=True)


def class_value() -> Rule:
    """Return the rule of a class's attribute value: a whole number, text, or a list of them."""

    def convert(value: Any, folder: Path) -> int | str | tuple[int | str, ...]:
        if isinstance(value, list | tuple):
            return tuple(attribute_value(item) for item in value)
        return attribute_value(value)

    return Rule("a whole number, text, or a list of them", convert, optional=True)


def attribute_values() -> Rule:
    """Return the rule of a list of attribute values."""

    def convert(value: Any, folder: Path) -> tuple[int | str, ...]:
        values = [value] if isinstance(value, int | float) else as_list(value)
        return tuple(attribute_value(item) for item in values)

    return Rule("a list of whole numbers or texts", convert)


def attribute_value(value: Any) -> int | str:
    """Return one attribute value; text stays text, so that '01' and 1 differ.

    Raises:
        RefusedError: It is neither a whole number nor text.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, bool):
        raise RefusedError(f"if the attribute is text, put {str(value).lower()} in quotes")
    return as_whole(value)


def band_list() -> Rule:
    """Return the rule of `global.bands`: numbers from 1, or names, each once."""

    def convert(value: Any, folder: Path) -> tuple[int | str, ...]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise RefusedError(f"write [{value}] for band {value}, or number_of_bands: {value} for {value} bands")
        bands = tuple(_band(item) for item in as_list(value))
        if not bands:
            raise RefusedError("leave the key out for all bands")
        twice = sorted({str(band) for band in bands if bands.count(band) > 1})
        if twice:
            raise RefusedError(f"name band {', '.join(twice)} once")
        return bands

    return Rule("a list of band numbers, where numbering starts at 1, or of band names", convert, optional=True)


def _band(value: Any) -> int | str:
    if isinstance(value, str) and not value.strip().lstrip("+-").isdigit():
        return value
    band = as_whole(value)
    if band < 1:
        raise RefusedError("the first band is 1: add 1 to each number" if band == 0 else "change the value")
    return band


def name_list() -> Rule:
    """Return the rule of a list of names, which may be patterns; one name alone is taken as a list of it."""

    def convert(value: Any, folder: Path) -> tuple[str, ...]:
        names = [value] if isinstance(value, str) else as_list(value)
        if not all(isinstance(name, str) and name.strip() for name in names):
            raise RefusedError("write names, such as [encoder]")
        return tuple(name.strip() for name in names)

    return Rule("a list of names", convert)


def span() -> Rule:
    """Return the rule of a list of two numbers, the lower one first."""

    def convert(value: Any, folder: Path) -> tuple[float, float]:
        numbers = [as_number(item) for item in as_list(value)]
        if len(numbers) != 2 or numbers[0] > numbers[1]:
            raise RefusedError("write [lowest, highest]")
        return numbers[0], numbers[1]

    return Rule("a list of two numbers, the lower one first", convert, optional=True)


def output_list() -> Rule:
    """Return the rule of `classification.outputs`."""

    def convert(value: Any, folder: Path) -> tuple[str, ...]:
        outputs = as_list(value)
        for name in outputs:
            if name not in OUTPUTS:
                guess = nearest(name, OUTPUTS)
                raise RefusedError(f"did you mean {guess}?" if guess else "choose from these")
        if not outputs:
            raise RefusedError("name at least one")
        return tuple(dict.fromkeys(outputs))

    return Rule(f"a list of {', '.join(OUTPUTS)}", convert)


def source_list() -> Rule:
    """Return the rule of a list of paths, local or remote; a single path is a list of one."""

    def convert(value: Any, folder: Path) -> tuple[Path | str, ...]:
        paths = tuple(resolve_path(item, folder) for item in as_list(value, commas=False))
        if not paths:
            raise RefusedError("name at least one, or leave the key out")
        return paths

    return Rule("a list of paths", convert, optional=True)


def model_options() -> Rule:
    """Return the rule of a model's options: a path in `pretrained` is made absolute; the model checks the rest."""

    def convert(value: Any, folder: Path) -> Any:
        weights = value.get("pretrained") if isinstance(value, dict) else None
        if not isinstance(weights, str):
            return {} if value is None else value
        path = resolve_path(weights, folder)
        if not isinstance(path, Path):
            raise RefusedError("give `pretrained` a path on this machine")
        return {**value, "pretrained": path}

    return Rule("options of the model, `pretrained` among them false or a path", convert)
