"""Transports of httpx and httpx2, bare and under the official SDKs."""

import asyncio
import gzip
import warnings

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from server import CHAT, THROTTLED, Answer, events, serving

import paceline
import paceline.httpx
from paceline import Limiter

PROMPT = [{"role": "user", "content": "hi"}]
DELTA = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
USAGE = {**DELTA, "choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}}


@pytest.fixture(params=[httpx, httpx2], ids=lambda module: module.__name__)
def module(request):
    return request.param


def quick(limits, **options):
    """A limiter whose own waits, where a server names none, are short."""
    return Limiter(limits, retry={"base": "1ms", "max_retries": options.pop("max_retries", 7)}, **options)


def account(limiter):
    return limiter.snapshot()["account"]


def is_at_rest(limiter):
    return account(limiter)["concurrency"]["in_flight"] == 0 and account(limiter)["waiting"] == 0


def test_a_refusal_is_sent_again_before_its_client_sees_it(module):
    limiter = quick("1000 rps", provider="openai")
    with serving(THROTTLED, Answer(503), None, usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            answer = client.post(url + "/v1/chat/completions", json={"model": "m", "messages": PROMPT})
    assert (answer.status_code, answer.json()["id"], len(requests)) == (200, "c", 4)
    assert len({body for *_, body in requests}) == 1
    assert {name: count for name, count in account(limiter)["totals"]["by_class"].items() if count} == {
        "success": 1, "throttled": 1, "overloaded": 1, "transient": 1
    }
    assert is_at_rest(limiter)


def test_the_same_for_asynchronous_clients(module, run):
    limiter = quick("1000 rps", provider="openai")

    async def main():
        async with module.AsyncClient(transport=paceline.httpx.async_transport(limiter)) as client:
            return await client.post(url + "/v1/chat/completions", json={"model": "m", "messages": PROMPT})

    with serving(THROTTLED, Answer(503), None, usual=CHAT) as (url, requests):
        answer = run(main)
    assert (answer.status_code, len(requests)) == (200, 4)
    assert is_at_rest(limiter)


def test_what_is_passed_on_is_not_sent_again_by_the_sdk(module):
    limiter = quick("1000 rps", provider="openai", max_retries=1)
    body = gzip.compress(b'{"error": {"message": "broken"}}')
    with serving(usual=Answer(500, body, {"content-encoding": "gzip"})) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            answer = client.post(url, content=b"{}")
    assert (answer.status_code, answer.headers["x-should-retry"], len(requests)) == (500, "false", 2)
    assert answer.json() == {"error": {"message": "broken"}}


def test_a_post_that_may_have_been_done_is_not_sent_again(module):
    limiter = quick("1000 rps")
    with serving(None, usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            with pytest.raises(module.TransportError):
                client.post(url + "/orders", content=b"{}")
            assert len(requests) == 1
            assert client.get(url + "/orders").status_code == 200


def test_a_body_that_cannot_be_read_twice_is_sent_once(module):
    limiter = quick("1000 rps", provider="openai")

    def parts():
        yield b"{}"

    with serving(THROTTLED, usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            answer = client.post(url, content=parts(), headers={"content-length": "2"})
    assert (answer.status_code, len(requests)) == (429, 1)
    assert is_at_rest(limiter)


def test_what_is_given_up_is_not_said_to_be_sent_again(module, caplog):
    caplog.set_level("INFO", "paceline")
    limiter = quick("1000 rps", provider="openai")
    with serving(THROTTLED, usual=Answer(401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}})) as (url, _):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            assert client.post(url, content=iter([b"part"])).status_code == 429
            assert client.post(url, content=b"whole").status_code == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "paceline"]
    assert [line.rpartition("; ")[2] for line in lines[:1]] == ["given up (the body of the request can be read only once)"]
    assert [line for line in lines if "again in" in line] == []
    assert is_at_rest(limiter)


def test_a_transport_of_the_other_kind_says_which_to_take(module):
    with module.Client(transport=paceline.httpx.async_transport(Limiter())) as client:
        with pytest.raises(TypeError, match="a `Client` takes paceline.httpx.transport"):
            client.get("http://127.0.0.1")

    async def main():
        async with module.AsyncClient(transport=paceline.httpx.transport(Limiter())) as client:
            await client.get("http://127.0.0.1")

    with pytest.raises(TypeError, match="an `AsyncClient` takes paceline.httpx.async_transport"):
        asyncio.run(main())


def test_a_redirect_is_no_failure(module):
    limiter = quick("1000 rps")
    with serving(Answer(307, headers={"location": "/there"}), Answer(304, b""), usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter), follow_redirects=True) as client:
            assert client.post(url, json={}).status_code == 304
            assert client.get(url).status_code == 200
    assert [path for _, path, *_ in requests] == ["/", "/there", "/"]
    assert account(limiter)["totals"]["by_class"]["success"] == 3


