"""Fill in sample points of `evaluate --design` from reference labels, as somebody who looks at images would.

python tools/fill_points.py POINTS.gpkg LABELS ATTRIBUTE [VALUE=CLASS ...]

For trying the method out where labels cover everything: points outside of every polygon are background. Polygons whose
value is not named are taken by it, if it is the name or id of a class, and are background otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import geopandas
import pyogrio


def fill(points: Path, labels: Path, attribute: str, classes: dict[str, str]) -> dict[str, int]:
    """Write the class of each point into its column `reference`; return how many points each class got."""
    frame = geopandas.read_file(points, layer="points")
    strata = geopandas.read_file(points, layer="strata")
    names = list(strata.sort_values("class_id")["name"])
    known = {name: name for name in names} | {str(number): name for number, name in enumerate(names)} | classes
    polygons = geopandas.read_file(labels).to_crs(frame.crs)
    # Later polygons lie on top, as when labels are burnt.
    joined = geopandas.sjoin(frame[["geometry"]], polygons[[attribute, "geometry"]].reset_index(names="order"))
    top = joined.sort_values("order").groupby(level=0)[attribute].last()
    frame["reference"] = [known.get(str(top.get(index)), names[0]) for index in frame.index]
    pyogrio.write_dataframe(frame, points, layer="points", driver="GPKG")
    return {name: int((frame["reference"] == name).sum()) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Fill in a file and say what it holds now."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    pairs = dict(word.split("=", 1) for word in words[3:])
    for name, count in fill(Path(words[0]), Path(words[1]), words[2], pairs).items():
        print(f"{count:6} points of {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
