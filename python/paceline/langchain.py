"""A rate limiter for chat models of LangChain.

    llm = ChatOpenAI(model="gpt-4o-mini", rate_limiter=paceline.langchain.RateLimiter(limiter))

LangChain says neither what a call costs nor how it ended, and some models ignore their limiter: the limits that are configured hold, and
nothing is learnt. A transport knows all of that: `ChatOpenAI(http_async_client=httpx.AsyncClient(transport=...))`.
"""

from langchain_core.rate_limiters import BaseRateLimiter

from ._limiter import expect_limiter

__all__ = ["RateLimiter"]


class RateLimiter(BaseRateLimiter):
    """Waits for the limiter before each call of a model. `call`: what `limiter(...)` takes."""

    def __init__(self, limiter, **call):
        self._limiter = expect_limiter(limiter)
        self._call = call

    def acquire(self, *, blocking=True):
        return _counted(self._limiter.acquire_sync(**self._call) if blocking else self._limiter.try_acquire(**self._call))

    async def aacquire(self, *, blocking=True):
        return _counted(await self._limiter.acquire(**self._call) if blocking else self._limiter.try_acquire(**self._call))


def _counted(permit):
    """The call counts in the limits; of its end nothing is known."""
    if permit is None:
        return False
    permit.report("abandoned")
    return True
