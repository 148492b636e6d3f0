"""The report of an evaluation: scores and pictures on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from geoseg.assess.confusion import SceneConfusion, whole_set
from geoseg.assess.tables import SCORE_COLUMNS, confusion_rows, scene_rows, score_rows
from geoseg.learn.metrics import scores
from geoseg.report.html import figure, page, paragraph, section, table
from geoseg.report.quicklook import Legend

_MOST_PICTURES = 6  # a page with more would be slow to open


def evaluation_page(
    scenes: Sequence[SceneConfusion], legend: Legend, pictures: Mapping[str, Path], facts: Mapping[str, str]
) -> str:
    """Return the HTML page.

    Args:
        scenes: Counts of each scene.
        legend: Names and colours of the classes.
        pictures: Quicklook by scene name.
        facts: What else to say, such as the model's name: heading and text.
    """
    everything = whole_set(scenes)
    result = scores(everything.matrix)
    sections = [
        paragraph(
            f"Overall accuracy {result.overall_accuracy:.3f}, mean IoU {result.mean_iou:.3f} over the classes present, "
            f"from {int(everything.matrix.sum()):,} pixels of {len(scenes)} scene{'s' if len(scenes) > 1 else ''}."
        ),
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
        section("Confusion matrix", table(*confusion_rows(everything, legend.names), legend.colours)),
        section("Scenes", table(*scene_rows(scenes, legend.names))),
        section("Pictures", *(figure(path, name) for name, path in list(pictures.items())[:_MOST_PICTURES])),
        section("About", table(("item", "value"), list(facts.items()))),
    ]
    return page("Evaluation of class maps", sections)
