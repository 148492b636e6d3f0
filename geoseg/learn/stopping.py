"""Stopping between two steps when the system or the user asks for it (SIGTERM, Ctrl-C)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds that a step has to end in; systems that send SIGTERM kill after 30 or so.
GRACE = 20.0


@contextmanager
def stop_requests(grace: float = GRACE) -> Iterator[Callable[[], bool]]:
    """Take SIGTERM and SIGINT as a wish to stop; gives a function that says whether there was one.

    The wish becomes a KeyboardInterrupt, wherever the process is, when nobody followed it within `grace` seconds, or
    when a second signal comes. Outside the main thread, signals stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    owner, asked = os.getpid(), threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked helper: its parent decides
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        signal.setitimer(signal.ITIMER_REAL, grace)

    def insist(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: ask, signal.SIGINT: ask, signal.SIGALRM: insist}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield asked.is_set
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
