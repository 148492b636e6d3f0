"""Lines, warnings and the progress bar that a user sees: results on stdout, all else on stderr."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

#: So many different warnings are shown; the others are counted.
SHOWN_WARNINGS = 20


class Log:
    """Takes lines and warnings for the user."""

    def __init__(self) -> None:
        self._warnings: Counter[str] = Counter()
        self.silent = False

    @property
    def warnings(self) -> int:
        """How many warnings there were, repeated ones included."""
        return self._warnings.total()

    def silence(self) -> None:
        """Print nothing from now on: another process of the same run speaks for this one."""
        self.silent = True

    def info(self, text: str = "") -> None:
        """Print a line of the result on stdout."""
        self._print(text, sys.stdout)

    def note(self, text: str) -> None:
        """Print a line about the course of the work on stderr."""
        self._print(text, sys.stderr)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, if the same text was not printed before, and count it."""
        self._warnings[text] += 1
        if self._warnings[text] > 1:
            return
        if len(self._warnings) <= SHOWN_WARNINGS:
            self._print(f"warning: {text}", sys.stderr)
        elif len(self._warnings) == SHOWN_WARNINGS + 1:
            self._print("warning: more warnings are counted, not shown", sys.stderr)

    def finish(self, seconds: float) -> None:
        """Print the last line: how long it took, and how many warnings there were."""
        line = f"done in {seconds:.1f} s"
        if self.warnings:
            line += f", {self.warnings} warning{'s' if self.warnings > 1 else ''}"
            repeated = self.warnings - len(self._warnings)
            line += f" ({repeated} repeated)" if repeated else ""
        self._print(line, sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        if not self.silent:
            _write(text, stream)


class Progress:
    """A bar on a terminal; elsewhere silent until one line at the end."""

    def __init__(self, total: int | None, description: str, unit: str) -> None:
        self.done = 0
        self._description = description
        self._unit = unit
        self._text = ""
        self._started = time.monotonic()
        self._bar: Any = None
        self._silent = _current.silent
        if sys.stderr.isatty() and not self._silent:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=description, unit=f" {unit}", dynamic_ncols=True, file=sys.stderr)

    def update(self, n: int = 1) -> None:
        """Add finished units."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)

    def set_text(self, text: str) -> None:
        """Show a short text behind the bar, such as the loss."""
        self._text = text
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def close(self, finished: bool = True) -> None:
        """Take the bar off; say how much was done where there was no bar."""
        if self._bar is not None:
            self._bar.close()
        elif finished and not self._silent:
            seconds = time.monotonic() - self._started
            ending = f" ({self._text})" if self._text else ""
            _write(f"{self._description}: {self.done} {self._unit} in {seconds:.1f} s{ending}", sys.stderr)


@contextmanager
def progress(total: int | None, description: str, unit: str = "steps") -> Iterator[Progress]:
    """Show the progress of `total` units of work; None if the number is not known."""
    bar = Progress(total, description, unit)
    try:
        yield bar
    except BaseException:
        bar.close(finished=False)
        raise
    bar.close()


_current = Log()


@contextmanager
def using_log(log: Log) -> Iterator[None]:
    """Make `warn` use this log."""
    global _current  # one command runs per process
    previous, _current = _current, log
    try:
        yield
    finally:
        _current = previous


def warn(text: str) -> None:
    """Print a warning once and count it, in the log of the running command."""
    _current.warn(text)


def _write(text: str, stream: TextIO) -> None:
    """Print a line without breaking a bar that is on the screen."""
    if "tqdm" in sys.modules and sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=stream)
    else:
        print(text, file=stream, flush=True)
