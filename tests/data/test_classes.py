from __future__ import annotations

import pytest

from geoseg.data.classes import background_doubts, class_mapping, class_table, default_colour
from geoseg.errors import DataError


def test_table_of_a_number_takes_ids() -> None:
    table = class_table(3)

    assert [(c["id"], c["name"], c["value"]) for c in table] == [
        (0, "background", None),
        (1, "class 1", None),
        (2, "class 2", None),
    ]
    assert class_mapping(table).by_value is None


def test_stated_values_and_those_implied_by_id_and_name() -> None:
    table = class_table(4, [{"name": "other"}, {"name": "forest", "value": (7, "wood")}, {"name": "2"}, {"name": "w"}])

    mapping = class_mapping(table, ignore_value=99, ignore_values=["?"], unmapped="ignore")

    assert mapping.by_value == {7: 1, "wood": 1, 0: 0, 2: 2, 3: 3, "other": 0, "w": 3}
    assert (mapping.num_classes, mapping.ignore_value, mapping.unmapped) == (4, 99, "ignore")
    assert mapping.ignore_values == {"?"}


def test_a_stated_value_is_not_taken_by_an_implied_one() -> None:
    table = class_table(3, [{"name": "other"}, {"name": "road"}, {"name": "roof", "value": 1}])

    assert class_mapping(table).by_value == {1: 2, 0: 0, "other": 0, "road": 1}


def test_one_value_for_two_classes_is_refused() -> None:
    table = class_table(3, [{"name": "other"}, {"name": "road", "value": 4}, {"name": "roof", "value": [3, 4]}])

    with pytest.raises(DataError, match="road and roof"):
        class_mapping(table)


def test_colours_are_given_and_all_different() -> None:
    table = class_table(2, [{"name": "other", "colour": None}, {"name": "roof", "colour": "#123456"}])

    assert [c["colour"] for c in table] == [default_colour(0), "#123456"]
    assert len({default_colour(i) for i in range(255)}) > 250
    assert len({default_colour(i) for i in range(20)}) == 20


def test_length_must_fit() -> None:
    with pytest.raises(ValueError, match="1 entries for 2"):
        class_table(2, [{"name": "other"}])


@pytest.mark.parametrize(
    ("first", "doubted"),
    [
        ({"name": "background"}, False),
        ({"name": "developed"}, False),  # without a value, it is what is left
        ({"name": "Background", "value": 0}, False),
        ({"name": "other", "value": "other"}, False),
        ({"name": "developed", "value": 1}, True),
        ({"name": "developed", "value": 0}, True),
    ],
)
def test_a_first_class_that_looks_like_the_others_is_doubted(first: dict[str, object], doubted: bool) -> None:
    found = background_doubts(class_table(2, [first, {"name": "forest", "value": 2}]))

    assert bool(found) == doubted
    assert all("developed" in line and "'background'" in line for line in found)


def test_who_doubts_the_background_says_what_to_do() -> None:
    table = class_table(2, [{"name": "developed", "value": 1}, {"name": "forest", "value": 2}])
    (line,) = background_doubts(table, "the map", "; mask it")
    assert line.startswith("the map: the first class, developed, ")
    assert line.endswith("sample.mask_input_image is set; mask it")
