"""A limiter's share of a fleet's limits, from a ledger on a real Redis."""

import asyncio
import os
import subprocess
import sys
import threading
import warnings

import pytest
import redis
import redis.asyncio

import paceline
import paceline.fleet
from paceline import Limiter
from fleet_parts import LEASE, LIMIT, account, joined, limiter, place, server, until
from redis_server import RedisServer


def test_a_member_has_a_share_and_gives_it_back(run, server, account):
    async def main():
        lim = limiter()
        async with joined(lim, server.url, account) as fleet:
            for _ in range(5):
                async with lim():
                    pass
            known = place(lim)
            assert (known["state"], known["members"], fleet.problem) == ("live", 1, None)
            assert known["lease_until"] is not None
            assert 5 <= known["limits"][0]["share"] <= known["limits"][0]["limit"] == LIMIT
            assert server.members(account) == 1
        assert place(lim)["state"] == "out"
        assert "the share of this process in the limit of 40 requests per 1s" in lim.wait()[1]
        assert server.members(account) == 0
        async with joined(lim, server.url, account):
            async with lim():
                pass

    run(main)


def test_threads_have_a_share_too(server, account):
    lim = limiter()
    with joined(lim, server.url, account):
        with lim():
            assert (place(lim)["state"], server.members(account)) == ("live", 1)
    assert lim.try_acquire() is None
    assert server.members(account) == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_a_client_of_redis_py_carries_it_as_it_is(server, account, protocol, decode):
    lim = limiter()
    with redis.Redis(port=server.port, protocol=protocol, decode_responses=decode) as client:
        with joined(lim, client, account), lim():
            assert server.members(account) == 1
        assert client.ping(), "it is left as it was"

    async def main():
        lim = limiter()
        async with redis.asyncio.Redis(port=server.port, protocol=protocol, decode_responses=decode) as client:
            async with joined(lim, client, account), lim():
                assert server.members(account) == 1
            assert await client.ping()

    asyncio.run(main())


def test_a_client_that_does_not_fit_is_named(server, account):
    with pytest.raises(TypeError, match="expected redis.Redis for `with`"):
        with joined(limiter(), redis.asyncio.Redis(port=server.port), account):
            pass
    with pytest.raises(TypeError, match="int is no store of a fleet"):
        with joined(limiter(), 3, account):
            pass

    async def main():
        with pytest.raises(TypeError, match="expected redis.asyncio.Redis for `async with`"):
            async with joined(limiter(), redis.Redis(port=server.port), account):
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weight": 17}, "weight.*from 1 to 16"),
        ({"lease": 1}, "lease.*from 3 s"),
        ({"on_loss": "open"}, "strict"),
        ({"alone_share": "6"}, "alone_share.*6rpm, 2k tpm"),
        ({"alone_share": "6rpm"}, "alone_share is 6 requests per 60s, expected a limit of the account"),
        ({"account": "{a}"}, "account.*without braces"),
        ({"store": "postgres://a/b"}, "redis://"),
    ],
)
def test_an_option_that_cannot_be_is_named(server, options, expected):
    options = {"store": server.url, "account": "a", **options}
    with pytest.raises(ValueError, match=expected):
        with paceline.fleet.join(limiter(), **options):
            pass


def test_what_is_missing_is_named(server):
    with pytest.raises(TypeError, match="no store"):
        paceline.fleet.join(limiter(), account="a")
    with pytest.raises(TypeError, match="no account"):
        paceline.fleet.join(limiter(), server.url, host="https://api.example.org")
    with pytest.raises(ValueError, match="a configured limit"):
        with paceline.fleet.join(Limiter(pace="fixed"), server.url, account="a"):
            pass
    program = "import sys; sys.modules['redis'] = None\nimport paceline.fleet\n"
    program += "with paceline.fleet.join(paceline.Limiter('1 rps'), 'redis://x', account='a'): pass"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'paceline[fleet]'" in ended.stderr


def test_a_file_names_its_fleet(server, account, tmp_path):
    file = tmp_path / "paceline.toml"
    file.write_text(f"[upstream.a]\nbase_url = 'http://a'\nrpm = 60\nfleet = '{server.url}'\nweight = 3\nfleet_lease = '4s'\n")
    lim = Limiter.from_file(file)
    with paceline.fleet.join(lim, account=account):
        until(lambda: place(lim)["state"] == "live")
    other = Limiter.from_file(file)
    with paceline.fleet.join(other, host="https://api.example.org/v1", key="sesame") as fleet:
        assert len(fleet.account) == 32 and "sesame" not in fleet.account


def test_a_limiter_of_a_file_makes_no_call_beside_the_fleet_of_that(server, account, tmp_path):
    file = tmp_path / "paceline.toml"
    file.write_text(f"[upstream.a]\nbase_url = 'http://a'\nlimits = ['40 per 1s']\nfleet_lease = '3s'\nfleet = '{server.url}'\n")
    lim = Limiter.from_file(file)

    @lim
    def call():
        return True

    for use in (call, lim.acquire_sync, lim.try_acquire):
        with pytest.raises(RuntimeError, match="upstream.a.fleet: this limiter has not joined"):
            use()
    with paceline.fleet.join(lim, account=account):
        assert call()


