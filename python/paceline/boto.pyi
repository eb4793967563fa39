from typing import Any, TypeVar

from ._limiter import Limiter

__all__ = ["install"]

_C = TypeVar("_C")

def install(client: _C, limiter: Limiter, **call: Any) -> _C: ...
