"""What a limiter lets through, and what it says of those that wait."""

import asyncio
import copy
import pickle

import pytest

import paceline
from paceline import Limiter


def starts(limiter, clock, calls):
    """When each of so many calls left, one after the other."""
    times = []
    for _ in range(calls):
        with limiter():
            times.append(round(clock.now(), 3))
    return times


def test_a_window_never_holds_more_than_its_limit(clock):
    limiter = Limiter("2 per 10s", clock=clock, burst=2, pace="fixed")
    times = starts(limiter, clock, 9)
    assert times[:2] == [0, 0]
    assert all(round(later - earlier, 3) >= 10 for earlier, later in zip(times, times[2:]))
    assert times[-1] < 41


def test_calls_of_a_limit_leave_evenly_spaced(clock):
    limiter = Limiter.per_second(10, burst=1, clock=clock)
    assert starts(limiter, clock, 4) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_a_bucket_stores_its_burst(clock):
    limiter = Limiter.bucket(1, 3, clock=clock)
    assert starts(limiter, clock, 5) == [0, 0, 0, 1, 2]


def test_tokens_and_requests_are_taken_together(clock):
    limiter = Limiter("100 rps, 1000 tpm", clock=clock, pace="fixed")
    with limiter(tokens=600):
        pass
    with limiter(tokens=600):
        assert clock.now() >= 60


def test_usage_replaces_what_was_reserved(clock):
    limiter = Limiter("100 rps, 1000 tpm", clock=clock, pace="fixed")
    with limiter(tokens=900) as permit:
        permit.usage(tokens=100)
    assert limiter.wait(tokens=900) is None


def test_calls_in_flight_are_bounded(clock):
    limiter = Limiter.in_flight(2, clock=clock)
    first, second = limiter.try_acquire(), limiter.try_acquire()
    assert limiter.try_acquire() is None
    assert limiter.wait() == (None, "one of its 2 slots (concurrency), which are all in use (the whole account)")
    first.done()
    assert limiter.try_acquire() is not None
    second.withdraw()


def test_a_permit_that_is_dropped_gives_its_place_back(clock):
    limiter = Limiter.in_flight(1, clock=clock)
    permit = limiter.try_acquire()
    assert limiter.try_acquire() is None
    del permit
    assert limiter.try_acquire() is not None


def test_a_tier_has_limits_of_its_own(clock):
    limiter = Limiter("100 rps", tiers={"slow": "1 per 5s"}, clock=clock, pace="fixed")
    times = []
    for scope in ("slow", "quick", "slow"):
        with limiter(scope=scope):
            times.append(round(clock.now()))
    assert times == [0, 0, 5]


def test_a_call_that_could_never_start_is_refused(clock):
    limiter = Limiter("1000 tpm", clock=clock)
    with pytest.raises(paceline.TooLarge, match="the request costs 5000 tokens, the limit is 1000"):
        limiter.acquire_sync(tokens=5000)


def test_a_bound_on_the_wait_is_an_answer_with_its_length_and_its_reason(clock):
    limiter = Limiter("1 per 60s", clock=clock, pace="fixed")
    limiter.try_acquire().done()
    assert limiter.try_acquire() is None
    with pytest.raises(paceline.WouldWait, match="would wait 60 s for the limit of 1 request per 60s") as caught:
        limiter.acquire_sync(max_wait=5)
    assert round(caught.value.seconds) == 60
    with pytest.raises(paceline.DeadlineExceeded, match="which is 60"):
        limiter.acquire_sync(within=5)
    assert limiter.snapshot()["account"]["waiting"] == 0


def test_explain_and_the_snapshot_say_until_when_and_why(clock):
    limiter = Limiter("1 per 60s", clock=clock, pace="fixed")
    limiter.try_acquire().done()
    seconds, reason = limiter.wait()
    assert (round(seconds), reason) == (60, "the limit of 1 request per 60s (the whole account)")
    limiter.hold(90)
    assert "nothing leaves for 1m 30s: this program set the pause" in limiter.explain()
    assert limiter.snapshot()["account"]["quotas"][0]["used"] == 1
    limiter.resume()
    limiter.stop("the bill is not paid")
    with pytest.raises(paceline.Stopped, match="the bill is not paid"):
        limiter.acquire_sync()


