"""The reports in a real browser: no errors, pictures load, nothing sticks out. Skipped where there is no browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser import Seen, look_at
from PIL import Image
from test_store_report import make_store

from geoseg.assess.confusion import SceneConfusion
from geoseg.report.evaluation import evaluation_page
from geoseg.report.html import page, raw_figure
from geoseg.report.quicklook import Legend


def _is_good(seen: Seen) -> None:
    assert seen.console == []
    assert seen.found["broken"] == []
    assert seen.found["empty"] == []
    assert seen.found["requests"] == []
    # Headings, text and pictures: a blank page has one colour, a page without its pictures a few greys.
    assert len(np.unique(seen.picture.reshape(-1, 3), axis=0)) > 100


@pytest.fixture(scope="module")
def store_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return make_store(folder, thin=True).folder / "report.html"


@pytest.mark.parametrize("width", [1200, 500])
def test_the_report_of_a_store(store_report: Path, tmp_path: Path, width: int) -> None:
    seen = look_at(store_report, tmp_path, width)

    _is_good(seen)
    assert seen.found["pictures"] == 2
    assert seen.found["drawings"] == 1 + 1 + 1 + 4
    assert seen.found["headings"][:3] == ["Sample store", "Warnings", "Where the samples lie"]
    assert seen.found["sticksOut"] <= 0


def test_the_report_of_an_evaluation(tmp_path: Path) -> None:
    counts = np.array([[900, 40, 3], [60, 500, 20], [0, 10, 300]])
    scenes = [SceneConfusion(name, counts, np.array([5, 0, 0]), 77) for name in ("north", "south")]
    picture = tmp_path / "north.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 900, 3)).astype(np.uint8)).save(picture)
    legend = Legend(("background", "field", "water"), ("#d9d9d9", "#00aa00", "#0000ff"))
    report = tmp_path / "report.html"
    report.write_text(evaluation_page(scenes, legend, {"north": picture}, {"model": "unetsmall"}), encoding="utf-8")

    seen = look_at(report, tmp_path)

    _is_good(seen)
    assert seen.found["pictures"] == 1
    assert seen.found["headings"][0] == "Evaluation of class maps"


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    wide = '<div style="width: 3000px">x</div><svg aria-label="nothing"></svg><script>nowhere()</script>'
    bad.write_text(page("Bad", [raw_figure(b"no picture", "image/png", "broken one"), wide]), encoding="utf-8")

    seen = look_at(bad, tmp_path)

    assert seen.found["broken"] == ["broken one"]
    assert seen.found["empty"] == ["nothing"]
    assert seen.found["sticksOut"] > 0
    assert any("nowhere is not defined" in line for line in seen.console)
