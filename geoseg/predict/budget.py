"""How much memory a plan takes, and the plan that keeps within a limit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from geoseg.errors import CapacityError, problem
from geoseg.geo.raster.overviews import TILE
from geoseg.memory.measure import LiveBytes, resident_bytes
from geoseg.predict.plan import PART, Plan, SlidingOptions
from geoseg.predict.predictor import Predictor
from geoseg.predict.sliding import plan_windows

#: What a process takes beyond tensors of windows: GDAL's cache, tables of tiles, buffers of convolutions.
FIXED = 96 * 2**20
#: The C library keeps freed memory for the next window, in pieces that do not all fit: measured with unetsmall.
_SPARE = 1.4
_PROBE = 64
_SIDES = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 32)
_MIB = 2**20


def bytes_per_pixel(predictor: Predictor, bands: int, pixel_bytes: int) -> float:
    """Return the bytes that a pixel of a window takes at the height of a forward pass, on the predictor's device."""
    side = -(-_PROBE // predictor.size_divisor) * predictor.size_divisor
    batch = torch.zeros(bands, side, side)
    with torch.inference_mode(), LiveBytes() as counter:
        predictor([batch])
    # Besides what the network makes: the window as read, normalised, turned; its scores in planes, compared.
    around = pixel_bytes + 1 + 2 * 4 * bands + 4 * (2 * predictor.num_classes + 2)
    return counter.peak / side**2 + around


def plan_bytes(plan: Plan, per_pixel: float, num_classes: int, probabilities: bool) -> int:
    """Return the bytes that a plan takes beyond what the process holds before it."""
    window = (plan.side + 2 * plan.context + 2 * plan.divisor) ** 2
    total = _SPARE * per_pixel * plan.batch_size * window + FIXED
    if plan.blending != "none":
        total += 4 * num_classes * plan.overlap * (min(plan.strip, plan.width) + plan.overlap)
    out = 1 + (4 * num_classes if probabilities else 0)
    total += 3 * out * plan.side**2
    if plan.side % TILE:  # tiles of maps that windows fill in part wait for the rest of their row
        total += out * TILE * min(plan.strip, plan.width)
    return math.ceil(total)


def plan_within(
    predictor: Predictor,
    shape: tuple[int, int],
    options: SlidingOptions,
    pixel: tuple[int, int],
    limit: int,
    probabilities: bool = False,
) -> Plan:
    """Return the plan with the largest windows that keeps the process below a limit.

    Args:
        predictor: The network.
        shape: (height, width) of the scene.
        options: What the user fixed stays; window and batch are chosen where they are open.
        pixel: Number of bands, and bytes of a pixel in the file.
        limit: Bytes that the process may hold in memory.
        probabilities: Whether probabilities are written.

    Raises:
        CapacityError: No plan keeps the limit.
    """
    per_pixel = bytes_per_pixel(predictor, *pixel)
    held = resident_bytes() or 0  # after the pass that was counted, which imports some tens of MB itself

    def needs(side: int | None, batch: int | None) -> tuple[int, Plan]:
        tried = replace(options, window=options.window or side, batch_size=options.batch_size or batch)
        plan = _narrow(plan_windows(predictor, *shape, tried, pixel[1]))
        return held + plan_bytes(plan, per_pixel, predictor.num_classes, probabilities), plan

    usual = plan_windows(predictor, *shape, options, pixel[1])
    batches = [usual.batch_size >> step for step in range(usual.batch_size.bit_length())]
    found = [needs(side, batch) for side in _SIDES if side <= usual.side for batch in batches] or [needs(None, 1)]
    fitting = [(plan.batch_size * plan.side**2, -number) for number, (size, plan) in enumerate(found) if size <= limit]
    if fitting:
        return found[-max(fitting)[1]][1]
    least = min(size for size, _ in found)
    raise CapacityError(
        problem(
            "--max-memory",
            f"{limit / _MIB:.3g} MiB",
            f"at least {least / _MIB:.0f} MiB: {held / _MIB:.0f} of the process with its model, the rest for windows",
            "allow more, lower classification.overlap, or leave window and batch_size to be chosen",
        )
    )


def _narrow(plan: Plan) -> Plan:
    """Return a plan whose strips are as narrow as can be, where they hold rows of scores."""
    return plan if plan.blending == "none" else replace(plan, strip=min(plan.strip, 2 * PART))
