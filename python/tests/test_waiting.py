"""Callers that wait: in event loops, in threads, over fork; and what they leave behind when they go."""

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest

import paceline
import paceline.testing
from paceline import Limiter


def is_at_rest(limiter):
    account = limiter.snapshot()["account"]
    return account["waiting"] == 0 and account["concurrency"]["in_flight"] == 0 and not limiter._homes


def test_callers_leave_in_the_order_in_which_they_came(run, gather):
    limiter = Limiter.per_second(2_000, burst=1, pace="fixed")
    left = []

    def caller(number):
        async def call():
            async with limiter():
                left.append(number)

        return call

    run(lambda: gather(*(caller(number) for number in range(200))))
    # trio wakes the tasks of one moment in an order of its own.
    assert (sorted(left) if "trio" in sys.modules and run.__name__ == "_trio" else left) == list(range(200))
    assert is_at_rest(limiter)


def test_a_loop_that_is_behind_gets_no_grants_ahead_of_its_timer(clock):
    limiter = Limiter.per_second(100, burst=1, clock=clock)
    permits = [limiter() for _ in range(101)]
    # It starts tasks for a tenth of a second: what could leave meanwhile would leave in one moment at its end.
    for permit in permits:
        permit._start()
        clock.advance(0.001)
    assert sum(permit._granted() for permit in permits) == 1
    limiter._tick()
    assert sum(permit._granted() for permit in permits) == 2
    clock.advance(0.01)
    limiter._tick()
    assert sum(permit._granted() for permit in permits) == 3


def most_within_a_second(left):
    return max(sum(at <= other < at + 1 for other in left) for at in left)


# How long code of others blocks between a grant and the code after it: less than the window, and more.
BLOCKED = [0, 0.95, 0.1, 2.9, 0.3, 1.7, 0, 0.9, 0.2, 1.2, 0.5]


def test_calls_that_go_on_late_exceed_no_window(run, gather, until, clock):
    limiter = Limiter("10 per 1s", burst=10, pace="fixed", clock=clock)
    left, blocked = [], itertools.cycle(BLOCKED)

    async def call():
        async with limiter():
            left.append(clock.now())

    async def block():
        def all_have_left():
            limiter._tick()
            clock.advance(next(blocked))
            return len(left) == 80

        await until(all_have_left)

    run(lambda: gather(*[call] * 80, block))
    assert most_within_a_second(left) <= 10
    assert limiter.snapshot()["account"]["totals"]["sends"] == 80
    assert is_at_rest(limiter)


def test_threads_that_go_on_late_exceed_no_window(clock):
    class Blocked(Limiter):
        blocked = itertools.cycle(BLOCKED)

        def _tick(self):
            super()._tick()
            clock.advance(next(self.blocked))

    limiter = Blocked("10 per 1s", burst=10, pace="fixed", clock=clock)
    left = []
    for _ in range(80):
        with limiter():
            left.append(clock.now())
    assert most_within_a_second(left) <= 10
    assert limiter.snapshot()["account"]["totals"]["sends"] == 80
    assert is_at_rest(limiter)


def test_a_call_that_lets_others_go_first_counts_when_it_leaves(clock):
    limiter = Limiter("4 per 1s, 2 concurrent", burst=4, pace="fixed", clock=clock)
    holders = [limiter.try_acquire(), limiter.try_acquire()]
    first, second = limiter(), limiter()
    assert not first._start()
    for holder in holders:
        holder.done()
    assert not second._start() and second._granted()
    clock.advance(0.9)
    for permit in (first, second):
        assert permit._take()
        permit.done()
    clock.advance(0.2)
    # Those of the holders are forgotten, and these two are not.
    for _ in range(2):
        limiter.try_acquire().done()
    assert limiter.try_acquire() is None


def test_a_call_whose_turn_has_passed_waits_again_with_its_bounds(clock):
    limiter = Limiter("1 per 1s", pace="fixed", clock=clock)
    limiter.try_acquire().done()
    late, other = limiter(within=4), limiter()
    assert not late._start() and not other._start()
    for _ in range(2):
        clock.advance(1.1)
        limiter._tick()
    assert other._take()
    assert not late._take()
    assert limiter.snapshot()["account"]["waiting"] == 1
    assert 0.9 < late.waits_for()[0] <= 1.1
    clock.advance(1.1)
    limiter._tick()
    assert late._take()
    late.done()
    other.done()
    assert is_at_rest(limiter)


def test_a_limiter_serves_one_loop_after_the_other(run):
    limiter = Limiter.per_second(500, burst=1, pace="fixed")

    async def calls():
        for _ in range(5):
            async with limiter():
                pass

    for _ in range(3):
        run(calls)
    assert is_at_rest(limiter)


