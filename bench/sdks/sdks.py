"""Official SDKs against `paceline mock`: do they see what they would see from the provider, and how often do they call?

    python3 -m venv /tmp/sdks && /tmp/sdks/bin/pip install -r bench/sdks/requirements.txt
    cargo build -p paceline-cli && /tmp/sdks/bin/python bench/sdks/sdks.py target/debug/paceline

Each row is one request of a client; `calls` is what the server counted for it. A row that is not as expected fails the
script.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request

import anthropic
import boto3
import openai
from botocore.config import Config

PROMPT = [{"role": "user", "content": "hi"}]


@contextlib.contextmanager
def mock(dialect, *flags):
    """A server of that dialect, until the block ends."""
    latency = [] if "--latency" in flags else ["--latency", "1ms"]
    server = subprocess.Popen([sys.argv[1], "mock", "--dialect", dialect, *flags, *latency], stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().split()[-1]
    finally:
        server.terminate()
        server.wait()


def calls(url):
    with urllib.request.urlopen(url + "/stats") as stats:
        return json.load(stats)["calls"]


def row(name, url, request, outcome, expected):
    """One request: it must end with `outcome`, the name of an exception or "ok", after `expected` calls."""
    before, start = calls(url), time.monotonic()
    try:
        request()
        found = "ok"
    except Exception as error:
        found = type(error).__name__
    made, seconds = calls(url) - before, time.monotonic() - start
    right = (found, made) == (outcome, expected)
    print(f"{name:44}{found:42}{made:3} calls{seconds:7.1f} s{'' if right else f'   expected {outcome}, {expected}'}")
    return right


def of_openai():
    def client(url, **more):
        return openai.OpenAI(api_key="k", base_url=url + "/v1", **more)

    def ask(client):
        return lambda: client.chat.completions.create(model="m", messages=PROMPT)

    def stream(client):
        return lambda: list(client.chat.completions.create(model="m", messages=PROMPT, stream=True))

    with mock("openai") as url:
        yield row("openai: answered", url, ask(client(url)), "ok", 1)
        yield row("openai: answered in a stream", url, stream(client(url)), "ok", 1)
    with mock("openai", "--rpm", "1") as url:
        ask(client(url))()
        yield row("openai: throttled, max_retries=0", url, ask(client(url, max_retries=0)), "RateLimitError", 1)
    with mock("openai", "--fault", "1") as url:
        yield row("openai: 500", url, ask(client(url)), "InternalServerError", 3)
    with mock("openai", "--rpm", "60") as url:
        ask(client(url))()
        yield row("openai: throttled for a second", url, ask(client(url)), "ok", 2)


def of_anthropic():
    def ask(url, **more):
        client = anthropic.Anthropic(api_key="k", base_url=url, **more)
        return lambda: client.messages.create(model="m", max_tokens=9, messages=PROMPT)

    with mock("anthropic", "--rpm", "60") as url:
        ask(url)()
        yield row("anthropic: throttled, max_retries=0", url, ask(url, max_retries=0), "RateLimitError", 1)
        yield row("anthropic: throttled for a second", url, ask(url), "ok", 2)
    with mock("anthropic", "--overload", "1", "--latency", "2s") as url:
        busy = [threading.Thread(target=ask(url, max_retries=0), daemon=True) for _ in range(2)]
        for thread in busy:
            thread.start()
        while calls(url) < len(busy):
            time.sleep(0.01)
        yield row("anthropic: 529, max_retries=0", url, ask(url, max_retries=0), "OverloadedError", 1)
        for thread in busy:
            thread.join()


def of_boto3():
    def client(service, url, retries):
        key = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-west-1"}
        return boto3.client(service, endpoint_url=url, config=Config(retries=retries), **key)

    def put(url, retries):
        dynamodb = client("dynamodb", url, retries)
        return lambda: dynamodb.put_item(TableName="t", Item={"id": {"S": "1"}})

    def converse(url):
        bedrock = client("bedrock-runtime", url, {"total_max_attempts": 1})
        return lambda: bedrock.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])

    exceeded = "ProvisionedThroughputExceededException"
    with mock("dynamodb", "--rpm", "1") as url:
        yield row("boto3, DynamoDB: answered", url, put(url, {"mode": "standard"}), "ok", 1)
        yield row("boto3, DynamoDB: throttled, one attempt", url, put(url, {"total_max_attempts": 1}), exceeded, 1)
        yield row("boto3, DynamoDB: throttled, standard", url, put(url, {"mode": "standard"}), exceeded, 4)
        yield row("boto3, DynamoDB: throttled, legacy", url, put(url, {"mode": "legacy"}), exceeded, 10)
    with mock("dynamodb", "--fault", "1") as url:
        yield row("boto3, DynamoDB: 500, standard", url, put(url, {"mode": "standard"}), "InternalServerError", 4)
    with mock("bedrock", "--rpm", "1") as url:
        yield row("boto3, Bedrock: answered", url, converse(url), "ok", 1)
        yield row("boto3, Bedrock: throttled, one attempt", url, converse(url), "ThrottlingException", 1)


if __name__ == "__main__":
    rows = [right for rows in (of_openai(), of_anthropic(), of_boto3()) for right in rows]
    sys.exit(0 if all(rows) else 1)
