"""The durable job from Python: a file of requests becomes a file of results, with the program `paceline`.

The job outlives this process: what it has recorded is not sent again when it is run again with the same files.
"""

import json
import os
import subprocess
from pathlib import Path

from ._program import DEFERRED, FINISHED, Lines, ProgramError, flags, found, work

__all__ = ["ProgramError", "Summary", "run"]

STATES = ("input", "succeeded", "fallback", "failed", "held", "skipped", "cancelled", "waiting", "in_flight")


class Summary(Lines):
    """How a job stands. `counts` has the items by state, `is_finished` says whether any waits for a later run.

    Iterating gives the result lines as dictionaries, in the order in which they were recorded.
    """

    def __init__(self, output, code, counts):
        self.output = Path(output)
        self.errors = self.output.with_suffix(".errors.jsonl")
        self.code = code
        self.counts = counts

    @property
    def is_finished(self):
        return self.code != DEFERRED

    @property
    def all_succeeded(self):
        return self.code == FINISHED

    def __iter__(self):
        return _lines(self.output)

    def failures(self):
        """The lines of items that ended without a success."""
        return _lines(self.errors)

    def __repr__(self):
        return f"<paceline.batch.Summary: {self.output}, {self.counts}>"


def run(requests, output, /, *, program=None, show=None, env=None, **named):
    """Runs `paceline run REQUESTS -o OUTPUT` and returns its `Summary`.

    `requests` is a file, or an iterable of dictionaries, which become the lines of a file beside the output. Each further keyword is
    a flag of the program: `upstream="openai"`, `limit=["500rpm", "200k tpm"]`, `no_journal=True`. `show`: whether its progress appears;
    by default where standard error is a terminal. Ctrl-C ends the program as it would in a shell: the same call goes on later.
    """
    program = found(program)
    if not isinstance(requests, (str, os.PathLike)):
        requests = _written(requests, output)
    code, _ = work([program, "run", os.fspath(requests), "-o", os.fspath(output), *flags(named)], show, env)
    return Summary(output, code, _counts(program, output, env))


def _written(requests, output):
    path = Path(output).with_suffix(".requests.jsonl")
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        for request in requests:
            file.write(json.dumps(request, ensure_ascii=False) + "\n")
    os.replace(part, path)
    return path


def _counts(program, output, env):
    """Without a journal there are none."""
    stats = subprocess.run([program, "stats", os.fspath(output), "--json"], env=env, capture_output=True, text=True)
    if stats.returncode != 0:
        return {}
    known = json.loads(stats.stdout)
    return {state: known[state] for state in STATES}


def _lines(path):
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)