def test_members_share_evenly_and_by_weight(server, account):
    first, second = limiter(), limiter()
    stop = threading.Event()

    def calls(lim):
        while not stop.is_set():
            permit = lim.acquire_sync()
            permit.done()

    shares = []
    with joined(first, server.url, account, weight=3), joined(second, server.url, account):
        threads = [threading.Thread(target=calls, args=(lim,)) for lim in (first, second) for _ in range(LIMIT)]
        for thread in threads:
            thread.start()

        def is_divided():
            shares[:] = [place(lim)["limits"][0]["share"] for lim in (first, second)]
            assert sum(shares) <= LIMIT
            return shares == [30, 10]

        until(is_divided)
        stop.set()
        for thread in threads:
            thread.join()


def test_members_with_other_limits_are_refused_with_both(server, account):
    with joined(limiter(), server.url, account):
        with pytest.raises(paceline.FleetError, match="divides other limits: 40 requests per 1s.*here 7 requests per 1s"):
            with joined(limiter(7), server.url, account):
                pass


def test_a_store_that_refuses_says_so_at_the_join(run, account):
    users = [
        ("stranger", "wrong", "invalid username-password|WRONGPASS"),
        ("noscript", "sesame", "NOPERM.*eval|NOPERM.*script"),
        ("nochannel", "sesame", "NOPERM.*channel"),
    ]
    with RedisServer("--requirepass", "sesame") as server:
        cli = ["--no-auth-warning", "-a", "sesame", "ACL", "SETUSER"]
        server.ask(*cli, "noscript", "on", ">sesame", "~*", "&*", "+@all", "-@scripting")
        server.ask(*cli, "nochannel", "on", ">sesame", "~*", "resetchannels", "+@all")

        async def main():
            for user, password, expected in users:
                store = f"redis://{user}:{password}@127.0.0.1:{server.port}"
                with pytest.raises(paceline.FleetError, match=expected) as refused:
                    async with joined(limiter(), store, account):
                        pass
                assert "sesame" not in str(refused.value)
                assert f"the store of the fleet on 127.0.0.1:{server.port} refuses" in str(refused.value)
                with pytest.raises(paceline.FleetError, match=expected):
                    with joined(limiter(), store, account):
                        pass
            with pytest.raises(paceline.FleetError, match="Authentication required"):
                async with joined(limiter(), server.url, account):
                    pass

        run(main)


def test_a_pause_that_one_member_is_told_holds_the_others(server, account):
    told, other = limiter(), limiter()
    with joined(told, server.url, account), joined(other, server.url, account):
        permit = told.acquire_sync()
        other.acquire_sync().done()
        permit.report("throttled", wait=600)
        until(lambda: (other.wait() or (0, ""))[0] > 500)
        assert other.try_acquire() is None


FORKS = """
import os, sys, warnings
import paceline, paceline.fleet
warnings.simplefilter("error")
lim = paceline.Limiter("40 per 1s", pace="fixed", burst=40)
with paceline.fleet.join(lim, sys.argv[1], account=sys.argv[2], lease=3.0):
    with lim():
        pass
    child = os.fork()
    with lim():
        pass
    if child == 0:
        assert lim.snapshot()["account"]["totals"]["sends"] == 1
        assert lim.snapshot()["account"]["fleet"]["members"] == 2
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    with lim():
        pass
"""


def test_a_child_of_fork_is_a_member_of_its_own(server, account):
    subprocess.run([sys.executable, "-c", FORKS, server.url, account], check=True, timeout=60)
    assert server.members(account) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_in_a_child_of_fork_a_place_of_a_loop_is_none(server, account):
    async def main():
        lim = limiter()
        async with joined(lim, server.url, account):
            async with lim():
                pass
            child = os.fork()
            if child == 0:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    said = lim.try_acquire() is None and "joins anew" in str(caught[0].message)
                os._exit(0 if said else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            async with lim():
                pass

    asyncio.run(main())


ENDS = """
import asyncio, sys
import paceline, paceline.fleet
lim = paceline.Limiter("40 per 1s", pace="fixed", burst=40)
fleet = paceline.fleet.join(lim, sys.argv[1], account=sys.argv[2], lease=3.0)
async def main():
    await fleet.__aenter__()
    async with lim():
        pass
if sys.argv[3] == "threads":
    fleet.__enter__()
    with lim():
        pass
else:
    asyncio.run(main())
    assert lim.snapshot()["account"]["fleet"]["state"] == "out"
"""


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_process_that_ends_says_so(server, account, kind):
    subprocess.run([sys.executable, "-c", ENDS, server.url, account, kind], check=True, timeout=60)
    assert server.members(account) == 0


def test_one_limiter_goes_from_loop_to_loop_and_has_one_place(server, account):
    lim = limiter()

    async def main():
        async with joined(lim, server.url, account):
            with pytest.raises(RuntimeError, match="has a place in a fleet already"):
                async with joined(lim, server.url, account):
                    pass
            async with lim():
                pass

    asyncio.run(main())
    asyncio.run(main())
    with joined(lim, server.url, account), lim():
        # A place in a thread serves callers in loops too.
        async def calls():
            async with lim():
                pass

        asyncio.run(calls())
