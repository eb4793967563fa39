"""What the scripts about the gateway share: a server that counts, a client that sees what becomes of each request, the gateway itself.

Python's own library alone, and HTTP/1.1 by hand: a client that sends again, or a server that forgives, would hide what is measured.
"""

import asyncio
import json
import os
import random
import subprocess
import time

CHUNKS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Lost(Exception):
    """The connection ended after the request was sent and before its answer."""


async def head_of(reader):
    """The first line and the fields of a message."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    return first, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


class Upstream:
    """Answers prompts after a moment, and keeps when each came: `calls` has (time, key, id)."""

    def __init__(self, service=(0.01, 0.05)):
        self.service, self.calls = service, []

    async def start(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0, backlog=4096, limit=1 << 20)
        self.url = "http://%s:%s" % self.server.sockets[0].getsockname()
        return self

    async def connected(self, reader, writer):
        try:
            while True:
                first, fields = await head_of(reader)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.calls.append((time.monotonic(), fields.get("authorization"), fields.get("x-id")))
                await asyncio.sleep(random.uniform(*self.service))
                if b'"stream"' in body:
                    await self.stream(writer)
                else:
                    text = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 12}})
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text.encode()))
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, writer):
        writer.write(CHUNKS)
        events = ['{"choices":[{"delta":{"content":"word "}}]}'] * 20 + ['{"choices":[{"delta":{},"finish_reason":"stop"}]}', "[DONE]"]
        for event in events:
            data = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")

    def most_within(self, window, since=0):
        """The most calls in any span of so many seconds."""
        times, most, first = sorted(call[0] for call in self.calls if call[0] >= since), 0, 0
        for last, at in enumerate(times):
            while at - times[first] >= window:
                first += 1
            most = max(most, last - first + 1)
        return most


class Client:
    """One connection at a time, kept open; nothing is sent twice."""

    def __init__(self, address, key=None, fields=""):
        self.host, self.port = address.removeprefix("http://").split(":")
        self.fields = fields + (f"authorization: Bearer {key}\r\n" if key else "")
        self.writer = None

    async def connect(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    async def ask(self, body, path="/main/v1/chat/completions", method="POST", fields=""):
        """The status, the fields and the body of the answer."""
        await self.connect()
        body = body.encode() if isinstance(body, str) else body
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self.fields}{fields}content-length: {len(body)}\r\n\r\n"
        try:
            self.writer.write(head.encode() + body)
            await self.writer.drain()
            return await self.answer()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.close()
            raise Lost(error) from error

    async def answer(self):
        first, fields = await head_of(self.reader)
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        if fields.get("connection") == "close":
            self.close()
        return int(first.split()[1]), fields, body

    def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None


class Gateway:
    """`paceline serve`, in a folder of its own."""

    def __init__(self, paceline, folder, listen="127.0.0.1:0", log=None):
        self.paceline, self.folder, self.listen, self.log = paceline, folder, listen, log
        self.environment = {**os.environ, "KEY": "sk-of-the-upstream", "XDG_STATE_HOME": folder}
        self.environment.pop("RUST_LOG", None)

    def configure(self, upstream, settings=""):
        text = f'[upstream.main]\nprovider = "openai"\nbase_url = "{upstream}/v1"\napi_key_env = "KEY"\n{settings}'
        with open(f"{self.folder}/new.toml", "w") as file:
            file.write(text)
        os.replace(f"{self.folder}/new.toml", f"{self.folder}/paceline.toml")

    def start(self):
        command = [self.paceline, "serve", "--listen", self.listen, "--state", "state"]
        log = open(self.log, "a") if self.log else subprocess.DEVNULL
        self.process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        self.listen = self.url.removeprefix("http://")
        return self

    def command(self, *arguments):
        command = [self.paceline, "serve", *arguments, "--state", "state"]
        return subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    def memory(self):
        """What it has in memory, in MiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def prompt(stream=False, model="m"):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "Say a word."}], **({"stream": True} if stream else {})})


def verdict(name, text, *misses):
    """A line of figures; what missed its bar is named."""
    missed = [miss for miss, is_missed in misses if is_missed]
    print(f"measure {name}: {text} " + (f"MISSED: {', '.join(missed)}" if missed else "met"), flush=True)
    return not missed
