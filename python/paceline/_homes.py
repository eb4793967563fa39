"""Where callers wait: in an event loop of asyncio, in a run of trio, or in threads.

The engine says which calls may leave and when it is to be asked again; a home wakes its callers and keeps that time. Each home
has a timer of its own while a caller waits there, so none depends on another loop that may be busy or closed.
"""

import sys
from _thread import allocate_lock

MOST = 3600.0  # seconds between two looks at the clock, which goes on while a machine sleeps
LOOK = 1.0  # and in a thread: a signal that comes just before a thread blocks does not end its wait, so Ctrl-C is looked for


def present(limiter):
    """The home of the coroutine that runs."""
    asyncio = sys.modules.get("asyncio")
    loop = asyncio and asyncio._get_running_loop()
    if loop is not None and not in_trio():
        return limiter._home(loop, AsyncioHome)
    return limiter._home(sys.modules["trio"].lowlevel.current_trio_token(), TrioHome)


def in_trio():
    """Whether trio runs this coroutine, perhaps as a guest of asyncio's loop."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class Home:
    """Calls that wait in one place."""

    def __init__(self, limiter, place):
        self.limiter = limiter
        self.place = place
        self.waiting = 0

    def enter(self):
        self.waiting += 1

    def leave(self):
        self.waiting -= 1
        if not self.waiting:
            self.limiter._forget(self)
            self.disarm()

    def lost(self, call):
        """The loop of a caller has ended without it: its place goes to others."""
        call._cancel()


class AsyncioHome(Home):
    timer = None

    async def wait(self, call):
        self.enter()
        try:
            while True:
                waiter = self.place.create_future()
                call._waiter = self, waiter
                if call._granted():
                    # By another thread meanwhile, or others are about to go on that came before.
                    await _others_go_on()
                else:
                    if self.timer is None:
                        self.set_timer(self.limiter._delay())
                    await waiter
                # If this loop came to it too late, it waits again.
                if call._take():
                    return
        except BaseException:
            call._cancel()
            raise
        finally:
            self.leave()

    def here(self):
        return sys.modules["asyncio"]._get_running_loop() is self.place

    def wake(self, call, waiter):
        if self.here():
            _resolve(waiter)
            return
        try:
            self.place.call_soon_threadsafe(_resolve, waiter)
        except RuntimeError:
            self.lost(call)

    def arm(self, delay):
        if self.here():
            self.set_timer(delay)
            return
        try:
            self.place.call_soon_threadsafe(self.set_timer, None)
        except RuntimeError:
            self.limiter._forget(self)

    def set_timer(self, delay):
        if delay is None:
            delay = self.limiter._delay()
            if delay is None:
                return
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.place.call_later(min(max(delay, 0.0), MOST), self.tick)

    def tick(self):
        self.timer = None
        if self.waiting:
            self.limiter._tick()
            if self.timer is None:
                self.set_timer(None)

    def disarm(self):
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _others_go_on:
    def __await__(self):
        yield


def _resolve(waiter):
    if not waiter.done():
        waiter.set_result(None)


class TrioHome(Home):
    def __init__(self, limiter, place):
        super().__init__(limiter, place)
        self.trio = sys.modules["trio"]
        self.changed = self.trio.Event()
        self.keeps_time = False

    async def wait(self, call):
        self.enter()
        try:
            while True:
                event = self.trio.Event()
                call._waiter = self, event
                if call._granted():
                    await self.trio.lowlevel.checkpoint()
                else:
                    if not self.keeps_time:
                        self.keeps_time = True
                        self.trio.lowlevel.spawn_system_task(self.keep_time)
                    await event.wait()
                if call._take():
                    return
        except BaseException:
            call._cancel()
            raise
        finally:
            self.leave()

    async def keep_time(self):
        while self.waiting:
            delay = self.limiter._delay()
            self.changed = self.trio.Event()
            with self.trio.move_on_after(MOST if delay is None else min(max(delay, 0.0), MOST)):
                await self.changed.wait()
                continue
            self.limiter._tick()
        self.keeps_time = False

    def here(self):
        try:
            return self.trio.lowlevel.current_trio_token() is self.place
        except RuntimeError:
            return False

    def wake(self, call, event):
        if self.here():
            event.set()
            return
        try:
            self.place.run_sync_soon(event.set)
        except self.trio.RunFinishedError:
            self.lost(call)

    def arm(self, delay):
        if self.here():
            self.changed.set()
            return
        try:
            self.place.run_sync_soon(lambda: self.changed.set())
        except self.trio.RunFinishedError:
            self.limiter._forget(self)

    def disarm(self):
        self.changed.set()


class Threads(Home):
    """One of the threads that wait keeps the time for the others, and passes that on when its own wait is over."""

    def __init__(self, limiter, place):
        super().__init__(limiter, place)
        self.lock = allocate_lock()
        self.bells = {}
        self.keeper = None

    def wait(self, call):
        clock = self.limiter.clock
        bell = allocate_lock()
        bell.acquire()
        call._waiter = self, bell
        with self.lock:
            self.bells[bell] = None
            self.enter()
        try:
            while not call._take():
                with self.lock:
                    if self.keeper is None:
                        self.keeper = bell
                if self.keeper is not bell:
                    bell.acquire(timeout=LOOK)
                    continue
                delay = self.limiter._delay()
                if clock.is_virtual and delay is not None:
                    clock.advance(max(delay, 0.0))
                elif bell.acquire(timeout=LOOK if delay is None else min(max(delay, 0.0), LOOK)):
                    continue
                self.limiter._tick()
        except BaseException:
            call._cancel()
            raise
        finally:
            with self.lock:
                del self.bells[bell]
                if self.keeper is bell:
                    self.keeper = None
                    for other in self.bells:
                        _ring(other)
                        break
                self.leave()

    def wake(self, call, bell):
        _ring(bell)

    def arm(self, delay):
        keeper = self.keeper
        if keeper is not None:
            _ring(keeper)

    def disarm(self):
        pass


def _ring(bell):
    try:
        bell.release()
    except RuntimeError:
        pass  # it rings already
