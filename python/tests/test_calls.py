"""What the end of a call means: answers, failures and errors of functions, and items of many."""

import asyncio
import json
import threading

import pytest

import paceline
from paceline import Limiter


class Response:
    """As much of a response as is read."""

    def __init__(self, status, body=None, **headers):
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._content = json.dumps(body).encode()


class HTTPError(Exception):
    def __init__(self, response):
        self.response = response


def account(limiter):
    return limiter.snapshot()["account"]


THROTTLED = Response(429, {"error": {"message": "slow down"}}, retry_after="7")
ANSWERED = Response(200, {"choices": []})


def scripted(*ends):
    """A function whose calls end so, one after the other; `calls` are their numbers."""
    ends = list(ends)

    def call():
        call.count += 1
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    call.count = 0
    return call


def test_a_refusal_is_sent_again_when_its_wait_is_over(clock):
    limiter = Limiter(provider="openai", clock=clock)
    call = scripted(THROTTLED, HTTPError(THROTTLED), ANSWERED)
    assert limiter.run(call) is ANSWERED
    assert clock.now() >= 14
    assert limiter.snapshot()["account"]["totals"]["by_class"] | {"throttled": 2, "success": 1} == limiter.snapshot()["account"]["totals"]["by_class"]


def test_a_lost_connection_is_tried_again_and_a_mistake_of_the_program_is_not(clock):
    limiter = Limiter(clock=clock)
    call = scripted(ConnectionResetError("gone"), TimeoutError(), ANSWERED)
    assert limiter(call)() is ANSWERED
    call = scripted(KeyError("mistake"), ANSWERED)
    with pytest.raises(KeyError):
        limiter.run(call)
    assert call.count == 1


def test_errors_that_a_program_names_are_tried_again(clock):
    limiter = Limiter(clock=clock)

    class Busy(Exception):
        seconds = 3

    assert limiter(retry=Busy)(scripted(Busy(), 7))() == 7
    assert limiter(retry=lambda error: error.seconds == 3)(scripted(Busy(), 8))() == 8


def test_the_bound_of_retries_ends_with_the_last_error_or_result(clock):
    limiter = Limiter(clock=clock, max_retries=2)
    error = ConnectionResetError("third")
    with pytest.raises(ConnectionResetError, match="third"):
        limiter.run(scripted(ConnectionResetError("first"), ConnectionResetError("second"), error))
    failed = Response(500, {})
    call = scripted(failed, failed, failed)
    assert limiter.run(call) is failed
    assert call.count == 3
    one = scripted(failed, ANSWERED)
    assert limiter(max_retries=0)(one)() is failed


def test_a_request_that_can_never_pass_is_not_sent_again(clock):
    limiter = Limiter(provider="openai", clock=clock)
    call = scripted(Response(400, {"error": {"message": "no such model"}}))
    assert limiter.run(call).status_code == 400
    assert call.count == 1


def test_a_bad_key_stops_the_account_and_the_caller_gets_its_own_error(clock):
    limiter = Limiter(provider="openai", clock=clock)
    refused = HTTPError(Response(401, {"error": {"code": "invalid_api_key", "message": "wrong key"}}))
    with pytest.raises(HTTPError):
        limiter.run(scripted(refused))
    with pytest.raises(paceline.Stopped, match="wrong key"):
        limiter.run(scripted(ANSWERED))
    limiter.resume()
    assert limiter.run(scripted(ANSWERED)) is ANSWERED


def test_a_deadline_ends_with_the_error_of_the_last_call(clock):
    limiter = Limiter(provider="openai", clock=clock)
    with pytest.raises(HTTPError):
        limiter(within=5)(scripted(HTTPError(THROTTLED), ANSWERED))()


def test_a_decorated_coroutine_function_stays_one(run, clock):
    limiter = Limiter("1000 rps")

    @limiter(scope="search")
    async def search(query, *, limit=1):
        """Searches."""
        return query, limit

    assert asyncio.iscoroutinefunction(search)
    assert (search.__name__, search.__doc__) == ("search", "Searches.")

    async def main():
        return await search("a", limit=3)

    assert run(main) == ("a", 3)


def test_a_generator_cannot_be_decorated():
    with pytest.raises(TypeError, match="is a generator"):

        @Limiter()
        def items():
            yield 1


def test_a_permit_can_be_ended_by_hand(clock):
    limiter = Limiter.in_flight(1, clock=clock)
    permit = limiter.acquire_sync()
    assert permit.answered(THROTTLED)
    assert limiter.wait() is not None
    assert permit.again_sync() is permit
    with permit:
        assert clock.now() >= 7
    assert limiter.try_acquire().report("overloaded", wait=2.5)
    with pytest.raises(ValueError, match="expected one of success"):
        limiter.acquire_sync().report("tired")