def test_the_call_that_ends_lets_the_next_one_leave(run, gather, until):
    limiter = Limiter.in_flight(1)
    steps = []

    async def first():
        async with limiter():
            await until(lambda: limiter.snapshot()["account"]["waiting"] == 1)
            steps.append("first")

    async def second():
        await until(lambda: limiter.snapshot()["account"]["concurrency"]["in_flight"] == 1)
        async with limiter():
            steps.append("second")

    run(lambda: gather(first, second))
    assert steps == ["first", "second"]
    assert is_at_rest(limiter)


def test_a_waiting_caller_can_say_what_it_waits_for(run, gather, until):
    limiter = Limiter.in_flight(1)
    permit = limiter.try_acquire()

    async def wait():
        waiting = limiter()
        said = []

        async def enter():
            async with waiting:
                pass

        async def ask():
            await until(waiting.waits_for)
            said.append(waiting.waits_for())
            permit.done()

        await gather(enter, ask)
        return said

    assert run(wait) == [(None, "the end of its one call in flight (the whole account)")]


def test_a_caller_that_is_cancelled_at_any_point_leaves_nothing_behind():
    limiter = Limiter.in_flight(1)

    async def call():
        async with limiter():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def cancelled_after(steps):
        holder = limiter.try_acquire()
        task = asyncio.ensure_future(call())
        for step in range(steps):
            if step == 2:
                holder.done()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        holder.done()

    for steps in range(8):
        asyncio.run(cancelled_after(steps))
        assert is_at_rest(limiter), steps


def test_a_grant_that_its_cancelled_caller_cannot_take_goes_to_the_next():
    limiter = Limiter.in_flight(1)

    async def main():
        holder = limiter.try_acquire()

        async def call():
            async with limiter():
                return "left"

        first, second = asyncio.ensure_future(call()), asyncio.ensure_future(call())
        await asyncio.sleep(0)
        holder.done()
        first.cancel()
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert second == "left"


def test_a_timeout_around_a_wait_gives_the_place_back():
    limiter = Limiter.in_flight(1)

    async def main():
        holder = limiter.try_acquire()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acquire(), 0.01)
        holder.done()
        assert limiter.try_acquire() is not None

    asyncio.run(main())


def test_a_loop_that_closes_with_waiters_blocks_no_other():
    limiter = Limiter.in_flight(1)
    holder = limiter.try_acquire()
    loop = asyncio.new_event_loop()
    task = loop.create_task(limiter.acquire())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert limiter.snapshot()["account"]["waiting"] == 1
    holder.done()

    async def main():
        async with limiter():
            return "left"

    assert asyncio.run(asyncio.wait_for(main(), 5)) == "left"
    task.get_coro().close()
    task._log_destroy_pending = False
    assert is_at_rest(limiter)


