"""Reloads, ends and kills of a gateway under load: what becomes of each request, counted by its client and by the upstream.

    scripts/gateway-restarts [short]

`reload`: SIGHUP again and again: no request is dropped, and none is sent twice. `end`: SIGTERM: each request that was sent on a
connection is answered. `kill`: SIGKILL and a start, again and again: the upstream counts calls in exact windows, shorter by as
much as the slowest answered call took from its client to the upstream beyond its wait, for the gateway counts calls as they leave.
"""

import asyncio
import itertools
import signal
import sys
import tempfile
import time

from local import Client, Gateway, Lost, Upstream, prompt, verdict

PACELINE, IS_SHORT = sys.argv[1], sys.argv[2:] == ["short"]
WORKERS = 32
numbers = itertools.count()


class Load:
    """Clients that ask one request after the other, and what became of each."""

    def __init__(self, gateway, pause=0.0):
        self.answers, self.lost, self.refused, self.sent, self.ends = {}, [], 0, 0, False
        # When each call that was answered would have come to the upstream, had it taken no time but its wait.
        self.expected = {}
        self.tasks = [asyncio.create_task(self.asks(gateway, pause)) for _ in range(WORKERS)]

    async def asks(self, gateway, pause):
        client = Client(gateway.url)
        while not self.ends:
            number = next(numbers)
            try:
                await client.connect()
            except OSError:
                # It listens no more, or not yet: the client knows that nothing was sent.
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            self.sent += 1
            asked = time.monotonic()
            try:
                status, fields, _ = await client.ask(prompt(), fields=f"x-id: {number}\r\n")
                self.expected[str(number)] = asked + int(fields.get("x-paceline-waited-ms", 0)) / 1000
                self.answers[status] = self.answers.get(status, 0) + 1
            except Lost:
                self.lost.append(number)
            await asyncio.sleep(pause)
        client.close()

    async def end(self):
        self.ends = True
        await asyncio.gather(*self.tasks)


async def reload(gateway, upstream, times):
    gateway.start()
    load = Load(gateway)
    for n in range(times):
        gateway.configure(upstream.url, f'concurrency = 64\nlimits = ["{60_000 + n}rpm"]\n')
        gateway.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.1)
    await load.end()
    ids = [call[2] for call in upstream.calls]
    gateway.end()
    twice = len(ids) - len(set(ids))
    return verdict(
        "gateway reload", f"reloads={times} requests={load.sent} answers={load.answers} lost={len(load.lost)} calls={len(ids)} twice={twice}",
        ("answers", load.answers != {200: load.sent}), ("calls", len(ids) != load.sent or twice > 0),
    )


async def end(gateway, upstream, times):
    sent, answers, lost, longest = 0, {}, 0, 0
    for _ in range(times):
        gateway.start()
        load = Load(gateway)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        gateway.process.terminate()
        await asyncio.to_thread(gateway.process.wait)
        longest = max(longest, time.monotonic() - began)
        await load.end()
        sent, lost = sent + load.sent, lost + len(load.lost)
        for status, count in load.answers.items():
            answers[status] = answers.get(status, 0) + count
    calls = len(upstream.calls)
    # A client that is told `closing` comes back; one that is told nothing does not know whether it was served.
    return verdict(
        "gateway end", f"ends={times} requests={sent} answers={answers} lost={lost} calls={calls} longest_end={longest:.2f}s",
        ("lost", lost > 0), ("calls", calls != answers.get(200, 0)), ("answers", not set(answers) <= {200, 503}),
    )


async def kill(gateway, upstream, times):
    limit, window = 300, 5
    gateway.configure(upstream.url, f'concurrency = 64\nlimits = ["{limit} per {window}s"]\n')
    gateway.start()
    load, began = Load(gateway), time.monotonic()
    for _ in range(times):
        await asyncio.sleep(window * 0.7)
        gateway.process.kill()
        await asyncio.to_thread(gateway.process.wait)
        await asyncio.to_thread(gateway.start)
    await asyncio.sleep(window)
    gateway.end()
    await load.end()
    late = max(at - load.expected[number] for at, _, number in upstream.calls if number in load.expected)
    most = upstream.most_within(window - late)
    at_best = limit * (time.monotonic() - began) / window
    return verdict(
        "gateway kill", f"kills={times} requests={load.sent} lost={len(load.lost)} calls={len(upstream.calls)} limit={limit} slowest_call={late:.3f}s most_in_a_window={most} used={len(upstream.calls) / at_best:.2f}",
        ("limit", most > limit), ("slow", late > window / 2),
    )


async def main():
    all_well = True
    for part, times, short in ((reload, 100, 20), (end, 20, 5), (kill, 20, 4)):
        with tempfile.TemporaryDirectory() as folder:
            upstream = await Upstream().start()
            gateway = Gateway(PACELINE, folder)
            gateway.configure(upstream.url, 'concurrency = 64\nlimits = ["60000rpm"]\n')
            try:
                all_well &= await part(gateway, upstream, short if IS_SHORT else times)
            finally:
                gateway.end()
    return all_well


sys.exit(0 if asyncio.run(main()) else 1)
