"""Train networks with less memory, and know how much they need: a library of its own, on torch alone."""

from geoseg.memory.estimate import estimate_step
from geoseg.memory.measure import LiveBytes, StepMemory, StepOptions, measure_step
from geoseg.memory.recompute import Replay, recompute, run_recomputed
from geoseg.memory.reversible import (
    AdditiveCoupling,
    AffineCoupling,
    ChannelExchange,
    InvertibleStep,
    MergeSkip,
    PixelShuffleUp,
    PixelUnshuffleDown,
    ReversibleSequence,
    SplitSkip,
    SwapHalves,
    check_invertible,
)

__all__ = [
    "AdditiveCoupling",
    "AffineCoupling",
    "ChannelExchange",
    "InvertibleStep",
    "LiveBytes",
    "MergeSkip",
    "PixelShuffleUp",
    "PixelUnshuffleDown",
    "Replay",
    "ReversibleSequence",
    "SplitSkip",
    "StepMemory",
    "StepOptions",
    "SwapHalves",
    "check_invertible",
    "estimate_step",
    "measure_step",
    "recompute",
    "run_recomputed",
]
