"""What the model file, the config and the command line say together: refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geoseg.cli import Invocation
from geoseg.config import Config
from geoseg.config.classification import ClassificationSection
from geoseg.errors import ConfigError, problem
from geoseg.learn.modelfile import ModelSpec, check_matches
from geoseg.predict.finishing import FinishOptions
from geoseg.predict.output import class_colours
from geoseg.predict.outputs import WIDE_NODATA
from geoseg.settings import said_reading

UNCERTAIN = "uncertain"
_UNCERTAIN_COLOUR = "#7f7f7f"


def chosen_bands(call: Invocation, spec: ModelSpec) -> tuple[int, ...] | None:
    """Return bands that the user names, which confirms them for images with more bands than the model."""
    if call.options.bands:
        return tuple(call.options.bands)
    return spec.bands if call.config.global_.bands else None


def numbered(call: Invocation) -> bool:
    """Tell whether the user gives the bands by number: then they are taken by number, whatever they are called."""
    said = call.options.bands or call.config.global_.bands or ()
    return any(isinstance(band, int) for band in said)


def refuse_conflicts(config: Config, spec: ModelSpec, path: Path) -> None:
    """Refuse a config that says something else than the model file; what it leaves open is the file's to say."""
    shared = config.global_
    said = shared.model_fields_set
    names = None if shared.classes is None else [entry.name for entry in shared.classes]
    check_matches(
        spec,
        path,
        model_name=shared.model_name if "model_name" in said else None,
        num_classes=shared.num_classes if "num_classes" in said or names else None,
        class_names=names,
        in_channels=shared.number_of_bands,
        bands=_band_numbers(shared.bands, spec),
        ignore_value=shared.ignore_value if "ignore_value" in said else None,
        reading=said_reading(config),
    )


def _band_numbers(bands: Sequence[int | str] | None, spec: ModelSpec) -> list[int | str] | None:
    """Return the config's bands with the names that the model knows replaced by their numbers."""
    if bands is None:
        return None
    numbers = {name: number for name, number in zip(spec.band_names, spec.bands, strict=True) if name}
    return [numbers.get(band, band) if isinstance(band, str) else band for band in bands]


def thresholds_of(said: float | Sequence[float] | None, spec: ModelSpec) -> tuple[float, ...] | None:
    """Return the least probability of each class.

    Raises:
        ConfigError: As many as the model has classes are needed, or one.
    """
    if said is None:
        return None
    each = tuple(said) if isinstance(said, Sequence) else (said,) * spec.num_classes
    if len(each) != spec.num_classes:
        expected = f"one, or {spec.num_classes}: one for each class"
        raise ConfigError(problem("classification.uncertain_below", f"{len(each)} numbers", expected, "correct it"))
    return each


def finish_options(section: ClassificationSection) -> FinishOptions:
    """Return what is to be done to class maps before they are put in place."""
    return FinishOptions(
        unit=section.minimum_mapping_unit,
        polygons=section.polygons,
        min_area=section.polygon_min_area,
        fill_holes=section.polygon_fill_holes,
        simplify=section.polygon_simplify,
        background=section.polygon_background,
    )


def map_classes(spec: ModelSpec, uncertain: bool, attribute_values: bool) -> list[dict[str, Any]]:
    """Return the classes of a map, in the order of their ids: id, name, colour, value (in the map).

    Raises:
        ConfigError: Values of the attribute are wanted, but some are no whole number of 0 to 65534, or two are alike.
    """
    colours = class_colours(spec.classes)
    entries = [
        {"id": number, "name": str(entry["name"]), "colour": colours[number]}
        for number, entry in enumerate(spec.classes)
    ]
    if uncertain:
        entries.append({"id": len(entries), "name": UNCERTAIN, "colour": _UNCERTAIN_COLOUR})
    for entry in entries:
        entry["value"] = entry["id"]
    if attribute_values:
        _give_values(entries, spec.classes)
    return entries


def _give_values(entries: Sequence[dict[str, Any]], classes: Sequence[Mapping[str, Any]]) -> None:
    problems = []
    for entry, trained in zip(entries, classes, strict=False):
        value = _single(trained.get("value"))
        if value is None and entry["id"] == 0:
            value = 0  # background has no value of its own
        if not isinstance(value, int) or not 0 <= value < WIDE_NODATA:
            where, found = f"class {entry['name']}", f"the attribute value {trained.get('value')!r}"
            expected = f"one whole number of 0 to {WIDE_NODATA - 1}, to be written into a map"
            problems.append(problem(where, found, expected, "set classification.values: ids"))
        entry["value"] = value
    if len(entries) > len(classes):
        entries[-1]["value"] = WIDE_NODATA - 1
    values = [entry["value"] for entry in entries]
    if not problems and len(set(values)) < len(values):
        found = f"classes that share values ({', '.join(map(str, values))})"
        problems.append(problem("classification.values", found, "a value of its own for each", "write ids instead"))
    if problems:
        raise ConfigError(problems)


def _single(value: Any) -> Any:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if len(values) != 1:
        return None
    text = values[0]
    return int(text) if isinstance(text, str) and text.isdecimal() else text
