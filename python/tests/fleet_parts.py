"""What the tests of fleets have in common."""

import time

import pytest

import paceline.fleet
from paceline import Limiter
from redis_server import RedisServer

LIMIT, WINDOW, LEASE = 40, 1, 3.0
ACCOUNTS = iter(range(1_000_000))


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        # It knows no ledger, and has been up for long enough: the first member of each account begins at once.
        while int(server.ask("INFO", "server").partition("uptime_in_seconds:")[2].split()[0]) < LEASE + 1 + WINDOW + 3:
            time.sleep(0.1)
        yield server


@pytest.fixture
def account():
    return f"account {next(ACCOUNTS)}"


def limiter(limit=LIMIT):
    return Limiter(f"{limit} per {WINDOW}s", pace="fixed", burst=limit)


def joined(limiter, store, account, **options):
    return paceline.fleet.join(limiter, store, account=account, lease=LEASE, **options)


def place(limiter):
    return limiter.snapshot()["account"]["fleet"]


def until(condition, within=30):
    """Waits for an event."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)
