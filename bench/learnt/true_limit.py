"""A job of a user who knows the true limit and set it: so many calls a second at equal distances, or so many in
flight. A refused item goes to the end of the queue and has its turn again at the same pace.

Usage: SOURCE BASE_URL KEY (rate CALLS_PER_SECOND | cap CALLS_IN_FLIGHT)
"""

import asyncio
import json
import sys
from collections import deque

import aiohttp


class Job:
    """The items that have no answer yet, and a way to send one."""

    def __init__(self, source, base_url, key):
        with open(source) as lines:
            self.waiting = deque(json.loads(line)["body"] for line in lines)
        self.left = len(self.waiting)
        self.url, self.headers = f"{base_url}/chat/completions", {"Authorization": f"Bearer {key}"}

    async def call(self, session, body):
        async with session.post(self.url, json=body, headers=self.headers) as response:
            await response.read()
        if response.status == 200:
            self.left -= 1
        else:
            self.waiting.append(body)


async def at_rate(job, session, per_second):
    clock = asyncio.get_running_loop()
    slot = clock.time()
    async with asyncio.TaskGroup() as tasks:
        while job.left:
            if job.waiting:
                tasks.create_task(job.call(session, job.waiting.popleft()))
            slot += 1 / per_second
            await asyncio.sleep(slot - clock.time())


async def in_flight(job, session, cap):
    async def worker():
        while job.waiting:
            await job.call(session, job.waiting.popleft())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(cap):
            tasks.create_task(worker())


async def main(source, base_url, key, kind, limit):
    job = Job(source, base_url, key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await {"rate": at_rate, "cap": in_flight}[kind](job, session, limit)


asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
