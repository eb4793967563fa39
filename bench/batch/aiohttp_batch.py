"""A batch job in the style of the cookbooks: one session, a bounded number of tasks, a line for each answer.

No journal, no limits, no retries: the least that a script can do.
"""

import asyncio
import json
import sys

import aiohttp


async def main(source, target, base_url, concurrency):
    slots = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=concurrency)
    with open(source) as lines, open(target, "w") as results:
        async with aiohttp.ClientSession(connector=connector) as session:

            async def call(request):
                try:
                    async with session.post(base_url + request["url"], json=request["body"]) as response:
                        answer = {"status_code": response.status, "body": await response.json()}
                        results.write(json.dumps({"custom_id": request["custom_id"], "response": answer}) + "\n")
                finally:
                    slots.release()

            async with asyncio.TaskGroup() as tasks:
                for line in lines:
                    await slots.acquire()
                    tasks.create_task(call(json.loads(line)))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
