"""A batch job as cookbooks for language models do it: a loop that hands out requests as capacity grows back, a task for
each, a queue of retries, a tracker of what became of them, and a file that is opened for each answer.

The loop pauses after each request that it starts, by 1 ms in the well-known form. Limits are set so high here that they
never bind. Usage: SOURCE TARGET BASE_URL CONCURRENCY [PAUSE_SECONDS]
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

import aiohttp

REQUESTS_PER_MINUTE = 60_000_000
TOKENS_PER_MINUTE = 60_000_000_000
MAX_ATTEMPTS = 5
PAUSE_AFTER_RATE_LIMIT = 15


@dataclass
class Tracker:
    """What became of the requests."""

    started: int = 0
    in_progress: int = 0
    succeeded: int = 0
    failed: int = 0
    rate_limited: int = 0
    last_rate_limit: float = 0.0


@dataclass
class Capacity:
    """Requests and tokens that may be used now, growing back by the clock."""

    requests: float = REQUESTS_PER_MINUTE
    tokens: float = TOKENS_PER_MINUTE
    updated: float = field(default_factory=time.time)

    def grow(self):
        now = time.time()
        passed = now - self.updated
        self.requests = min(self.requests + REQUESTS_PER_MINUTE * passed / 60, REQUESTS_PER_MINUTE)
        self.tokens = min(self.tokens + TOKENS_PER_MINUTE * passed / 60, TOKENS_PER_MINUTE)
        self.updated = now

    def take(self, tokens):
        if self.requests < 1 or self.tokens < tokens:
            return False
        self.requests -= 1
        self.tokens -= tokens
        return True


@dataclass
class Request:
    """One request, and the tries that it has left."""

    number: int
    body: dict
    url: str
    tokens: int
    metadata: dict
    attempts_left: int = MAX_ATTEMPTS
    errors: list = field(default_factory=list)

    async def call(self, session, retries, target, tracker):
        error = None
        try:
            async with session.post(url=self.url, json=self.body) as response:
                answer = await response.json()
            if "error" in answer:
                error = answer["error"]
                if "rate limit" in str(error).lower():
                    tracker.rate_limited += 1
                    tracker.last_rate_limit = time.time()
        except Exception as raised:  # whatever it is, it is tried again
            error = str(raised)
        if error is None:
            append([self.body, answer, self.metadata], target)
            tracker.in_progress -= 1
            tracker.succeeded += 1
            return
        self.errors.append(error)
        if self.attempts_left:
            retries.put_nowait(self)
        else:
            append([self.body, self.errors, self.metadata], target)
            tracker.in_progress -= 1
            tracker.failed += 1


def append(row, target):
    with open(target, "a") as results:
        results.write(json.dumps(row) + "\n")


def tokens_of(body):
    """About four characters a token: no tokenizer is charged to the script."""
    return body.get("max_tokens", 15) + sum(len(message["content"]) // 4 + 4 for message in body["messages"])


async def main(source, target, base_url, concurrency, pause):
    tracker, capacity, retries = Tracker(), Capacity(), asyncio.Queue()
    waiting, more = None, True
    with open(source) as lines:
        connector = aiohttp.TCPConnector(limit=concurrency)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                if waiting is None:
                    if not retries.empty():
                        waiting = retries.get_nowait()
                    elif more:
                        line = next(lines, None)
                        if line is None:
                            more = False
                        else:
                            job = json.loads(line)
                            metadata = {"custom_id": job["custom_id"]}
                            url, body = base_url + job["url"], job["body"]
                            waiting = Request(tracker.started, body, url, tokens_of(body), metadata)
                            tracker.started += 1
                            tracker.in_progress += 1
                capacity.grow()
                if waiting is not None and capacity.take(waiting.tokens):
                    waiting.attempts_left -= 1
                    asyncio.create_task(waiting.call(session, retries, target, tracker))
                    waiting = None
                if tracker.in_progress == 0 and not more:
                    break
                await asyncio.sleep(pause)
                since = time.time() - tracker.last_rate_limit
                if since < PAUSE_AFTER_RATE_LIMIT:
                    await asyncio.sleep(PAUSE_AFTER_RATE_LIMIT - since)
    print(f"{tracker.succeeded} succeeded, {tracker.failed} failed", file=sys.stderr)


pause = float(sys.argv[5]) if len(sys.argv) > 5 else 0.001
asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), pause))
