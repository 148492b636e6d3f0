"""Model options without torch: defaults, checks, one line per problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from geoseg.errors import ConfigError
from geoseg.models.options import MODEL_OPTIONS, UNetOptions, make_options


@pytest.mark.parametrize("name", sorted(MODEL_OPTIONS))
def test_every_model_has_defaults_that_json_can_hold_and_give_back(name: str) -> None:
    options = make_options(name, {})
    assert isinstance(options, MODEL_OPTIONS[name])
    assert make_options(name, options.as_kwargs()) == options


def test_options_are_kept() -> None:
    options = make_options("unet", {"dropout": True, "probability": 0.5, "pretrained": "a/w.pth"})
    assert options == UNetOptions(dropout=True, probability=0.5, pretrained=Path("a/w.pth"))
    assert options.as_kwargs() == {"dropout": True, "probability": 0.5, "pretrained": "a/w.pth"}


def test_an_unknown_model_is_met_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="'unett', expected one of unet, unetsmall"):
        make_options("unett", {})


def test_all_problems_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        make_options("unet", {"dropout": "yes", "probability": 1.5, "width": 3, "pretrained": True})
    lines = caught.value.problems
    assert [line.split(":")[0] for line in lines] == [
        f"models.unet.{key}" for key in ("pretrained", "dropout", "probability", "width")
    ]
    assert "one of pretrained, dropout, probability" in lines[3]
