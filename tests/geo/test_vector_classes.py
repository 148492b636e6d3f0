"""From attribute values to ids: text is a number where it looks like one, nothing is rounded or clamped."""

from __future__ import annotations

import datetime
import unicodedata

import numpy as np
import pytest

from geoseg.errors import DataError
from geoseg.geo.vector import ClassMapping
from geoseg.geo.vector.classes import class_ids

WHERE = "labels.gpkg, layer fields, attribute cls"


def ids_of(values, **options):
    return class_ids(values, ClassMapping(**{"num_classes": 5, **options}), WHERE)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 0],
        ["1", "2", "0"],
        [1.0, 2.0, 0.0],
        [" 1", "2 ", "00"],
        ["1.0", "2.", "+0"],
        np.array([1, 2, 0], "int64"),
    ],
)
def test_ids_as_numbers_or_text(values):
    found = ids_of(values)
    assert found.ids.dtype == np.uint8
    assert found.ids.tolist() == [1, 2, 0]
    assert (found.null, found.ignored, found.unmapped) == (0, 0, 0)


def test_booleans_are_zero_and_one():
    assert ids_of([True, False, np.True_]).ids.tolist() == [1, 0, 1]


def test_ids_out_of_range_are_listed():
    with pytest.raises(
        DataError, match=r"attribute cls: found class ids -1, 5, 300, 70000, expected class ids from 0 to 4"
    ):
        ids_of([1, 300, 70000, -1, 5, 2])


def test_a_value_like_ignore_is_no_class():
    with pytest.raises(DataError, match="class ids 255"):
        ids_of([0, 255], num_classes=2)


@pytest.mark.parametrize("mapping", [None, {2: 1, 3: 2}])
@pytest.mark.parametrize("value", [2.7, np.float32(0.5), np.inf])
def test_fractions_are_refused(value, mapping):
    with pytest.raises(DataError, match="class ids, which must be whole numbers"):
        ids_of([1, value], by_value=mapping)


@pytest.mark.parametrize("text", ["2.7", "forest", "1e0"])
def test_text_that_is_no_id_needs_a_mapping(text):
    with pytest.raises(DataError, match=rf"text values '{text}', expected class ids.*give global\.classes a value"):
        ids_of(["1", text])


def test_text_by_mapping():
    mapping = {"forest": 1, "water": 2, 7: 3, "100": 4}
    found = ids_of(["water", " forest ", 7, "7", 100, 7.0], by_value=mapping)
    assert found.ids.tolist() == [2, 1, 3, 3, 4, 3]


def test_unmapped_values_are_listed_with_the_nearest():
    with pytest.raises(
        DataError, match=r"values 'Forest', 'fen' of no class.*forest, water.*mean 'forest' for 'Forest'"
    ):
        ids_of(["water", "Forest", "fen"], by_value={"forest": 1, "water": 2})


def test_unmapped_values_may_become_unknown_or_background():
    values, mapping = ["water", "fen", "bog", "fen"], {"water": 2}
    found = ids_of(values, by_value=mapping, unmapped="ignore")
    assert (found.ids.tolist(), found.unmapped) == ([2, 255, 255, 255], 3)
    found = ids_of(values, by_value=mapping, unmapped="background")
    assert (found.ids.tolist(), found.unmapped) == ([2, 0, 0, 0], 3)


def test_null_is_unknown():
    found = ids_of([1, None, float("nan"), "", "  ", 2])
    assert found.ids.tolist() == [1, 255, 255, 255, 255, 2]
    assert found.null == 4


def test_values_to_ignore():
    found = ids_of([1, "9", 9, "cloud", 9.0], ignore_values=frozenset({9, "cloud"}))
    assert found.ids.tolist() == [1, 255, 255, 255, 255]
    assert found.ignored == 4


def test_ignoring_wins_over_mapping():
    found = ids_of(["a", "b"], by_value={"a": 1, "b": 2}, ignore_values=frozenset({"b"}), ignore_value=200)
    assert found.ids.tolist() == [1, 200]


def test_long_lists_are_cut():
    with pytest.raises(DataError, match=r"5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and 16 more"):
        ids_of(range(31))


@pytest.mark.parametrize("value", [datetime.date(2024, 1, 1), b"1", (1,)])
def test_other_types_are_refused(value):
    with pytest.raises(DataError, match="expected whole numbers or text"):
        ids_of([1, value])


def test_no_features_have_no_ids():
    assert ids_of([]).ids.shape == (0,)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_classes": 256}, "256 classes, expected 1 to 255"),
        ({"num_classes": 0}, "0 classes"),
        ({"num_classes": 3, "ignore_value": 2}, "found 2, expected a number from 3 to 255"),
        ({"num_classes": 3, "ignore_value": -1}, "found -1"),
        ({"num_classes": 3, "by_value": {"a": 3}}, r"ids \[3\], expected 0 to 2"),
    ],
)
def test_impossible_mappings_are_refused(options, text):
    with pytest.raises(DataError, match=text):
        ClassMapping(**options)


def test_the_most_classes():
    assert ids_of(range(255), num_classes=255).ids.tolist() == list(range(255))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_match_however_they_are_written(form):
    """Forêt as five characters or as six (a letter and its circumflex), on either side and to be ignored."""
    composed, apart = unicodedata.normalize("NFC", "Forêt"), unicodedata.normalize("NFD", "Forêt")
    assert (len(composed), len(apart)) == (5, 6)
    said = unicodedata.normalize(form, "Forêt")
    mapping = ClassMapping(num_classes=2, by_value={said: 1})
    assert class_ids([composed, apart], mapping, "labels").ids.tolist() == [1, 1]
    ignoring = ClassMapping(num_classes=2, by_value={"x": 1}, ignore_values=frozenset([said]))
    assert class_ids([composed, apart], ignoring, "labels").ids.tolist() == [255, 255]
