"""The bars that RevNets must clear, counted without computing."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from revnet import PAIRS, PLANS, Iteration, build, iterations


def counted(name: str, batch: int = 256) -> list[Iteration]:
    with FakeTensorMode():
        return list(iterations(build(PLANS[name]), batch, 2, "cpu"))


@pytest.mark.parametrize("depth", [32, 110])
def test_revnets_need_less_and_always_the_same(depth: int) -> None:
    resnet, revnet = (counted(name) for name in PAIRS[depth])
    assert revnet[0].saved < 0.41 * resnet[0].saved
    assert revnet[0].peak < resnet[0].peak
    for steps in (resnet, revnet):
        assert steps[1].peak == pytest.approx(steps[0].peak, rel=0.01)
        assert steps[1].after_step <= steps[1].saved


def test_activations_do_not_grow_with_depth() -> None:
    assert counted("RevNet-110")[0].saved < 1.05 * counted("RevNet-38")[0].saved


def test_counting_without_computing_is_right() -> None:
    torch.manual_seed(0)
    computed = list(iterations(build(PLANS["RevNet-38"]), 4, 2, "cpu"))
    for one, other in zip(computed, counted("RevNet-38", 4), strict=True):
        assert one.saved == pytest.approx(other.saved, rel=0.01)
        assert one.peak == pytest.approx(other.peak, rel=0.01)
