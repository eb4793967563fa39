from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from logging import Logger
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeVar, overload
from typing_extensions import ParamSpec, Self

from ._engine import Call, Clock, Engine

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])
_Retry = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
_Pace = Literal["auto", "fixed", "aimd", "responsive", "linear", "exponential", "none"]
_Outcome = Literal[
    "success", "throttled", "overloaded", "transient", "quota_exhausted", "account", "invalid", "filtered", "abandoned"
]

class Limiter(Engine):
    def __new__(
        cls,
        limits: str | Iterable[str] = (),
        /,
        *,
        file: str | None = None,
        upstream: str | None = None,
        seed: int | None = None,
        clock: Clock | None = None,
        provider: str = ...,
        pace: _Pace = ...,
        start: float = ...,
        burst: int = ...,
        shape: Literal["sliding", "bucket"] = ...,
        concurrency: int | Mapping[str, Any] = ...,
        max_retries: int = ...,
        max_deferrals: int = ...,
        deadline: str | float = ...,
        retry: Mapping[str, Any] = ...,
        breaker: Mapping[str, Any] = ...,
        tiers: Mapping[str, str | Iterable[str]] = ...,
        rule: Sequence[Mapping[str, Any]] = ...,
        **options: Any,
    ) -> Self: ...
    def __init__(self, limits: str | Iterable[str] = (), /, **options: Any) -> None: ...
    @classmethod
    def per_second(cls, calls: float, **options: Any) -> Self: ...
    @classmethod
    def per_minute(cls, calls: float, **options: Any) -> Self: ...
    @classmethod
    def per_hour(cls, calls: float, **options: Any) -> Self: ...
    @classmethod
    def per_day(cls, calls: float, **options: Any) -> Self: ...
    @classmethod
    def bucket(cls, per_second: float, burst: int, **options: Any) -> Self: ...
    @classmethod
    def in_flight(cls, calls: int, **options: Any) -> Self: ...
    @classmethod
    def from_file(cls, file: str | PathLike[str], upstream: str | None = None, **rest: Any) -> Self: ...
    @overload
    def __call__(self, function: _F, /) -> _F: ...
    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        scope: str | None = None,
        tokens: int = 0,
        cost: dict[str, int] | None = None,
        priority: int = 0,
        within: float | None = None,
        max_wait: float | None = None,
        max_retries: int | None = None,
        retry: _Retry | None = None,
    ) -> Permit: ...
    async def acquire(self, **call: Any) -> Permit: ...
    def acquire_sync(self, **call: Any) -> Permit: ...
    def try_acquire(self, **call: Any) -> Permit | None: ...
    def wait(self, *, scope: str | None = None, tokens: int = 0) -> tuple[float | None, str] | None: ...
    def run(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def map(
        self,
        function: Callable[[_T], Awaitable[_R]],
        items: Iterable[_T] | AsyncIterable[_T],
        /,
        *,
        at_once: int = 64,
        ordered: bool = True,
        return_exceptions: bool = False,
        progress: Callable[..., Any] | None = None,
        **call: Any,
    ) -> AsyncIterable[tuple[_T, _R]]: ...
    @overload
    def map(
        self,
        function: Callable[[_T], _R],
        items: Iterable[_T],
        /,
        *,
        at_once: int = 64,
        ordered: bool = True,
        return_exceptions: bool = False,
        progress: Callable[..., Any] | None = None,
        **call: Any,
    ) -> Iterable[tuple[_T, _R]]: ...
    def snapshot(self) -> dict[str, Any]: ...

class Permit(Call):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, function: _F, /) -> _F: ...
    async def again(self) -> Self: ...
    def again_sync(self) -> Self: ...
    def done(self) -> None: ...
    def failed(self, error: BaseException) -> bool: ...
    def answered(self, response: object) -> bool: ...
    def report(
        self, outcome: _Outcome, *, wait: float | None = None, reason: str | None = None, whole_account: bool = False
    ) -> bool: ...
    def withdraw(self) -> None: ...

_around: ContextVar[list[Permit] | None]

def expect_limiter(limiter: object) -> Limiter: ...
def _logger() -> Logger: ...
def _taken(limiter: Engine) -> Permit | None: ...
