"""Lets every key in, and gives each the same limit: LiteLLM's own users come from a database."""

import os

from litellm.proxy._types import UserAPIKeyAuth


async def keys(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, rpm_limit=int(os.environ["CALLS_PER_WINDOW"]))
