"""The evaluate command: scores worked out by hand, by the rules of sampling, and readable reports."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from conftest import UTM18, make_polygons, make_raster, pixel_box
from PIL import Image

from geoseg.evaluate import main
from geoseg.geo.raster import read_info
from geoseg.predict.output import MapDescription, classes_tag, write_maps
from geoseg.predict.sliding import ClassBlock

CLASSES = (
    {"id": 0, "name": "background", "value": None, "colour": "#202020"},
    {"id": 1, "name": "field", "value": ["F", "G"], "colour": "#00ff00"},
    {"id": 2, "name": "water", "value": "W", "colour": None},
)


def make_map(folder: Path, image: Path, classes: np.ndarray, table=CLASSES) -> None:
    """Write a class map as classify does."""
    names = tuple(entry["name"] for entry in table)
    tags = {"CLASSES": classes_tag(table), "BANDS": "1,2,3", "IGNORE_VALUE": "255", "MODEL_NAME": "unetsmall"}
    info = read_info(image)
    description = MapDescription(names, ("#202020", "#00ff00", "#0000ff")[: len(names)], tags)
    with write_maps(folder, info, description) as maps:
        maps.write(ClassBlock(info.window, classes.astype(np.uint8), None))


def make_scene(folder: Path, name: str, value: str = "F", water: int = 10) -> None:
    """Write an image, a map and labels: field in the left half, water in `water` rows above; 40 x 40 pixels.

    The map has field in the left 15 columns and no water. The image has no data in the last row.
    """
    pixels = np.random.default_rng(1).integers(1, 255, size=(3, 40, 40)).astype(np.uint8)
    pixels[:, 39] = 0
    image = make_raster(folder / f"{name}.tif", pixels, nodata=0)
    boxes = [pixel_box(0, 0, 40, 20), pixel_box(0, 0, water, 40)]
    make_polygons(folder / f"{name}.gpkg", boxes, {"kind": [value, "W"]})
    classes = np.zeros((40, 40))
    classes[:, :15] = 1
    classes[39] = 255
    classes[20, 0] = 255
    make_map(folder / "maps", image, classes)


def write_project(folder: Path, *names: str, text: str = "") -> Path:
    rows = "".join(f"{name}.tif,{name}.gpkg,kind,tst\n" for name in names)
    (folder / "prep.csv").write_text("image,labels,attribute,split\n" + rows, encoding="utf-8")
    (folder / "config.yaml").write_text("evaluation:\n  split: tst\n" + text, encoding="utf-8")
    return folder / "config.yaml"


# Known rows 10..38 (29 of them, one pixel unclassified): field 20 columns of which 15 are found, background 20 right.
# Rows 0..9 are water, mapped field (15 columns) or background (25).
MATRIX = [[29 * 20, 0, 0], [29 * 5, 29 * 15 - 1, 0], [250, 150, 0]]


def test_scores_of_one_scene_by_hand(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    assert main([str(write_project(tmp_path, "north"))]) == 0
    out = tmp_path / "maps/evaluation"
    content = json.loads((out / "scores.json").read_text())
    assert content["matrix"] == MATRIX
    assert content["unknown"] == 40
    assert [entry["unclassified"] for entry in content["classes"]] == [0, 1, 0]
    assert content["classes"][1]["iou"] == pytest.approx(434 / (434 + 145 + 150))
    assert content["classes"][2]["iou"] == 0
    printed = capsys.readouterr().out
    assert f"{434 / 729:.3f}" in printed
    assert "north_classes.tif" in printed
    assert "north_quicklook.png" in printed
    assert "report.html" in printed
    with (out / "confusion.csv").open() as file:
        assert [row[1:4] for row in csv.reader(file)][1:] == [[str(n) for n in row] for row in MATRIX]


def test_the_report_and_the_quicklook(tmp_path: Path):
    make_scene(tmp_path, "north")
    assert main([str(write_project(tmp_path, "north"))]) == 0
    out = tmp_path / "maps/evaluation"
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert "unetsmall" in page
    assert Image.open(out / "north_quicklook.png").width == 16 + 3 * (320 + 16)
    names = {path.name for path in out.iterdir()}
    quick = {
        "north_quicklook.png",
        "report.html",
        "config.yaml",
        "north_difference.tif",
        "north_difference.tif.aux.xml",
    }
    assert names == quick | {"scores.json", "scores.csv", "details.csv", "confusion.csv"}


def test_boundaries_objects_and_the_difference(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    assert main([str(write_project(tmp_path, "north"))]) == 0
    out = tmp_path / "maps/evaluation"
    content = json.loads((out / "scores.json").read_text())
    field = content["details"]["all scenes"]["classes"][1]
    # The reference has one field of 29 x 20 pixels, the map one of 39 x 15: 434 of 729 pixels in common.
    assert (field["reference_objects"], field["map_objects"], field["matched_objects"]) == (1, 1, 1)
    assert field["matched_iou"] == pytest.approx(434 / 730)  # the pixel without a class is part of the reference
    assert content["details"]["north"]["classes"][2]["object_recall"] == 0
    assert content["details"]["north"]["expected_calibration_error"] is None
    with rasterio.open(out / "north_difference.tif") as made:
        kinds = np.bincount(made.read(1).ravel(), minlength=256)
    # Both background; field found; field and water not found; nothing invented; water called field; unknown.
    assert list(kinds[[0, 1, 2, 3, 4, 255]]) == [580, 434, 145 + 250, 0, 150, 41]
    with (out / "details.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["scene"], row["class"]) for row in rows[:4]][2:] == [("all scenes", "water"), ("north", "background")]
    assert "boundary IoU" in capsys.readouterr().out


def test_calibration_where_there_is_confidence(tmp_path: Path):
    make_scene(tmp_path, "north")
    make_raster(tmp_path / "maps/north_confidence.tif", np.full((40, 40), 0.75, np.float32))
    assert main([str(write_project(tmp_path, "north"))]) == 0
    out = tmp_path / "maps/evaluation"
    content = json.loads((out / "scores.json").read_text())
    accuracy = (580 + 434) / 1559
    assert content["details"]["north"]["expected_calibration_error"] == pytest.approx(0.75 - accuracy)
    assert "Calibration" in (out / "report.html").read_text()
    with (out / "calibration.csv").open() as file:
        assert [int(row["pixels"]) for row in csv.DictReader(file) if row["pixels"] != "0"] == [1559]


def mark(path: Path, **tags: str) -> None:
    with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as made:
        made.update_tags(**tags)


@pytest.mark.parametrize(
    ("mapped", "beside", "fits"),
    [
        ({"RUN": "a", "MODEL_HASH": "m"}, {"RUN": "a", "MODEL_HASH": "m"}, True),
        ({"RUN": "a", "MODEL_HASH": "m"}, {"RUN": "b", "MODEL_HASH": "m"}, False),
        ({"MODEL_HASH": "m"}, {"MODEL_HASH": "m"}, True),
        ({"MODEL_HASH": "m"}, {"MODEL_HASH": "n"}, False),
        ({"RUN": "a", "MODEL_HASH": "m"}, {}, False),
    ],
)
def test_confidence_of_another_run_is_left_out(tmp_path: Path, capsys, mapped: dict, beside: dict, fits: bool):
    make_scene(tmp_path, "north")
    path, confidence = (tmp_path / f"maps/north_{kind}.tif" for kind in ("classes", "confidence"))
    make_raster(confidence, np.full((40, 40), 0.75, np.float32))
    mark(path, **mapped)
    mark(confidence, **beside)
    assert main([str(write_project(tmp_path, "north"))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert (content["details"]["north"]["expected_calibration_error"] is not None) == fits
    lines = [line for line in capsys.readouterr().err.splitlines() if str(confidence) in line and str(path) in line]
    assert len(lines) == (0 if fits else 1)
    assert (tmp_path / "maps/evaluation/calibration.csv").exists() == fits


def test_confidence_on_another_grid_is_left_out_and_probabilities_are_taken(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    make_raster(tmp_path / "maps/north_confidence.tif", np.full((20, 20), 0.75, np.float32))
    make_raster(tmp_path / "maps/north_probabilities.tif", np.full((3, 40, 40), 0.5, np.float32))
    assert main([str(write_project(tmp_path, "north"))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    error = content["details"]["north"]["expected_calibration_error"]
    assert error == pytest.approx((580 + 434) / 1559 - 0.5)
    assert "north_confidence.tif: of another grid than" in capsys.readouterr().err


def test_no_difference_map_if_none_is_wanted(tmp_path: Path):
    make_scene(tmp_path, "north")
    assert main([str(write_project(tmp_path, "north", text="  difference_map: false\n"))]) == 0
    assert not list((tmp_path / "maps/evaluation").glob("*difference*"))


def test_pixels_of_all_scenes_make_one_matrix(tmp_path: Path, capsys):
    for name, water in (("north", 10), ("south", 1)):
        make_scene(tmp_path, name, "G", water)
    assert main([str(write_project(tmp_path, "north", "south"))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert [scene["name"] for scene in content["scenes"]] == ["north", "south"]
    total = np.sum([scene["matrix"] for scene in content["scenes"]], axis=0)
    np.testing.assert_array_equal(content["matrix"], total)
    assert content["scenes"][1]["matrix"][2] == [25, 15, 0]
    assert "south" in capsys.readouterr().out


def test_values_to_ignore_and_masked_outside_are_unknown(tmp_path: Path):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north", text="sample:\n  ignore_values: [W]\n  mask_input_image: true\n")
    (tmp_path / "maps/other").mkdir()
    image = tmp_path / "north.tif"
    table = (CLASSES[0], CLASSES[1])  # W is a class no longer
    make_map(tmp_path / "maps", image, np.ones((40, 40)), table)
    assert main([str(config)]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert content["matrix"] == [[0, 0], [0, 29 * 20]]
    assert content["unknown"] == 1600 - 29 * 20
    assert content["overall_accuracy"] == content["mean_iou"] == 1


def test_pixels_that_the_map_leaves_open_have_no_class(tmp_path: Path):
    make_scene(tmp_path, "north")
    with rasterio.open(tmp_path / "maps/north_classes.tif") as made:
        classes = made.read(1)
    classes[10, :4] = 3
    open_class = {"id": 3, "name": "uncertain", "value": 3, "colour": "#7f7f7f"}
    make_map(tmp_path / "maps", tmp_path / "north.tif", classes, (*CLASSES, open_class))
    text = "global:\n  classes: [background, {name: field, value: [F, G]}, {name: water, value: W}]\n"
    assert main([str(write_project(tmp_path, "north", text=text))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert content["matrix"] == [MATRIX[0], [29 * 5, 29 * 15 - 5, 0], MATRIX[2]]
    assert [entry["unclassified"] for entry in content["classes"]] == [0, 5, 0]


def as_values(path: Path, **tags: str) -> None:
    """Replace ids 0, 1, 2 in a map by 7, 300 and 0, and nodata by 65535."""
    with rasterio.open(path) as made:
        values = np.array([7, 300, 0] + [65535] * 253, np.uint16)[made.read(1)]
        tags = {**made.tags(), **tags}
    make_raster(path, values, nodata=65535)
    with rasterio.open(path, "r+") as made:
        made.update_tags(**tags)


@pytest.mark.parametrize("beside", [False, True])
def test_a_map_of_attribute_values_has_the_scores_of_its_ids(tmp_path: Path, beside: bool):
    for name in ("north", "south"):
        make_scene(tmp_path, name)
    path = tmp_path / "maps/north_classes.tif"
    entries = [{"id": number, "value": value} for number, value in enumerate((7, 300, 0))]
    if beside:
        as_values(path, MODEL_HASH="abc")
        (tmp_path / "maps/classes.json").write_text(json.dumps({"model_hash": "abc", "classes": entries}))
    else:
        as_values(path, VALUES="[7, 300, 0]")
    assert main([str(write_project(tmp_path, "north")), "evaluation.difference_map=true"]) == 0
    out = tmp_path / "maps/evaluation"
    assert json.loads((out / "scores.json").read_text())["matrix"] == MATRIX
    found = {name: (out / name).read_bytes() for name in ("north_quicklook.png", "north_difference.tif", "details.csv")}
    assert main([str(write_project(tmp_path, "south")), "evaluation.difference_map=true"]) == 0
    assert found["details.csv"] == (out / "details.csv").read_bytes().replace(b"south", b"north")
    assert found["north_quicklook.png"] == (out / "south_quicklook.png").read_bytes()
    with rasterio.open(out / "north_difference.tif") as one, rasterio.open(out / "south_difference.tif") as other:
        np.testing.assert_array_equal(one.read(), other.read())


def test_a_map_of_values_that_says_nothing_of_them_is_refused(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north")
    path = tmp_path / "maps/north_classes.tif"
    as_values(path)
    refused(capsys, main([str(config)]), 2, "north_classes.tif", "tag VALUES", "classify again")
    other = {"model_hash": "another", "classes": [{"id": 0, "value": 7}]}
    (tmp_path / "maps/classes.json").write_text(json.dumps(other))
    refused(capsys, main([str(config)]), 2, "north_classes.tif", "tag VALUES")
    with rasterio.open(path, "r+") as made:
        made.update_tags(VALUES="[7, 301, 0]")
    refused(capsys, main([str(config)]), 2, "north_classes.tif", "the value 300")


def test_one_pair_without_any_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_scene(tmp_path, "north")
    monkeypatch.chdir(tmp_path)
    pair = ("--maps", "maps/north_classes.tif", "--references", "north.gpkg", "--attribute", "kind")
    assert main([*pair, "--images", "north.tif", "--output", "out"]) == 0
    assert json.loads((tmp_path / "out/scores.json").read_text())["matrix"] == MATRIX
    assert main([*pair]) == 0  # without the image its nodata cannot be known; the map has none there either
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert (content["matrix"], content["unknown"]) == (MATRIX, 0)
    assert sum(entry["unclassified"] for entry in content["classes"]) == 41


def test_a_map_of_another_program_takes_the_classes_of_the_config(tmp_path: Path):
    make_scene(tmp_path, "north")
    with rasterio.open(tmp_path / "maps/north_classes.tif") as made:
        classes = made.read(1)
    make_raster(tmp_path / "maps/north_classes.tif", classes, nodata=255)
    text = "global:\n  classes: [{name: background}, {name: field, value: F}, {name: water, value: W}]\n"
    assert main([str(write_project(tmp_path, "north", text=text))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert content["matrix"] == MATRIX


def refused(capsys, code: int, expected: int, *words: str) -> None:
    error = capsys.readouterr().err
    assert code == expected, error
    assert "Traceback" not in error
    assert all(word in error for word in words), error


def test_missing_maps_are_all_named(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    for path in (tmp_path / "maps").iterdir():
        path.unlink()
    config = write_project(tmp_path, "north", "south")
    refused(capsys, main([str(config)]), 2, "north_classes.tif", "south_classes.tif", "geoseg.classify")
    assert not (tmp_path / "maps/evaluation").exists()


def test_no_scene_of_the_split_is_an_error(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north")
    refused(capsys, main([str(config), "evaluation.split=val"]), 2, "no val scene", "evaluation.split")


def test_labels_elsewhere_are_refused(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    make_polygons(tmp_path / "north.gpkg", [pixel_box(5000, 5000, 10, 10)], {"kind": ["F"]})
    refused(capsys, main([str(write_project(tmp_path, "north"))]), 2, "north.gpkg", "check the CRS")


def test_one_bad_scene_does_not_stop_the_others(tmp_path: Path, capsys):
    for name in ("north", "south"):
        make_scene(tmp_path, name)
    (tmp_path / "south.gpkg").unlink()
    make_polygons(tmp_path / "south.gpkg", [pixel_box(0, 0, 5, 5)], {"other": ["F"]})
    refused(capsys, main([str(write_project(tmp_path, "north", "south"))]), 4, "south.gpkg", "kind", "other")
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert [scene["name"] for scene in content["scenes"]] == ["north"]
    assert content["failed"] == ["south"]


@pytest.mark.parametrize("text", ["classes: [background, field, lake]", "num_classes: 2"])
def test_a_config_that_contradicts_the_map_is_refused(tmp_path: Path, capsys, text: str):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north", text=f"global:\n  {text}\n")
    refused(capsys, main([str(config)]), 2, "north_classes.tif", "3 classes", "as the config says")


def test_maps_of_different_models_cannot_be_mixed(tmp_path: Path, capsys):
    for name in ("north", "south"):
        make_scene(tmp_path, name)
    make_map(tmp_path / "maps", tmp_path / "south.tif", np.zeros((40, 40)), CLASSES[:2])
    refused(capsys, main([str(write_project(tmp_path, "north", "south"))]), 2, "south_classes.tif", "one model")


def test_maps_without_references_are_refused(tmp_path: Path, capsys):
    refused(capsys, main(["--maps", "a.tif"]), 2, "--references")


def test_a_map_that_is_named_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    make_scene(tmp_path, "north")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.tif").symlink_to("maps/north_classes.tif")
    maps = ("maps/north_classes.tif", "./maps/../maps/north_classes.tif", "link.tif")
    more = ("--references", "north.gpkg", "--attribute", "kind", "--output", "out")
    assert main(["--maps", *maps, *more, "--images", "north.tif", "north.tif", "north.tif"]) == 0
    content = json.loads((tmp_path / "out/scores.json").read_text())
    assert content["matrix"] == MATRIX
    assert len(content["scenes"]) == 1
    error = capsys.readouterr().err
    assert error.count("named more than once; it counts once") == 2
    assert "warning: link.tif: named" in error


def test_images_of_one_name_in_a_list_share_no_map(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    (tmp_path / "later").mkdir()
    make_scene(tmp_path / "later", "north")
    config = write_project(tmp_path, "north", "later/north")
    refused(capsys, main([str(config)]), 2, "later/north.tif", "the same name as")
    refused(capsys, main([str(config), "--design"]), 2, "later/north.tif", "the same name as")


def test_an_image_with_two_label_files_is_measured_with_each(tmp_path: Path):
    make_scene(tmp_path, "north")
    config = write_project(tmp_path, "north")
    make_polygons(tmp_path / "more.gpkg", [pixel_box(0, 0, 40, 40)], {"kind": ["F"]})
    with (tmp_path / "prep.csv").open("a") as file:
        file.write("./north.tif,more.gpkg,kind,tst\n")
    assert main([str(config)]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert [scene["name"] for scene in content["scenes"]] == ["north", "north-2"]
    assert content["scenes"][1]["matrix"] == [[0, 0, 0], [39 * 25, 39 * 15 - 1, 0], [0, 0, 0]]


def test_a_first_class_like_the_others_is_doubted(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    table = ({**CLASSES[0], "name": "building", "value": "B"}, *CLASSES[1:])
    make_map(tmp_path / "maps", tmp_path / "north.tif", np.zeros((40, 40)), table)
    call = ["--maps", str(tmp_path / "maps/north_classes.tif"), "--references", str(tmp_path / "north.gpkg")]
    call += ["--attribute", "kind", "--output", str(tmp_path / "out")]
    assert main(call) == 0
    error = capsys.readouterr().err
    assert "the first class, building, is taken for background" in error
    assert "add sample.mask_input_image=true" in error
    assert json.loads((tmp_path / "out/scores.json").read_text())["unknown"] == 0
    assert main([*call, "sample.mask_input_image=true"]) == 0
    assert "taken for background" not in capsys.readouterr().err
    assert json.loads((tmp_path / "out/scores.json").read_text())["unknown"] == 30 * 20  # right of field, below water


def test_a_label_raster_leaves_no_ground_to_the_background(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    table = ({**CLASSES[0], "name": "building", "value": 0}, {**CLASSES[1], "value": 1}, {**CLASSES[2], "value": 2})
    make_map(tmp_path / "maps", tmp_path / "north.tif", np.zeros((40, 40)), table)
    labels = make_raster(tmp_path / "labels.tif", np.ones((1, 40, 40), np.uint8))
    call = ["--maps", str(tmp_path / "maps/north_classes.tif"), "--references", str(labels)]
    assert main([*call, "--output", str(tmp_path / "out")]) == 0
    assert "taken for background" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys):
    make_scene(tmp_path, "north")
    (tmp_path / "afile").write_text("kept")
    call = ["--maps", str(tmp_path / "maps/north_classes.tif"), "--references", str(tmp_path / "north.gpkg")]
    for folder in (tmp_path / "afile", tmp_path / "afile/below", Path("/proc/x")):
        code = main([*call, "--attribute", "kind", "--output", str(folder)])
        refused(capsys, code, 2, f"{folder}: found a folder that cannot be made", "choose another output folder")
    assert (tmp_path / "afile").read_text() == "kept"


def test_an_empty_reference_is_all_background(tmp_path: Path):
    make_scene(tmp_path, "north")
    make_polygons(tmp_path / "north.gpkg", [], {"kind": np.array([], dtype=object)}, UTM18, geometry_type="Polygon")
    assert main([str(write_project(tmp_path, "north"))]) == 0
    content = json.loads((tmp_path / "maps/evaluation/scores.json").read_text())
    assert content["matrix"] == [[39 * 25, 39 * 15 - 1, 0], [0, 0, 0], [0, 0, 0]]
