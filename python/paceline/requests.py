"""An adapter for requests.

    session.mount("https://", paceline.requests.Adapter(limiter))

It does for requests what `paceline.httpx.transport` does for httpx.
"""

import requests.adapters

from ._course import drive_sync, enter_sync, of_request
from ._engine import answer, no_answer, target
from ._limiter import expect_limiter
from ._outcome import fields, kind_of

__all__ = ["Adapter"]


class Adapter(requests.adapters.HTTPAdapter):
    """Sends each request of a session with a permit. `call`: what `limiter(...)` takes; `adapter`: what `HTTPAdapter` takes, whose own
    retries stay off."""

    def __init__(self, limiter, *, call=None, **adapter):
        self._limiter = expect_limiter(limiter)
        self._call = dict(call or {})
        super().__init__(**adapter)

    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):
        body = request.body
        if body is None:
            body = b""
        elif isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, (bytes, bytearray)):
            body = None  # a file or a generator: to be read once
        permit = self._limiter._for_client(dict(self._call))
        target(permit, request.method, request.url, fields(request.headers), bytes(body or b""), self._call.get("scope"))
        send = super().send
        wire = _Wire(lambda: send(request, True, timeout, verify, cert, proxies), stream, body)
        return drive_sync(of_request(permit, wire, body))


class _Wire:
    enter = staticmethod(enter_sync)

    def __init__(self, send, streams, body):
        self.send = send
        self.streams = streams
        self.body = body

    def head(self, response):
        return response.status_code, fields(response.headers)

    def whole(self, response):
        if self.streams and response.status_code < 300:
            return None
        return response.content

    def finished(self, response):
        return response

    def streamed(self, response, permit):
        response.raw = _Raw(response.raw, self.head(response), self.body, permit)
        return response


class _Raw:
    """The bytes of a stream, whose end is the end of its call."""

    def __init__(self, inner, head, request_body, permit):
        self._inner = inner
        self._head = head
        self._request_body = request_body
        self._permit = permit

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def stream(self, *args, **kwargs):
        try:
            yield from self._inner.stream(*args, **kwargs)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._break(error)
            raise
        self._end()

    def read(self, *args, **kwargs):
        try:
            part = self._inner.read(*args, **kwargs)
        except BaseException as error:
            self._break(error)
            raise
        if not part:
            self._end()
        return part

    def close(self):
        try:
            self._inner.close()
        finally:
            self._end()

    def release_conn(self):
        try:
            self._inner.release_conn()
        finally:
            self._end()

    def _end(self):
        permit, self._permit = self._permit, None
        if permit is not None:
            answer(permit, *self._head, b"", self._request_body, True)

    def _break(self, error):
        permit, self._permit = self._permit, None
        if permit is None:
            return
        if isinstance(error, Exception) and kind_of(error) is not None:
            no_answer(permit, "truncated", f"{type(error).__name__}: {error}")
        else:
            permit._end("abandoned")
