"""What a GIS shows a class map with: a QGIS style beside it, and the classes as JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr


def write_style(class_map: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    """Write the QGIS style of a class map, `<map>.qml`, which QGIS takes by itself.

    Args:
        class_map: The map.
        entries: Of each class: value (in the map), name, colour ("#rrggbb").
    """
    rows = "".join(
        f"          <paletteEntry value={quoteattr(str(entry['value']))} color={quoteattr(entry['colour'])} "
        f'label={quoteattr(str(entry["name"]))} alpha="255"/>\n'
        for entry in entries
    )
    text = (
        "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"
        '<qgis version="3.22" styleCategories="Symbology">\n  <pipe>\n'
        '    <rasterrenderer type="paletted" band="1" opacity="1" alphaBand="-1">\n'
        f"      <colorPalette>\n{rows}      </colorPalette>\n    </rasterrenderer>\n  </pipe>\n</qgis>\n"
    )
    return _replaced(class_map.with_suffix(".qml"), text)


def write_classes(folder: Path, entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Path:
    """Write `classes.json` into a folder of maps: facts, and the classes with id, value in the maps, name, colour."""
    text = json.dumps({**facts, "classes": [dict(entry) for entry in entries]}, indent=2, ensure_ascii=False)
    return _replaced(folder / "classes.json", text + "\n")


def _replaced(path: Path, text: str) -> Path:
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    hidden.write_text(text, encoding="utf-8")
    hidden.replace(path)
    return path
