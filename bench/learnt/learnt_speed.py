"""The same job at servers whose limits no client was told, by `paceline run` and by what people use instead.

Each server has its own lane, and the lanes run side by side; in a lane the senders have the server one after another.
Prints a `measure` line for each, and ends with 1 when Paceline missed a bar, lost an item or sent an answered one again.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from limits import limits
from servers import Book, running, upstream

# Ours goes first: the scripts, which take more of the processor, come later.
SENDERS = ["paceline", "openai-sdk", "tenacity", "true-limit"]

AT_ONCE = 64

HERE = Path(__file__).parent


@dataclass
class Ended:
    """How a sender did."""

    seconds: float
    speed: float
    book: Book
    stopped: bool


def command(sender, paceline, truth, folder, base_url, key):
    """How a sender is started. Its folder is its own, with the job in `requests.jsonl`."""
    source = folder / "requests.jsonl"

    def script(file, *arguments):
        return [sys.executable, HERE / file, source, base_url, key, *arguments]

    match sender:
        case "paceline":
            upstream = ["--upstream", "openai", "--base-url", base_url, "--api-key-env", "PEER_KEY"]
            flags = ["--concurrency", AT_ONCE, "--quiet"]
            return [paceline, "run", source, "-o", folder / "results.jsonl", *upstream, *flags]
        case "openai-sdk":
            return script("openai_sdk.py", AT_ONCE)
        case "tenacity":
            return script("tenacity_sdk.py", AT_ONCE)
        case "true-limit":
            return script("true_limit.py", *truth)


class Lane:
    """One server, and the senders that come to it one after another."""

    def __init__(self, limit, server, folder, options):
        self.limit, self.server = limit, server
        self.folder, self.options = Path(folder), options

    async def run(self):
        # The first calls of a server are slow, which is no fault of a sender.
        await self.process("true-limit", "warm-up", self.limit.truth[1])
        rows = []
        for sender in self.options.senders:
            ended = await self.send(sender)
            rows.append((self.limit, sender, ended))
            print(line(*rows[-1], self.options.items), file=sys.stderr, flush=True)
        return rows

    async def send(self, sender):
        stopped = not await self.process(sender, sender, self.options.items)
        end = time.time()
        await asyncio.sleep(1)  # what a stopped sender left under way
        book = self.server.book(f"sk-{sender}")
        answered = len(book.answered)
        # A sender that gives items up is not done before it has given up the last one.
        seconds = (book.last if answered == self.options.items else end) - book.first
        return Ended(seconds, self.limit.oracle(answered, self.limit.latency) / seconds, book, stopped)

    async def process(self, sender, name, items):
        """Lets a sender do a job of that name. Whether it came to its end."""
        folder = self.folder / name
        folder.mkdir()
        with open(folder / "requests.jsonl", "w") as source:
            for number in range(items):
                source.write(json.dumps(request(f"{name}/{number:04}")) + "\n")
        key, base_url = f"sk-{name}", f"http://127.0.0.1:{self.server.port}/v1"
        words = list(map(str, command(sender, self.options.paceline, self.limit.truth, folder, base_url, key)))
        async with running(words, folder / "words", {"PEER_KEY": key, "HOME": str(folder)}) as process:
            try:
                async with asyncio.timeout(self.options.patience):
                    code = await process.wait()
            except TimeoutError:
                process.kill()
                return False
            if code != 0 and sender == "paceline":
                print(f"paceline ended with {code}:", (folder / "words").read_text(), file=sys.stderr)
            elif code != 0:
                raise RuntimeError(f"{self.limit.name}: {sender} ended with {code}")
        return True


def request(name):
    body = {"model": "peer", "max_tokens": 8, "messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


TITLE = (
    f"{'learnt limit':<32}{'sender':<12}{'seconds':>8}{'oracle/measured':>17}{'429 an item':>13}"
    f"{'503 an item':>13}{'failed':>8}{'lost':>6}{'undone':>8}  bar"
)


def line(limit, sender, ended, items):
    missing, book = items - len(ended.book.answered), ended.book
    lost, undone = (0, missing) if ended.stopped else (missing, 0)
    return (
        f"{limit.name:<32}{sender:<12}{ended.seconds:>8.1f}{ended.speed:>17.3f}{book.throttled / items:>13.3f}"
        f"{book.overloaded / items:>13.3f}{book.failed:>8}{lost:>6}{undone:>8}"
        f"{'  ' + verdict(limit, ended, items) if sender == 'paceline' else ''}"
    )


def verdict(limit, ended, items):
    """What Paceline is held to, and whether it was met."""
    speed, refused = limit.least_speed, (ended.book.throttled + ended.book.overloaded) / items
    words = f"refused {limit.most_refused}" if speed is None else f"speed {speed}, refused {limit.most_refused}"
    again = ended.book.answered.total() - len(ended.book.answered)
    missed = []
    if speed is not None and ended.speed < speed:
        missed.append("speed")
    if refused > limit.most_refused:
        missed.append("refused")
    if len(ended.book.answered) < items:
        missed.append("items without an answer")
    if again:
        missed.append(f"{again} answered again")
    return f"{words} MISSED: {', '.join(missed)}" if missed else f"{words} met"


async def measure(options):
    """A row for each server and sender."""
    async with AsyncExitStack() as stack:
        lanes = []
        for limit in limits(options.litellm):
            if options.server not in (None, limit.name):
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="learnt-"))
            behind = await stack.enter_async_context(upstream(limit.latency))
            server = await stack.enter_async_context(limit.server(folder).serving(behind))
            lanes.append(Lane(limit, server, folder, options))
        async with asyncio.TaskGroup() as tasks:
            ended = [tasks.create_task(lane.run()) for lane in lanes]
    return [row for lane in ended for row in lane.result()]


def main():
    parser = argparse.ArgumentParser(prog="learnt-speed")
    parser.add_argument("paceline", help="the program")
    parser.add_argument("litellm", help="a Python that has LiteLLM's proxy")
    parser.add_argument("--items", type=int, default=1_000, help="for each sender and server")
    parser.add_argument("--patience", type=float, default=240, help="seconds after which a sender is stopped")
    parser.add_argument("--senders", nargs="+", choices=SENDERS, default=SENDERS, help="only those")
    parser.add_argument("--server", help="only that one, by its name")
    parser.add_argument("--calls", type=Path, help="file for each call: sender, seconds since its first call, status")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"  # where Debian puts servers
    began = time.monotonic()
    rows = asyncio.run(measure(options))
    lines = [line(*row, options.items) for row in rows]
    print(*(f"measure {words}" for words in [TITLE, *lines]), sep="\n")
    print(f"{time.monotonic() - began:.0f} s in all")
    if options.calls:
        calls = [(sender, f"{at - ended.book.first:.3f}", status) for _, sender, ended in rows for at, status in ended.book.calls]
        options.calls.write_text("".join(f"{','.join(call)}\n" for call in calls))
    for limit, sender, ended in rows:
        if sender == "true-limit" and limit.truth[0] == "cap" and ended.speed < 0.9:
            print(f"warning: at {limit.name} even {sender} is slow: something else keeps this machine busy", file=sys.stderr)
    missed = [row for row in lines if "MISSED" in row]
    if missed:
        print("error: Paceline missed what it is held to:", *missed, sep="\n", file=sys.stderr)
    return 1 if missed else 0


sys.exit(main())
