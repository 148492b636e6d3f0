"""Measure what keeping freed memory is worth: training steps of a U-Net on this CPU, with glibc's defaults and without.

    python tools/allocator_gain.py [--batch-size 8] [--size 256] [--steps 6]

Each figure is of a process of its own, because the setting cannot be taken back.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from geoseg.learn.losses import cross_entropy, mean
from geoseg.learn.runtime import keep_freed_memory
from geoseg.models import build_model


def measure(keep: bool, batch_size: int, size: int, steps: int) -> dict[str, float]:
    """Return seconds of processor time and of the clock per step, page faults per step and peak memory in MB."""
    if keep:
        keep_freed_memory()
    torch.manual_seed(0)
    model = build_model("unetsmall", 4, 5).to(memory_format=torch.channels_last)
    image = torch.randn(batch_size, 4, size, size).contiguous(memory_format=torch.channels_last)
    label = torch.randint(0, 5, (batch_size, size, size))
    for step in range(steps + 1):
        if step == 1:  # the first one warms up
            clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        mean(*cross_entropy(model(image), label, 255)).backward()
        model.zero_grad(set_to_none=True)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "clock_s": (time.perf_counter() - clock) / steps,
        "user_s": (after.ru_utime - before.ru_utime) / steps,
        "kernel_s": (after.ru_stime - before.ru_stime) / steps,
        "page_faults": (after.ru_minflt - before.ru_minflt) / steps,
        "peak_mb": after.ru_maxrss / 1024,
    }


def main() -> None:
    """Print the figures of both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--child", choices=["keep", "default"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = (options.batch_size, options.size, options.steps)
    if options.child:
        print(json.dumps(measure(options.child == "keep", *sizes)))
        return
    shape = f"{options.batch_size} x {options.size} x {options.size}"
    print(f"one step of unetsmall, {shape}, {torch.get_num_threads()} threads")
    for child in ("default", "keep"):
        done = subprocess.run([sys.executable, *sys.argv, "--child", child], check=True, capture_output=True, text=True)
        print(f"{child:8}", ", ".join(f"{name} {value:.3g}" for name, value in json.loads(done.stdout).items()))


if __name__ == "__main__":
    main()
