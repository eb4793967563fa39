"""Pages that no person writes: the help of each command, the keys of the configuration, and the files of the project that pages link to.

A hook of MkDocs. PACELINE names the program.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# More names than that have no room in the column of values.
FEW = 4

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?)\)")

RUST = re.compile(r"^```rust.*?^```$", re.MULTILINE | re.DOTALL)

HIDDEN = re.compile(r"^#(?: .*)?\n", re.MULTILINE)

LANGUAGES = {".rs": "rust", ".sh": "bash", ".yml": "yaml", ".json": "json", ".service": "ini", ".timer": "ini", ".socket": "ini"}


def on_config(config):
    """The menu has a page for each provider, whichever there are."""
    pages = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "providers").glob("*.md"))
    pages.sort(key=lambda page: not page.endswith("README.md"))
    config["nav"].append({"Providers": pages})
    return config


def on_files(files, config):
    add = lambda path, text: files.append(File.generated(config, path, content=text))
    add("reference/commands.md", commands())
    add("reference/keys.md", keys())
    for path in sorted({path for page in DOCS.rglob("*.md") for path in outside(page)}):
        add(f"source/{path.relative_to(ROOT)}.md", source(path))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links out of docs/ go to the pages that were made of those files, and Rust is shown without the lines that it only needs to compile."""
    folder = (DOCS / page.file.src_uri).parent
    up = "../" * page.file.src_uri.count("/")

    def replaced(match):
        text, target, anchor = match.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS):
            return match[0]
        return f"[{text}]({up}source/{path.relative_to(ROOT)}.md{anchor})"

    return RUST.sub(lambda sample: HIDDEN.sub("", sample[0]), LINK.sub(replaced, markdown))


def outside(page):
    """Files and folders out of docs/ that a page links to."""
    for _, target, _ in LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        if not path.is_relative_to(DOCS):
            yield path


def source(path):
    """A file, or all files of a folder."""
    name = path.relative_to(ROOT)
    if path.suffix == ".md":
        # Its own links lead out of the site; its pictures are part of it.
        text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", path.read_text())
        return text.replace("](docs/images/", f"]({'../' * len(name.parts)}images/")
    listed = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    blocks = [f"# `{name}`"]
    for file in listed:
        if file != path:
            blocks.append(f"## `{file.relative_to(path)}`")
        blocks.append(f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text().rstrip()}\n````")
    return "\n\n".join(blocks) + "\n"


def commands():
    """What `--help` prints, command by command."""
    page = ["# Commands", "What `--help` prints. `-h` is shorter."]
    waiting = [[]]
    while waiting:
        words = waiting.pop(0)
        text = help_of(words)
        title = " ".join(["paceline", *words])
        page += [f"{'##' if len(words) < 2 else '###'} {title}", f"```text\n{text.rstrip()}\n```"]
        waiting = [[*words, command] for command in subcommands(text)] + waiting
    return "\n\n".join(page) + "\n"


def help_of(words):
    program = [os.environ["PACELINE"], *words, "--help"]
    return subprocess.run(program, check=True, capture_output=True, text=True, env={"COLUMNS": "80"}).stdout


def subcommands(text):
    part = re.search(r"^Commands:\n((?:.*\S.*\n|\n(?=  ))+)", text, re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z-]*)", part[1], re.MULTILINE) if part else []
    return [name for name in names if name != "help"]


def keys():
    """The schema of `paceline.toml`, as tables."""
    schema = json.loads((DOCS / "paceline.schema.json").read_text())
    page = [
        "# Every key of the configuration",
        "From the schema that an editor checks `paceline.toml` with ([paceline.schema.json](../paceline.schema.json)). "
        "[Configuration](../configuration.md) has the guide.",
    ]
    named = {"upstream": ("[upstream.NAME]", schema["$defs"]["UpstreamSection"])}
    for title, section in [("Top level", schema), *named.values(), *tables(schema["$defs"])]:
        page += [f"## `{title}`" if "[" in title else f"## {title}"]
        rows = ["| Key | Value | Meaning |", "|---|---|---|"]
        for key, value in section["properties"].items():
            named = schema["$defs"].get(reference(value), {})
            meaning = cell(value.get("description") or named.get("description", ""))
            if len(named.get("enum", [])) > FEW:
                meaning += " One of " + ", ".join(f"`{name}`" for name in named["enum"]) + "."
            rows.append(f"| `{key}` | {cell(kind(value, schema['$defs']))} | {meaning} |")
        page += ["\n".join(rows)]
    return "\n\n".join(page) + "\n"


def tables(definitions):
    """The other tables of the file, by what they are called there."""
    for name, section in definitions.items():
        if name != "UpstreamSection" and "properties" in section:
            yield re.sub(r"(?<!^)(?=[A-Z])", " ", name), section


def reference(value):
    return value.get("$ref", "").rpartition("/")[2]


def kind(value, definitions):
    """What a value is, in a few words."""
    if name := reference(value):
        found = definitions[name]
        return " ".join(re.sub(r"(?<!^)(?=[A-Z])", " ", name).split()) if "properties" in found else kind(found, definitions)
    for alternatives in ("oneOf", "anyOf"):
        if alternatives in value:
            return " or ".join(dict.fromkeys(kind(one, definitions) for one in value[alternatives]))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value and len(value["enum"]) <= FEW:
        return " or ".join(f"`{json.dumps(one)}`" for one in value["enum"])
    what = value.get("type", "")
    if what == "array":
        return f"list of {kind(value.get('items', {}), definitions)}"
    bounds = [f"from {value['minimum']}"] if "minimum" in value else []
    bounds += [f"to {value['maximum']}"] if "maximum" in value else []
    return " ".join(["table" if what == "object" else " or ".join([what] if isinstance(what, str) else what), *bounds])


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
