"""The least that a script can do for a batch job: one session, so many calls at once, a line for each answer.

No limits, no retries, no state: what is lost at a crash is lost. Usage: SOURCE TARGET BASE_URL CONCURRENCY
"""

import asyncio
import json
import sys

import aiohttp


async def main(source, target, base_url, concurrency):
    places = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=concurrency)
    with open(source) as lines, open(target, "w") as results:
        async with aiohttp.ClientSession(connector=connector) as session:

            async def call(request):
                try:
                    async with session.post(base_url + request["url"], json=request["body"]) as response:
                        answer = {"status_code": response.status, "body": await response.json()}
                        results.write(json.dumps({"custom_id": request["custom_id"], "response": answer}) + "\n")
                finally:
                    places.release()

            async with asyncio.TaskGroup() as tasks:
                for line in lines:
                    await places.acquire()
                    tasks.create_task(call(json.loads(line)))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
