"""What a limiter lets through, and what it says of those that wait."""

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
    assert limiter.wait() == (None, "a free slot among the calls in flight (the whole account)")
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
    with pytest.raises(paceline.WouldWait, match="would wait 60 s for the limit of 1 requests per 60s") as caught:
        limiter.acquire_sync(max_wait=5)
    assert round(caught.value.seconds) == 60
    with pytest.raises(paceline.DeadlineExceeded, match="which is 60"):
        limiter.acquire_sync(within=5)
    assert limiter.snapshot()["account"]["waiting"] == 0


def test_explain_and_the_snapshot_say_until_when_and_why(clock):
    limiter = Limiter("1 per 60s", clock=clock, pace="fixed")
    limiter.try_acquire().done()
    seconds, reason = limiter.wait()
    assert (round(seconds), reason) == (60, "the limit of 1 requests per 60s (the whole account)")
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
    ],
)
def test_wrong_options_are_refused_by_name(arguments, options, error, words):
    with pytest.raises(error) as caught:
        Limiter(*arguments, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("bad", [{"within": -1}, {"max_wait": float("nan")}, {"cost": {"rows": -1}}, {"cost": {"rows": "x"}}])
def test_wrong_arguments_of_a_call_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(next(iter(bad.values())))) if isinstance(next(iter(bad.values())), dict) else next(iter(bad))):
        Limiter()(**bad)


def test_a_file_has_limits_too(tmp_path, clock):
    file = tmp_path / "paceline.toml"
    file.write_text('[upstream.mine]\nprovider = "openai"\nlimits = ["3 per 60s"]\npace = "fixed"\n')
    limiter = Limiter.from_file(file, clock=clock)
    assert limiter.provider == "openai"
    assert limiter.snapshot()["account"]["quotas"][0]["limit"] == 3
