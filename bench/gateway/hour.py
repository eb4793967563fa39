"""An hour of a busy gateway: streams, batches, clients that hang up, reloads, keys that come and go, slow and broken clients.

    scripts/gateway-hour [SECONDS [FILE]]

Each 10 s a line of FILE says what the process has in memory, its open files and what was answered. Both have to stay flat: the median
of the last quarter is at most a tenth (and 8 MiB, 16 files) above that of the second.
"""

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time

from local import Client, Gateway, Lost, Upstream, prompt, verdict

PACELINE, SECONDS, FILE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
counts = {"answered": 0, "streams": 0, "hung_up": 0, "batches": 0, "reloads": 0, "wrong": 0}


def wrong(what):
    counts["wrong"] += 1
    print(f"wrong: {what}", flush=True)


async def asks(gateway, key, pause, fields="", stream=False):
    client, kind = Client(gateway.url, key, fields), "streams" if stream else "answered"
    while True:
        try:
            status, _, body = await client.ask(prompt(stream))
            counts[kind] += 1
            if status != 200 or stream and b"[DONE]" not in body:
                wrong(f"{status} {body[:200]}")
        except (Lost, OSError) as error:
            wrong(f"{kind}: {error!r}")
        await asyncio.sleep(random.expovariate(1 / pause))


async def hangs_up(gateway, key):
    while True:
        client = Client(gateway.url, key)
        asked = asyncio.create_task(client.ask(prompt(stream=True)))
        await asyncio.sleep(random.uniform(0, 0.4))
        asked.cancel()
        client.close()
        counts["hung_up"] += 1
        await asyncio.sleep(0.1)


async def misbehaves(gateway):
    for beginning in iter(lambda: random.choice([b"", b"P", b"GET /main", b"PRI * HTTP/2.0\r\n", os.urandom(200), b"GET / HTTP/1.1\r\n\r\n"]), None):
        reader, writer = await asyncio.open_connection(*gateway.listen.split(":"))
        try:
            writer.write(beginning)
            await asyncio.wait_for(reader.read(), random.uniform(0, 60))
        except (TimeoutError, ConnectionError):
            pass
        writer.close()


async def batches(gateway, key):
    client = Client(gateway.url, key)
    line = lambda n: json.dumps({"custom_id": f"i{n}", "method": "POST", "url": "/v1/chat/completions", "body": json.loads(prompt())})
    file = "\n".join(line(n) for n in range(50))
    form = f'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n{file}\r\n--b--\r\n'
    while True:
        try:
            _, _, body = await client.ask(form, "/v1/files", fields="content-type: multipart/form-data; boundary=b\r\n")
            order = {"input_file_id": json.loads(body)["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            _, _, body = await client.ask(json.dumps(order), "/v1/batches", fields="content-type: application/json\r\n")
            batch = json.loads(body)
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(1)
                _, _, body = await client.ask("", f"/v1/batches/{batch['id']}", "GET")
                batch = json.loads(body)
            if batch["request_counts"]["completed"] != 50:
                wrong(batch)
            for gone in filter(None, (batch["input_file_id"], batch["output_file_id"])):
                await client.ask("", f"/v1/files/{gone}", "DELETE")
            counts["batches"] += 1
        except (Lost, OSError, KeyError) as error:
            wrong(f"batch: {error!r}")
        await asyncio.sleep(10)


async def reloads(gateway, upstream):
    for limit in iter(lambda: random.choice(["30000rpm", "40000rpm"]), None):
        await asyncio.sleep(5)
        gateway.configure(upstream.url, f'concurrency = 64\nlimits = ["{limit}"]\n')
        gateway.process.send_signal(signal.SIGHUP)
        counts["reloads"] += 1


async def keys_come_and_go(gateway):
    while True:
        key = await asyncio.to_thread(gateway.command, "keys", "add", "guest", "--limit", "600rpm")
        await asyncio.sleep(4)
        client = Client(gateway.url, key)
        if (await client.ask(prompt()))[0] != 200:
            wrong("a new key is not known")
        client.close()
        await asyncio.to_thread(gateway.command, "keys", "revoke", "guest")
        await asyncio.sleep(20)


async def main():
    upstream = await Upstream().start()
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(PACELINE, folder, log=f"{folder}/log")
        gateway.configure(upstream.url, 'concurrency = 64\nlimits = ["30000rpm"]\n')
        keys = {name: gateway.command("keys", "add", name) for name in ("web", "streams", "nightly", "hangs", "batches")}
        gateway.start()
        work = [asks(gateway, keys["web"], 0.2) for _ in range(20)] + [asks(gateway, keys["streams"], 0.5, stream=True) for _ in range(10)]
        work += [asks(gateway, keys["nightly"], 0.3, "x-paceline-priority: batch\r\n") for _ in range(10)]
        work += [hangs_up(gateway, keys["hangs"]) for _ in range(4)] + [misbehaves(gateway) for _ in range(10)]
        work += [batches(gateway, keys["batches"]), reloads(gateway, upstream), keys_come_and_go(gateway)]
        tasks, samples, began = [asyncio.create_task(each) for each in work], [], time.monotonic()
        with open(FILE, "w") as table:
            table.write("seconds\trss_mib\tfiles\t" + "\t".join(counts) + "\n")
            while (at := time.monotonic() - began) < SECONDS:
                await asyncio.sleep(min(10, SECONDS - at))
                samples.append((gateway.memory(), gateway.files()))
                figures = [f"{time.monotonic() - began:.0f}", f"{samples[-1][0]:.1f}", samples[-1][1], *counts.values()]
                table.write("\t".join(map(str, figures)) + "\n")
                table.flush()
                for ended in [task for task in tasks if task.done()]:
                    ended.result()
        for task in tasks:
            task.cancel()
        gateway.end()
    quarter = max(1, len(samples) // 4)
    of = lambda part, which: statistics.median(sample[which] for sample in part)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    memory, files = (of(second, 0), of(last, 0)), (of(second, 1), of(last, 1))
    figures = " ".join(f"{name}={count}" for name, count in counts.items())
    return verdict(
        "gateway hour", f"seconds={SECONDS} {figures} calls={len(upstream.calls)} rss_mib={memory[0]:.1f}..{memory[1]:.1f} files={files[0]:.0f}..{files[1]:.0f}",
        ("memory", memory[1] > 1.1 * memory[0] + 8), ("files", files[1] > 1.1 * files[0] + 16), ("answers", counts["wrong"] > 0),
    )


sys.exit(0 if asyncio.run(main()) else 1)
