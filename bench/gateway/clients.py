"""Unchanged official clients through `paceline serve`: scripts/gateway-clients has the rest.

First behind the gateway stand mocks that announce nothing, so that it has to learn their limits; then nginx and HAProxy with limits of their
own, each before such a mock without one, and every client asks many times at once. A client that sees a refusal fails the script, and so does an
answer that is not what its SDK expects, or a request that is lost or made twice.
"""

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PACELINE, PYTHON_WITH_LITELLM, NODE, NODE_SDK = sys.argv[1:]
PROMPT = [{"role": "user", "content": "hi"}]
HERE = os.path.dirname(os.path.abspath(__file__))
DIALECTS = ("openai", "anthropic", "gemini")
# How often each client asks at a server that limits, and how many do at once.
TIMES, AT_ONCE = 20, 8
# Six of the eight clients speak OpenAI's dialect: the servers of the others take a quarter of its calls.
PARTS = {"openai": 4, "anthropic": 1, "gemini": 1}
REFUSAL = '{"error":{"message":"slow down","type":"rate_limit","code":"rate_limited"}}'
running = []


def spawn(*command, **options):
    process = subprocess.Popen(command, **options)
    running.append(process)
    return process


def start(*arguments, **options):
    return spawn(PACELINE, *arguments, stdout=subprocess.PIPE, text=True, **options).stdout.readline().split()[-1]


def stop():
    for process in reversed(running):
        process.terminate()
        process.wait()
    running.clear()


def say(client, *figures):
    print(f"{client:<24}", *figures, flush=True)


def several(ask, times):
    """Asks so many times, some at once."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda _: ask(), range(times)))


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return asking.getsockname()[1]


def listens(port):
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < until, "it does not listen"
            time.sleep(0.05)


class Mocks:
    """No limit but that of the mocks themselves."""

    name, flags = "mocks of 20/s", ("--rpm", "1200")

    def before(self, folder, dialect, mock):
        return mock

    def refused(self, folder, dialect, stats):
        return stats["throttled"]


class Nginx:
    """20 calls a second, of which 20 may come at once; a quarter of that for other dialects."""

    name, flags = "nginx 20/s", ()

    def before(self, folder, dialect, mock):
        port, place, rate = free_port(), f"{folder}/{dialect}", 5 * PARTS[dialect]
        os.makedirs(place)
        # Its workers are another user.
        os.chmod(folder, 0o755)
        with open(f"{place}/nginx.conf", "w") as file:
            file.write(f"""daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    log_format call '$status'; access_log access.log call; keepalive_requests 1000000;
    limit_req_zone $server_port zone=all:1m rate={rate}r/s; limit_req_status 429;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            limit_req zone=all burst={rate} nodelay; error_page 429 @limited;
            proxy_pass {mock}; proxy_http_version 1.1; proxy_buffering off;
        }}
        location @limited {{ default_type application/json; add_header Retry-After 1 always; return 429 '{REFUSAL}'; }}
    }}
}}""")
        spawn("nginx", "-p", place, "-e", "error.log", "-c", "nginx.conf")
        listens(port)
        return f"http://127.0.0.1:{port}"

    def refused(self, folder, dialect, stats):
        with open(f"{folder}/{dialect}/access.log") as log:
            return log.read().split().count("429")


class Haproxy:
    """60 calls in 10 s, of which refused ones count too; a quarter of that for other dialects."""

    name, flags = "HAProxy 60 per 10 s", ()

    def before(self, folder, dialect, mock):
        port, place = free_port(), f"{folder}/{dialect}"
        os.makedirs(place)
        with open(f"{place}/haproxy.cfg", "w") as file:
            file.write(f"""global
    maxconn 1000
    stats socket {place}/stats
defaults
    mode http
    option http-ignore-probes
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend limited
    bind 127.0.0.1:{port}
    stick-table type ip size 1k expire 60s store http_req_rate(10s)
    http-request track-sc0 src
    acl limited sc_http_req_rate(0) gt {15 * PARTS[dialect]}
    http-request return status 429 content-type application/json hdr Retry-After 10 string '{REFUSAL}' if limited
    default_backend all
backend all
    server only {mock.removeprefix("http://")}
