"""Time and memory of the commands on a synthetic scene: python tools/bench.py [--side 4096].

Prints, per command, seconds, CPU seconds and the peak resident memory of the largest of its processes. Run it on an
otherwise idle machine, and compare runs of one machine only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import synthetic

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("sample", "train", "classify")
CONFIG = """\
global: {classes: [background, field, water, road, building], seed: 0}
sample: {remove_background: false, overwrite: true}
training: {num_epochs: 1, num_trn_samples: 32, num_val_samples: 8, overwrite: true}
classification: {working_folder: images}
"""


def measured(command: str, folder: Path) -> tuple[float, float, float]:
    """Run a command; return its seconds, CPU seconds (children included) and peak resident MB."""
    line = [sys.executable, "-m", f"geoseg.{command}", "config.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.monotonic()
    process = subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Make a scene of the wanted size, run the commands on it, print a table."""
    parser = argparse.ArgumentParser(description="Time and memory of the commands on a synthetic scene.")
    parser.add_argument("--side", type=int, default=4096, help="side of the scene in pixels")
    side = parser.parse_args(argv).side
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        for number, (stem, split, size) in enumerate((("train", "trn", side), ("val", "val", 512))):
            scene = synthetic.make_scene(size, size, number, origin=(5e5 + number * 1e6, 5e6))
            synthetic.write_image(scene, folder / f"images/{stem}.tif")
            synthetic.write_labels(scene, folder / f"labels/{stem}.gpkg")
            rows.append([f"images/{stem}.tif", f"labels/{stem}.gpkg", "class", split])
        synthetic.write_scene_list(folder / "prep.csv", rows)
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        print(f"{side} x {side} pixels, 4 bands, uint8; {os.cpu_count()} CPUs")
        print(f"{'command':10} {'seconds':>8} {'CPU s':>8} {'peak MB':>8}")
        for command in COMMANDS:
            seconds, cpu, peak = measured(command, folder)
            print(f"{command:10} {seconds:8.1f} {cpu:8.1f} {peak:8.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
