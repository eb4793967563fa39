"""Real clients through real servers with limits that they are not told: how many calls are refused, and is one lost?

    scripts/python-peers        # builds what it needs; names of clients choose some

Each row is one client with 400 items and at most 32 at once against nginx (`limit_req` of 50/s, burst 10), HAProxy (300 in any 10 s) or
`paceline mock` (3,000 a minute, announced). Ends with an error where an item is lost or more than a tenth of the calls are refused.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

import paceline
import paceline.httpx

ITEMS, AT_ONCE = 400, 32
CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1}}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
ITEM = {"Item": {"id": {"S": "7"}}}
PROMPT = [{"role": "user", "content": "hi"}]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Backend(BaseHTTPRequestHandler):
    """Answers each path as its API does."""

    protocol_version = "HTTP/1.1"
    calls = 0

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        Backend.calls += 1
        if "messages" in self.path:
            answer = MESSAGE
        elif "generateContent" in self.path:
            answer = GEMINI
        else:
            answer = ITEM if self.path == "/" else CHAT
        if b'"stream":true' in body.replace(b" ", b""):
            chunk = {**CHAT, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
            payload, kind = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream"
        else:
            payload, kind = json.dumps(answer).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass  # a proxy closes the connections that it kept


@contextlib.contextmanager
def backend():
    server = Server(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def process(command, port):
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def nginx():
    port = free_port()
    with backend() as behind, tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/nginx.conf", "w") as file:
            file.write(f"""daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{ worker_connections 1024; }}
