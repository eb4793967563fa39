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
