"""The report of estimated areas and accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geoseg.assess.area import Estimates
from geoseg.assess.areatables import AREA_COLUMNS, area_rows, point_rows, share_rows
from geoseg.report.html import page, paragraph, section, table


def area_page(
    result: Estimates, names: Sequence[str], colours: Sequence[str], unit: str, facts: Mapping[str, str]
) -> str:
    """Return the HTML page.

    Args:
        result: The estimates.
        names: Names of the classes.
        colours: Their colours, "#rrggbb".
        unit: "m2" or "px".
        facts: What else to say: heading and text.
    """
    words = (
        "The estimated area of a class is what a random sample of points says about the ground; counting the map's "
        "pixels, the map area, is biased by the map's errors. In 95 of 100 such samples the interval holds the truth. "
        "User's accuracy: how much of what the map calls the class is it. Producer's accuracy: how much of the class "
        "the map has."
    )
    sections = [
        paragraph(words),
        section("Areas and accuracies", table(AREA_COLUMNS, area_rows(result, names, unit), colours, strong_last=True)),
        section("Points", table(*point_rows(result, names), colours)),
        section("Estimated shares of the whole area", table(*share_rows(result, names), colours)),
        section(
            "About",
            table(("item", "value"), list(facts.items())),
            paragraph(
                "Stratified estimator with the classes of the map as strata: Olofsson et al. (2014), Good practices "
                "for estimating area and assessing accuracy of land change, Remote Sensing of Environment 148.",
                quiet=True,
            ),
        ),
    ]
    return page("Areas estimated from sample points", sections)
