"""Images whose bands are in another order, of another type, or of another number than the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from scenery import make_options, make_scene, make_store

from geoseg.data.alike import Alike, Image, align
from geoseg.data.editing import like_the_store
from geoseg.data.scenes import Scene
from geoseg.data.survey import survey
from geoseg.errors import DataError

RGB = ("red", "green", "blue")


def _image(name: str, names: tuple[str | None, ...], numbered: bool = False, dtype: str = "uint8") -> Image:
    return Image(name, tuple(range(1, len(names) + 1)), names, dtype, numbered)


def test_bands_are_brought_into_the_order_of_the_first_image_that_names_them_all() -> None:
    images = [
        _image("unnamed", (None, None, None)),
        _image("first", RGB),
        _image("turned", ("blue", "Green ", "RED")),
        _image("same", RGB),
        _image("cycled", ("green", "blue", "red")),
    ]
    found = align(images)
    assert found.bands == [(1, 2, 3), (1, 2, 3), (3, 2, 1), (1, 2, 3), (3, 1, 2)]
    assert found.problems == []
    (warning,) = found.warnings
    assert warning.startswith("turned, cycled: bands in another order than in first (red, green, blue)")


def test_bands_that_were_chosen_keep_their_numbers() -> None:
    """Bands 5, 7 and 2 of a file, called green, blue and red."""
    turned = Image("turned", (5, 7, 2), ("green", "blue", "red"), "uint8", False)
    assert align([_image("first", RGB), turned]).bands[1] == (2, 5, 7)


def test_names_that_contradict_one_another_are_refused() -> None:
    found = align([_image("first", RGB), _image("other", ("green", "red", "nir"))])
    (line,) = found.problems
    assert line.startswith("other: ")
    assert "bands green, red, nir" in line
    assert "red, green, blue as in first" in line


@pytest.mark.parametrize("names", [("B4", "B3", "B2"), ("red", "green", "nir"), (None, "green", None), ("a", "a", "b")])
def test_names_that_agree_or_say_nothing_are_left(names: tuple[str | None, ...]) -> None:
    found = align([_image("first", RGB), _image("other", names)])
    assert (found.bands[1], found.problems, found.warnings) == ((1, 2, 3), [], [])


@pytest.mark.parametrize("names", [("blue", "green", "red"), ("green", "red", "nir")])
def test_numbers_that_the_user_gave_stay_with_a_warning(names: tuple[str, ...]) -> None:
    found = align([_image("first", RGB, True), _image("other", names, True)])
    assert found.bands[1] == (1, 2, 3)
    assert found.problems == []
    (warning,) = found.warnings
    assert warning == f"other: bands taken by number are {', '.join(names)}, but red, green, blue in first"


def test_images_are_compared_with_the_store_that_they_are_added_to() -> None:
    found = align([_image("new", ("blue", "red", "green"))], Alike(3, "uint8", RGB))
    assert found.bands == [(2, 3, 1)]
    assert "than in the store" in found.warnings[0]
    found = align([_image("new", RGB[:2], dtype="int16")], Alike(3, "uint8", RGB))
    bands, dtype = found.problems
    assert "bands 3 in the store but new 2" in bands
    assert "dtype uint8 in the store but new int16" in dtype


def _scene(folder: Path, name: str, names: tuple[str | None, ...], split: str = "trn") -> Scene:
    """Return a scene whose red is 10, green 20, blue 30 and nir 40, in the order of the names."""
    values = {"red": 10, "green": 20, "blue": 30, "nir": 40}
    image = np.stack([np.full((20, 20), values[str(band)], np.uint8) for band in names])
    scene = make_scene(folder, name, split, image)
    with rasterio.open(scene.image, "r+") as raster:
        raster.descriptions = names
    return scene


def test_every_sample_of_a_store_has_its_bands_in_one_order(tmp_path: Path) -> None:
    scenes = [_scene(tmp_path, "a", RGB), _scene(tmp_path, "b", RGB[::-1], "val")]
    store = make_store(tmp_path, scenes)
    for scene in scenes:
        assert store.images(scene.scene_id).max(axis=(0, 2, 3)).tolist() == [10, 20, 30]
    assert store.info.band_names == RGB
    assert [found["bands"] for found in store.info.scenes] == [[1, 2, 3], [3, 2, 1]]


def test_a_scene_is_added_in_the_order_of_the_store(tmp_path: Path) -> None:
    make_store(tmp_path, [_scene(tmp_path, "a", RGB)])
    options = like_the_store(tmp_path / "samples", make_options())
    found = survey([_scene(tmp_path, "b", RGB[::-1])], options.survey)
    assert found.facts[0].bands == (3, 2, 1)
    with pytest.raises(DataError, match=r"bands 3 in the store but .*b\.tif 4"):
        survey([_scene(tmp_path, "b", (*RGB, "nir"))], options.survey)
    # The store is to go: its scenes need not be like the new ones.
    assert like_the_store(tmp_path / "samples", make_options(), overwrite=True).survey.store is None
    other: dict[str, Any] = {"number_of_bands": 3}
    assert like_the_store(tmp_path / "samples", make_options(**other)).survey.store is None


def test_images_are_compared_even_if_labels_are_wrong(tmp_path: Path) -> None:
    scenes = [_scene(tmp_path, "a", RGB), _scene(tmp_path, "b", (*RGB, "nir"))]
    scenes[1].labels.unlink()  # type: ignore[union-attr]
    with pytest.raises(DataError) as caught:
        survey(scenes, make_options().survey)
    assert any("no such file" in line for line in caught.value.problems)
    assert any("bands 3 in 1 of 2 images but" in line for line in caught.value.problems)
