"""A function for each of many items, a bounded number of them at a time."""

from _thread import allocate_lock
from collections import deque

from ._run import decorated, is_coroutine_function

AHEAD = 4  # times `at_once`: so many items may have begun before the first of them is given


class Map:
    """The results of a function: `async for` of a coroutine function, `for` of one that runs in threads."""

    def __init__(self, limiter, function, items, at_once, ordered, return_exceptions, progress, call):
        if not isinstance(at_once, int) or at_once < 1:
            raise ValueError(f"at_once={at_once!r}: expected a whole number of at least 1")
        self._call = limiter(**call)
        self._paced = decorated(self._call, function)
        self._function = function
        self._is_async = is_coroutine_function(function)
        self._items = items
        self._at_once = at_once
        self._ordered = ordered
        self._return_exceptions = return_exceptions
        self._progress = progress

    def __aiter__(self):
        if not self._is_async:
            raise TypeError("the function is no coroutine function: use `for` in place of `async for`")
        return self._tasks()

    def __iter__(self):
        if self._is_async:
            raise TypeError("the function is a coroutine function: use `async for` in place of `for`")
        return self._threads()

    async def _tasks(self):
        import asyncio

        if asyncio._get_running_loop() is None:
            raise RuntimeError("map needs asyncio; with trio start tasks in a nursery, each of which awaits `limiter.run`")
        source, changed, bar = _source(self._items), asyncio.Event(), self._bar()
        window = _Window(self._at_once, self._ordered)
        try:
            while True:
                while window.has_room():
                    try:
                        item = await source()
                    except StopAsyncIteration:
                        window.is_over = True
                        break
                    task = asyncio.ensure_future(self._paced(item))
                    window.begin(item, task)
                    task.add_done_callback(lambda task: (window.finish(task), changed.set()))
                taken = window.take()
                if taken is None:
                    if window.is_empty():
                        return
                    changed.clear()
                    await changed.wait()
                    continue
                if bar is not None:
                    bar.update(1)
                yield taken[0], self._result(taken[1])
        finally:
            left = window.unfinished()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if bar is not None:
                bar.close()

    def _threads(self):
        from concurrent.futures import ThreadPoolExecutor
        from queue import SimpleQueue

        source, ended, bar = iter(self._items), SimpleQueue(), self._bar()
        window, waits = _Window(self._at_once, self._ordered), _Waits()
        paced = decorated(self._call, self._function, waits.enter)
        executor = ThreadPoolExecutor(self._at_once, "paceline-map")
        try:
            while True:
                while window.has_room():
                    try:
                        item = next(source)
                    except StopIteration:
                        window.is_over = True
                        break
                    future = executor.submit(paced, item)
                    window.begin(item, future)
                    future.add_done_callback(ended.put)
                taken = window.take()
                if taken is None:
                    if window.is_empty():
                        return
                    window.finish(ended.get())
                    continue
                if bar is not None:
                    bar.update(1)
                yield taken[0], self._result(taken[1])
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            waits.end()
            if bar is not None:
                bar.close()

    def _result(self, future):
        if self._return_exceptions and not future.cancelled():
            return future.exception() or future.result()
        return future.result()

    def _bar(self):
        if self._progress is None:
            return None
        return self._progress(total=len(self._items) if hasattr(self._items, "__len__") else None)


class _Waits:
    """The threads that wait for a permit. They do so no longer once their results are wanted by no loop."""

    def __init__(self):
        self.lock = allocate_lock()
        self.permits = set()
        self.are_over = False

    def enter(self, permit):
        with self.lock:
            self.permits.add(permit)
        try:
            if not self.are_over:
                permit.again_sync()
        finally:
            with self.lock:
                self.permits.discard(permit)
                if self.are_over:
                    permit._cancel()
                    raise RuntimeError("the loop over the results has ended")
        return permit

    def end(self):
        with self.lock:
            self.are_over = True
            for permit in self.permits:
                permit._cancel()
                if permit._waiter is not None:
                    home, bell = permit._waiter
                    home.wake(permit, bell)


class _Window:
    """The items that have begun and were not given yet."""

    def __init__(self, at_once, ordered):
        self.at_once = at_once
        self.ordered = ordered
        self.is_over = False
        self.begun = deque()
        self.done = deque()
        self.running = {}

    def has_room(self):
        begun = len(self.begun) if self.ordered else len(self.running) + len(self.done)
        return not self.is_over and len(self.running) < self.at_once and begun < AHEAD * self.at_once

    def begin(self, item, future):
        self.running[future] = item
        if self.ordered:
            self.begun.append((item, future))

    def finish(self, future):
        item = self.running.pop(future)
        if not self.ordered:
            self.done.append((item, future))

    def take(self):
        if not self.ordered:
            return self.done.popleft() if self.done else None
        if self.begun and self.begun[0][1] not in self.running:
            return self.begun.popleft()
        return None

    def is_empty(self):
        return not self.running and not self.begun and not self.done

    def unfinished(self):
        return list(self.running)


def _source(items):
    """The next item of an iterable or of an asynchronous one, as something to await."""
    if hasattr(items, "__aiter__"):
        return items.__aiter__().__anext__
    iterator = iter(items)

    async def following():
        try:
            return next(iterator)
        except StopIteration:
            raise StopAsyncIteration from None

    return following
