from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from typing_extensions import Self

from ._engine import Clock as _Clock

__all__ = ["Clock", "run", "virtual_time"]

_R = TypeVar("_R")

class Clock(_Clock):
    def __new__(cls) -> Self: ...

@contextmanager
def virtual_time() -> Iterator[Clock]: ...
def run(main: Callable[..., Awaitable[_R]], /, *args: Any) -> _R: ...
