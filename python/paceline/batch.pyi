from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ._program import Lines, ProgramError

__all__ = ["ProgramError", "Summary", "run"]

STATES: tuple[str, ...]

class Summary(Lines):
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

def run(
    requests: str | PathLike[str] | Iterable[Mapping[str, Any]],
    output: str | PathLike[str],
    /,
    *,
    program: str | PathLike[str] | None = None,
    show: bool | None = None,
    env: Mapping[str, str] | None = None,
    **named: Any,
) -> Summary: ...
