from collections.abc import Mapping
from typing import Any

import requests.adapters

from ._limiter import Limiter

__all__ = ["Adapter"]

class Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, limiter: Limiter, *, call: Mapping[str, Any] | None = None, **adapter: Any) -> None: ...
