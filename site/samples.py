"""Samples in the documentation that are out of date: ends with an error and names each.

Python and TOML are parsed, JSON is read, and each flag of a `paceline` command is one that its `--help` knows. Samples in Rust are
compiled and run by `cargo test --doc`.
"""

import ast
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

from generated import DOCS, ROOT, help_of, subcommands

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def main():
    wrong = [f"{page.relative_to(ROOT)}: {error}" for page in PAGES for error in errors(page.read_text())]
    sys.exit("\n".join(wrong) if wrong else 0)


def errors(text):
    for language, sample in BLOCK.findall(text):
        try:
            match language:
                case "python":
                    compile(sample, "sample", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                case "toml":
                    tomllib.loads(sample)
                case "json":
                    for value in values(sample):
                        json.loads(value)
                case "console" | "sh":
                    for line in sample.replace("\\\n", " ").splitlines():
                        command(line)
        except (SyntaxError, ValueError) as error:
            yield f"{error} in\n{sample}"


def values(sample):
    """One value, or one in each line."""
    try:
        json.loads(sample)
        return [sample]
    except ValueError:
        return sample.splitlines()


def command(line):
    """A call of the program, behind a prompt, a runner or variables."""
    match = re.search(r"(?:^|[\s$;|&(])paceline (.*)", line)
    if not match or line.lstrip().startswith(("#", "cargo")):
        return
    words = shlex.split(re.split(r" [|>&;] ?|&&", match[1])[0], comments=True)
    names = []
    while words and words[0] in commands(tuple(names)):
        names.append(words.pop(0))
    if names[:1] == ["tasks"] and "--" in words:
        words = words[: words.index("--")]
    known = re.findall(r"--[a-z][a-z-]*", help_text(tuple(names)))
    for flag in words:
        if flag.startswith("--") and flag.split("=")[0] not in [*known, "--help", "--version"]:
            raise ValueError(f"`paceline {' '.join(names)}` has no {flag}")


HELP = {}


def help_text(names):
    if names not in HELP:
        HELP[names] = help_of(names)
    return HELP[names]


def commands(names):
    return subcommands(help_text(names))


if __name__ == "__main__":
    main()
