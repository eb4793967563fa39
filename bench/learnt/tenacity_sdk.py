"""A job with tenacity around the official SDK, as cookbooks show it: a random wait that doubles up to a minute, and six
attempts for each item.

Usage: SOURCE BASE_URL KEY AT_ONCE
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI
from tenacity import RetryError, retry, stop_after_attempt, wait_random_exponential


async def main(source, base_url, key, at_once):
    client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)
    places = asyncio.Semaphore(at_once)
    lost = 0

    @retry(wait=wait_random_exponential(min=1, max=60), stop=stop_after_attempt(6))
    async def completion(body):
        await client.chat.completions.create(**body)

    async def call(body):
        nonlocal lost
        try:
            await completion(body)
        except RetryError:
            lost += 1
        finally:
            places.release()

    async with asyncio.TaskGroup() as tasks:
        with open(source) as lines:
            for line in lines:
                await places.acquire()
                tasks.create_task(call(json.loads(line)["body"]))
    print(f"{lost} lost")


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
