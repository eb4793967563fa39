"""Adapters for requests, boto3 and LangChain, and errors of aiohttp and urllib."""

import asyncio
import urllib.error
import urllib.request

import aiohttp
import boto3
import pytest
import requests
from botocore.config import Config
from server import CHAT, THROTTLED, Answer, serving

import paceline
from paceline import Limiter
from paceline.langchain import RateLimiter
from paceline.requests import Adapter

PATH = "/v1/chat/completions"


def quick(limits, **options):
    """A limiter whose own waits, where a server names none, are short."""
    return Limiter(limits, retry={"base": "1ms", "max_retries": options.pop("max_retries", 7)}, **options)


def account(limiter):
    return limiter.snapshot()["account"]


def is_at_rest(limiter):
    return account(limiter)["concurrency"]["in_flight"] == 0 and account(limiter)["waiting"] == 0


@pytest.mark.parametrize(
    "make", [Adapter, RateLimiter, lambda it: paceline.boto.install(None, it), paceline.httpx.transport, paceline.httpx.async_transport]
)
def test_what_is_no_limiter_is_refused_at_once(make):
    with pytest.raises(TypeError, match="None is no limiter: make one with"):
        make(None)


def test_a_client_of_boto3_is_paced_by_its_last_limiter():
    first, last = quick("1000 rps"), quick("1000 rps")
    with serving(usual=Answer(200, {"TableNames": []})) as (url, _):
        client = boto3.client(
            "dynamodb", endpoint_url=url, region_name="r", aws_access_key_id="k", aws_secret_access_key="s"
        )
        paceline.boto.install(client, first)
        paceline.boto.install(client, last).list_tables()
    assert (account(first)["totals"]["sends"], account(last)["totals"]["sends"]) == (0, 1)


def test_requests_sends_again_what_may_pass():
    limiter = quick("1000 rps", provider="openai")
    with serving(THROTTLED, Answer(503), None, usual=CHAT) as (url, seen), requests.Session() as session:
        session.mount("http://", Adapter(limiter))
        answer = session.post(url + PATH, json={"model": "m"})
    assert (answer.json()["id"], len(seen)) == ("c", 4)
    assert is_at_rest(limiter)


@pytest.mark.parametrize("end", ["read", "closed", "dropped"])
def test_a_stream_of_requests_holds_its_place_until_its_end(end):
    limiter = quick("1000 rps", provider="openai")
    stream = Answer(headers={"content-type": "text/event-stream"}, stream=[b"data: 1\n\n"] * 9)
    with serving(usual=stream) as (url, _), requests.Session() as session:
        session.mount("http://", Adapter(limiter))
        answer = session.post(url + PATH, json={"stream": True}, stream=True)
        assert account(limiter)["concurrency"]["in_flight"] == 1
        if end == "read":
            assert len(answer.content) == 81
        elif end == "closed":
            next(answer.iter_lines())
            answer.close()
        else:
            del answer
        assert is_at_rest(limiter)


def test_boto3_sends_again_what_may_pass():
    limiter = quick("1000 rps", provider="dynamodb", unknown_outcome="resend")
    type_ = "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
    throttled = Answer(400, {"__type": type_, "message": "slow down"}, {"content-type": "application/x-amz-json-1.0"})
    item = Answer(200, {"Item": {"id": {"S": "7"}}}, {"content-type": "application/x-amz-json-1.0"})
    missing = Answer(400, {"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException", "message": "no such table"})
    with serving(throttled, Answer(500), None, item, usual=missing) as (url, seen):
        config = Config(retries={"mode": "standard", "total_max_attempts": 5})
        client = boto3.client("dynamodb", endpoint_url=url, region_name="r", aws_access_key_id="k", aws_secret_access_key="s", config=config)
        paceline.boto.install(client, limiter)
        assert client.get_item(TableName="t", Key={"id": {"S": "7"}})["Item"]["id"]["S"] == "7"
        assert len(seen) == 4
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.get_item(TableName="t", Key={"id": {"S": "7"}})
        assert len(seen) == 5
        client.close()
    assert [scope["name"] for scope in limiter.snapshot()["scopes"] if scope["totals"]["sends"]] == ["table t"]
    assert is_at_rest(limiter)


def test_langchain_waits_for_the_limiter(clock):
    limiter = RateLimiter(Limiter.per_second(1, burst=1, clock=clock))
    assert limiter.acquire()
    assert not limiter.acquire(blocking=False)
    assert limiter.acquire()
    assert clock.now() >= 0.99


def test_langchain_waits_in_an_event_loop_too():
    limiter = Limiter.per_second(50, burst=1)
    rate = RateLimiter(limiter, scope="chat")

    async def main():
        await asyncio.gather(*(rate.aacquire() for _ in range(5)))
        return await rate.aacquire(blocking=False)

    assert asyncio.run(main()) is False
    assert is_at_rest(limiter)


def test_errors_and_answers_of_aiohttp_are_read():
    limiter = quick("1000 rps", provider="openai")

    @limiter
    async def ask(raises):
        async with aiohttp.ClientSession() as session:
            async with session.post(url + PATH, json={}, raise_for_status=raises) as answer:
                await answer.read()
                return answer

    with serving(THROTTLED, None, THROTTLED, usual=CHAT) as (url, seen):
        assert asyncio.run(ask(True)).status == 200
        assert asyncio.run(ask(False)).status == 200
    assert len(seen) == 5


def test_errors_of_urllib_are_read():
    limiter = quick("1000 rps", provider="openai")

    @limiter
    def ask():
        with urllib.request.urlopen(url + PATH, b"{}") as answer:
            return answer.status

    with serving(THROTTLED, None, usual=CHAT) as (url, seen):
        assert ask() == 200
    assert len(seen) == 3
    with pytest.raises(urllib.error.URLError):
        Limiter(max_retries=0).run(urllib.request.urlopen, "http://127.0.0.1:1/")