def test_a_stream_holds_its_place_until_it_ends_and_its_usage_counts(module):
    limiter = quick("1000 rps, 100k tpm", provider="mistral")
    stream = Answer(headers={"content-type": "text/event-stream"}, stream=events(DELTA, USAGE))
    with serving(usual=stream) as (url, _):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            request = {"model": "m", "messages": PROMPT, "stream": True, "max_tokens": 500}
            with client.stream("POST", url + "/v1/chat/completions", json=request) as answer:
                assert account(limiter)["concurrency"]["in_flight"] == 1
                assert account(limiter)["quotas"][1]["used"] >= 500
                assert b"hi" in b"".join(answer.iter_raw())
    assert is_at_rest(limiter)
    assert account(limiter)["quotas"][1]["used"] == 42


@pytest.mark.parametrize("end", ["closed", "broken", "dropped"])
def test_a_stream_that_ends_early_gives_its_place_back(module, end):
    limiter = quick("1000 rps", provider="openai")
    stream = events(DELTA, DELTA) if end != "broken" else [*events(DELTA)[:1], None]
    stream = Answer(headers={"content-type": "text/event-stream"}, stream=stream)

    async def main():
        async with module.AsyncClient(transport=paceline.httpx.async_transport(limiter)) as client:
            async with client.stream("POST", url + "/v1/chat/completions", json={"stream": True}) as answer:
                parts = answer.aiter_raw()
                await parts.__anext__()
                if end == "broken":
                    with pytest.raises(module.TransportError):
                        async for _ in parts:
                            pass
                elif end == "dropped":
                    await parts.aclose()

    with serving(usual=stream) as (url, _):
        asyncio.run(main())
    assert is_at_rest(limiter)
    assert account(limiter)["totals"]["by_class"]["transient"] == (1 if end == "broken" else 0)


