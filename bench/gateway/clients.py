"""Unchanged official clients through `paceline serve`: scripts/gateway-clients has the rest.

Behind the gateway stand mocks that announce nothing, so that it has to learn their limits. A client that sees a refusal fails the
script, and so does an answer that is not what its SDK expects.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

PACELINE, PYTHON_WITH_LITELLM, NODE, NODE_SDK = sys.argv[1:]
PROMPT = [{"role": "user", "content": "hi"}]
HERE = os.path.dirname(os.path.abspath(__file__))
running = []


def start(*arguments, **options):
    process = subprocess.Popen([PACELINE, *arguments], stdout=subprocess.PIPE, text=True, **options)
    running.append(process)
    return process.stdout.readline().split()[-1]


def say(client, *figures):
    print(f"{client:<24}", *figures, flush=True)


def gateway(folder):
    mocks = {name: start("mock", "--dialect", name, "--rpm", "1200", "--latency", "5ms", "--hints", "none")
             for name in ("openai", "anthropic", "gemini")}
    entry = '[upstream.{0}]\nbase_url = "{1}"\napi_key_env = "KEY"\n'
    with open(f"{folder}/paceline.toml", "w") as file:
        file.writelines(entry.format(name, url) for name, url in mocks.items())
    environment = {**os.environ, "KEY": "sk-of-the-gateway", "XDG_STATE_HOME": folder}
    url = start("serve", "--listen", "127.0.0.1:0", cwd=folder, env=environment)
    return url, mocks


def openai_sync(url):
    import openai

    client = openai.OpenAI(base_url=f"{url}/openai/v1", api_key="any", max_retries=0)
    answer = client.chat.completions.create(model="m", messages=PROMPT)
    events = list(client.chat.completions.create(model="m", messages=PROMPT, stream=True))
    say("openai", answer.usage.total_tokens, "tokens,", len(events), "events")
    raw = client.chat.completions.with_raw_response.create(model="m", messages=PROMPT)
    assert raw.headers["x-paceline-attempts"] == "1", raw.headers
    assert len(events) > 5 and events[-1].choices[0].finish_reason == "stop", events[-1]


async def openai_async(url):
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/openai/v1", api_key="any", max_retries=0) as client:
        calls = [client.chat.completions.create(model="m", messages=PROMPT) for _ in range(100)]
        answers = await asyncio.gather(*calls)
    say("openai, 100 at once", sum(answer.usage.total_tokens for answer in answers), "tokens")


def anthropic_sync(url):
    import anthropic

    client = anthropic.Anthropic(base_url=f"{url}/anthropic", api_key="any", max_retries=0)
    answer = client.messages.create(model="m", max_tokens=50, messages=PROMPT)
    with client.messages.stream(model="m", max_tokens=50, messages=PROMPT) as stream:
        final = stream.get_final_message()
    say("anthropic", answer.usage.output_tokens, "tokens, streamed", final.usage.output_tokens)
    assert final.stop_reason, final


def google(url):
    from google import genai

    client = genai.Client(api_key="any", http_options={"base_url": f"{url}/gemini"})
    answer = client.models.generate_content(model="gemini-2.0-flash", contents="hi")
    events = list(client.models.generate_content_stream(model="gemini-2.0-flash", contents="hi"))
    say("google-genai", len(answer.text), "characters,", len(events), "events")
    assert answer.text and len(events) > 1


def others(url):
    litellm = (
        "import litellm, sys\n"
        "ask = dict(model='openai/m', api_base=sys.argv[1], api_key='any', messages=[{'role': 'user', 'content': 'hi'}])\n"
        "print(litellm.completion(**ask).usage.total_tokens, 'tokens,',\n"
        "      sum(1 for _ in litellm.completion(**ask, stream=True)), 'events')"
    )
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run = lambda *command: subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    say("litellm", run(PYTHON_WITH_LITELLM, "-c", litellm, f"{url}/openai/v1"))
    say("openai for Node", run(NODE, f"{HERE}/client.mjs", NODE_SDK, f"{url}/openai/v1"))


def plain(url):
    body = json.dumps({"model": "m", "messages": PROMPT}).encode()
    request = urllib.request.Request(f"{url}/openai/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        say("urllib", answer.status, "after", answer.headers["x-paceline-waited-ms"], "ms here")


with tempfile.TemporaryDirectory() as folder:
    try:
        url, mocks = gateway(folder)
        openai_sync(url)
        asyncio.run(openai_async(url))
        anthropic_sync(url)
        google(url)
        others(url)
        plain(url)
        for name, mock in mocks.items():
            with urllib.request.urlopen(f"{mock}/stats") as stats:
                seen = json.load(stats)
            say(f"the mock of {name}", seen["ok"], "answered,", seen["throttled"], "refused")
            assert seen["invalid"] == 0, seen
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
