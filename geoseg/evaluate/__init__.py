"""`python -m geoseg.evaluate`: class maps against reference labels, and areas from sample points.

Classes and attribute values are those that the maps carry from the samples; what counts as unknown is what `sample`
takes as unknown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from geoseg.cli import Invocation, run_command
from geoseg.evaluate.comparing import compare_maps
from geoseg.evaluate.pairing import output_folder
from geoseg.evaluate.sampling import draw_points, estimate_areas


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("evaluate", argv, _evaluate, _add_options, needs_config=_needs_config)


def _needs_config(options: argparse.Namespace) -> bool:
    return not (options.maps or (options.points and not options.design))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--maps", nargs="+", type=Path, metavar="MAP", help="class maps, instead of the CSV's scenes")
    parser.add_argument("--references", type=Path, metavar="FILE", help="with --maps: the reference labels")
    parser.add_argument("--attribute", metavar="NAME", help="with --maps: the attribute that holds the class")
    parser.add_argument("--aoi", type=Path, metavar="FILE", help="with --maps: the area of interest")
    parser.add_argument("--layer", metavar="NAME", help="with --maps: the layer of the file")
    parser.add_argument("--images", nargs="+", type=Path, metavar="IMAGE", help="with --maps: the image of each map")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the tables and the report")
    parser.add_argument("--points", type=Path, metavar="FILE", help="estimate areas from points that were filled in")
    parser.add_argument(
        "--design", action="store_true", help="draw the points: a stratified random sample from the maps into --points"
    )


def _evaluate(call: Invocation) -> None:
    points = call.options.points or (None if call.options.maps else call.config.evaluation.points)
    if call.options.design:
        draw_points(call, points or output_folder(call) / "points.gpkg")
    elif points is not None:
        estimate_areas(call, points)
    else:
        compare_maps(call)
