"""A process of a fleet, which calls a server without end: `fleet_worker.py asyncio|threads REDIS SERVER NAME LIMIT LEASE`, or with the
path of a configuration file in place of REDIS."""

import asyncio
import http.client
import signal
import sys
import threading
import time
from urllib.parse import urlsplit

import paceline
import paceline.fleet

# A shell starts what runs in the background with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

AT_ONCE = 12
kind, store, server, name, limit, lease = sys.argv[1:]
host, port = urlsplit(server).hostname, urlsplit(server).port
if store.endswith(".toml"):
    limiter = paceline.Limiter.from_file(store)
    fleet = paceline.fleet.join(limiter, host=f"{server}/v1", key="sesame")
else:
    limiter = paceline.Limiter(limit, pace="fixed")
    fleet = paceline.fleet.join(limiter, store, account="processes", lease=float(lease))


def path():
    """With the time at which the call left, which all processes of a machine count alike."""
    return f"/{name}?{time.monotonic()}"


async def call_in_loop():
    reader, writer = await asyncio.open_connection(host, port)
    while True:
        async with limiter():
            writer.write(f"POST {path()} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))


async def main():
    async with fleet:
        await asyncio.gather(*(call_in_loop() for _ in range(AT_ONCE)))


def call_in_thread():
    connection = http.client.HTTPConnection(host, port)
    while True:
        with limiter():
            connection.request("POST", path())
            connection.getresponse().read()


if kind == "asyncio":
    asyncio.run(main())
else:
    with fleet:
        threads = [threading.Thread(target=call_in_thread, daemon=True) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        threads[0].join()
