"""The durable job, with a program that stands in for `paceline`."""

import json
import sys

import pytest

import paceline
from paceline.batch import STATES, ProgramError

PROGRAM = """#!{python}
import json, sys
command, *rest = sys.argv[1:]
if command == "stats":
    print(json.dumps({{**dict.fromkeys({states}, 0), "input": 2, "succeeded": 2, "calls": 2}}))
elif "--limit=wrong" in rest:
    print("error: no limit", file=sys.stderr)
    sys.exit(2)
else:
    with open(rest[0]) as lines, open(rest[2], "w") as results:
        results.writelines(lines)
    with open(rest[2] + ".flags", "w") as file:
        json.dump(rest[3:], file)
    sys.exit(3 if "--max-items=1" in rest else 0)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "paceline"
    path.write_text(PROGRAM.format(python=sys.executable, states=STATES))
    path.chmod(0o755)
    return path


def test_a_job_gives_its_lines_and_its_counts(program, tmp_path):
    output = tmp_path / "results.jsonl"
    items = [{"custom_id": "a"}, {"custom_id": "b"}]
    flags = {"upstream": "openai", "limit": ["5rpm", "9 tpm"], "no_journal": True, "no_check": False}
    summary = paceline.run(iter(items), output, program=program, **flags)
    assert list(summary) == items
    assert (summary.counts["succeeded"], summary.is_finished, summary.all_succeeded) == (2, True, True)
    assert json.loads((tmp_path / "results.jsonl.flags").read_text()) == [
        "--upstream=openai", "--limit=5rpm", "--limit=9 tpm", "--no-journal"
    ]
    assert list(summary.failures()) == []


def test_a_job_that_goes_on_later_says_so(program, tmp_path):
    summary = paceline.run([{}], tmp_path / "r.jsonl", program=program, max_items=1)
    assert not summary.is_finished


def test_a_job_that_is_refused_is_an_error_with_its_words(program, tmp_path):
    with pytest.raises(ProgramError, match="no limit"):
        paceline.run([{}], tmp_path / "r.jsonl", program=program, limit="wrong", show=False)


STORE = """#!{python}
import json, pathlib, sys
_, command, store, *rest = sys.argv[1:]
items = pathlib.Path(store.partition("=")[2])
if command == "add":
    with open(items, "a") as file:
        lines = sys.stdin.readlines()
        file.writelines(lines)
    print(f"{{len(lines)}} added")
elif command == "run":
    print(json.dumps({{"status": "PARTIAL", "flags": rest}}))
    sys.exit(3)
elif not items.exists():
    print("error: there is no store", file=sys.stderr)
    sys.exit(2)
elif command == "list":
    print(items.read_text(), end="")
else:
    print(json.dumps(rest))
"""


def test_a_store_gives_its_items(tmp_path):
    path = tmp_path / "paceline"
    path.write_text(STORE.format(python=sys.executable))
    path.chmod(0o755)
    store = paceline.tasks.Store(tmp_path / "work.db", program=path)
    with pytest.raises(ProgramError, match="no store"):
        list(store.items())
    items = [{"key": "a", "payload": 1}, {"key": "ü", "payload": {"b": [2]}}]
    assert store.add(iter(items)) == "2 added"
    assert list(store.items()) == list(store.items(state="failed")) == items
    report = store.run("./renew", "--staging", concurrency=4, show=False)
    assert report.counts["flags"] == ["--json", "--concurrency=4", "--", "./renew", "--staging"]
    assert not report.is_finished and not report.all_succeeded
    assert store.show("a") == ["--json", "a"]
    assert json.loads(store.retry(state=["failed", "skipped"])) == ["--state=failed", "--state=skipped"]
