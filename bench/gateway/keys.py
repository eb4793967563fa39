"""Fifty clients with keys and limits of their own, from sixteen processes: each gets what its limit allows and no more.

    scripts/gateway-keys [SECONDS]

Twenty keys have the same limit, thirty have others; all ask as fast as they may, for three times what they are allowed. The upstream
counts the calls of each in exact windows. Jain's index is of the answers that the twenty alike got.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time

from local import Client, Gateway, Upstream, verdict

WINDOW, PROCESSES = 5, 16
LIMITS = [20] * 20 + [5, 10, 20, 30, 40, 60] * 5


def process():
    """One of the processes: asks for its clients until the time is over, and prints what each got."""
    url, seconds, clients = sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4])
    answered, longest = {name: 0 for name, _ in clients}, 0.0

    async def asks(name, key):
        nonlocal longest
        client, ends = Client(url, key), time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.monotonic()
            # A prompt of its own names the client to the upstream, which sees no key of the gateway's clients.
            status, told, _ = await client.ask('{"model":"m"}', fields=f"x-id: {name}\r\nx-paceline-deadline: {WINDOW}s\r\n")
            answered[name] += status == 200
            if told["x-paceline-waited-ms"] == "0":
                longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0 if status == 200 else 0.1)

    async def all_of_them():
        await asyncio.gather(*(asks(name, key) for name, key in clients for _ in range(3)))

    asyncio.run(all_of_them())
    print(json.dumps([answered, longest]))


async def main(paceline, seconds):
    upstream = await Upstream((0.005, 0.02)).start()
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(paceline, folder)
        # Nothing but its own limit holds a request: a limit counts one when it lets it pass, before the upstream's turn.
        gateway.configure(upstream.url, 'concurrency = 256\npace = "none"\n')
        clients = [(f"c{n:02}", gateway.command("keys", "add", f"c{n:02}", "--limit", f"{limit} per {WINDOW}s")) for n, limit in enumerate(LIMITS)]
        gateway.start()
        shares = [json.dumps(clients[n::PROCESSES]) for n in range(PROCESSES)]
        ask = [sys.executable, __file__, "process", gateway.url, str(seconds)]
        running = [subprocess.Popen([*ask, share], stdout=subprocess.PIPE, text=True) for share in shares]
        answered, longest = {}, 0.0
        for each in running:
            out, _ = await asyncio.to_thread(each.communicate)
            of_one, longest_of_one = json.loads(out)
            answered, longest = answered | of_one, max(longest, longest_of_one)
        gateway.end()
    times = {name: [] for name, _ in clients}
    for at, _, name in upstream.calls:
        times[name].append(at)
    over, used = [], []
    for (name, _), limit in zip(clients, LIMITS):
        # The upstream sees a request at most so much later as one took that waited for nothing.
        most = most_within(times[name], WINDOW - longest)
        over += [f"{name}: {most} of {limit}"] if most > limit else []
        used.append(len(times[name]) / (limit * seconds / WINDOW))
    alike = [answered[name] for (name, _), limit in list(zip(clients, LIMITS))[:20]]
    jain = sum(alike) ** 2 / (len(alike) * sum(count * count for count in alike))
    return verdict(
        "gateway keys", f"keys={len(LIMITS)} processes={PROCESSES} seconds={seconds} calls={len(upstream.calls)} answers={sum(answered.values())} "
        f"jain={jain:.3f} used={min(used):.2f}..{max(used):.2f} transit={longest * 1000:.0f}ms over_its_limit={over}",
        ("a limit", bool(over)), ("fairness", jain < 0.95), ("use", min(used) < 0.8),
    )


def most_within(times, window):
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


if sys.argv[1] == "process":
    process()
else:
    sys.exit(0 if asyncio.run(main(sys.argv[1], int(sys.argv[2]))) else 1)
