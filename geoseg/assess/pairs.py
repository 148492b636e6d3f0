"""A class map and the labels it is measured against: what both mean, before pixels are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geoseg.assess.classmap import map_values
from geoseg.assess.confusion import Reference
from geoseg.errors import DataError, problem
from geoseg.geo.ground import GroundSource, read_ground
from geoseg.geo.raster import Reading, read_info, read_tags, stem
from geoseg.geo.vector import ClassMapping, LabelRules

UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class Pair:
    """A class map and its reference labels.

    Attributes:
        class_map: The map.
        ground: The files that say what is on the ground.
        image: The image that was classified; its invalid pixels are unknown. None: not known.
        nodata: The image's nodata value, in place of what it says itself.
        where: Where the pair is listed, for messages.
    """

    class_map: Path
    ground: GroundSource
    image: Path | str | None = None
    nodata: float | None = None
    where: str = ""

    @property
    def name(self) -> str:
        """Name of the scene: the stem of the image, or of the map."""
        return self.class_map.stem.removesuffix("_classes") if self.image is None else stem(self.image)


@dataclass(frozen=True)
class MapFacts:
    """What a class map says about itself; None where it says nothing.

    Attributes:
        classes: One mapping per class id: id, name, value, colour.
        bands: Numbers of the image's bands that were classified.
        ignore_value: Label of unknown pixels in the samples.
        reading: How the image's values were read.
        resampled: Whether the image was resampled to the map's grid.
    """

    classes: tuple[Mapping[str, Any], ...] | None
    bands: tuple[int, ...] | None
    ignore_value: int | None
    reading: Reading = field(default_factory=Reading)
    resampled: bool = False

    @property
    def uncertain(self) -> int | None:
        """The id of pixels that the map leaves open, the last one; None if it leaves none."""
        return None if self.classes is None or not leaves_open(self.classes) else len(self.classes) - 1


def leaves_open(classes: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the last class of a map is no class, but where `classify` was not certain enough."""
    last = classes[-1]
    return len(classes) > 2 and last["name"] == UNCERTAIN and last.get("value") in (None, len(classes) - 1)


def read_map_facts(class_map: Path) -> MapFacts:
    """Read what a class map says about itself in its tags.

    Raises:
        DataError: There is no such map, or its tags are damaged.
    """
    if not class_map.is_file():
        remedy = "run `python -m geoseg.classify` on its image first, or correct evaluation.maps"
        raise DataError(problem(class_map, "no class map", "one for every scene", remedy))
    tags = read_tags(class_map)
    map_values(class_map)  # which raises where it does not say what its values mean
    try:
        classes = json.loads(tags["CLASSES"]) if "CLASSES" in tags else None
        return MapFacts(
            classes=None if classes is None else tuple({**entry, "name": str(entry["name"])} for entry in classes),
            bands=tuple(int(band) for band in tags["BANDS"].split(",")) if "BANDS" in tags else None,
            ignore_value=int(tags["IGNORE_VALUE"]) if "IGNORE_VALUE" in tags else None,
            reading=Reading.from_dict(json.loads(tags.get("READING", "{}"))),
            resampled="RESAMPLED" in tags,
        )
    except (ValueError, KeyError, TypeError) as error:
        found = f"metadata that cannot be understood ({error})"
        raise DataError(problem(class_map, found, "a map made by geoseg", "classify again")) from error


def common_classes(maps: Mapping[Path, MapFacts]) -> tuple[Mapping[str, Any], ...] | None:
    """Return the classes that all maps share; None if none of them says.

    Raises:
        DataError: Maps of different classes; they cannot share a confusion matrix.
    """
    first: tuple[Path, tuple[Mapping[str, Any], ...]] | None = None
    for path, facts in maps.items():
        if facts.classes is None:
            continue
        if first is None:
            first = path, facts.classes
        elif _names(facts.classes) != _names(first[1]):
            found = f"classes {', '.join(_names(facts.classes))}"
            expected = f"{', '.join(_names(first[1]))} as in {first[0]}"
            raise DataError(problem(path, found, expected, "classify all images with one model"))
    return None if first is None else first[1]


def read_reference(
    pair: Pair, facts: MapFacts, mapping: ClassMapping, rules: LabelRules
) -> tuple[Reference, list[str]]:
    """Read the reference labels of a map, in the map's CRS.

    Args:
        pair: The map and its labels.
        facts: What the map says about itself.
        mapping: What the labels' values mean.
        rules: How they become pixels.

    Returns:
        The reference and warnings.

    Raises:
        DataError: Labels or map cannot be read, or do not overlap.
    """
    info = read_info(pair.class_map, allow_palette=True)
    ground = read_ground(pair.ground, info, mapping, rules)
    warnings = [*ground.warnings, *ground.check(pair.ground, info)]
    reading = facts.reading if pair.nodata is None else replace(facts.reading, nodata=pair.nodata)
    return Reference(ground, pair.image, facts.bands, reading, facts.uncertain, facts.resampled), warnings


def _names(classes: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["name"] for entry in classes]
