"""OpenAI's client, unchanged and without retries, through `paceline serve` before servers that this project did not write: nginx, HAProxy
and LiteLLM, whose limits it is not told. scripts/gateway-clients has the rest.

64 calls at a time. Each item must be answered once, as the server's log says, and no refusal may reach the client.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from openai import AsyncOpenAI

sys.path.append(str(Path(__file__).resolve().parent.parent / "learnt"))
from limits import limits  # noqa: E402
from servers import running, upstream  # noqa: E402

PACELINE, PYTHON_WITH_LITELLM = sys.argv[1:]
KEY = "sk-of-the-gateway"
AT_ONCE = 64
# Of each server the limits that `limits` names; LiteLLM lets 300 pass at once.
ITEMS = {
    "nginx 20/s, burst 20": 200,
    "LiteLLM 300 per 10 s": 450,
    "HAProxy 200 per 10 s, hint 1 s": 400,
    "HAProxy 200 per 10 s, hint 10 s": 400,
}


async def through_gateway(limit, items, folder, behind):
    async with limit.server(folder).serving(behind) as server:
        (folder / "paceline.toml").write_text(
            f'[upstream.limited]\nprovider = "openai"\nbase_url = "http://127.0.0.1:{server.port}/v1"\napi_key_env = "KEY"\n'
        )
        environment = {"KEY": KEY, "XDG_STATE_HOME": str(folder)}
        said = folder / "gateway.words"
        async with running([PACELINE, "serve", "--listen", "127.0.0.1:0"], said, environment) as gateway:
            while not (begun := [line for line in said.read_text().splitlines() if line.startswith("listening on ")]):
                assert gateway.returncode is None, "it ended"
                await asyncio.sleep(0.05)
            await call(begun[0].split()[-1], items)
        return server.book(KEY)


async def call(url, items):
    free = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=f"{url}/limited/v1", api_key="any", max_retries=0) as client:

        async def one(item):
            async with free:
                await client.chat.completions.create(model="peer", messages=[{"role": "user", "content": str(item)}])

        await asyncio.gather(*(one(item) for item in range(items)))


async def main():
    with tempfile.TemporaryDirectory() as folder:
        # nginx's workers are another user.
        os.chmod(folder, 0o755)
        tests = [limit for limit in limits(PYTHON_WITH_LITELLM) if limit.name in ITEMS]
        assert len(tests) == len(ITEMS), [limit.name for limit in tests]
        async with upstream(0.020) as behind:

            async def test(number, limit):
                own = Path(folder, str(number))
                own.mkdir()
                items = ITEMS[limit.name]
                book = await through_gateway(limit, items, own, behind)
                refused, seconds = book.throttled + book.overloaded, book.last - book.first
                oracle = limit.oracle(items, 0.020)
                print(
                    f"measure openai through the gateway, {limit.name}: items={items} refused={refused} seconds={seconds:.2f} "
                    f"oracle={oracle:.2f} oracle/measured={oracle / seconds:.3f}",
                    flush=True,
                )
                once = {str(item): 1 for item in range(items)}
                assert dict(book.answered) == once and book.failed == 0, f"{limit.name}: lost or doubled: {book}"

            await asyncio.gather(*(test(number, limit) for number, limit in enumerate(tests)))


asyncio.run(main())