def test_an_answer_that_is_cut_off_is_asked_for_again(module):
    limiter = quick("1000 rps", provider="openai")
    cut = Answer(200, b'{"id": "c", "cho', cut=True)
    with serving(cut, usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            answer = client.post(url + "/v1/chat/completions", json={"model": "m"})
    assert (answer.json()["id"], len(requests)) == ("c", 2)


def test_headers_that_announce_limits_hold_calls_back(module, clock):
    limiter = Limiter(provider="openai", clock=clock)
    headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9s"}
    with serving(Answer(200, CHAT.body, headers), usual=CHAT) as (url, _):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:
            for _ in range(2):
                client.post(url + "/v1/chat/completions", json={"model": "m"})
    assert clock.now() >= 9 / 60


def test_cancelling_a_request_gives_its_place_back(module):
    limiter = quick("1000 rps", provider="openai")

    async def main():
        async with module.AsyncClient(transport=paceline.httpx.async_transport(limiter)) as client:
            for steps in range(0, 12):
                task = asyncio.ensure_future(client.post(url + "/v1/chat/completions", json={"model": "m"}))
                for _ in range(steps):
                    await asyncio.sleep(0.0005)
                task.cancel()
                await asyncio.wait([task])
                assert is_at_rest(limiter), steps

    with serving(usual=CHAT) as (url, _):
        asyncio.run(main())


def clients(sdk, module, limiter, url, **more):
    if sdk == "openai":
        http = module.AsyncClient(transport=paceline.httpx.async_transport(limiter))
        return openai.AsyncOpenAI(api_key="k", base_url=url + "/v1", http_client=http, **{"max_retries": 0, **more})
    http = module.AsyncClient(transport=paceline.httpx.async_transport(limiter))
    return anthropic.AsyncAnthropic(api_key="k", base_url=url, http_client=http, **{"max_retries": 0, **more})


def test_the_client_of_openai(module):
    limiter = quick("1000 rps, 100k tpm", provider="openai")
    stream = Answer(headers={"content-type": "text/event-stream"}, stream=events(DELTA, USAGE))

    async def main():
        async with clients("openai", module, limiter, url) as client:
            answer = await client.chat.completions.create(model="m", messages=PROMPT)
            assert answer.choices[0].message.content == "hi"
            parts = await client.chat.completions.create(model="m", messages=PROMPT, stream=True)
            assert [part.id async for part in parts] == ["c", "c"]

    with serving(THROTTLED, CHAT, THROTTLED, usual=stream) as (url, requests):
        asyncio.run(main())
    assert len(requests) == 4
    assert is_at_rest(limiter)


def test_a_client_with_retries_of_its_own_is_warned():
    module, limiter = httpx, quick("1000 rps", provider="openai", max_retries=0)

    async def main():
        async with clients("openai", module, limiter, url, max_retries=2) as client:
            await client.chat.completions.create(model="m", messages=PROMPT)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with serving(usual=Answer(500)) as (url, requests):
            with pytest.raises(openai.InternalServerError):
                asyncio.run(main())
    assert len(requests) == 1, "the transport says that there is no use in it"
    assert caught == []


def test_the_client_of_anthropic():
    module, limiter = httpx2, quick("1000 rps", provider="anthropic")
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1},
    }
    overloaded = Answer(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, {"retry-after": "0"})

    async def main():
        async with clients("anthropic", module, limiter, url) as client:
            answer = await client.messages.create(model="m", max_tokens=9, messages=PROMPT)
            assert answer.content[0].text == "hi"

    with serving(overloaded, usual=Answer(200, message)) as (url, requests):
        asyncio.run(main())
    assert len(requests) == 2
    assert is_at_rest(limiter)


def test_the_client_of_google():
    module, limiter = httpx2, quick("1000 rps", provider="gemini")
    answer = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
    exhausted = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slow down", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.02s"}]}}
    with serving(Answer(429, exhausted), usual=Answer(200, answer)) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as http:
            options = genai.types.HttpOptions(base_url=url, httpx_client=http)
            with genai.Client(api_key="k", http_options=options) as client:
                assert client.models.generate_content(model="m", contents="hi").text == "hi"
    assert len(requests) == 2
    assert is_at_rest(limiter)


def test_a_client_inside_a_block_or_a_function_of_its_limiter_sends_under_its_permit(module):
    limiter = Limiter.in_flight(1, provider="openai", retry={"base": "1ms"})
    outcomes = []
    with serving(THROTTLED, THROTTLED, CHAT, THROTTLED, CHAT, usual=CHAT) as (url, requests):
        with module.Client(transport=paceline.httpx.transport(limiter)) as client:

            @limiter(scope="chat")
            def ask():
                return client.post(url + "/v1/chat/completions", json={"model": "m"}).status_code

            outcomes.append(ask())
            with limiter():
                # The second is a call of its own, for which the place is free again.
                outcomes += [ask(), ask()]
    assert (outcomes, len(requests)) == ([200, 200, 200], 6)
    assert account(limiter)["totals"]["sends"] == 6
    assert is_at_rest(limiter)
