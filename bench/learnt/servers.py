"""Servers with limits that this project did not write, each on free ports of the loopback.

An nginx stands before each of them, or is the server itself; what it logs of a call is what is believed: when it came and
ended, its key, its status and its item. Limits are per key, so each sender comes with a key of its own and finds the server
as new.
"""

import asyncio
import json
import math
import os
import socket
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientSession, web

# Seconds until a server must be there: LiteLLM takes its time.
PATIENCE = 180


@dataclass
class Book:
    """What was logged of one sender."""

    throttled: int = 0
    overloaded: int = 0
    failed: int = 0
    # How often each item was.
    answered: Counter = field(default_factory=Counter)
    first: float = math.inf
    last: float = 0.0
    # When each call ended, and its status.
    calls: list = field(default_factory=list)

    def add(self, ended, latency, status, body):
        self.calls.append((ended, status))
        self.first = min(self.first, ended - latency)
        match status:
            case "200":
                self.answered[json.loads(body)["messages"][0]["content"]] += 1
                self.last = max(self.last, ended)
            case "429":
                self.throttled += 1
            case "503":
                self.overloaded += 1
            case "499":  # a sender was stopped meanwhile
                pass
            case _:
                self.failed += 1


@asynccontextmanager
async def upstream(latency):
    """The address of a server that answers every chat request after so many seconds and limits nothing."""

    async def answer(request):
        await request.read()
        await asyncio.sleep(latency)
        choice = {"index": 0, "message": {"role": "assistant", "content": "One."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        words = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_800_000_000, "model": "peer"}
        return web.json_response({**words, "choices": [choice], "usage": usage})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=3600)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await web.SockSite(runner, listening).start()
    try:
        yield "127.0.0.1:%d" % listening.getsockname()[1]
    finally:
        await runner.cleanup()


class Nginx:
    """nginx with one limit, or with none before a server that has one."""

    def __init__(self, folder, zone="", limit="", refusal=""):
        self.folder, self.zone, self.limit, self.refusal = Path(folder), zone, limit, refusal

    @asynccontextmanager
    async def serving(self, behind):
        self.port = free_port()
        (self.folder / "nginx.conf").write_text(self.config(behind))
        command = ["nginx", "-p", str(self.folder), "-e", "error.log", "-c", "nginx.conf"]
        async with running(command, self.folder / "nginx.words"):
            await listens(self.port)
            yield self

    def book(self, key):
        book = Book()
        for line in (self.folder / "access.log").read_text().splitlines():
            ended, latency, status, caller, body = line.split(" ", 4)
            if caller == key:
                book.add(float(ended), float(latency), status, body)
        return book

    def config(self, behind):
        return f"""
daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    map $http_authorization $key {{ default none; "~^Bearer (?<name>.*)$" $name; }}
    log_format call escape=none '$msec $request_time $status $key $request_body';
    access_log access.log call;
    keepalive_requests 1000000;
    {self.zone}
    server {{
        listen 127.0.0.1:{self.port} backlog=1024;
        location / {{
            {self.limit}
            proxy_pass http://{behind};
        }}
        {self.refusal}
    }}
}}
"""


class Haproxy:
    """HAProxy's estimate of a sliding window in which refused calls count too; every refusal carries the same hint."""

    def __init__(self, folder, calls, retry_after):
        self.folder, self.calls, self.retry_after = Path(folder), calls, retry_after

    @asynccontextmanager
    async def serving(self, behind):
        port = free_port()
        config = self.folder / "haproxy.cfg"
        config.write_text(self.config(port, behind))
        async with running(["haproxy", "-db", "-f", str(config)], self.folder / "haproxy.words"):
            await listens(port)
            async with Nginx(self.folder).serving(f"127.0.0.1:{port}") as front:
                yield front

    def config(self, port, behind):
        refusal = """'{"error":{"message":"slow down"}}'"""
        return f"""
global
    maxconn 1000
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend limited
    bind 127.0.0.1:{port}
    stick-table type string len 128 size 10k expire 60s store http_req_rate(10s)
    http-request track-sc0 req.hdr(authorization),sha1,hex
    acl limited sc_http_req_rate(0) gt {self.calls}
    http-request return status 429 content-type application/json hdr Retry-After {self.retry_after} string {refusal} if limited
    default_backend all
backend all
    server only {behind}
"""


class Litellm:
    """LiteLLM with a limit for each key. It answers by itself: a call that it passes on takes half as long again of its
    one processor, and it shall be its limit that holds senders back."""

    def __init__(self, folder, python, calls, window, latency):
        self.folder, self.program = Path(folder), Path(python).with_name("litellm")
        self.calls, self.window, self.latency = calls, window, latency

    @asynccontextmanager
    async def serving(self, _):
        port = free_port()
        (self.folder / "litellm.yaml").write_text(self.config())
        # LiteLLM looks for the module of `custom_auth` beside its configuration.
        (self.folder / "litellm_keys.py").write_text(Path(__file__).with_name("litellm_keys.py").read_text())
        environment = {
            "LITELLM_MASTER_KEY": "sk-master-of-the-test",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_RATE_LIMIT_WINDOW_SIZE": str(self.window),
            "LITELLM_LOG": "CRITICAL",
            "CALLS_PER_WINDOW": str(self.calls),
        }
        command = [str(self.program), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
        async with running(command, self.folder / "litellm.words", environment):
            await answers(f"http://127.0.0.1:{port}/health/liveliness")
            async with Nginx(self.folder).serving(f"127.0.0.1:{port}") as front:
                yield front

    def config(self):
        return f"""
model_list:
  - model_name: peer
    litellm_params: {{model: openai/peer, api_key: none, mock_response: "One.", mock_delay: {self.latency}}}
router_settings: {{disable_cooldowns: true, num_retries: 0}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{custom_auth: litellm_keys.keys}}
"""


@asynccontextmanager
async def running(command, words, environment=None):
    """A process that ends with the block. What it says goes to the file `words`."""
    with open(words, "wb") as said:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=Path(words).parent,
            env={**os.environ, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    except Exception:
        print(f"{command[0]}: {Path(words).read_text()[-2000:]}", file=sys.stderr)
        raise
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def listens(port):
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def answers(url):
    async with asyncio.timeout(PATIENCE), ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except OSError:
                pass
            await asyncio.sleep(0.2)


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return asking.getsockname()[1]
