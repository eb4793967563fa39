"""The same job, killed twice, with Paceline and with a peer: what is paid again, lost or doubled, and what it takes.

A job of 2,000 items is killed with SIGKILL after a third and after two thirds of its calls, and is resumed each time with
the command that began it. After the second kill half a line is left at the end of the file that the tool appends to, as a
crash in the middle of a write leaves it. Where a tool cannot go on then, that half line is cut off again, so that the rest
can be counted all the same. Calls are counted by the mock server, another process.

Then the time to the first call is taken once more with 200,000 items.

Usage: PACELINE BATCHLLM, the paths of the two programs
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ITEMS = 2_000
MANY_ITEMS = 200_000
CONCURRENCY = 50
LATENCY = "50ms"
PATIENCE = 120


class Mock:
    """`paceline mock` in a process of its own: it counts the calls, and which of them are about the same item."""

    def __init__(self, paceline):
        flags = ["--latency", LATENCY]
        self.process = subprocess.Popen([paceline, "mock", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.url = self.process.stdout.readline().decode().split()[-1]
        self.connection = http.client.HTTPConnection(self.url.removeprefix("http://"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def stats(self):
        self.connection.request("GET", "/stats")
        return json.load(self.connection.getresponse())


class Paceline:
    """Our own runner."""

    def __init__(self, program, folder):
        self.name, self.program = "paceline", program
        self.source, self.results = folder / "requests.jsonl", folder / "results.jsonl"
        self.appended = self.results

    def line(self, number):
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": prompt(number)}]}
        return {"custom_id": prompt(number), "method": "POST", "url": "/v1/chat/completions", "body": body}

    def command(self, url):
        upstream = ["--upstream", "openai", "--base-url", f"{url}/v1", "--concurrency", str(CONCURRENCY)]
        return [self.program, "run", self.source, "-o", self.results, *upstream]

    def answered(self):
        rows = map(json.loads, self.results.read_text().splitlines())
        return [row["custom_id"] for row in rows if row["response"]["status_code"] == 200]


class Batchllm:
    """batchllm-ai, with its checkpoint file."""

    def __init__(self, program, folder):
        self.name, self.program = "batchllm-ai", program
        self.source, self.results = folder / "prompts.jsonl", folder / "results.jsonl"
        self.appended = folder / "checkpoint"

    def line(self, number):
        return {"input": prompt(number)}

    def command(self, url):
        upstream = ["-m", "gpt-4o-mini", "--base-url", f"{url}/v1", "--api-key", "none", "-c", str(CONCURRENCY)]
        return [self.program, "run", self.source, "-o", self.results, "--checkpoint", self.appended, *upstream]

    def answered(self):
        rows = map(json.loads, self.results.read_text().splitlines())
        return [row["input"] for row in rows if row["error"] is None]


class Run:
    """One process of a tool. Its own peak of memory is read while it lives."""

    def __init__(self, tool, mock):
        self.began, self.peak_kib = time.monotonic(), 0
        self.process = subprocess.Popen(tool.command(mock.url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait_for(self, condition):
        """Seconds from the start until it holds; none when the process ends before."""
        while not condition():
            self.look()
            if self.process.poll() is not None:
                return None
            if time.monotonic() - self.began > PATIENCE:
                self.process.kill()
                raise TimeoutError("nothing happens any more")
            time.sleep(0.002)
        self.look()
        return time.monotonic() - self.began

    def look(self):
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except FileNotFoundError:
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_kib = max(self.peak_kib, int(line.split()[1]))

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def finish(self):
        """Its exit code, and the last line that it wrote to standard error."""
        self.wait_for(lambda: False)
        words = self.process.communicate()[1].decode().strip().splitlines()
        return self.process.returncode, words[-1] if words else ""


def prompt(number):
    return f"Say the number {number}."


def write_input(tool, items):
    with open(tool.source, "w") as source:
        for number in range(items):
            source.write(json.dumps(tool.line(number)) + "\n")


def killed_job(tool, paceline):
    write_input(tool, ITEMS)
    with Mock(paceline) as mock:
        runs = [Run(tool, mock)]
        first_call = runs[-1].wait_for(lambda: mock.stats()["calls"] > 0)
        for share in (1, 2):
            if runs[-1].wait_for(lambda: mock.stats()["calls"] >= ITEMS * share // 3) is None:
                raise RuntimeError(f"{tool.name} ended before it was killed")
            runs[-1].kill()
            if share == 1:
                runs.append(Run(tool, mock))
        whole = tear(tool.appended)
        runs.append(Run(tool, mock))
        code, words = runs[-1].finish()
        torn = "resumed"
        if code != 0:
            torn = f"refused ({words[:120]})"
            os.truncate(tool.appended, whole)
            runs.append(Run(tool, mock))
            code, words = runs[-1].finish()
        if code != 0:
            raise RuntimeError(f"{tool.name} does not finish: {words}")
        stats = mock.stats()
    answers = Counter(tool.answered())
    return {
        "calls": stats["calls"],
        "repeated": stats["calls"] - stats["items"]["seen"],
        "missing": sum(prompt(number) not in answers for number in range(ITEMS)),
        "doubled": sum(count - 1 for count in answers.values()),
        "first_call_s": first_call,
        "peak_mib": max(run.peak_kib for run in runs) / 1024,
        "torn_tail": torn,
    }


def tear(path):
    """Leaves half a line at the end; returns how long the file was."""
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    with open(path, "ab") as file:
        file.write(last[: len(last) // 2])
    return len(whole)


def first_of_many(tool, paceline):
    """Seconds to the first call of a large job, and the memory in MiB by then."""
    write_input(tool, MANY_ITEMS)
    with Mock(paceline) as mock:
        run = Run(tool, mock)
        seconds = run.wait_for(lambda: mock.stats()["calls"] > 0)
        run.kill()
    return seconds, run.peak_kib / 1024


def say(tool, figures, many, bar):
    seconds, mib = many
    print(
        f"measure killed job, {tool.name}: items={ITEMS} kills=2 concurrency={CONCURRENCY} calls={figures['calls']} "
        f"repeated={figures['repeated']} missing={figures['missing']} doubled={figures['doubled']} "
        f"first_call_s={figures['first_call_s']:.2f} peak_mib={figures['peak_mib']:.0f} "
        f"first_call_of_{MANY_ITEMS}_s={seconds:.2f} peak_mib_by_then={mib:.0f} "
        f"torn_tail={figures['torn_tail']}{bar}",
        flush=True,
    )


def main(paceline, batchllm):
    for make, program in ((Paceline, paceline), (Batchllm, batchllm)):
        bar = ""
        with tempfile.TemporaryDirectory() as folder:
            tool = make(program, Path(folder))
            figures = killed_job(tool, paceline)
        with tempfile.TemporaryDirectory() as folder:
            many = first_of_many(make(program, Path(folder)), paceline)
        if make is Paceline:
            kept = (figures["missing"], figures["doubled"], figures["torn_tail"]) == (0, 0, "resumed")
            bar = f" bar=none missing or doubled, torn tail resumed {'met' if kept else 'MISSED'}"
        say(tool, figures, many, bar)


main(*sys.argv[1:])