def test_threads_and_loops_share_one_queue():
    limiter = Limiter.per_second(1_000, burst=1, pace="fixed")
    count = []

    def thread():
        for _ in range(50):
            with limiter():
                count.append(1)

    async def task():
        for _ in range(50):
            async with limiter():
                count.append(1)

    async def tasks():
        await asyncio.gather(*(task() for _ in range(3)))

    threads = [threading.Thread(target=thread) for _ in range(3)]
    threads += [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(count) == 450
    assert time.monotonic() - began >= 0.44
    assert is_at_rest(limiter)


def test_no_thread_is_left_after_asyncio():
    limiter = Limiter.per_second(500, burst=1, pace="fixed")

    async def main():
        await asyncio.gather(*(limiter.run(asyncio.sleep, 0) for _ in range(10)))

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before


def test_other_threads_run_while_one_waits():
    limiter = Limiter.in_flight(1)
    holder = limiter.try_acquire()
    entered = threading.Event()

    def wait():
        with limiter():
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    # Would hang here if the thread that waits kept the interpreter.
    while limiter.snapshot()["account"]["waiting"] == 0:
        pass
    holder.done()
    assert entered.wait(5)
    thread.join()


def test_the_thread_that_kept_the_time_passes_that_on():
    limiter = Limiter("2 per 300ms", burst=2, pace="fixed")
    for _ in range(2):
        limiter.try_acquire().done()
    threads = [threading.Thread(target=lambda: limiter.acquire_sync().done()) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(5)
    assert not any(each.is_alive() for each in threads)
    assert is_at_rest(limiter)


def test_ctrl_c_ends_a_wait_in_a_thread_and_gives_the_place_back():
    # A shell lets what it runs in the background ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    limiter = Limiter.in_flight(1)
    holder = limiter.try_acquire()

    def interrupt():
        while limiter.snapshot()["account"]["waiting"] == 0:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        with limiter():
            pass
    assert limiter.snapshot()["account"]["waiting"] == 0
    holder.done()
    assert is_at_rest(limiter)


def test_an_error_of_the_body_is_no_failure_of_the_server(run):
    limiter = Limiter.in_flight(1)

    async def main():
        with pytest.raises(KeyError):
            async with limiter():
                raise KeyError("a mistake of the program")

    run(main)
    by_class = limiter.snapshot()["account"]["totals"]["by_class"]
    assert (by_class["abandoned"], by_class["transient"]) == (1, 0)
    with pytest.raises(ConnectionResetError):
        with limiter():
            raise ConnectionResetError
    assert limiter.snapshot()["account"]["totals"]["by_class"]["transient"] == 1
    assert is_at_rest(limiter)


def test_a_generator_that_is_not_exhausted_gives_its_place_back():
    limiter = Limiter.in_flight(1)

    def items():
        with limiter():
            yield 1
            yield 2

    generator = items()
    assert next(generator) == 1
    assert limiter.try_acquire() is None
    del generator
    gc.collect()
    assert limiter.try_acquire() is not None


def test_an_asynchronous_generator_that_is_not_exhausted_gives_its_place_back():
    limiter = Limiter.in_flight(1)

    async def items():
        async with limiter():
            yield 1
            yield 2

    async def main():
        async for _ in items():
            break
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert is_at_rest(limiter)


def test_a_stop_ends_the_waits_of_its_scope_with_its_reason(run, gather, until):
    limiter = Limiter.in_flight(1)
    holder = limiter.try_acquire()

    async def wait():
        with pytest.raises(paceline.Stopped, match="no credit"):
            await limiter.acquire(scope="chat")

    async def stop():
        await until(lambda: limiter.snapshot()["account"]["waiting"] == 1)
        limiter.stop("no credit", scope="chat")

    run(lambda: gather(wait, stop))
    holder.done()
    assert is_at_rest(limiter)


def test_limiters_are_collected(run):
    async def main():
        limiter = Limiter.per_second(500, burst=1, pace="fixed")
        for _ in range(3):
            async with limiter():
                pass
        return __import__("weakref").ref(limiter)

    reference = run(main)
    gc.collect()
    assert reference() is None


def test_a_pool_of_forked_workers_is_warned_and_goes_on():
    program = """
        import multiprocessing, threading, warnings, paceline
        limiter = paceline.Limiter("1000 rps, 1 concurrent", pace="fixed")
        parents = limiter.acquire_sync()
        threading.Thread(target=limiter.acquire_sync, daemon=True).start()
        while limiter.snapshot()["account"]["waiting"] == 0:
            pass
        def work(number):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with limiter():
                    pass
            return [each.category.__name__ for each in caught]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            warned = pool.map(work, range(6), 1)
        print(sum(len(each) for each in warned), {name for each in warned for name in each})
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    warned, kinds = done.stdout.split(maxsplit=1)
    assert 1 <= int(warned) <= 2
    assert kinds.strip() == "{'ForkWarning'}"


def test_the_interpreter_ends_while_callers_wait():
    program = """
        import asyncio, threading, paceline
        limiter = paceline.Limiter.in_flight(1)
        holder = limiter.try_acquire()
        threading.Thread(target=limiter.acquire_sync, daemon=True).start()
        async def main():
            asyncio.ensure_future(limiter.acquire())
            await asyncio.sleep(0.01)
        asyncio.run(main())
        print("end")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_import_is_quick_and_takes_nothing_with_it():
    program = """
        import sys
        before = set(sys.modules)
        import paceline
        paceline.Limiter("5 rps").try_acquire().done()
        print(sorted(name for name in set(sys.modules) - before if "." not in name and not name.startswith("_")))
    """
    done = subprocess.run([sys.executable, "-S", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=10,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    heavy = {"asyncio", "json", "logging", "warnings", "weakref", "typing", "threading", "inspect", "httpx", "ssl", "socket"}
    assert not heavy & set(eval(done.stdout))


def test_virtual_time_takes_no_time():
    began = time.monotonic()

    async def job():
        limiter = Limiter("10 rpm", burst=1, pace="fixed")
        await asyncio.gather(*(limiter.run(asyncio.sleep, 1) for _ in range(50)))

    with paceline.testing.virtual_time() as clock:
        paceline.testing.run(job)
        assert clock.now() == pytest.approx(49 * 6 + 1, abs=0.01)
    assert time.monotonic() - began < 5


def test_warnings_of_forks_are_not_shown_without_a_fork():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Limiter()():
            pass
