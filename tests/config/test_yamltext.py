"""YAML is read without surprises, and what is written reads back to the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from geoseg.config import yamltext


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-2.5e2", -250.0),
        ("100", 100),
        ("+7", 7),
        ("1_000", 1000),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("2024-01-01", "2024-01-01"),
        ("1,2,3", "1,2,3"),
        ("~", None),
        ("", None),
        ("null", None),
        ("'1e-4'", "1e-4"),
        ("=", "="),
        ("e5", "e5"),
        ("1e5e", "1e5e"),
        (".", "."),
    ],
)
def test_a_scalar_means_what_it_shows(text: str, value: object) -> None:
    parsed = yamltext.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_infinity_and_nan_are_numbers() -> None:
    assert yamltext.parse("[.inf, -.inf]") == [math.inf, -math.inf]
    assert math.isnan(yamltext.parse(".nan"))


def test_a_key_named_on_stays_text() -> None:
    assert yamltext.parse("on: 1\nno: 2\n'true': 3") == {"on": 1, "no": 2, "true": 3}


def test_a_duplicate_key_is_refused_with_both_lines() -> None:
    with pytest.raises(yamltext.DuplicateKeyError) as caught:
        yamltext.parse("a:\n  lr: 1\n  x: 2\n  lr: 3\n")
    assert (caught.value.key, caught.value.lines) == ("lr", (2, 4))


@pytest.mark.parametrize("text", ["a: 1\na: 2", "{a: 1, b: 2, a: 1}", "x:\n- {b: 1, b: 1}", "a: 1\n'a': 2"])
def test_duplicates_are_refused_at_any_depth(text: str) -> None:
    with pytest.raises(yamltext.DuplicateKeyError):
        yamltext.parse(text)


def test_merges_work_and_may_be_overridden_twice_over() -> None:
    text = """
    a: &a {x: 1, y: 1}
    b: &b {<<: *a, y: 2}
    c: &c {<<: *b, y: 3, z: 3}
    d: {<<: [*a, *c], w: 4}
    """
    values = yamltext.parse(text)
    assert values["b"] == {"x": 1, "y": 2}
    assert values["c"] == {"x": 1, "y": 3, "z": 3}
    assert values["d"] == {"x": 1, "y": 1, "z": 3, "w": 4}


def test_a_duplicate_beside_a_merge_is_refused() -> None:
    with pytest.raises(yamltext.DuplicateKeyError):
        yamltext.parse("a: &a {x: 1}\nb: {<<: *a, y: 1, y: 2}")


def test_aliased_parts_are_copies() -> None:
    values = yamltext.parse("a: &a {x: 1}\nb: *a")
    values["a"]["x"] = 2
    assert values["b"] == {"x": 1}


@pytest.mark.parametrize("text", ["1: a", "true: a", "1.5: a", "null: a", "[a]: b"])
def test_keys_that_are_not_text_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="quote it"):
        yamltext.parse(text)


def test_a_value_that_holds_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="itself"):
        yamltext.parse("a: &a [*a]")


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "a: !!python/name:os.getcwd ''", "a: !x 1"])
def test_tags_that_make_objects_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        yamltext.parse(text)


@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        ("a: 1\na: 2", "'a' twice (lines 1 and 2)", "remove one"),
        ("a:\n\tb: 1", "line 2", "spaces, not tabs"),
        ("a: [1, 2", "line 1", "quotes"),
        ("a: 1\n---\na: 2", "line 2", "correct"),
        (b"a: \xff\xfe\xe9", "UTF-8", "UTF-8"),
    ],
)
def test_errors_say_where_and_what_to_do(text: str | bytes, found: str, remedy: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yamltext.parse(text)
    explained = yamltext.explain(caught.value)
    assert found in explained[0]
    assert remedy in explained[1]


def test_a_byte_order_mark_is_no_matter() -> None:
    assert yamltext.parse(b"\xef\xbb\xbfa: 1") == {"a": 1}


SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    st.sampled_from(
        ["yes", "no", "on", "010", "1e-4", "1:30", "2024-01-01", "null", "~", "", "<<", "=", "1_0", "#a", "1."]
    ),
)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["on", "a", "<<", "10"]), inner),
        max_leaves=8,
    )
)
def test_what_is_written_reads_back(values: object) -> None:
    read = yamltext.parse(yamltext.render(values))
    assert read == values
    assert repr(read) == repr(values)
