"""The durable job from Python: a file of requests becomes a file of results, with the program `paceline`.

The job outlives this process: what it has recorded is not sent again when it is run again with the same files.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ProgramError", "Summary", "run"]

FINISHED, FAILED, WRONG, DEFERRED = 0, 1, 2, 3
STATES = ("input", "succeeded", "fallback", "failed", "held", "skipped", "cancelled", "waiting", "in_flight")


class ProgramError(Exception):
    """The program refused the job, or could not do it: its exit code `code` and what it said."""

    def __init__(self, code, said):
        super().__init__(said or f"paceline ended with the exit code {code}")
        self.code = code


class Summary:
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

    def to_pandas(self):
        """The result lines as a frame of pandas, which has to be installed."""
        import pandas

        return pandas.DataFrame(self)

    def to_polars(self):
        """The result lines as a frame of polars, which has to be installed."""
        import polars

        return polars.DataFrame(list(self), infer_schema_length=None)

    def __repr__(self):
        return f"<paceline.batch.Summary: {self.output}, {self.counts}>"


def run(requests, output, /, *, program=None, show=None, env=None, **flags):
    """Runs `paceline run REQUESTS -o OUTPUT` and returns its `Summary`.

    `requests` is a file, or an iterable of dictionaries, which become the lines of a file beside the output. Each further keyword is
    a flag of the program: `upstream="openai"`, `limit=["500rpm", "200k tpm"]`, `no_journal=True`. `show`: whether its progress appears;
    by default where standard error is a terminal. Ctrl-C ends the program as it would in a shell: the same call goes on later.
    """
    program = _program(program)
    if not isinstance(requests, (str, os.PathLike)):
        requests = _written(requests, output)
    command = [program, "run", os.fspath(requests), "-o", os.fspath(output), *_flags(flags)]
    show = sys.stderr.isatty() if show is None else show
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=None if show else subprocess.PIPE, text=True)
    try:
        _, said = process.communicate()
    except BaseException:
        # It ends by itself after the same Ctrl-C; anything else ends it so.
        if process.poll() is None:
            process.terminate()
        process.wait()
        raise
    if process.returncode not in (FINISHED, FAILED, DEFERRED):
        raise ProgramError(process.returncode, (said or "").strip())
    return Summary(output, process.returncode, _counts(program, output))


def _program(program):
    found = program or os.environ.get("PACELINE") or shutil.which("paceline")
    if found is None:
        raise FileNotFoundError(
            "the program paceline is not on the path: `pip install paceline-cli` or `cargo install paceline-cli`, or name it with program="
        )
    return os.fspath(found)


def _flags(flags):
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                yield flag
            elif each is not False and each is not None:
                yield f"{flag}={each}"


def _written(requests, output):
    path = Path(output).with_suffix(".requests.jsonl")
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        for request in requests:
            file.write(json.dumps(request, ensure_ascii=False) + "\n")
    os.replace(part, path)
    return path


def _counts(program, output):
    stats = subprocess.run([program, "stats", os.fspath(output), "--json"], capture_output=True, text=True)
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