def test_a_permit_is_for_one_call(clock):
    limiter = Limiter(clock=clock)
    permit = limiter()
    with permit:
        pass
    with pytest.raises(RuntimeError, match="a permit is for one call"):
        with permit:
            pass


@pytest.mark.parametrize("ordered", [True, False])
def test_map_gives_each_item_its_result(ordered):
    limiter = Limiter("10000 rps", pace="fixed", concurrency=100)
    running, most = 0, 0

    async def ask(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number * 2

    async def main():
        return [pair async for pair in limiter.map(ask, range(200), at_once=8, ordered=ordered)]

    pairs = asyncio.run(main())
    assert (pairs if ordered else sorted(pairs)) == [(number, number * 2) for number in range(200)]
    assert most <= 8


def test_map_takes_items_as_they_are_needed():
    limiter = Limiter("10000 rps", pace="fixed", concurrency=100)
    taken = 0

    def items():
        nonlocal taken
        for taken in range(1, 10_001):
            yield taken

    async def main():
        async for _, _ in limiter.map(asyncio.sleep, (0 for _ in items()), at_once=4):
            if taken > 20:
                break

    asyncio.run(main())
    assert taken < 60
    assert limiter.snapshot()["account"]["concurrency"]["in_flight"] == 0


def test_map_in_threads_and_its_errors():
    limiter = Limiter("10000 rps", pace="fixed", concurrency=100)

    def ask(number):
        if number == 5:
            raise KeyError(number)
        return -number

    pairs = list(limiter.map(ask, range(9), at_once=3, return_exceptions=True))
    assert [item for item, _ in pairs] == list(range(9))
    assert isinstance(pairs[5][1], KeyError) and pairs[6][1] == -6
    with pytest.raises(KeyError):
        list(limiter.map(ask, range(9)))


def test_threads_of_a_map_that_has_ended_wait_no_longer():
    limiter, goes_on, left = Limiter.in_flight(1), threading.Event(), []

    def ask(item):
        left.append(item)
        assert item == 0 or goes_on.wait(5)

    pairs = iter(limiter.map(ask, range(9), at_once=3))
    assert next(pairs) == (0, None)
    while len(left) < 2 or account(limiter)["waiting"] == 0:
        pass
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("paceline-map")]
    pairs.close()
    assert account(limiter)["waiting"] == 0
    goes_on.set()
    for thread in threads:
        thread.join(5)
    # The process could not end before those that wait have left, too.
    assert threads and not any(thread.is_alive() for thread in threads)
    assert len(left) == 2
    assert limiter.try_acquire() is not None


def test_a_key_in_an_error_is_not_logged(caplog):
    caplog.set_level("INFO", "paceline")
    failures = [KeyError("refused: Authorization: Bearer sk-proj-abcdefghijklmnop1234567890")]

    @Limiter(retry={"base": "1ms"})(retry=KeyError)
    def fails_once():
        if failures:
            raise failures.pop()

    fails_once()
    assert "again in" in caplog.text and "abcdefghijklmnop" not in caplog.text


def test_errors_of_ones_own_that_may_pass_are_named_by_a_class_or_a_function():
    limiter = Limiter.in_flight(1)
    with pytest.raises(ValueError, match="retry=5: expected a class of errors"):
        limiter(retry=5)

    @limiter(retry=lambda error: 1 / 0)
    def fails():
        raise KeyError

    with pytest.raises(ZeroDivisionError) as caught:
        fails()
    assert account(limiter)["concurrency"]["in_flight"] == 0, caught


def test_map_ends_its_tasks_when_one_fails():
    limiter = Limiter("10000 rps", pace="fixed", concurrency=100)
    cancelled = []

    async def ask(number):
        if number == 2:
            raise KeyError(number)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def main():
        with pytest.raises(KeyError):
            async for _ in limiter.map(ask, range(5), ordered=False):
                pass
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert cancelled == [0, 1, 3, 4]


def test_map_shows_its_progress():
    class Bar:
        def __init__(self, total):
            Bar.total, Bar.count, Bar.open = total, 0, True

        def update(self, by):
            Bar.count += by

        def close(self):
            Bar.open = False

    list(Limiter("10000 rps", pace="fixed").map(abs, [1, 2, 3], progress=Bar))
    assert (Bar.total, Bar.count, Bar.open) == (3, 3, False)


def test_map_says_what_it_is_called_with():
    limiter = Limiter()
    with pytest.raises(TypeError, match="use `async for`"):
        iter(limiter.map(asyncio.sleep, []))
    with pytest.raises(TypeError, match="use `for`"):
        limiter.map(abs, []).__aiter__()
    with pytest.raises(ValueError, match="at_once=0"):
        limiter.map(abs, [], at_once=0)
