from typing import Any

from ._limiter import Limiter

__all__ = ["async_transport", "transport"]

def transport(limiter: Limiter, inner: Any = None, **call: Any) -> Any: ...
def async_transport(limiter: Limiter, inner: Any = None, **call: Any) -> Any: ...