http {{ access_log off; limit_req_zone $binary_remote_addr zone=z:1m rate=50r/s; limit_req_status 429; client_body_temp_path {folder}/b;
proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
server {{ listen 127.0.0.1:{port}; location / {{ limit_req zone=z burst=10 nodelay; proxy_pass http://127.0.0.1:{behind}; }} }} }}""")
        with process(["nginx", "-p", folder, "-c", f"{folder}/nginx.conf"], port) as url:
            yield url


@contextlib.contextmanager
def haproxy():
    port = free_port()
    with backend() as behind, tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/haproxy.cfg", "w") as file:
            file.write(f"""defaults
 mode http
 timeout connect 5s
 timeout client 30s
 timeout server 30s
frontend f
 bind 127.0.0.1:{port}
 stick-table type ip size 10 expire 10s store http_req_rate(10s)
 http-request track-sc0 src
 http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 300 }}
 default_backend b
backend b
 server s 127.0.0.1:{behind}
""")
        with process(["haproxy", "-db", "-f", f"{folder}/haproxy.cfg"], port) as url:
            yield url


@contextlib.contextmanager
def mock(dialect):
    command = [os.environ["PACELINE"], "mock", "--dialect", dialect, "--rpm", "3000", "--latency", "20ms"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield running.stdout.readline().split()[-1]
    finally:
        running.terminate()
        running.wait()


def over_tasks(ask):
    """Runs `ask(number)` for all items; how many of them succeeded."""

    async def main():
        at_once, done = asyncio.Semaphore(AT_ONCE), 0

        async def one(number):
            nonlocal done
            async with at_once:
                await ask(number)
                done += 1

        await asyncio.gather(*(one(number) for number in range(ITEMS)), return_exceptions=True)
        return done

    return main()


def over_threads(ask):
    def succeeds(number):
        try:
            ask(number)
        except Exception as error:
            print(f"  {type(error).__name__}: {error}"[:200])
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(threads.map(succeeds, range(ITEMS)))


def limiter(provider):
    return paceline.Limiter(provider=provider)


def openai_async(url, pace, stream=False):
    import openai

    async def main():
        http = httpx.AsyncClient(transport=paceline.httpx.async_transport(pace), timeout=60)
        async with openai.AsyncOpenAI(api_key="k", base_url=url + "/v1", http_client=http, max_retries=0) as client:

            async def ask(_):
                answer = await client.chat.completions.create(model="m", messages=PROMPT, stream=stream)
                if stream:
                    assert [part async for part in answer]

            return await over_tasks(ask)

    return asyncio.run(main())


def openai_sync(url, pace):
    import openai

    http = httpx.Client(transport=paceline.httpx.transport(pace), timeout=60)
    with openai.OpenAI(api_key="k", base_url=url + "/v1", http_client=http, max_retries=0) as client:
        return over_threads(lambda _: client.chat.completions.create(model="m", messages=PROMPT))


def openai_stream(url, pace):
    return openai_async(url, pace, True)


def anthropic_async(url, pace):
    import anthropic
    import httpx2

    async def main():
        http = httpx2.AsyncClient(transport=paceline.httpx.async_transport(pace), timeout=60)
        async with anthropic.AsyncAnthropic(api_key="k", base_url=url, http_client=http, max_retries=0) as client:
            return await over_tasks(lambda _: client.messages.create(model="m", max_tokens=9, messages=PROMPT))

    return asyncio.run(main())


def google(url, pace):
    import httpx2
    from google import genai

    with httpx2.Client(transport=paceline.httpx.transport(pace), timeout=60) as http:
        client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=url, httpx_client=http))
        return over_threads(lambda _: client.models.generate_content(model="m", contents="hi"))


def boto(url, pace):
    import boto3
    import paceline.boto

    keys = {"region_name": "r", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    config = boto3.session.Config(max_pool_connections=AT_ONCE)
    client = paceline.boto.install(boto3.client("dynamodb", endpoint_url=url, config=config, **keys), pace)
    return over_threads(lambda _: client.get_item(TableName="t", Key={"id": {"S": "7"}}))


def with_requests(url, pace):
    import requests
    import paceline.requests

    with requests.Session() as session:
        adapter = paceline.requests.Adapter(pace, pool_maxsize=AT_ONCE)
        session.mount("http://", adapter)
        return over_threads(lambda _: session.post(url + "/v1/chat/completions", json={"model": "m"}).raise_for_status())


def langchain(url, pace):
    from langchain_openai import ChatOpenAI

    async def main():
        http = httpx.AsyncClient(transport=paceline.httpx.async_transport(pace), timeout=60)
        model = ChatOpenAI(model="m", api_key="k", base_url=url + "/v1", http_async_client=http, max_retries=0)
        return await over_tasks(lambda _: model.ainvoke("hi"))

    return asyncio.run(main())


CLIENTS = [
    ("openai", "openai, asynchronous", openai_async),
    ("openai", "openai, threads", openai_sync),
    ("openai", "openai, streams", openai_stream),
    ("anthropic", "anthropic", anthropic_async),
    ("gemini", "google-genai", google),
    ("dynamodb", "boto3", boto),
    ("openai", "requests", with_requests),
    ("openai", "langchain", langchain),
]
SERVERS = [("nginx", lambda _: nginx()), ("haproxy", lambda _: haproxy()), ("mock", mock)]


def main():
    wanted, failed = sys.argv[1:] or [name for _, name, _ in CLIENTS if name != "langchain"], False
    for provider, name, client in CLIENTS:
        for server, serving in SERVERS:
            if name not in wanted:
                continue
            if server == "mock" and provider in ("dynamodb", "gemini"):
                continue  # the mock speaks the dialects of OpenAI and Anthropic
            pace = limiter(provider)
            with serving(provider) as url:
                began = time.monotonic()
                lost = ITEMS - client(url, pace)
                seconds = time.monotonic() - began
            totals = pace.snapshot()["account"]["totals"]
            refused = totals["by_class"]["throttled"] + totals["by_class"]["quota_exhausted"]
            wrong = lost > 0 or refused > totals["sends"] / 10
            failed |= wrong
            figures = f"{lost} lost of {ITEMS}, {totals['sends']} calls, {refused} refused, {seconds:.1f} s"
            print(f"measure python client: {name:22} {server:8} {figures}{' MISSED' if wrong else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    for program in ("nginx", "haproxy"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing; scripts/test installs it")
    main()
