"""Clients of boto3 and botocore.

    client = boto3.client("dynamodb")
    paceline.boto.install(client, limiter)

Each request of the client takes a permit of the limiter. What may pass is sent again as the limiter decides; the retries of botocore are
switched off for this client.
"""

import threading

from ._engine import answer, no_answer, target
from ._course import follows
from ._limiter import expect_limiter
from ._outcome import fields, kind_of

__all__ = ["install"]


def install(client, limiter, **call):
    """Paces a client, by this limiter alone. `call`: what `limiter(...)` takes. Returns the client."""
    hooks = _Hooks(expect_limiter(limiter), call)
    events, service = client.meta.events, client.meta.service_model.service_id.hyphenize()
    events.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")
    for event, hook in (("before-send", hooks.before_send), ("needs-retry", hooks.needs_retry)):
        # The limiter of an earlier call is no longer asked.
        events.unregister(event, unique_id=f"paceline-{event}")
        events.register_first(event, hook, f"paceline-{event}")
    return client


class _Hooks:
    """botocore sends in the thread of its caller, one request after the other: what is under way there is the thread's own."""

    def __init__(self, limiter, call):
        self._limiter = limiter
        self._call = call
        self._own = threading.local()

    def before_send(self, request, **_):
        permit = getattr(self._own, "next", None)
        self._own.next = None
        body = request.body
        body = body.encode() if isinstance(body, str) else body
        self._own.body = body if isinstance(body, (bytes, bytearray)) else None
        if permit is None:
            permit = self._limiter._for_client(dict(self._call))
            known = bytes(self._own.body or b"")
            target(permit, request.method, request.url, fields(request.headers), known, self._call.get("scope"))
        self._own.permit = permit
        permit.again_sync()

    def needs_retry(self, response=None, caught_exception=None, **_):
        permit, self._own.permit = getattr(self._own, "permit", None), None
        if permit is None:
            return None  # the credentials or the endpoint failed: nothing was sent
        if caught_exception is not None:
            kind = kind_of(caught_exception)
            if kind is None:
                permit._end("abandoned")
                return None
            read = no_answer(permit, kind, f"{type(caught_exception).__name__}: {caught_exception}")
        else:
            http, _ = response
            is_stream = "Body" in _ and http.status_code < 300
            body = b"" if is_stream else http.content
            read = answer(permit, http.status_code, fields(http.headers), body, self._own.body, is_stream)
        if not follows(permit, read):
            return None
        self._own.next = permit
        return 0  # the wait is in the limiter's queue, before the next request is sent
