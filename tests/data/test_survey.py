from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from conftest import make_polygons, make_raster, pixel_box
from rasterio.enums import ColorInterp
from scenery import CLASSES, make_scene

from geoseg.data.classes import class_mapping
from geoseg.data.scenes import Scene
from geoseg.data.survey import Survey, SurveyOptions, survey
from geoseg.errors import DataError
from geoseg.geo.vector import LabelRules

OPTIONS = SurveyOptions(class_mapping(CLASSES))


def _survey(*scenes: Scene, **options: Any) -> Survey:
    return survey(scenes, replace(OPTIONS, **options))


def _problems(*scenes: Scene, **options: Any) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        _survey(*scenes, **options)
    return caught.value.problems


def _pixels(bands: int = 2, dtype: str = "uint8") -> np.ndarray:
    return np.ones((bands, 20, 20), dtype)


def test_facts_of_a_good_scene(tmp_path: Path) -> None:
    counted: list[int] = []

    found = survey([make_scene(tmp_path, "a"), make_scene(tmp_path, "b", "val")], OPTIONS, on_progress=counted.append)

    assert [(f.bands, f.polygons, f.info.height) for f in found.facts] == [((1, 2), 2, 40)] * 2
    assert found.warnings == ()
    assert counted == [1, 1]


def test_all_problems_of_all_scenes_at_once(tmp_path: Path) -> None:
    good = make_scene(tmp_path, "good")
    bands = replace(make_scene(tmp_path, "bands", image=_pixels(5)), where="prep.csv, line 2", attribute="Cls")
    (tmp_path / "broken.tif").write_bytes(b"no raster")

    problems = _problems(
        good,
        bands,
        replace(good, image=tmp_path / "missing.tif", where="prep.csv, line 3"),
        replace(good, image=tmp_path / "broken.tif"),
        replace(good, labels=None, where="prep.csv, line 5"),
        number_of_bands=2,
    )

    assert len(problems) == 5
    assert problems[0].startswith("prep.csv, line 2")
    assert "found 5 bands, expected 2" in problems[0]
    assert "'Cls'" in problems[1]
    assert "cls" in problems[1]
    assert str(tmp_path / "missing.tif") in problems[2]
    assert "no such file" in problems[2]
    assert "broken.tif" in problems[3]
    assert "line 5" in problems[4]
    assert "no labels" in problems[4]


def test_all_scenes_unusable(tmp_path: Path) -> None:
    scenes = [Scene(tmp_path / f"{name}.tif", tmp_path / "a.gpkg", "cls", "trn") for name in "ab"]

    assert len(_problems(*scenes)) == 2


@pytest.mark.parametrize("ids", [[300], [-1], [3]])
def test_ids_beyond_the_classes_are_listed(tmp_path: Path, ids: list[int]) -> None:
    scene = make_scene(tmp_path, boxes=[(0, 0, 5, 5, ids[0])])

    (line,) = _problems(scene)

    assert str(ids[0]) in line


def test_images_that_differ_in_bands_or_type_are_named(tmp_path: Path) -> None:
    scenes = [make_scene(tmp_path, "a", image=_pixels()), make_scene(tmp_path, "b", image=_pixels())]
    odd = [make_scene(tmp_path, "c", image=_pixels(3)), make_scene(tmp_path, "d", image=_pixels(2, "float32"))]

    bands, dtype = _problems(*scenes, *odd)

    assert "c.tif 3" in bands
    assert "2 in 3 of 4 images" in bands
    assert "d.tif float32" in dtype
    assert "uint8 in 3 of 4" in dtype


def test_labels_somewhere_else(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, boxes=[(500, 500, 5, 5, 1)])

    (line,) = _problems(scene)

    assert "1 polygons, none of them on" in line
    assert "scene.tif" in line
    assert "scene.gpkg" in line


