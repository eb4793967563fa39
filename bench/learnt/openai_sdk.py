"""A job with the official SDK alone: its own retries, which wait for what a refusal asks or a random time that doubles.

Usage: SOURCE BASE_URL KEY AT_ONCE
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI, OpenAIError

RETRIES = 10


async def main(source, base_url, key, at_once):
    client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=RETRIES)
    places = asyncio.Semaphore(at_once)
    lost = 0

    async def call(body):
        nonlocal lost
        try:
            await client.chat.completions.create(**body)
        except OpenAIError:
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
