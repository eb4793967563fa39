from types import TracebackType
from typing import Any, Literal

import redis
import redis.asyncio
from typing_extensions import Self

from ._errors import FleetError as FleetError
from ._limiter import Limiter

__all__ = ["Fleet", "FleetError", "join"]

_Store = str | redis.Redis | redis.asyncio.Redis

def join(
    limiter: Limiter,
    store: _Store | None = None,
    *,
    account: str | None = None,
    host: str | None = None,
    key: str | None = ...,
    weight: int | None = None,
    on_loss: Literal["strict", "keep"] | None = None,
    lease: float | None = None,
    alone_share: str | None = None,
) -> Fleet: ...

class Fleet:
    limiter: Limiter
    account: str
    def __init__(
        self, limiter: Limiter, store: _Store, account: str, weight: int, on_loss: str, lease: float, alone_share: str
    ) -> None: ...
    @property
    def problem(self) -> str | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