def test_labels_that_burn_nothing(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    make_polygons(scene.labels, [pixel_box(5, 5.6, 10, 0.4), pixel_box(5, 9.1, 10, 0.3)], {"cls": [1, 1]})

    (line,) = _problems(scene)

    assert "2 polygons that cover no pixel centre" in line


def test_thin_polygons_among_others_are_counted(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    make_polygons(scene.labels, [pixel_box(5, 5.6, 10, 0.4), pixel_box(0, 0, 9, 9)], {"cls": [1, 1]})

    found = _survey(scene, make_scene(tmp_path, "v", "val"))

    assert len(found.warnings) == 1
    assert "1 polygons are thinner than a pixel" in found.warnings[0]


def test_layer_without_features_is_a_warning(tmp_path: Path) -> None:
    found = _survey(make_scene(tmp_path, "a", boxes=()), make_scene(tmp_path, "v", "val"))

    assert found.facts[0].polygons == 0
    assert any("no features" in line for line in found.warnings)


def test_labels_without_crs(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    make_polygons(scene.labels, [pixel_box(0, 0, 9, 9)], {"cls": [1]}, crs=None)

    (line,) = _problems(scene)
    assert "no CRS" in line
    assert str(scene.labels) in line
    assert _survey(scene, rules=LabelRules(assume_crs=True)).facts[0].polygons == 1


def test_image_without_crs(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, crs=None)

    (line,) = _problems(scene)

    assert "no CRS" in line
    assert str(scene.image) in line


@pytest.mark.parametrize("splits", [["tst"], ["val", "tst", "tst"]])
def test_no_training_scene_lists_the_counts(tmp_path: Path, splits: list[str]) -> None:
    scenes = [make_scene(tmp_path, f"s{i}", split) for i, split in enumerate(splits)]

    (line,) = _problems(*scenes)

    assert f"trn 0, val {splits.count('val')}, tst {splits.count('tst')}" in line


def test_no_validation_scene_is_a_warning(tmp_path: Path) -> None:
    (line,) = _survey(make_scene(tmp_path)).warnings

    assert "val" in line


def test_one_image_in_two_splits_is_refused_unless_areas_are_marked_out(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    other = replace(make_scene(tmp_path, "other", "val"), image=scene.image)

    (line,) = _problems(scene, other)

    assert "scene.tif in split val" in line
    assert len(_survey(scene, other, rules=LabelRules(mask_outside=True)).facts) == 2


def test_very_different_resolutions_are_listed(tmp_path: Path) -> None:
    fine, coarse = make_scene(tmp_path, "fine"), make_scene(tmp_path, "coarse", "val", boxes=[(0, 0, 40, 40, 1)])
    near = make_scene(tmp_path, "near", "val", transform=Affine(1.9, 0, 500000, 0, -1.9, 5000000))
    assert _survey(fine, near).warnings == ()
    make_raster(coarse.image, _pixels(), transform=Affine(10, 0, 500000, 0, -10, 5000000))

    (line,) = _survey(fine, coarse).warnings

    assert "fine.tif 1, coarse.tif 10" in line


def test_bands_by_number_and_name(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, image=_pixels(3), band_names=["red", "green", "nir"])

    facts = _survey(scene, bands=("nir", 1)).facts[0]

    assert facts.bands == (3, 1)
    assert facts.band_names == ("nir", "red")
    (line,) = _problems(scene, bands=(1, 4))
    assert "found 3 bands" in line
    assert "band 4" in line
    (line,) = _problems(scene, bands=("swir",))
    assert "red, green, nir" in line
    assert "'swir'" in line


def test_alpha_is_no_band_unless_asked_for(tmp_path: Path) -> None:
    colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    scene = make_scene(tmp_path, image=_pixels(4), colorinterp=colours)

    assert _survey(scene).facts[0].bands == (1, 2, 3)
    assert _survey(scene, bands=(1, 4)).facts[0].bands == (1, 4)
    (line,) = _problems(scene, number_of_bands=4)
    assert "3 bands besides its alpha band 4" in line
