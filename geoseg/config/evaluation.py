"""The section of the config for `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from geoseg.config.rules import choice, local_path, number, switch, whole
from geoseg.config.schema import Section, key
from geoseg.config.shares import share_list


class EvaluationSection(Section):
    """`python -m geoseg.evaluate`: class maps against reference polygons."""

    prep_csv_file: Annotated[Path, local_path("a CSV file", optional=True)] = key(
        None, "CSV list of scenes with their reference polygons.", "`sample.prep_csv_file`"
    )
    split: Annotated[str, choice("trn", "val", "tst")] = key("tst", "Split of the scenes to evaluate.")
    maps: Annotated[Path, local_path("a folder", optional=True)] = key(
        None, "Folder of the class maps.", "`classification.output_path`"
    )
    output_path: Annotated[Path, local_path("a folder", optional=True)] = key(
        None, "Folder of the tables and the report.", "`evaluation.maps`/evaluation"
    )
    boundary_width: Annotated[int, whole(1, 256)] = key(
        3, "For the boundary IoU: pixels of a class this near to its outline, in rows and columns, are its boundary."
    )
    object_iou: Annotated[float, number(0.5, high=1)] = key(
        0.5, "IoU from which on an object of the map counts as one of the reference."
    )
    difference_map: Annotated[bool, switch()] = key(
        True, "Write a map of agreement, omission and commission for each scene."
    )
    points: Annotated[Path | None, local_path("a GeoPackage", optional=True)] = key(
        None, "Filled-in sample points, from which areas and accuracies are estimated; like `--points`."
    )
    allocation: Annotated[str, choice("variance", "proportional", "equal")] = key(
        "variance",
        "How `--design` shares points out among the classes of the map: by area and expected variance, in proportion "
        "to area, or equally.",
    )
    sample_points: Annotated[int | None, whole(1, optional=True)] = key(
        None, "Points that `--design` draws.", "what `standard_error` asks for"
    )
    standard_error: Annotated[float, number(0, above=True, high=0.5)] = key(
        0.02, "Standard error of the overall accuracy that `--design` aims at."
    )
    expected_accuracy: Annotated[float | tuple[float, ...], share_list()] = key(
        0.8, "Share of a class in the map that is expected to be right: one for all classes, or a list by class id."
    )
    min_points: Annotated[int, whole(0)] = key(
        50, "Points that every class of the map gets, as far as they reach; rare classes would else have too few."
    )
