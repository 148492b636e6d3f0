"""The self-test would not pass if windows were misplaced; that it passes, the test of the command shows."""

from __future__ import annotations

import pytest

from geoseg.predict import selftest, sliding


@pytest.mark.parametrize("name", ["network of single pixels", "position-coded scene"])
def test_a_misplaced_window_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    inner = sliding.region_tiles

    def shifted(plan, region):
        for tile in inner(plan, region):
            yield type(tile)(tile.write, tile.read.shifted(0, 8) if tile.write.col_off else tile.read)

    monkeypatch.setattr(sliding, "region_tiles", shifted)
    with pytest.raises((AssertionError, ValueError), match=r"another map|does not lie"):
        selftest.CHECKS[name]()
