"""Whether a limiter keeps anything of calls that are over: the memory of the process after rounds that all do the same.

    python/bench/leak.py [SECONDS]          # 25 rounds, or as many as begin within that time

Each round has 20,000 calls: granted at once, after a wait, cancelled while they wait, failed and tried again, in asyncio and in threads.
Ends with an error where the process has grown by more than 8 MB after the first five rounds.
"""

import asyncio
import gc
import sys
import threading
import time

import paceline

ROUNDS, MOST = 25, 8_000_000  # 20 bytes a call: less than any object takes


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def tasks(limiter, held):
    async def call():
        async with limiter(scope="tasks"):
            await asyncio.sleep(0)

    async def cancelled():
        task = asyncio.ensure_future(held.acquire(scope="cancelled"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    failed = set()

    @limiter(retry=KeyError)
    async def fails_once(number):
        if number not in failed:
            failed.add(number)
            raise KeyError

    await asyncio.gather(*(call() for _ in range(8_000)))
    await asyncio.gather(*(cancelled() for _ in range(2_000)))
    for _ in range(1_000):
        limiter.try_acquire(scope="dropped")
    await asyncio.gather(*(fails_once(number) for number in range(100)))


def threads(limiter):
    def calls():
        for _ in range(1_000):
            with limiter(scope="threads"):
                pass

    running = [threading.Thread(target=calls) for _ in range(8)]
    for each in running:
        each.start()
    for each in running:
        each.join()


def main():
    limiter = paceline.Limiter("20000 rps", burst=100, pace="fixed", concurrency=5_000, breaker={"least": 10_000, "last": 10_000}, retry={"base": "1ms"})
    held = paceline.Limiter.in_flight(1)
    holder = held.try_acquire()
    sizes, seconds = [], float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    began = time.monotonic()
    while len(sizes) < ROUNDS or time.monotonic() - began < seconds:
        asyncio.run(tasks(limiter, held))
        threads(limiter)
        limiter.run(lambda: None)
        gc.collect()
        sizes.append(resident())
    holder.done()
    grown = sizes[-1] - sizes[4]
    print(f"measure python leak: {grown / 1e6:.2f} MB more after {(len(sizes) - 5) * 20_000:,} calls, bar at most 8{' MISSED' if grown > MOST else ''}")
    account = limiter.snapshot()["account"]
    assert account["waiting"] == account["concurrency"]["in_flight"] == 0
    sys.exit(grown > MOST)


if __name__ == "__main__":
    main()
