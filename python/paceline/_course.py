"""The course of one item: a permit for each try, the try, and what follows from its end.

It is written once. What it asks for is a value for callers in threads, and something to await for those in an event loop.
"""

from . import _homes
from ._engine import answer, no_answer, observe
from ._errors import Error
from ._limiter import _around, _logger
from ._outcome import kind_of, of_error, of_result


def enter(permit):
    """Waits for a permit in the event loop at hand."""
    return permit.again()


def enter_sync(permit):
    """Waits for a permit in this thread."""
    return permit.again_sync()


def of_function(permit, enter, function):
    """Calls a function until it succeeds or no further try is left or useful; its last result or its last error."""
    last = None
    while True:
        try:
            yield enter(permit)
        except Error:
            if last is None:
                raise
            return last()
        around = _around.get()
        _around.set([permit])
        try:
            try:
                result = yield function()
            finally:
                _around.set(around)
        except BaseException as error:
            if not follows(permit, of_error(permit, error)):
                raise
            last = _raising(error)
        else:
            if not follows(permit, of_result(permit, result)):
                return result
            last = _returning(result)


def of_request(permit, wire, request_body):
    """Sends a request of HTTP in the same way. `wire` is how a client sends it; without `request_body` it cannot be sent again."""
    last = None
    while True:
        try:
            yield wire.enter(permit)
        except Error:
            if last is None:
                raise
            return last()
        try:
            response = yield wire.send()
            body = yield wire.whole(response)
        except Exception as error:
            kind = kind_of(error)
            if kind is None:
                permit._end("abandoned")
                raise
            if not follows(permit, no_answer(permit, kind, f"{type(error).__name__}: {error}"), request_body is not None):
                raise
            last = _raising(error)
            continue
        except BaseException:
            permit._end("abandoned")
            raise
        status, headers = wire.head(response)
        if body is None:
            # Its client reads it as it comes: nothing of it can be sent again.
            observe(permit, headers)
            return wire.streamed(response, permit)
        if not follows(permit, answer(permit, status, headers, body, request_body), request_body is not None):
            return wire.finished(response)
        last = _returning(wire.finished(response))


async def drive(course):
    """Runs a course whose steps are awaited."""
    try:
        step = course.send(None)
        while True:
            try:
                value = await step
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(value)
    except StopIteration as end:
        return end.value


def drive_sync(course):
    """Runs a course whose steps are values."""
    value = None
    try:
        while True:
            value = course.send(value)
    except StopIteration as end:
        return end.value


def follows(permit, read, is_replayable=True):
    """Whether the item is to be tried again; writes that down."""
    (again, delay, bound), outcome, reason = read
    if again and not is_replayable:
        _logger().warning("%s: %s; given up (the body of the request can be read only once)", outcome, reason)
        return False
    if again and outcome == "account":
        return True  # the engine has said that it is stopped, and the next wait will
    if again:
        _logger().info("%s: %s; again in %.1f s at the earliest", outcome, reason, delay)
    elif bound is not None:
        _logger().warning("%s: %s; given up (%s)", outcome, reason, bound)
    return again


def _raising(error):
    def end():
        raise error

    return end


def _returning(result):
    return lambda: result
