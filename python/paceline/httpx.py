"""Transports for httpx and httpx2, and so for the SDKs that send with them: OpenAI's, Anthropic's, Google's.

    client = openai.AsyncOpenAI(http_client=httpx.AsyncClient(transport=async_transport(limiter)), max_retries=0)

Each request takes a permit, which it keeps until its answer is read or closed. Answers are read by the table of the limiter's
provider. A refusal or a failure that may pass is sent again before the client sees it, if the body of the request can be read twice and
no byte of the answer has been passed on.
"""

import sys
import warnings

from ._course import drive, drive_sync, enter, enter_sync, of_request
from ._engine import answer, no_answer, target
from ._errors import RetryWarning
from ._limiter import expect_limiter
from ._outcome import kind_of

__all__ = ["async_transport", "transport"]

MOST = 1 << 20  # bytes of an answer that are looked at: a longer one is judged by its head


def transport(limiter, inner=None, **call):
    """A transport for `httpx.Client` and `httpx2.Client`. `inner` sends; the default is the module's own `HTTPTransport()`. `call`:
    what `limiter(...)` takes, for all requests; the scope and the tokens are those of the provider's table."""
    return Transport(limiter, inner, call)


def async_transport(limiter, inner=None, **call):
    """The same for `httpx.AsyncClient` and `httpx2.AsyncClient`, with asyncio or trio."""
    return AsyncTransport(limiter, inner, call)


class _Transport:
    def __init__(self, limiter, inner, call):
        self._limiter = expect_limiter(limiter)
        self._inner = inner
        self._made = inner is None
        self._call = call
        self._has_warned = False

    def _begin(self, request):
        """The module of a request, its permit and its body, if that can be read twice."""
        # httpx and httpx2 have the same words; the request says whose they are.
        module = sys.modules[type(request).__module__.partition(".")[0]]
        if self._inner is None:
            self._inner = getattr(module, self._usual)()
        try:
            body = request.content
        except module.RequestNotRead:
            body = None
        call = dict(self._call)
        permit = self._limiter._for_client(call)
        target(permit, request.method, str(request.url), request.headers.raw, body or b"", call.get("scope"))
        if request.headers.get("x-stainless-retry-count", "0") != "0" and not self._has_warned:
            self._has_warned = True
            warnings.warn("the SDK sends again what the limiter has sent again: make it with max_retries=0", RetryWarning, 4)
        return module, permit, body


class Transport(_Transport):
    """A transport of httpx whose requests wait for their permits."""

    _usual = "HTTPTransport"

    def handle_request(self, request):
        module, permit, body = self._begin(request)
        return drive_sync(of_request(permit, _Wire(module, self._inner, request, body), body))

    def close(self):
        if self._inner is not None:
            self._inner.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    async def handle_async_request(self, request):
        raise TypeError("this transport is for `Client`: an `AsyncClient` takes paceline.httpx.async_transport(limiter)")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.close()


class AsyncTransport(_Transport):
    """The same for asynchronous clients."""

    _usual = "AsyncHTTPTransport"

    async def handle_async_request(self, request):
        module, permit, body = self._begin(request)
        return await drive(of_request(permit, _AsyncWire(module, self._inner, request, body), body))

    async def aclose(self):
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.aclose()

    def handle_request(self, request):
        raise TypeError("this transport is for `AsyncClient`: a `Client` takes paceline.httpx.transport(limiter)")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass  # nothing was sent


class _Base:
    def __init__(self, module, inner, request, body):
        self.module = module
        self.inner = inner
        self.request = request
        self.body = body
        self.raw = None

    def head(self, response):
        return response.status_code, response.headers.raw

    def is_whole(self, response):
        """Whether the answer is read before it is passed on: a refusal, and JSON, which may hold one."""
        content_type = response.headers.get("content-type", "")
        length = response.headers.get("content-length", "0")
        is_json = "json" in content_type and "stream" not in content_type and "ndjson" not in content_type
        return (response.status_code >= 300 or is_json) and length.isdigit() and int(length) <= MOST

    def decoded(self, head, raw):
        try:
            return self.module.Response(head[0], headers=head[1], content=raw).content
        except self.module.DecodingError:
            return raw

    def finished(self, response):
        headers = response.headers
        if response.status_code >= 400:
            headers["x-should-retry"] = "false"
        stream, extensions = self.module.ByteStream(self.raw), response.extensions
        return self.module.Response(response.status_code, headers=headers, stream=stream, extensions=extensions)

    def streamed(self, response, permit):
        response.stream = _stream(self.module, self._kind)(self, response, permit)
        if response.status_code >= 400:
            response.headers["x-should-retry"] = "false"
        return response


class _Wire(_Base):
    _kind = "SyncByteStream"
    enter = staticmethod(enter_sync)

    def send(self):
        return self.inner.handle_request(self.request)

    def whole(self, response):
        if not self.is_whole(response):
            return None
        try:
            self.raw = b"".join(response.stream)
        finally:
            response.stream.close()
        return self.decoded(self.head(response), self.raw)


class _AsyncWire(_Base):
    _kind = "AsyncByteStream"
    enter = staticmethod(enter)

    def send(self):
        return self.inner.handle_async_request(self.request)

    async def whole(self, response):
        if not self.is_whole(response):
            return None
        try:
            self.raw = b"".join([part async for part in response.stream])
        finally:
            await response.stream.aclose()
        return self.decoded(self.head(response), self.raw)


_streams = {}


def _stream(module, kind):
    """The class of streams that a module takes for its own."""
    base = getattr(module, kind)
    if base not in _streams:
        ours = _AsyncStream if kind == "AsyncByteStream" else _SyncStream
        _streams[base] = type(ours.__name__, (ours, base), {})
    return _streams[base]


class _Stream:
    """An answer on its way to the client, whose end is the end of its call."""

    def __init__(self, wire, response, permit):
        self._wire = wire
        # Not the response: a circle of the two would keep the permit of a stream that is dropped.
        self._head = wire.head(response)
        self._inner = response.stream
        self._permit = permit
        self._parts = []
        self._length = 0

    def _keep(self, part):
        self._length += len(part)
        if self._length <= MOST:
            self._parts.append(part)

    def _end(self, is_whole):
        permit, self._permit = self._permit, None
        if permit is None:
            return
        is_known = is_whole and self._length <= MOST
        body = self._wire.decoded(self._head, b"".join(self._parts)) if is_known else b""
        answer(permit, *self._head, body, self._wire.body, not is_known)

    def _break(self, error):
        permit, self._permit = self._permit, None
        if permit is None:
            return
        kind = kind_of(error) if isinstance(error, Exception) else None
        if kind is None:
            permit._end("abandoned")
        else:
            no_answer(permit, "truncated", f"{type(error).__name__}: {error}")


class _SyncStream(_Stream):
    def __iter__(self):
        try:
            for part in self._inner:
                self._keep(part)
                yield part
        except GeneratorExit:
            raise
        except BaseException as error:
            self._break(error)
            raise
        self._end(True)

    def close(self):
        try:
            self._inner.close()
        finally:
            self._end(False)


class _AsyncStream(_Stream):
    async def __aiter__(self):
        try:
            async for part in self._inner:
                self._keep(part)
                yield part
        except GeneratorExit:
            raise
        except BaseException as error:
            self._break(error)
            raise
        self._end(True)

    async def aclose(self):
        try:
            await self._inner.aclose()
        finally:
            self._end(False)
