"""The reports in a real browser: no errors, pictures load, nothing sticks out. Skipped where there is no browser."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import Seen, look_at
from PIL import Image
from test_store_report import make_store
from test_training_report import make_run

from geoseg.assess.confusion import SceneConfusion
from geoseg.report.evaluation import evaluation_page
from geoseg.report.html import page, raw_figure
from geoseg.report.quicklook import Legend
from geoseg.report.slippy import MapLayer, MapScene, slippy_map
from geoseg.report.training import write_training_report


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
    text = evaluation_page(scenes, legend, {"north": picture}, {"model": "unetsmall"}, slippy=_map())
    report.write_text(text.replace("</body>", f"<script>{_USE_MAP}</script></body>"), encoding="utf-8")

    seen = look_at(report, tmp_path)

    _is_good(seen)
    assert seen.found["headings"][:2] == ["Evaluation of class maps", "Map"]
    assert seen.found["sticksOut"] <= 0
    answer = re.search(r'data-steps="([^"]*)"', seen.dom)
    assert answer is not None
    start, zoomed, wheeled, dragged, dimmed, off, other, whole = json.loads(unescape(answer[1]))
    # 2400 pixels are shown whole: by the level of half their size, 5 x 4 tiles, over the coarsest, of both layers.
    assert start["level"] == 1
    assert start["tiles"] == 2 * (5 * 4 + 1)
    assert zoomed["scale"] == pytest.approx(2 * start["scale"])
    assert zoomed["level"] == 0
    assert zoomed["centre"] == start["centre"] == [1200, 800]
    assert zoomed["tiles"] > start["tiles"]  # finer ones as well
    assert wheeled["scale"] > 1.3 * zoomed["scale"]
    # The place under the pointer, near the upper left corner, stays: the centre moves towards it.
    assert wheeled["centre"][0] < zoomed["centre"][0]
    assert dragged["centre"][0] == pytest.approx(wheeled["centre"][0] - 60 / wheeled["scale"])
    assert dragged["centre"][1] == pytest.approx(wheeled["centre"][1] + 30 / wheeled["scale"])
    assert dimmed["opacity"] == "0.25"
    assert off["display"] == "none"
    assert off["tiles"] < dimmed["tiles"]
    assert other["tiles"] == 2 + 1  # the second scene: 300 x 200 pixels, one layer
    assert whole["scale"] == pytest.approx(other["scale"])


def _map() -> tuple[str, str]:
    rng = np.random.default_rng(3)
    image = np.kron(rng.integers(0, 256, (20, 30, 3)), np.ones((80, 80, 1))).astype(np.uint8)
    numbers = np.kron(rng.integers(0, 3, (20, 30)), np.ones((80, 80))).astype(np.uint8)
    colours = ("#d9d9d9", "#00aa00", "#0000ff")
    large = MapScene("north", (1600, 2400), [MapLayer("image", image), MapLayer("map", numbers, colours, True, 0.5)])
    small = MapScene("south", (200, 300), [MapLayer("map", numbers[:200, :300], colours)])
    return slippy_map([large, small], 2, [("field", "#00aa00")])


# What a person would do with the map; `steps` collects what then is to be seen.
_USE_MAP = """
addEventListener("load", () => {
  const box = document.getElementById("slippy"), view = box.querySelector(".view"), steps = [];
  const look = () => steps.push({
    scale: +box.dataset.scale, level: +box.dataset.level, centre: box.dataset.centre.split(",").map(Number),
    tiles: box.querySelectorAll("img").length, opacity: box.querySelector(".pane:last-child").style.opacity,
    display: box.querySelector(".pane:last-child").style.display,
  });
  const corner = view.getBoundingClientRect(), at = (x, y) => ({clientX: corner.left + x, clientY: corner.top + y});
  look();
  box.querySelector(".in").click(); look();
  view.dispatchEvent(new WheelEvent("wheel", {deltaY: -200, cancelable: true, ...at(20, 20)})); look();
  view.setPointerCapture = () => {};
  view.dispatchEvent(new PointerEvent("pointerdown", {pointerId: 1, ...at(100, 100)}));
  view.dispatchEvent(new PointerEvent("pointermove", {pointerId: 1, ...at(160, 70)}));
  view.dispatchEvent(new PointerEvent("pointerup", {pointerId: 1, ...at(160, 70)})); look();
  const slider = box.querySelectorAll("input[type=range]")[1];
  slider.value = 25; slider.dispatchEvent(new Event("input")); look();
  box.querySelectorAll("input[type=checkbox]")[1].click(); look();
  box.querySelectorAll("input[type=checkbox]")[1].click();
  const choice = box.querySelector("select");
  choice.value = 1; choice.dispatchEvent(new Event("input")); look();
  box.querySelector(".out").click(); box.querySelector(".fit").click(); look();
  document.documentElement.setAttribute("data-steps", JSON.stringify(steps));
});
"""


def test_the_report_of_a_training(tmp_path: Path) -> None:
    seen = look_at(write_training_report(*make_run(tmp_path)), tmp_path, width=500)

    _is_good(seen)
    assert seen.found["pictures"] == 4
    assert seen.found["drawings"] == 4 + 1 + 1 + 1 + 1 + 1
    assert seen.found["headings"][:3] == ["Training of unet<small>", "Curves", "Scores by class"]
    assert seen.found["sticksOut"] <= 0


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    wide = '<div style="width: 3000px">x</div><svg aria-label="nothing"></svg><script>nowhere()</script>'
    bad.write_text(page("Bad", [raw_figure(b"no picture", "image/png", "broken one"), wide]), encoding="utf-8")

    seen = look_at(bad, tmp_path)

    assert seen.found["broken"] == ["broken one"]
    assert seen.found["empty"] == ["nothing"]
    assert seen.found["sticksOut"] > 0
    assert any("nowhere is not defined" in line for line in seen.console)
