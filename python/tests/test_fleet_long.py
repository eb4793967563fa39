"""Fleets whose store goes and comes back, and fleets of several processes, counted at a server. On the newest CPython alone."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from fleet_parts import LEASE, LIMIT, account, joined, limiter, place, server, until
from paceline._program import found
from redis_server import RedisServer
from server import Answer, serving

WORKER = Path(__file__).with_name("fleet_worker.py")
CALLS, WINDOW = 100, 2.0
# Between a grant and its call the scheduler of a busy machine may take so long: windows are that much shorter here. A call of the program is
# counted as it arrives, which takes a server in Python longer.
UNDER_WAY, TO_ARRIVE = 0.3, 1.0


def test_a_store_that_is_away_is_waited_for(run, account):
    server, lim = RedisServer(), limiter()

    async def main():
        async with joined(lim, server.url, account) as fleet:
            assert "does not answer" in fleet.problem
            assert (place(lim)["state"], lim.try_acquire()) == ("out", None)
            server.begin()
            async with lim():
                assert fleet.problem is None

    try:
        run(main)
    finally:
        server.stop()


def test_without_its_store_a_member_stops_or_keeps_its_share(account):
    with RedisServer() as server:
        strict, keep = limiter(), limiter()
        with joined(strict, server.url, account) as fleet, joined(keep, server.url, account + "k", on_loss="keep"):
            for lim in (strict, keep):
                for _ in range(LIMIT // 2):
                    with lim():
                        pass
            server.stop()
            until(lambda: place(strict)["state"] == place(keep)["state"] == "alone")
            assert "does not answer" in fleet.problem
            assert (strict.try_acquire(), place(strict)["limits"][0]["share"]) == (None, 0)
            assert "the share of this process" in strict.wait()[1]
            for _ in range(LIMIT):
                with keep():
                    pass
            # Its window is empty again, and still nothing leaves.
            assert (strict.try_acquire(), strict.snapshot()["account"]["quotas"][0]["used"]) == (None, 0)
            server.begin()
            for lim in (strict, keep):
                until(lambda: place(lim)["state"] == "live")
                with lim():
                    pass
            assert fleet.problem is None


def test_without_its_store_a_member_goes_on_at_what_was_set_aside_for_it(account):
    with RedisServer() as server:
        lim = limiter()
        with joined(lim, server.url, account, alone_share="2 per 1s"):
            until(lambda: place(lim)["state"] == "live")
            server.stop()
            until(lambda: place(lim)["state"] == "alone")
            (limit,) = place(lim)["limits"]
            assert (limit["share"], limit["alone_share"]) == (2, 2)
            left = []
            for _ in range(7):
                with lim():
                    left.append(time.monotonic())
            assert all(third - first >= 0.99 for first, third in zip(left[1:], left[3:]))


def test_a_ledger_that_was_lost_is_found_again(server, account):
    lim = limiter()
    with joined(lim, server.url, account), redis.Redis(port=server.port) as client:
        for command in (client.script_flush, client.flushall):
            with lim():
                pass
            command()
            until(lambda: server.members(account) == 1)
            for _ in range(LIMIT):
                with lim():
                    pass
        client.client_kill_filter(_type="normal")
        client.client_kill_filter(_type="pubsub")
        for _ in range(LIMIT):
            with lim():
                pass


def test_a_user_with_what_the_page_names_is_enough(account):
    page = (Path(__file__).parent.parent.parent / "docs/fleet.md").read_text()
    commands = re.findall(r"\+[a-z]+", page.partition("ACL SETUSER paceline")[2].partition("\n")[0])
    assert len(commands) > 20
    with RedisServer() as server:
        server.ask("ACL", "SETUSER", "member", "on", ">sesame", "resetchannels", "~pl:*", "&pl:*", "-@all", *commands)
        client = redis.Redis(port=server.port, username="member", password="sesame", health_check_interval=1)
        lim = limiter()
        with joined(lim, client, account) as fleet:
            with lim():
                pass
            until(lambda: "cmdstat_ping" in server.ask("INFO", "commandstats"))
            permit = lim.acquire_sync()
            permit.report("throttled", wait=2)
            with lim():
                assert fleet.problem is None
        assert server.members(account) == 0
        refused = re.findall(r"cmdstat_(\S+?):.*rejected_calls=[1-9]", server.ask("INFO", "commandstats"))
        # How a client of redis-py introduces itself may be refused.
        assert {name.partition("|")[0] for name in refused} <= {"client", "hello"}


def worst(arrivals, window):
    """The most calls in any window of that length, by when they left where they say that."""
    times = sorted(float(path.partition("?")[2] or time) for time, path in arrivals)
    most = first = 0
    for last, time in enumerate(times):
        while times[first] <= time - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def counts(arrivals, since):
    """How many calls each process sent from the so-manieth call on."""
    by = {}
    for _, path in arrivals[since:]:
        name = path.partition("?")[0]
        by[name] = by.get(name, 0) + 1
    return by


@contextmanager
def working(*commands, **options):
    processes = [subprocess.Popen(command, **options) for command in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def worker(kind, store, address, name):
    return [sys.executable, WORKER, kind, store, address, name, f"{CALLS} per {WINDOW:g}s", str(LEASE)]


@pytest.mark.timeout(300)
def test_processes_with_loops_and_threads_keep_one_limit_whatever_becomes_of_them(server):
    arrivals = []
    with serving(usual=Answer(), arrivals=arrivals) as (address, _):
        kinds = {"a": "asyncio", "b": "asyncio", "c": "threads"}
        with working(*(worker(kind, server.url, address, name) for name, kind in kinds.items())) as processes:

            def go_on(windows=2):
                begun = len(arrivals)
                until(lambda: len(arrivals) >= begun + windows * CALLS, 60)
                return begun

            go_on(3)
            began = go_on(4)
            even, spent = counts(arrivals, began), arrivals[-1][0] - arrivals[began][0]
            use = (len(arrivals) - began) / (spent * CALLS / WINDOW)
            processes[0].kill()
            go_on(4)
            server.ask("FLUSHALL")
            go_on()
            processes[2].send_signal(signal.SIGINT)
            assert processes[2].wait() != 0
            go_on()
            assert server.members("processes") in (1, 2)
    print(f"use={use:.3f} calls={even} worst={worst(arrivals, WINDOW - UNDER_WAY)} of {CALLS}, in half {worst(arrivals, WINDOW / 2)}")
    assert worst(arrivals, WINDOW - UNDER_WAY) <= CALLS
    assert set(even) == {"/a", "/b", "/c"}
    squares = sum(count**2 for count in even.values())
    assert sum(even.values()) ** 2 / (3 * squares) > 0.9


@pytest.mark.timeout(300)
def test_a_process_of_the_program_is_in_the_same_fleet(server, tmp_path):
    arrivals, window = [], 2 * WINDOW
    with serving(usual=Answer(), arrivals=arrivals) as (address, _):
        file = tmp_path / "paceline.toml"
        file.write_text(
            f"[upstream.openai]\nbase_url = '{address}/v1'\napi_key_env = 'KEY_OF_A_TEST'\nlimits = ['{CALLS} per {window:g}s']\n"
            f"pace = 'fixed'\nfleet = '{server.url}'\nfleet_lease = '{LEASE:g}s'\n"
        )
        lines = tmp_path / "requests.jsonl"
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        items = ({"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(300))
        lines.write_text("".join(json.dumps(item) + "\n" for item in items))
        run = [found(), "run", lines, "-o", tmp_path / "results.jsonl", "--config", file, "--upstream", "openai"]
        env = {"KEY_OF_A_TEST": "sesame", "HOME": str(tmp_path)}
        with working(worker("asyncio", str(file), address, "python"), stderr=subprocess.DEVNULL) as [python]:
            until(lambda: len(arrivals) >= CALLS, 60)
            begun = len(arrivals)
            ended = subprocess.run(run, env=env, capture_output=True, text=True, timeout=200)
            assert ended.returncode == 0, ended.stderr
            assert python.poll() is None
            both = counts(arrivals, begun)
    print(f"calls={both} worst={worst(arrivals, window - TO_ARRIVE)} of {CALLS}, in half {worst(arrivals, window / 2)}")
    assert worst(arrivals, window - TO_ARRIVE) <= CALLS
    assert both["/v1/chat/completions"] == 300
    # Each has about half of the limit: two fleets would have the whole limit each.
    assert both["/python"] >= 150


@pytest.mark.timeout(120)
def leads(server):
    """Sentinel closes the connections of a server that it makes the master, also the one that asks."""
    try:
        return "role:master" in server.ask("INFO", "replication")
    except subprocess.CalledProcessError:
        return False


def test_a_member_follows_sentinel_to_another_master(account, tmp_path):
    with RedisServer() as first, RedisServer("--replicaof", "127.0.0.1", str(first.port)) as second:
        file = tmp_path / "sentinel.conf"
        file.write_text(f"sentinel monitor fleet 127.0.0.1 {first.port} 1\n")
        with RedisServer(sentinel=file) as watch:
            sentinel = redis.Sentinel([("127.0.0.1", watch.port)])
            until(lambda: sentinel.discover_slaves("fleet"))
            lim = limiter()
            with joined(lim, sentinel.master_for("fleet"), account):
                with lim():
                    pass
                assert first.members(account) == 1
                watch.ask("SENTINEL", "FAILOVER", "fleet")
                until(lambda: leads(second))
                until(lambda: second.members(account) == 1 and place(lim)["state"] == "live")
                for _ in range(LIMIT):
                    with lim():
                        pass
