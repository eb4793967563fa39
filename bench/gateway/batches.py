"""OpenAI's client with a batch of 2,000 requests through `paceline serve`, which is killed twice meanwhile: scripts/gateway-clients.

The program is written for the hosted service, and retries what a killed gateway does not answer. Behind the gateway stands a mock
that has no batches. A result that is missing or there twice fails the script.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

PACELINE = sys.argv[1]
ITEMS, CONCURRENCY = 2_000, 20
running = []


def start(*arguments, **options):
    process = subprocess.Popen([PACELINE, *arguments], stdout=subprocess.PIPE, text=True, **options)
    running.append(process)
    return process, process.stdout.readline().split()[-1]


def request(number):
    body = {"model": "m", "messages": [{"role": "user", "content": f"Say {number}."}]}
    return {"custom_id": f"item-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def serve(folder, mock, address):
    flags = ["serve", "--upstream", "openai", "--base-url", mock, "--concurrency", str(CONCURRENCY), "--listen", address]
    environment = {**os.environ, "OPENAI_API_KEY": "sk-of-the-gateway", "XDG_STATE_HOME": folder}
    return start(*flags, cwd=folder, env=environment)


def cycle(folder):
    _, mock = start("mock", "--dialect", "openai", "--latency", "20ms..60ms", "--hints", "none")
    gateway, url = serve(folder, mock, "127.0.0.1:0")
    address = url.removeprefix("http://")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20)
    lines = "".join(json.dumps(request(number)) + "\n" for number in range(ITEMS))
    file = client.files.create(file=("requests.jsonl", io.BytesIO(lines.encode())), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"}
    )
    began, kills, statuses = time.monotonic(), [500, 1_200], []
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() - began < 300, batch
        if statuses[-1:] != [batch.status]:
            statuses.append(batch.status)
        if kills and batch.request_counts.completed >= kills[0]:
            kills.pop(0)
            gateway.kill()
            gateway.wait()
            gateway, _ = serve(folder, mock, address)
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    seconds = time.monotonic() - began
    assert not kills and batch.status == "completed" and batch.error_file_id is None, batch
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (ITEMS, ITEMS, 0), batch
    assert batch.metadata == {"of": "a test"} and batch.usage.total_tokens > ITEMS, batch
    results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    ids = {result["custom_id"] for result in results}
    assert len(results) == ITEMS and ids == {f"item-{number}" for number in range(ITEMS)}, (len(results), len(ids))
    assert all(result["response"]["body"]["choices"] and result["error"] is None for result in results)
    assert [page.id for page in client.batches.list(limit=1)] == [batch.id]
    assert {page.purpose for page in client.files.list()} == {"batch", "batch_output"}
    for used in (file.id, batch.output_file_id):
        assert client.files.delete(used).deleted
    kept = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    assert not any(b"sk-of-the-gateway" in open(path, "rb").read() for path in kept), "the key is in a file"
    with urllib.request.urlopen(f"{mock}/stats") as stats:
        calls = json.load(stats)["ok"]
    print(f"openai, a batch            {ITEMS} results of {ITEMS}, {calls} calls, killed twice, {seconds:.1f} s, {' '.join(statuses)}")
    assert calls <= ITEMS + 2 * CONCURRENCY, "more calls are repeated than were in flight"


with tempfile.TemporaryDirectory() as folder:
    try:
        cycle(folder)
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()
