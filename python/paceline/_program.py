"""The program `paceline`, as a child of this process."""

import json
import os
import shutil
import subprocess
import sys

FINISHED, FAILED, WRONG, DEFERRED = 0, 1, 2, 3


class ProgramError(Exception):
    """The program refused the job, or could not do it: its exit code `code` and what it said."""

    def __init__(self, code, said):
        super().__init__(said or f"paceline ended with the exit code {code}")
        self.code = code


class Lines:
    """What iterates over dictionaries, as a frame too."""

    def to_pandas(self):
        """The lines as a frame of pandas, which has to be installed."""
        import pandas

        return pandas.DataFrame(list(self))

    def to_polars(self):
        """The lines as a frame of polars, which has to be installed."""
        import polars

        return polars.DataFrame(list(self), infer_schema_length=None)


def found(program=None):
    """The path of the program."""
    path = program or os.environ.get("PACELINE") or shutil.which("paceline")
    if path is None:
        raise FileNotFoundError(
            "the program paceline is not on the path: `pip install paceline-cli` or `cargo install paceline-cli`, or name it with program="
        )
    return os.fspath(path)


def flags(named):
    """`limit=["500rpm"]` as `--limit=500rpm`, and `no_journal=True` as `--no-journal`."""
    for name, value in named.items():
        flag = "--" + name.replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                yield flag
            elif each is not False and each is not None:
                yield f"{flag}={each}"


def work(command, show, env, output=None):
    """Runs a command that works until it has finished, and that Ctrl-C ends as it would in a shell. `show`: whether its progress
    appears; by default where standard error is a terminal. Returns its exit code and what it wrote, which is kept if `output` is
    a pipe."""
    show = sys.stderr.isatty() if show is None else show
    error = None if show else subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=error, text=True)
    try:
        written, said = process.communicate()
    except BaseException:
        # It ends by itself after the same Ctrl-C; anything else ends it so.
        if process.poll() is None:
            process.terminate()
        process.communicate()
        raise
    if process.returncode not in (FINISHED, FAILED, DEFERRED):
        raise ProgramError(process.returncode, (said or "").strip())
    return process.returncode, written


def ask(command, env=None, lines=()):
    """Runs a command that answers at once, with lines on its standard input; what it wrote."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    done = subprocess.run(command, env=env, input=text, capture_output=True, text=True)
    if done.returncode != FINISHED:
        raise ProgramError(done.returncode, done.stderr.strip())
    return done.stdout
