"""Sixteen programs with OpenAI's client share one key of 1,200 requests a minute: directly, and through `paceline serve`, which is told
the limit or not. The three are run at once, each with a server of its own.

    scripts/gateway-sixteen [REQUESTS]

Each program has the retries that its SDK makes by default and ten calls in flight. `oracle` is the time of a sender that knows the
limit. Jain's index is of the requests that each program had answered while all of them were at work. Ends with an error where the
gateway misses a bar.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

RPM, PROGRAMS, IN_FLIGHT = 1200, 16, 10


def program():
    """One of the programs: waits for a line, sends its share, prints what became of it."""
    import openai

    base_url, requests, key = sys.argv[2], int(sys.argv[3]), sys.argv[4]

    async def send():
        client = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=600)
        # The client reads most of its own code at its first call, a fifth of a second for each of 48 programs: before the clock starts.
        with contextlib.suppress(openai.APIConnectionError):
            nowhere = client.with_options(base_url="http://127.0.0.1:9", max_retries=0)
            await nowhere.chat.completions.create(model="m", messages=[{"role": "user", "content": "0"}])
        print("ready", flush=True)
        sys.stdin.readline()
        turns, answered, failed = asyncio.Semaphore(IN_FLIGHT), [], []

        async def one(number):
            async with turns:
                try:
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(number)}])
                    answered.append(time.time())
                except openai.OpenAIError as error:
                    failed.append(type(error).__name__)

        await asyncio.gather(*(one(number) for number in range(requests)))
        return {"answered": answered, "failed": failed}

    print(json.dumps(asyncio.run(send())), flush=True)


def start(command, **options):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    return process, process.stdout.readline().split()[-1]


def measure(paceline, requests, name, config, bars):
    mock, url = start([paceline, "mock", "--rpm", str(RPM), "--latency", "50ms..200ms", "--hints", "none"])
    served, target = None, f"{url}/v1"
    with tempfile.TemporaryDirectory() as folder:
        if config is not None:
            with open(f"{folder}/paceline.toml", "w") as file:
                file.write(f'[upstream.first]\nprovider = "openai"\nbase_url = "{url}/v1"\napi_key_env = "KEY"\n{config}')
            environment = {**os.environ, "KEY": "sk-shared", "XDG_STATE_HOME": folder}
            served, gateway = start([paceline, "serve", "--listen", "127.0.0.1:0"], cwd=folder, env=environment)
            target = f"{gateway}/first/v1"
        share = requests // PROGRAMS
        ask = [sys.executable, __file__, "program", target, str(share)]
        programs = [subprocess.Popen([*ask, f"sk-{n}" if served else "sk-shared"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    for n in range(PROGRAMS)]
        for process in programs:
            assert process.stdout.readline() == "ready\n"
        began = time.time()
        for process in programs:
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [json.loads(process.stdout.readline()) for process in programs]
        seconds = time.time() - began
        with urllib.request.urlopen(f"{url}/stats") as stats:
            seen = json.load(stats)
        for process in filter(None, (served, mock)):
            process.terminate()
            process.wait()
    failed = sum(len(end["failed"]) for end in ends)
    together = min(max(end["answered"], default=began) for end in ends)
    rates = [sum(at <= together for at in end["answered"]) for end in ends]
    jain = sum(rates) ** 2 / (PROGRAMS * sum(rate**2 for rate in rates)) if any(rates) else 0
    oracle = (PROGRAMS * share - RPM / 60) / (RPM / 60) + 0.125
    refused = seen["throttled"] / (seen["ok"] + seen["throttled"])
    met = True
    if bars is not None:
        most_refused, least_of_oracle, least_jain = bars
        met = failed == 0 and refused <= most_refused and oracle / seconds >= least_of_oracle and jain >= least_jain
    print(f"measure sixteen programs, {name}: requests={PROGRAMS * share} failed={failed} refused={seen['throttled']} ({refused:.2%}) "
          f"seconds={seconds:.1f} oracle={oracle:.1f} oracle/measured={oracle / seconds:.3f} jain={jain:.3f}"
          + ("" if bars is None else f" bars=0/{bars[0]:.0%}/{bars[1]}/{bars[2]} {'met' if met else 'MISSED'}"), flush=True)
    return met


# The share of calls that may be refused, of the oracle's speed, and Jain's index; without the gateway there is nothing to reach.
SIDES = [
    ("direct", None, None),
    ("gateway, told", f'rpm = {RPM}\nburst = 20\nshape = "bucket"\n', (0.01, 0.95, 0.95)),
    ("gateway, untold", "", (0.02, 0.92, 0.92)),
]

if sys.argv[1] == "program":
    program()
else:
    with ThreadPoolExecutor(len(SIDES)) as threads:
        sides = [threads.submit(measure, sys.argv[1], int(sys.argv[2]), *side) for side in SIDES]
        sys.exit(not all([side.result() for side in sides]))
