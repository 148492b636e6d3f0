"""The model card: what a model is, was made from and is good for, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geoseg.learn.modelfile import ModelSpec
from geoseg.learn.stacitem import band_names, trained_facts

_HTML = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "\\|", "`": "'", "\n": " ", "\r": " "})


def model_card(spec: ModelSpec, facts: Mapping[str, str], radius: int | None) -> str:
    """Return the card.

    Args:
        spec: What the model file says.
        facts: What else is known, such as files and their hashes: heading and text.
        radius: Pixels further away than this do not touch a pixel's class; None: all of the image does.
    """
    single, lists = trained_facts(spec)
    field = "the whole window" if radius is None else f"{radius} pixels around it"
    pieces = [
        f"# {_cell(spec.model_name)}: {', '.join(map(_cell, spec.class_names))}",
        "A network that labels every pixel of a raster with one of the classes below. It was made with geoseg "
        f"{_cell(spec.geoseg_version)}; this card says what its file says.",
        "## What it takes",
        f"Rasters of type {_cell(spec.dtype)}{_resolution(spec)}, with these bands in this order:",
        _table(("band", "number", "mean", "standard deviation"), _bands(spec)),
        "Each value less the mean, divided by the standard deviation, is what the network sees; pixels without data "
        "are 0 there. A raster of another sensor, another scale of values or a much different resolution is outside of "
        f"what it has learnt. A pixel's class depends on {field}.",
        "## What it gives",
        _table(("id", "class", "value in the labels", "colour"), _classes(spec)),
        f"Pixels without data have no class. In training, labels of value {spec.ignore_value} were unknown and taught "
        "nothing.",
        "## How well",
        *_scores(spec, single, lists),
        "Scores are of the validation samples that chose the epoch, so they are rather too good. Measure on scenes "
        "that it has never seen, with `python -m geoseg.evaluate`, before the map is used for anything.",
        "## How it was made",
        _table(("fact", "value"), [[key, _shown(value)] for key, value in _making(spec).items()]),
        "## Files",
        _table(("file", "content"), [[key, value] for key, value in facts.items()]),
        "```\npython -m geoseg.classify --model best.safetensors --images scene.tif --output maps\n```",
    ]
    return "\n\n".join(pieces) + "\n"


def _bands(spec: ModelSpec) -> list[list[str]]:
    norm = spec.normalisation
    rows = zip(band_names(spec), spec.bands, norm.mean, norm.std, strict=True)
    return [[name, str(number), f"{mean:.6g}", f"{std:.6g}"] for name, number, mean, std in rows]


def _classes(spec: ModelSpec) -> list[list[str]]:
    return [
        [str(i), str(entry["name"]), _shown(entry.get("value")), _shown(entry.get("colour"))]
        for i, entry in enumerate(spec.classes)
    ]


def _resolution(spec: ModelSpec) -> str:
    if spec.resolution is None:
        return ""
    x, y = spec.resolution
    # Of a CRS written out at length the name is enough, its first text in quotes.
    name = None if spec.crs is None else spec.crs if len(spec.crs) < 40 else [*spec.crs.split('"'), "its CRS"][1]
    return f", pixels of about {x:g} x {y:g} units{'' if name is None else f' of {_cell(name)}'}"


def _scores(spec: ModelSpec, single: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> list[str]:
    figures = {key: value for key, value in single.items() if isinstance(value, float)}
    if not figures and not lists:
        return ["The file holds no scores."]
    pieces = [_table(("figure", "value"), [[key, _shown(value)] for key, value in figures.items()])] if figures else []
    if lists:
        rows = [[name, *(_shown(values[i]) for values in lists.values())] for i, name in enumerate(spec.class_names)]
        pieces.append(_table(("class", *lists), rows))
    return pieces


def _making(spec: ModelSpec) -> dict[str, Any]:
    options = {f"option {key}": value for key, value in spec.model_options.items() if value is not None}
    facts = {key: value for key, value in trained_facts(spec)[0].items() if not isinstance(value, float)}
    return {"model": spec.model_name, **options, "side of a training sample": f"{spec.samples_size} pixels", **facts}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return text that can neither leave its cell nor become HTML: a stranger's model file may hold anything."""
    return str(text).translate(_HTML).strip()
