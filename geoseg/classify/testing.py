"""`classify --self-test`: made-up scenes and networks whose maps are known, through every kind of window."""

from __future__ import annotations

from geoseg.cli import Log, progress
from geoseg.predict.selftest import CHECKS


def run_self_test(log: Log) -> None:
    """Run all checks and say so.

    Raises:
        AssertionError: A map is not what it must be: a defect of geoseg.
    """
    with progress(len(CHECKS), "checking", "checks") as bar:
        for name, check in CHECKS.items():
            bar.set_text(name)
            windows = check()
            bar.update(1)
            log.info(f"{name}: the same map to the last bit in {windows} ways to lay windows")
