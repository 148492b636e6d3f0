"""Signals become a wish, and then an interrupt."""

import os
import signal
import time

import pytest

from geoseg.learn.stopping import stop_requests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_wish(number):
    with stop_requests() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()


def test_the_second_signal_insists():
    with stop_requests():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_wish_that_nobody_follows_becomes_an_interrupt():
    with stop_requests(grace=0.05):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)


def test_handlers_and_timer_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    with stop_requests(grace=0.05):
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)] == before
    time.sleep(0.1)  # the alarm would end the process
