"""Tables of scores: an absent class is said to be absent, everywhere."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from geoseg.assess.confusion import SceneConfusion
from geoseg.assess.tables import (
    confusion_csv,
    confusion_rows,
    scene_rows,
    score_lines,
    score_rows,
    scores_csv,
    scores_json,
    text_table,
)

NAMES = ("background", "field", "water")
# Class 1: 6 right, 2 missed, 2 too many -> IoU 6/10; class 2 is nowhere.
SCENE = SceneConfusion("north", np.array([[10, 2, 0], [2, 6, 0], [0, 0, 0]]), np.array([3, 0, 0]), 7)
OTHER = SceneConfusion("south", np.array([[0, 0, 1], [0, 4, 0], [0, 0, 0]]), np.array([0, 0, 0]), 0)


def test_rows_by_class():
    rows = score_rows(SCENE, NAMES)
    assert rows[1] == ["field", "0.600", "0.750", "0.750", "0.750", "8", "8", "0"]
    assert rows[2] == ["water", "-", "-", "-", "-", "0", "0", "0"]
    # IoU of background is 10/14; water takes no part in the mean.
    assert rows[3][:2] == ["mean, sum", f"{(10 / 14 + 0.6) / 2:.3f}"]


def test_a_class_that_is_only_in_the_map_counts_as_zero():
    assert score_rows(OTHER, NAMES)[2][1] == "0.000"
    assert score_rows(OTHER, NAMES)[3][1] == f"{(0 + 1 + 0) / 3:.3f}"


def test_rows_by_scene_and_confusion():
    columns, rows = scene_rows([SCENE, OTHER], NAMES)
    assert columns == ["scene", "accuracy", "mean IoU", "IoU background", "IoU field", "IoU water"]
    assert rows[0] == ["north", "0.800", "0.657", "0.714", "0.600", "-"]
    columns, rows = confusion_rows(SCENE, NAMES)
    assert columns[-1] == "unclassified"
    assert rows[0] == ["background", "10", "2", "0", "3"]


def test_text_is_aligned():
    assert text_table(("a", "n"), [("long name", "1"), ("b", "10")]) == "a           n\nlong name   1\nb          10"


def test_terminal_lines_tell_scenes_apart():
    text = "\n".join(score_lines([SCENE, OTHER], NAMES))
    assert "north" in text
    assert "25 pixels compared, 7 without a known class left out" in text
    assert "overall accuracy 0.800" in "\n".join(score_lines([SCENE], NAMES))


def test_csv_holds_every_scene_and_the_whole_set():
    rows = list(csv.DictReader(io.StringIO(scores_csv([SCENE, OTHER], NAMES))))
    assert [row["scene"] for row in rows] == ["all scenes"] * 3 + ["north"] * 3 + ["south"] * 3
    assert float(rows[4]["iou"]) == pytest.approx(0.6)
    assert rows[5]["iou"] == ""
    assert rows[3]["unclassified"] == "3"
    table = list(csv.reader(io.StringIO(confusion_csv(SCENE, ("a,b", "c", "d")))))
    assert table[0] == ["reference", "a,b", "c", "d", "unclassified"]
    assert table[1] == ["a,b", "10", "2", "0", "3"]


def test_json_is_complete_and_strict():
    content = json.loads(scores_json([SCENE, OTHER], NAMES, {"maps": ["x.tif"]}), parse_constant=pytest.fail)
    assert content["maps"] == ["x.tif"]
    assert content["matrix"] == [[10, 2, 1], [2, 10, 0], [0, 0, 0]]
    assert content["known"] == 25 + 3
    north = content["scenes"][0]
    assert north["classes"][1] == {
        "id": 1,
        "name": "field",
        "iou": pytest.approx(0.6),
        "precision": 0.75,
        "recall": 0.75,
        "f1": 0.75,
        "reference": 8,
        "predicted": 8,
        "unclassified": 0,
    }
    assert north["classes"][2]["iou"] is None
    assert north["overall_accuracy"] == pytest.approx(0.8)
