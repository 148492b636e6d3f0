"""The report of an evaluation: scores and pictures on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from geoseg.assess.confusion import SceneConfusion, whole_set
from geoseg.assess.details import Details, whole_details
from geoseg.assess.detailtables import DETAIL_COLUMNS, RELIABILITY_COLUMNS, detail_rows, reliability_rows
from geoseg.assess.tables import SCORE_COLUMNS, confusion_rows, scene_rows, score_rows
from geoseg.learn.metrics import frequency_weighted_iou, kappa, scores
from geoseg.report.html import figure, page, paragraph, section, table
from geoseg.report.quicklook import Legend
from geoseg.report.slippy import STYLE

MOST_PICTURES = 6  # a page with more would be slow to open


def evaluation_page(
    scenes: Sequence[SceneConfusion],
    legend: Legend,
    pictures: Mapping[str, Path],
    facts: Mapping[str, str],
    details: Mapping[str, Details] | None = None,
    slippy: tuple[str, str] = ("", ""),
) -> str:
    """Return the HTML page.

    Args:
        scenes: Counts of each scene.
        legend: Names and colours of the classes.
        pictures: Quicklook by scene name.
        facts: What else to say, such as the model's name: heading and text.
        details: What else was measured of each scene, by its name.
        slippy: What `slippy_map` returned: a piece of HTML and a script.
    """
    everything = whole_set(scenes)
    result = scores(everything.matrix)
    sections = [
        paragraph(
            f"Overall accuracy {result.overall_accuracy:.3f}, mean IoU {result.mean_iou:.3f} over the classes present, "
            f"kappa {kappa(everything.matrix):.3f}, frequency-weighted IoU "
            f"{frequency_weighted_iou(everything.matrix):.3f}, from {int(everything.matrix.sum()):,} pixels of "
            f"{len(scenes)} scene{'s' if len(scenes) > 1 else ''}."
        ),
        *([section("Map", slippy[0])] if slippy[0] else []),
        section(
            "Scores by class",
            table(SCORE_COLUMNS, score_rows(everything, legend.names), legend.colours, strong_last=True),
            paragraph(
                "A dash means that the score is not defined: the class is neither in the reference nor in the map, or "
                "one of the two lacks it. Unclassified pixels have a known class and none in the map; they are not in "
                f"the scores. {everything.unknown:,} pixels without a known class are left out.",
                quiet=True,
            ),
        ),
        *(_details(whole_details(list(details.values())), legend) if details else []),
        section("Confusion matrix", table(*confusion_rows(everything, legend.names), legend.colours)),
        section("Scenes", table(*scene_rows(scenes, legend.names))),
        section("Pictures", *(figure(path, name) for name, path in list(pictures.items())[:MOST_PICTURES])),
        section("About", table(("item", "value"), list(facts.items()))),
    ]
    return page("Evaluation of class maps", sections, STYLE, slippy[1])


def _details(whole: Details, legend: Legend) -> list[str]:
    words = (
        "Boundary IoU compares pixels near the outlines of a class alone. An object is a connected area of one class; "
        "objects of map and reference are matched one to one."
    )
    rows = detail_rows(whole, legend.names)
    sections = [
        section("Boundaries and objects", table(DETAIL_COLUMNS, rows, legend.colours), paragraph(words, quiet=True))
    ]
    if whole.reliability is not None:
        said = whole.reliability
        text = (
            f"Expected calibration error {said.expected_error:.3f}, largest {said.largest_error:.3f}: how far the "
            "confidence of the class in the map is from the share that is right."
        )
        rows = reliability_rows(said)
        sections.append(section("Calibration", paragraph(text), table(RELIABILITY_COLUMNS, rows)))
    return sections