def test_what_is_known_goes_on_in_another_limiter(clock):
    limiter = Limiter("2 per 60s", clock=clock, pace="fixed")
    limiter.try_acquire().done()
    other = Limiter("2 per 60s", clock=clock, pace="fixed")
    other.restore(limiter.export())
    assert other.snapshot()["account"]["quotas"][0]["used"] == 1


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("5rpx",), {}, ValueError, 'limits="5rpx": expected a number above 0'),
        (("5rpm",), {"pace": "quick"}, ValueError, 'pace="quick": expected one of auto'),
        (("5rpm",), {"provider": "openia"}, ValueError, "openai"),
        (("5rpm",), {"burst": 9}, ValueError, "at most 5"),
        ((), {"max_retries": -1}, ValueError, "retry.max_retries"),
        ((), {"retries": 3}, TypeError, "unknown option retries: expected one of limits, provider"),
        ((), {"base_url": "http://x"}, TypeError, "unknown option base_url"),
        ((), {"breaker": {"opens": 3}}, TypeError, "unknown field `opens`"),
        ((), {"file": "/nowhere.toml"}, ValueError, "cannot be read"),
        ((5,), {}, ValueError, "limits=5: expected a text, such as '500rpm"),
        ((None,), {}, ValueError, "limits=None: expected a text"),
        (([5],), {}, ValueError, "limits=[5]: expected a text"),
        (("5rpm",), {"tiers": 5}, ValueError, "tiers=5: expected a dictionary"),
        (("5rpm",), {"tiers": {5: "5rpm"}}, ValueError, "tiers={5: '5rpm'}: expected a dictionary"),
        ((), {"retry": 3}, TypeError, "retry = 3: invalid type"),
        ((), {"retry": 3, "max_retries": 2}, ValueError, "retry=3: expected a dictionary"),
    ],
)
def test_wrong_options_are_refused_by_name(arguments, options, error, words):
    with pytest.raises(error) as caught:
        Limiter(*arguments, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"within": -1}, "within=-1: expected seconds, from 0"),
        ({"within": "5s"}, "within='5s': expected seconds"),
        ({"max_wait": float("nan")}, "max_wait=nan: expected seconds"),
        ({"cost": {"rows": -1}}, "rows=-1: expected a whole number of at least 0"),
        ({"cost": {"rows": "x"}}, "rows='x': expected a whole number"),
        ({"cost": 5}, "cost=5: expected a dictionary"),
        ({"tokens": -1}, "tokens=-1: expected a whole number of at least 0"),
        ({"tokens": 1.5}, "tokens=1.5: expected a whole number"),
        ({"tokens": 2**70}, "expected a whole number"),
        ({"scope": 5}, "scope=5: expected a text"),
        ({"priority": 2**40}, "priority=1099511627776: expected a whole number"),
        ({"max_retries": -1}, "max_retries=-1: expected a whole number of at least 0"),
    ],
)
def test_wrong_arguments_of_a_call_are_refused(bad, words):
    with pytest.raises(ValueError) as caught:
        Limiter()(**bad)
    assert words in str(caught.value)


def test_wrong_words_about_a_call_change_nothing():
    limiter = Limiter("100 rps, 1000 tpm", pace="fixed")
    with pytest.raises(TypeError, match="size: a call has cost, max_retries, max_wait, priority"):
        limiter(size=3)
    with pytest.raises(TypeError, match="'search' is no function: what a call is like has a name"):
        limiter("search")
    with pytest.raises(ValueError, match="seconds='5': expected seconds"):
        limiter.hold("5")
    with pytest.raises(ValueError, match="tokens=-1: expected a whole number"):
        limiter.wait(tokens=-1)
    with pytest.raises(ValueError, match="state: expected what `export` of a limiter gave"):
        limiter.restore("{")
    permit = limiter.try_acquire(tokens=900)
    permit.usage(tokens=100)
    with pytest.raises(ValueError, match="rows=-1"):
        permit.usage(tokens=5, rows=-1)
    permit.done()
    assert limiter.wait(tokens=900) is None
    assert limiter.wait(tokens=901) is not None


def test_a_limiter_in_place_of_a_call_and_a_copy_of_one_say_what_to_write():
    limiter = Limiter()
    with pytest.raises(TypeError, match="write `with limiter"):
        with limiter:
            pass

    async def block():
        async with limiter:
            pass

    with pytest.raises(TypeError, match="write `async with limiter"):
        asyncio.run(block())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(limiter)
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(limiter())


def test_a_limit_in_plain_words_is_alone():
    limiter = Limiter.per_minute(500, burst=100)
    permits = [limiter.try_acquire() for _ in range(100)]
    assert None not in permits
    assert limiter.snapshot()["account"]["concurrency"]["current_limit"] == 100_000
    assert Limiter.per_minute(500, concurrency=8).snapshot()["account"]["concurrency"]["current_limit"] == 8


def test_no_key_is_shown():
    limiter = Limiter()
    limiter.stop("Incorrect API key provided: sk-proj-abcdefghijklmnop1234567890")
    with pytest.raises(paceline.Stopped) as caught:
        limiter.acquire_sync()
    shown = [str(caught.value), repr(limiter), limiter.explain(), str(limiter.snapshot())]
    assert not any("abcdefghijklmnop" in text for text in shown)
    assert all("Incorrect API key provided" in text for text in shown[:3])


def test_a_file_has_limits_too(tmp_path, clock):
    file = tmp_path / "paceline.toml"
    file.write_text('[upstream.mine]\nprovider = "openai"\nlimits = ["3 per 60s"]\npace = "fixed"\n')
    limiter = Limiter.from_file(file, clock=clock)
    assert limiter.provider == "openai"
    assert limiter.snapshot()["account"]["quotas"][0]["limit"] == 3
