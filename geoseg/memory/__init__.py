"""Train networks with less memory, and know how much they need: a library of its own, on torch alone."""

from geoseg.memory.measure import LiveBytes, StepMemory, measure_step

__all__ = ["LiveBytes", "StepMemory", "measure_step"]
