"""For the tests of programs: virtual time, in which nothing waits.

    def test_my_job():
        with paceline.testing.virtual_time() as time:
            paceline.testing.run(my_job)     # asyncio; sleeps and waits of limiters take no time
            assert time.now() == 60.0

Limiters that are made inside keep to the virtual clock. `run` gives asyncio a loop whose time is the same; a thread that waits for a
limiter moves the clock on by itself, so code without asyncio needs no `run`.
"""

import asyncio
import selectors
from contextlib import contextmanager

from . import _limiter
from ._engine import Clock as _Clock

__all__ = ["Clock", "run", "virtual_time"]

_START = 1e6  # seconds after the origin: calls before it are possible


class Clock(_Clock):
    """A clock that stands still until a test moves it: `now()` and `advance(seconds)`. It starts at 0."""

    def __new__(cls):
        return super().__new__(cls, _START)

    def now(self):
        return super().now() - _START


@contextmanager
def virtual_time():
    """Limiters that are made in the block keep to the clock that it gives."""
    clock, before = Clock(), _limiter._clock
    _limiter._clock = clock
    try:
        yield clock
    finally:
        _limiter._clock = before


def run(main, /, *args):
    """Runs a coroutine function in a loop of asyncio whose time is virtual. To be called within `virtual_time`."""
    clock = _limiter._clock
    if not isinstance(clock, Clock):
        raise RuntimeError("no virtual time: call it within `with paceline.testing.virtual_time():`")
    loop = _Loop(clock)
    try:
        return loop.run_until_complete(main(*args))
    finally:
        try:
            _end(loop)
        finally:
            loop.close()


def _end(loop):
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.run_until_complete(loop.shutdown_asyncgens())


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock):
        super().__init__(_Selector(clock))
        self._paceline_clock = clock

    def time(self):
        return self._paceline_clock.now()


class _Selector(selectors.DefaultSelector):
    """Where a loop would sleep, the clock moves on."""

    def __init__(self, clock):
        super().__init__()
        self._paceline_clock = clock

    def select(self, timeout=None):
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("nothing happens any more: all tasks wait for something other than time")
        self._paceline_clock.advance(timeout)
        return super().select(0)
