"""Items of work that may have to wait for minutes or days, in a store that outlives this process, with the program `paceline tasks`.

    store = paceline.tasks.Store("certificates.db")
    store.add([{"key": "example.org", "payload": {"days": 90}}])
    report = store.run("./renew")
    for item in store.items(state="failed"):
        print(item["key"], item["last_error"])
"""

import json
import os
import subprocess

from ._program import DEFERRED, FINISHED, Lines, ProgramError, ask, flags, found, work

__all__ = ["Items", "ProgramError", "Report", "Store"]


class Store:
    """The items of one file, which the first `add` makes, or of `postgres://USER@HOST/DATABASE`. Keywords of each method that it does
    not name are flags of the program."""

    def __init__(self, store, *, program=None, env=None):
        self.name = os.fspath(store)
        self._program = found(program)
        self._env = env

    def add(self, items, **named):
        """Adds items: each a dictionary with `payload`, and with `key`, `priority`, `deadline`, `group` or `not_before`. A key that is
        there already is left as it is. Returns how many were added and how many were there, in the program's words."""
        return ask(self._command("add", {"from": "-", **named}), self._env, items).strip()

    def run(self, *command, show=None, **named):
        """Works on what is due until all has ended, or until the next item is due too late (`max_wait="1h"`). `command` is run for each
        item, with its payload on standard input; with `http=True` the payload is sent as a request. `show`: whether progress
        appears; by default where standard error is a terminal."""
        line = self._command("run", {"json": True, **named})
        if command:
            line += ["--", *(os.fspath(part) for part in command)]
        code, written = work(line, show, self._env, subprocess.PIPE)
        return Report(code, json.loads(written))

    def items(self, **named):
        """The items with their states, and why those that wait do so. `state="failed"` and `group=` narrow the choice."""
        return Items(self._command("list", {"json": True, **named}), self._env)

    def show(self, key):
        """One item: its payload, and the last decisions about it."""
        return json.loads(ask([*self._command("show", {"json": True}), key], self._env))

    def report(self):
        """How many items ended how, and each that did not simply succeed."""
        return json.loads(ask(self._command("report", {"json": True}), self._env))

    def retry(self, *keys, **named):
        """Lets items wait again that ended without a success, and those that wait be due at once: by their keys, or by `state=`,
        `group=`, `all=True`."""
        return ask([*self._command("retry", named), *keys], self._env).strip()

    def cancel(self, *keys, **named):
        """Ends items that have not ended, chosen in the same way."""
        return ask([*self._command("cancel", named), *keys], self._env).strip()

    def _command(self, name, named):
        return [self._program, "tasks", name, f"--store={self.name}", *flags(named)]

    def __repr__(self):
        return "<paceline.tasks.Store>"  # its address may have a password


class Items(Lines):
    """Items of a store, read anew by each loop."""

    def __init__(self, command, env):
        self._command = command
        self._env = env

    def __iter__(self):
        return map(json.loads, ask(self._command, self._env).splitlines())


class Report:
    """How a run ended. `counts` is the program's summary: `status`, `input`, `succeeded`, `failed`, ..."""

    def __init__(self, code, counts):
        self.code = code
        self.counts = counts

    @property
    def is_finished(self):
        """Whether no item waits for a later run."""
        return self.code != DEFERRED

    @property
    def all_succeeded(self):
        return self.code == FINISHED

    def __repr__(self):
        return f"<paceline.tasks.Report: {self.counts}>"
