"""What a call through a limiter costs, beside its peers, in one run.

    target/python/bench/bin/python python/bench/speed.py          # scripts/python-bench makes it and builds the wheel

Each figure is the best of seven rounds of 20,000 calls (2,000 for peers above 5 us, 2 for one that takes a tenth of a second), the
limiters in turns, none of which has to wait. The last
rows are 10,000 callers at 5,000 calls a second. Ends with an error where a figure misses its bar.
"""

import asyncio
import logging
import subprocess
import sys
import time

import aiolimiter
import pyrate_limiter
import tenacity

import paceline
from paceline._engine import Call

ROUNDS, CALLS = 7, 20_000
logging.disable(logging.WARNING)


async def nothing():
    pass


def nothing_sync():
    pass


def limiter(pace):
    return paceline.Limiter("1000000 rps", concurrency=100_000, pace=pace)


async def timed(one, calls):
    began = time.perf_counter()
    for _ in range(calls):
        await one()
    return (time.perf_counter() - began) / calls * 1e9


def timed_sync(one, calls):
    began = time.perf_counter()
    for _ in range(calls):
        one()
    return (time.perf_counter() - began) / calls * 1e9


async def block(context, calls):
    began = time.perf_counter()
    for _ in range(calls):
        async with context():
            pass
    return (time.perf_counter() - began) / calls * 1e9


def block_sync(context, calls):
    began = time.perf_counter()
    for _ in range(calls):
        with context():
            pass
    return (time.perf_counter() - began) / calls * 1e9


def engine(of, calls):
    made = [Call(of) for _ in range(calls)]
    began = time.perf_counter()
    for call in made:
        call._start()
        call._succeed()
    return (time.perf_counter() - began) / calls * 1e9


async def rows():
    """Name, whether it is awaited, the function that measures, its argument, how many calls."""
    auto, fixed = limiter("auto"), limiter("fixed")
    bucket = aiolimiter.AsyncLimiter(1e9, 1)
    usual = {"wait": tenacity.wait_random_exponential(max=60), "stop": tenacity.stop_after_attempt(6)}
    rate = pyrate_limiter.Limiter(pyrate_limiter.Rate(1_000_000, pyrate_limiter.Duration.SECOND))
    yield "paceline: engine, request and outcome", False, engine, auto, CALLS
    yield "paceline: async with", True, block, auto, CALLS
    yield "paceline: async with, pace fixed", True, block, fixed, CALLS
    yield "paceline: with", False, block_sync, auto, CALLS
    yield "paceline: @limiter, async", True, timed, auto()(nothing), CALLS
    yield "paceline: @limiter", False, timed_sync, auto()(nothing_sync), CALLS
    yield "aiolimiter: async with", True, block, lambda: bucket, CALLS
    yield "tenacity: @retry, async", True, timed, tenacity.retry(**usual)(nothing), CALLS // 10
    yield "tenacity: @retry", False, timed_sync, tenacity.retry(**usual)(nothing_sync), CALLS // 10
    yield "pyrate-limiter: try_acquire", False, timed_sync, lambda: rate.try_acquire("x"), CALLS // 10
    controller = inspect_controller()
    if controller is not None:
        yield "inspect-ai: adaptive connections", True, block, controller, CALLS // 10
    yield "adaptive-rate-limiter: basic", True, timed, await adaptive_scheduler(), CALLS // 10_000


def inspect_controller():
    try:
        from inspect_ai.util._concurrency import AdaptiveConcurrency, AdaptiveConcurrencyController
    except ImportError:
        return None
    controller = AdaptiveConcurrencyController("x", AdaptiveConcurrency(min=1, start=100, max=1_000), True)
    return lambda: controller.semaphore


async def adaptive_scheduler():
    from adaptive_rate_limiter import RateLimiterConfig, RequestMetadata, create_scheduler

    class Client:
        base_url, timeout = "http://127.0.0.1", 60.0

        def get_headers(self):
            return {}

    scheduler = create_scheduler(Client(), mode="basic", config=RateLimiterConfig(mode="basic"))
    metadata = RequestMetadata(request_id="1", model_id="m", resource_type="text")
    await scheduler.start()
    return lambda: scheduler.submit_request(metadata, nothing)


async def calls():
    best, table = {}, [row async for row in rows()]
    for _ in range(ROUNDS):
        for name, is_async, measure, what, count in table:
            taken = await measure(what, count) if is_async else measure(what, count)
            best[name] = min(best.get(name, taken), taken)
    return best


async def crowd(context, waiting=10_000, rate=5_000):
    """Callers that all come at once: how far from their order and from their instants they leave, and the CPU's time for it."""
    left, started = [], 0

    async def one(number):
        nonlocal started
        started = time.perf_counter()
        async with context():
            left.append((time.perf_counter(), number))

    tasks = [asyncio.ensure_future(one(number)) for number in range(waiting)]
    cpu = time.process_time()
    await asyncio.gather(*tasks)
    cpu = time.process_time() - cpu
    # What a loop that starts tasks lets pass is no fault of the limiter: from then on the instants are known.
    waited = [(at, number) for at, number in left if at > started]
    first = waited[0][0]
    offsets = [at - first - place / rate for place, (at, _) in enumerate(waited)]
    late = sorted(offset - min(offsets) for offset in offsets)
    disorder = sum(one > other for (_, one), (_, other) in zip(left, left[1:]))
    return disorder, late[len(late) * 99 // 100] * 1e3, cpu


def imported(module):
    """The least time of an import, in milliseconds, beyond that of an empty program."""
    program = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    taken = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(7)]
    return min(map(float, taken))


def bar(name, figure, most, unit):
    missed = figure > most
    print(f"measure python {name}: {figure:.3g} {unit}, bar at most {most:.3g}{' MISSED' if missed else ''}")
    return missed


def main():
    best = asyncio.run(calls())
    for name, taken in best.items():
        to = [taken / best[peer] for peer in ("aiolimiter: async with", "tenacity: @retry, async")]
        print(f"measure python call: {name:40} {taken:9,.0f} ns, {to[0]:6.2f} x aiolimiter's, {to[1]:6.3f} x tenacity's")
    crowds = {}
    for name, context in (
        ("paceline", paceline.Limiter.per_second(5_000, burst=1, concurrency=100_000)),
        ("aiolimiter", aiolimiter.AsyncLimiter(1, 1 / 5_000)),
    ):
        crowds[name] = asyncio.run(crowd(context if name == "paceline" else lambda: context))
        disorder, late, cpu = crowds[name]
        print(f"measure python crowd of 10,000 at 5,000/s: {name}: {disorder} out of order, 99 % within {late:.1f} ms, {cpu:.2f} s of CPU")
    missed = [
        bar("engine call", best["paceline: engine, request and outcome"], 800, "ns"),
        bar("async with, of aiolimiter", best["paceline: async with"] / best["aiolimiter: async with"], 1.5, "x"),
        bar("async with, of tenacity", best["paceline: async with"] / best["tenacity: @retry, async"], 0.15, "x"),
        bar("crowd, out of order", crowds["paceline"][0], 0, "callers"),
        bar("crowd, 99 % late", crowds["paceline"][1], 5, "ms"),
        bar("crowd, CPU of aiolimiter's", crowds["paceline"][2] / crowds["aiolimiter"][2], 1, "x"),
        bar("import", imported("paceline"), 5, "ms"),
    ]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
