"""Ten times what the upstream takes, by HTTP/1 and HTTP/2, beside interactive clients that go on being answered.

    scripts/gateway-load [short | SECONDS]

wrk with 2,000 connections and h2load with 20 of 100 streams ask for more than the upstream takes, in batches and interactively. One
client with a name of its own asks for one thing after the other, and is answered each time. The memory of the gateway is bounded.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time

from local import Client, Gateway, Lost, Upstream, prompt, verdict

PACELINE, IS_SHORT = sys.argv[1], sys.argv[2] == "short"
SECONDS = 5 if IS_SHORT else int(sys.argv[2])
RATE = 60
MEMORY = 512

SCRIPT = """
wrk.method = "POST"
wrk.body = '{"model":"m","messages":[{"role":"user","content":"%s"}]}'
wrk.headers["x-paceline-client"] = "flood"
wrk.headers["x-paceline-priority"] = "%s"
wrk.headers["x-paceline-deadline"] = "10s"
"""


async def asks(gateway, seconds, times, wrong):
    client, ends = Client(gateway.url, fields="x-paceline-client: person\r\n"), time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        try:
            status, _, body = await asyncio.wait_for(client.ask(prompt()), 30)
            times.append(time.monotonic() - began)
            if status != 200:
                wrong.append((status, body[:100]))
        except (Lost, OSError, TimeoutError) as error:
            wrong.append(repr(error))
            client.close()
        await asyncio.sleep(0.1)


async def flood(name, command, gateway, upstream):
    before, times, wrong, most = len(upstream.calls), [], [], 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    person = asyncio.create_task(asks(gateway, SECONDS, times, wrong))
    while not person.done():
        most = max(most, gateway.memory())
        await asyncio.sleep(0.2)
    process.terminate()
    process.wait()
    calls = len(upstream.calls) - before
    times.sort()
    p95 = times[int(len(times) * 0.95)] if times else 0
    return verdict(
        f"gateway load {name}", f"seconds={SECONDS} calls={calls} of_a_limit={calls / (RATE * SECONDS):.2f} answers_of_a_person={len(times)} "
        f"median={statistics.median(times or [0]):.2f}s p95={p95:.2f}s not_answered={wrong[:3]} rss_mib={most:.0f}",
        ("answers", bool(wrong) or not times), ("memory", most > MEMORY),
        ("time", not IS_SHORT and p95 > 5), ("use", not IS_SHORT and calls < 0.7 * RATE * SECONDS),
    )


async def main():
    upstream, well = await Upstream((0.02, 0.05)).start(), True
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(PACELINE, folder)
        gateway.configure(upstream.url, f'concurrency = 32\nlimits = ["{RATE} per 1s"]\n')
        gateway.start()
        url = f"{gateway.url}/main/v1/chat/completions"
        for priority in ("interactive", "batch"):
            with open(f"{folder}/{priority}.lua", "w") as script:
                script.write(SCRIPT % ("x" * 2_000, priority))
            command = ["wrk", "-t2", "-c2000", "--timeout", "60s", f"-d{SECONDS}s", "-s", f"{folder}/{priority}.lua", url]
            well &= await flood(f"wrk {priority}", command, gateway, upstream)
        with open(f"{folder}/body", "w") as body:
            body.write(prompt())
        command = ["h2load", "-c20", "-m100", "-t1", "-n100000000", "-d", f"{folder}/body", "-H", "x-paceline-client: flood", "-H", "x-paceline-deadline: 10s", url]
        well &= await flood("h2load", command, gateway, upstream)
        gateway.end()
    return well


sys.exit(0 if asyncio.run(main()) else 1)
