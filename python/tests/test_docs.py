"""The samples of the pages that begin with Python, and of those for users of other packages, run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"

PAGES = ["start/python.md", "moving/tenacity.md", "moving/aiolimiter.md"]

SAMPLES = [
    (page, sample)
    for page in PAGES
    for sample in re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    if not sample.startswith("# before")
]


@pytest.mark.parametrize(("page", "sample"), SAMPLES)
def test_a_sample_runs(page, sample):
    if "import httpx" in sample:
        pytest.importorskip("httpx")
    exec(compile(sample, page, "exec"), {"__name__": "__main__"})
