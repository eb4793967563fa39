"""Runs of an asynchronous test in each kind of event loop."""

import asyncio
import importlib.util

import pytest

import paceline
import paceline.testing


# The clients are installed for one version of Python: see scripts/python-test.
if importlib.util.find_spec("httpx") is None:
    collect_ignore = ["test_httpx.py", "test_adapters.py", "test_fleet_long.py"]


def _uvloop(main):
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _trio(main):
    import trio

    return trio.run(main)


RUNNERS = {"asyncio": lambda main: asyncio.run(main()), "uvloop": _uvloop, "trio": _trio}


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs `async def main()` in a loop of that kind."""
    return RUNNERS[request.param]


@pytest.fixture
def clock():
    return paceline.testing.Clock()


async def gather(*functions):
    """Runs coroutine functions at once, in the loop at hand; their results in order."""
    results = [None] * len(functions)

    async def one(at, function):
        results[at] = await function()

    if paceline._homes.in_trio():
        import trio

        async with trio.open_nursery() as nursery:
            for at, function in enumerate(functions):
                nursery.start_soon(one, at, function)
    else:
        await asyncio.gather(*(one(at, function) for at, function in enumerate(functions)))
    return results


@pytest.fixture(name="gather")
def _gather():
    return gather


async def until(condition):
    """Lets others run until the condition holds."""
    while not condition():
        if paceline._homes.in_trio():
            import trio

            await trio.lowlevel.checkpoint()
        else:
            await asyncio.sleep(0)


@pytest.fixture(name="until")
def _until():
    return until
