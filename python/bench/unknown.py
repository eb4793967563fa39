"""One job at servers whose limits are not told: by Paceline, and by what people use today. How many calls are refused, is an item lost?

    scripts/python-peers unknown        # builds what it needs; names of packages choose some

Each row is 400 items, at most 32 at once, at the servers of peers.py: nginx (`limit_req` of 50/s, burst 10), HAProxy (300 in any 10 s) and
`paceline mock` (3,000 a minute, announced). What needs a limit is given 100 a second: a guess, as the limit is not known. What does not retry by
itself is retried by tenacity, as its users do, with six tries. An item that has no success after that is lost.
"""

import asyncio
import contextlib
import logging
import sys
import time

import httpx
import tenacity

import paceline
import paceline.httpx
from peers import AT_ONCE, CHAT, ITEMS, haproxy, mock, nginx

GUESS = 100  # calls a second
BODY = {"model": CHAT["model"], "messages": [{"role": "user", "content": "hi"}]}
retried = tenacity.retry(wait=tenacity.wait_random_exponential(max=60), stop=tenacity.stop_after_attempt(6), reraise=True)


class Counted(httpx.AsyncHTTPTransport):
    """What the server sees."""

    calls = refused = 0

    async def handle_async_request(self, request):
        self.calls += 1
        response = await super().handle_async_request(request)
        self.refused += response.status_code == 429
        return response


class Refused(Exception):
    """A 429 in the words that adaptive-rate-limiter reads."""

    status_code = 429

    def __init__(self, response):
        self.cached_rate_limit_headers = dict(response.headers)


@contextlib.asynccontextmanager
async def with_paceline(http, url):
    yield lambda: http.post(url, json=BODY)


@contextlib.asynccontextmanager
async def with_tenacity(http, url):
    async def one():
        return await send(http, url)

    yield retried(one)


@contextlib.asynccontextmanager
async def with_aiolimiter(http, url):
    import aiolimiter

    bucket = aiolimiter.AsyncLimiter(GUESS, 1)

    async def one():
        async with bucket:
            return await send(http, url)

    yield retried(one)


@contextlib.asynccontextmanager
async def with_pyrate_limiter(http, url):
    import pyrate_limiter

    rate = pyrate_limiter.Limiter(pyrate_limiter.Rate(GUESS, pyrate_limiter.Duration.SECOND))

    async def one():
        await rate.try_acquire_async("x")
        return await send(http, url)

    yield retried(one)


@contextlib.asynccontextmanager
async def with_adaptive_rate_limiter(http, url):
    from adaptive_rate_limiter import DiscoveredBucket, ProviderInterface, RateLimiterConfig, RateLimitInfo, RequestMetadata
    from adaptive_rate_limiter.backends import MemoryBackend
    from adaptive_rate_limiter.scheduler import StateManager, create_scheduler

    class Provider(ProviderInterface):
        name = "x"

        async def discover_limits(self, force_refresh=False, timeout=30.0):
            return {"x": DiscoveredBucket(bucket_id="x", rpm_limit=GUESS * 60, tpm_limit=10**9)}

        def parse_rate_limit_response(self, headers, body=None, status_code=None):
            def number(name):
                return int(float(headers[name])) if name in headers else None

            return RateLimitInfo(
                rpm_remaining=number("x-ratelimit-remaining-requests"),
                rpm_limit=number("x-ratelimit-limit-requests"),
                is_rate_limited=status_code == 429,
            )

        async def get_bucket_for_model(self, model_id, resource_type=None):
            return "x"

    class Classifier:
        async def classify(self, request):
            return RequestMetadata(request_id="x", model_id="m", resource_type="text")

    class Client:
        base_url, timeout = url, 60.0

        def get_headers(self):
            return {}

    async def one():
        response = await http.post(url, json=BODY)
        if response.status_code == 429:
            raise Refused(response)
        return response.raise_for_status()

    config = RateLimiterConfig(mode="intelligent", max_concurrent_executions=AT_ONCE)
    numbers = iter(range(1_000_000))
    parts = {"provider": Provider(), "classifier": Classifier(), "state_manager": StateManager(MemoryBackend(), provider=Provider())}
    scheduler = create_scheduler(Client(), mode="intelligent", config=config, **parts)
    async with scheduler:

        async def submitted():
            metadata = RequestMetadata(request_id=str(next(numbers)), model_id="m", resource_type="text")
            return await (await scheduler.submit_request(metadata, one)).request.future

        yield retried(submitted)


@contextlib.asynccontextmanager
async def with_inspect_ai(http, url):
    from inspect_ai.util._concurrency import AdaptiveConcurrency, AdaptiveConcurrencyController

    controller = AdaptiveConcurrencyController("x", AdaptiveConcurrency(), True)

    def told(state):
        response = getattr(state.outcome.exception(), "response", None)
        if response is not None and response.status_code == 429:
            wait = response.headers.get("retry-after", "")
            controller.notify_retry(float(wait) if wait.isdigit() else None)

    # As its models retry: without an end, and with the place kept.
    again = tenacity.retry(
        wait=tenacity.wait_exponential_jitter(initial=3, max=1_800, jitter=3), before_sleep=told, retry=tenacity.retry_if_exception_type(httpx.HTTPError)
    )

    async def one():
        async with controller.semaphore:
            response = await again(send)(http, url)
            controller.notify_success()
            return response

    yield one


async def send(http, url):
    return (await http.post(url, json=BODY)).raise_for_status()


async def job(package, url):
    """Items with a success, calls, refusals, seconds."""
    wire = Counted()
    transport = paceline.httpx.async_transport(paceline.Limiter(provider="openai"), wire) if package == "paceline" else wire
    at_once, done = asyncio.Semaphore(AT_ONCE), 0
    async with httpx.AsyncClient(transport=transport, timeout=60) as http, PACKAGES[package](http, url) as ask:

        async def one():
            nonlocal done
            async with at_once:
                response = await ask()
                done += response.status_code == 200

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(ITEMS)), return_exceptions=True)
        return done, wire.calls, wire.refused, time.monotonic() - began


PACKAGES = {
    "paceline": with_paceline,
    "tenacity": with_tenacity,
    "aiolimiter": with_aiolimiter,
    "pyrate-limiter": with_pyrate_limiter,
    "adaptive-rate-limiter": with_adaptive_rate_limiter,
    "inspect-ai": with_inspect_ai,
}


def main():
    logging.disable(logging.WARNING)
    for package in sys.argv[1:] or PACKAGES:
        for server, serving in (("nginx", nginx), ("haproxy", haproxy), ("mock", lambda: mock("openai"))):
            with serving() as url:
                done, calls, refused, seconds = asyncio.run(job(package, url + "/v1/chat/completions"))
            figures = f"{ITEMS - done} lost of {ITEMS}, {calls} calls, {refused} refused, {seconds:.1f} s"
            print(f"measure python unknown limit: {package:22} {server:8} {figures}", flush=True)


if __name__ == "__main__":
    main()
