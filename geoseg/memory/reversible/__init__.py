"""Reversible networks: only the output of a sequence of steps is kept, the rest rebuilt on the way back."""

from geoseg.memory.reversible.check import InvertibilityReport, check_invertible
from geoseg.memory.reversible.contract import InvertibleStep, ParameterGradients, Rearrangement, Tape
from geoseg.memory.reversible.couplings import AdditiveCoupling, AffineCoupling
from geoseg.memory.reversible.rearrange import (
    ChannelExchange,
    HaarDown,
    HaarUp,
    MergeSkip,
    PixelShuffleUp,
    PixelUnshuffleDown,
    SplitSkip,
    SwapHalves,
)
from geoseg.memory.reversible.sequence import ReversibleSequence

__all__ = [
    "AdditiveCoupling",
    "AffineCoupling",
    "ChannelExchange",
    "HaarDown",
    "HaarUp",
    "InvertibilityReport",
    "InvertibleStep",
    "MergeSkip",
    "ParameterGradients",
    "PixelShuffleUp",
    "PixelUnshuffleDown",
    "Rearrangement",
    "ReversibleSequence",
    "SplitSkip",
    "SwapHalves",
    "Tape",
    "check_invertible",
]