""")
        spawn("haproxy", "-db", "-f", f"{place}/haproxy.cfg", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        listens(port)
        return f"http://127.0.0.1:{port}"

    def refused(self, folder, dialect, stats):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(f"{folder}/{dialect}/stats")
            asking.sendall(b"show stat\n")
            names, frontend, *_ = asking.makefile().read().removeprefix("# ").splitlines()
        return int(dict(zip(names.split(","), frontend.split(",")))["hrsp_4xx"])


def gateway(folder, limiter):
    mocks = {name: start("mock", "--dialect", name, *limiter.flags, "--latency", "5ms", "--hints", "none") for name in DIALECTS}
    entry = '[upstream.{0}]\nbase_url = "{1}"\napi_key_env = "KEY"\n'
    with open(f"{folder}/paceline.toml", "w") as file:
        file.writelines(entry.format(name, limiter.before(folder, name, url)) for name, url in mocks.items())
    environment = {**os.environ, "KEY": "sk-of-the-gateway", "XDG_STATE_HOME": folder}
    url = start("serve", "--listen", "127.0.0.1:0", cwd=folder, env=environment)
    return url, mocks


def openai_sync(url, times):
    import openai

    client = openai.OpenAI(base_url=f"{url}/openai/v1", api_key="any", max_retries=0)
    answers = several(lambda: client.chat.completions.create(model="m", messages=PROMPT), times)
    streams = several(lambda: list(client.chat.completions.create(model="m", messages=PROMPT, stream=True)), times)
    say("openai", sum(answer.usage.total_tokens for answer in answers), "tokens,", sum(map(len, streams)), "events")
    raw = client.chat.completions.with_raw_response.create(model="m", messages=PROMPT)
    assert int(raw.headers["x-paceline-attempts"]) >= 1, raw.headers
    assert all(len(events) > 5 and events[-1].choices[0].finish_reason == "stop" for events in streams), streams
    return {"openai": 2 * times + 1}


def openai_async(url, times):
    import openai

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{url}/openai/v1", api_key="any", max_retries=0) as client:
            calls = [client.chat.completions.create(model="m", messages=PROMPT) for _ in range(100)]
            return await asyncio.gather(*calls)

    say("openai, 100 at once", sum(answer.usage.total_tokens for answer in asyncio.run(ask())), "tokens")
    return {"openai": 100}


def openai_batch(url, times):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    body = {"model": "m", "messages": PROMPT}
    lines = [{"custom_id": f"item-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(times)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("requests.jsonl", io.BytesIO(text)), purpose="batch")
    order = dict(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = client.batches.create(**order, extra_query={"upstream": "openai"})
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", times, None), batch
    results = [json.loads(line)["custom_id"] for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(results) == sorted(line["custom_id"] for line in lines), results
    say("openai, a batch", len(results), "results")
    return {"openai": times}


def anthropic_sync(url, times):
    import anthropic

    client = anthropic.Anthropic(base_url=f"{url}/anthropic", api_key="any", max_retries=0)

    def streamed():
        with client.messages.stream(model="m", max_tokens=50, messages=PROMPT) as stream:
            return stream.get_final_message()

    answers = several(lambda: client.messages.create(model="m", max_tokens=50, messages=PROMPT), times)
    finals = several(streamed, times)
    tokens = [sum(message.usage.output_tokens for message in messages) for messages in (answers, finals)]
    say("anthropic", tokens[0], "tokens, streamed", tokens[1])
    assert all(final.stop_reason for final in finals), finals
    return {"anthropic": 2 * times}


def google(url, times):
    from google import genai

    client = genai.Client(api_key="any", http_options={"base_url": f"{url}/gemini"})
    ask = dict(model="gemini-2.0-flash", contents="hi")
    answers = several(lambda: client.models.generate_content(**ask), times)
    streams = several(lambda: list(client.models.generate_content_stream(**ask)), times)
    say("google-genai", sum(len(answer.text) for answer in answers), "characters,", sum(map(len, streams)), "events")
    assert all(answer.text for answer in answers) and all(len(events) > 1 for events in streams)
    return {"gemini": 2 * times}


def ran(*command):
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout.strip()


def litellm(url, times):
    program = (
        "import litellm, sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ask = dict(model='openai/m', api_base=sys.argv[1], api_key='any', messages=[{'role': 'user', 'content': 'hi'}])\n"
        "def one(_): return litellm.completion(**ask).usage.total_tokens, sum(1 for _ in litellm.completion(**ask, stream=True))\n"
        "both = list(ThreadPoolExecutor(8).map(one, range(int(sys.argv[2]))))\n"
        "print(sum(tokens for tokens, _ in both), 'tokens,', sum(events for _, events in both), 'events')"
    )
    say("litellm", ran(PYTHON_WITH_LITELLM, "-c", program, f"{url}/openai/v1", str(times)))
    return {"openai": 2 * times}


def node(url, times):
    say("openai for Node", ran(NODE, f"{HERE}/client.mjs", NODE_SDK, f"{url}/openai/v1", str(times)))
    return {"openai": 2 * times}


def curl(url, times):
    body = json.dumps({"model": "m", "messages": PROMPT})
    ask = ("curl", "--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--json", body, "--output", "/dev/null",
           "--write-out", "%{http_code} %header{x-paceline-waited-ms}", f"{url}/openai/v1/chat/completions")
    answers = [answer.split() for answer in several(lambda: ran(*ask), times)]
    assert all(status == "200" for status, _ in answers), answers
    say("curl", len(answers), "answers, the longest after", max(int(waited) for _, waited in answers), "ms here")
    return {"openai": times}


CLIENTS = (openai_sync, openai_async, openai_batch, anthropic_sync, google, litellm, node, curl)


def all_through(limiter, times):
    with tempfile.TemporaryDirectory() as folder:
        try:
            url, mocks = gateway(folder, limiter)
            say(f"--- {limiter.name}")
            with ThreadPoolExecutor(len(CLIENTS) if times > 1 else 1) as threads:
                asked = list(threads.map(lambda client: client(url, times), CLIENTS))
            for name, mock in mocks.items():
                with urllib.request.urlopen(f"{mock}/stats") as stats:
                    seen = json.load(stats)
                calls, refused = sum(each.get(name, 0) for each in asked), limiter.refused(folder, name, seen)
                say(f"{limiter.name}, {name}", calls, "asked,", seen["ok"], "answered,", refused, "refused")
                assert seen["ok"] == calls and seen["invalid"] == 0, seen
        finally:
            stop()


for limiter, times in ((Mocks(), 1), (Nginx(), TIMES), (Haproxy(), TIMES)):
    all_through(limiter, times)
