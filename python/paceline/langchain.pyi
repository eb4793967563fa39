from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter

from ._limiter import Limiter

__all__ = ["RateLimiter"]

class RateLimiter(BaseRateLimiter):
    def __init__(self, limiter: Limiter, **call: Any) -> None: ...
    def acquire(self, *, blocking: bool = True) -> bool: ...
    async def aacquire(self, *, blocking: bool = True) -> bool: ...
