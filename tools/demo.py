"""Run the demo: sample, train, classify and evaluate as a user would, then say what came out.

python tools/demo.py [CONFIG] [section.key=value ...]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("sample", "train", "classify", "evaluate")


def run(command: str, arguments: Sequence[str]) -> float:
    """Run a geoseg command and return its seconds; a failure ends the demo with the same exit code."""
    line = [sys.executable, "-m", f"geoseg.{command}", *arguments]
    print(f"\n$ python -m geoseg.{command} {' '.join(arguments)}", flush=True)
    started = time.monotonic()
    code = subprocess.run(line, cwd=ROOT, check=False).returncode
    if code != 0:
        raise SystemExit(code)
    return time.monotonic() - started


def main(argv: Sequence[str] | None = None) -> int:
    """Run the four commands and print the times, the scores and where to look."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["config/demo.yaml"]
    seconds = {command: run(command, arguments) for command in COMMANDS}
    print("\nTimes: " + ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items()), end="")
    print(f"; together {sum(seconds.values()) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
