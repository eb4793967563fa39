from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["ProgramError", "Summary", "run"]

FINISHED: int
FAILED: int
WRONG: int
DEFERRED: int
STATES: tuple[str, ...]

class ProgramError(Exception):
    code: int
    def __init__(self, code: int, said: str) -> None: ...

class Summary:
    output: Path
    errors: Path
    code: int
    counts: dict[str, int]
    def __init__(self, output: str | PathLike[str], code: int, counts: dict[str, int]) -> None: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def all_succeeded(self) -> bool: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def failures(self) -> Iterator[dict[str, Any]]: ...
    def to_pandas(self) -> Any: ...
    def to_polars(self) -> Any: ...

def run(
    requests: str | PathLike[str] | Iterable[Mapping[str, Any]],
    output: str | PathLike[str],
    /,
    *,
    program: str | PathLike[str] | None = None,
    show: bool | None = None,
    env: Mapping[str, str] | None = None,
    **flags: Any,
) -> Summary: ...
