"""Drawings of numbers: lengths are in proportion, text is never markup."""

from __future__ import annotations

import re

import numpy as np
import pytest

from geoseg.report.charts import class_balance, histogram, valid_fractions
from geoseg.report.svg import path, polygon_path, rect, round_step, text

CLASSES = [
    {"id": 0, "name": "background", "colour": "#d9d9d9"},
    {"id": 1, "name": "a < b", "colour": "#ff0000"},
    {"id": 2, "name": "x" * 40, "colour": "#00ff00"},
]


def _widths(svg: str, colour: str, hint: str) -> list[float]:
    return [float(w) for w in re.findall(rf'width="([\d.]+)" height="[\d.]+" fill="{colour}"[^>]*><title>{hint}', svg)]


def test_bars_are_as_long_as_shares() -> None:
    svg = class_balance(CLASSES, {"trn": (600, 300, 100), "val": (50, 50, 0)})

    assert _widths(svg, "#d9d9d9", "trn") == [420.0]
    assert _widths(svg, "#ff0000", "trn") == [210.0]
    assert _widths(svg, "#00ff00", "trn") == [70.0]
    assert _widths(svg, "#ff0000", "val") == pytest.approx([350.0])
    assert "0.00 %  none" in svg
    assert "a &lt; b" in svg
    assert "x" * 40 + "</text>" not in svg


def test_a_split_without_known_pixels() -> None:
    assert "0.00 %  none" in class_balance(CLASSES, {"trn": (0, 0, 0)})


def test_fractions_are_counted_in_tenths() -> None:
    svg = valid_fractions({"trn": np.array([0.05, 0.96, 1.0, 1.0])}, {"trn": "#0072b2"})
    assert "75.2 % of the pixels hold data" in svg
    heights = re.findall(r'height="([\d.]+)" fill="#0072b2"><title>(\d+) samples', svg)
    assert [(float(h), int(n)) for h, n in heights if n != "0"] == [(30.0, 1), (90.0, 3)]


def test_a_histogram_of_whole_numbers_has_no_comb() -> None:
    # Each value is equally frequent, so each bin must be equally high.
    values = np.repeat(np.arange(0, 256), 10).astype(np.uint8)
    svg = histogram(
        "band 1", values, {"p1": 2.5, "p99": 252.4, "mean": 127, "std": 70, "min": 0, "max": 255}, "#000000"
    )
    (area,) = re.findall(r'd="(M[^"]+)"', svg)
    heights = {point.split()[1] for point in area[1:-1].split("L")[1:-1]}
    assert heights == {"22.0"}


def test_a_constant_band_has_a_histogram() -> None:
    statistics = {"p1": 7.0, "p99": 7.0, "mean": 7.0, "std": 0.0, "min": 7.0, "max": 7.0}
    for dtype in (np.uint8, np.float32):
        assert "<svg" in histogram("band 1", np.full(50, 7, dtype), statistics, "#000000")


@pytest.mark.parametrize(("length", "step"), [(1, 1), (1.9, 1), (2, 2), (4.9, 2), (5, 5), (73, 50), (0.3, 0.2)])
def test_round_steps(length: float, step: float) -> None:
    assert round_step(length) == pytest.approx(step)


def test_pieces_escape_their_words() -> None:
    assert "&lt;b&gt;" in text(0, 0, "<b>")
    assert "<title>&lt;b&gt;</title>" in rect(0, 0, 1, 1, "#000000", "<b>")
    assert path("M0 0Z", "none", stroke_width="2") == '<path d="M0 0Z" fill="none" stroke-width="2"/>'
    assert polygon_path([[(0, 0), (1.26, 0), (1.31, 0), (0, 0)]]) == "M0 0L1.3 0Z"
