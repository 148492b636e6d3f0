"""The kinds of error and their exit codes; they survive the way home from a worker process."""

from __future__ import annotations

import pickle

import pytest

from geoseg import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.GeosegError, 2),
        (errors.ConfigError, 2),
        (errors.DataError, 2),
        (errors.ModelFileError, 2),
        (errors.CapacityError, 3),
        (errors.ScenesFailed, 4),
        (errors.Interrupted, 130),
    ],
)
def test_exit_codes_and_pickling(kind: type[errors.GeosegError], code: int) -> None:
    error = kind(["one", "two"])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.problems == ("one", "two")
    assert again.exit_code == code
    assert str(again) == "one\ntwo"


def test_one_text_is_one_problem() -> None:
    assert errors.DataError("a line").problems == ("a line",)


def test_a_problem_is_one_line() -> None:
    line = errors.problem("a.tif", "3\nbands", "4  bands", "set global.bands")
    assert line == "a.tif: found 3 bands, expected 4 bands; set global.bands"
