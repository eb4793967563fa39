"""The limiter of one account, and the permits that it gives."""

import os
from _contextvars import ContextVar
from _thread import allocate_lock
from _weakref import ref

from . import _homes
from ._engine import Call, Clock, Engine
from ._errors import ForkWarning, WouldWait

_limiters = {}
# The permit of the block or of the function in which the code at hand runs, in a list from which one call takes it: a client that is
# paced by the same limiter. A permit beside it would count that call twice, and where such blocks have all places, wait for ever.
_around = ContextVar("paceline", default=None)
_clock = None
_CALL = {"scope", "tokens", "cost", "priority", "within", "max_wait", "max_retries"}
_MOST_IN_FLIGHT = 100_000
_FORKED = (
    "this limiter was copied by fork: parent and child each keep to the whole limit, and together they exceed it. "
    "Make it in each worker with its share of the limit, let each join a fleet, or send through one `paceline serve`"
)
_FORKED_IN_FLEET = (
    "this limiter was copied by fork, and its place in a fleet is that of the parent, whose event loop keeps it: nothing leaves "
    "here before the child joins anew, with `async with paceline.fleet.join(...)`"
)


def _seed():
    return int.from_bytes(os.urandom(8), "little")


def _usual_clock():
    global _clock
    if _clock is None:
        _clock = Clock()
    return _clock


class Limiter(Engine):
    """Paces all calls to one account: one host and one key."""

    _fleet = None

    def __new__(cls, limits=(), /, *, file=None, upstream=None, seed=None, clock=None, **options):
        clock = _usual_clock() if clock is None else clock
        options = _options(limits, options)
        if file is not None and options:
            raise TypeError(f"{', '.join(options)}: the file has the options; name either of them")
        return super().__new__(cls, options, clock, _seed() if seed is None else seed, file, upstream)

    def __init__(self, limits=(), /, **options):
        self._homes = {}
        self._lock = allocate_lock()
        self._forked = None
        number = id(self)
        _limiters[number] = ref(self, lambda _: _limiters.pop(number, None))

    # Each kind of limit in plain words: that limit and no other, unless an option says otherwise.

    @classmethod
    def per_second(cls, calls, **options):
        return cls(f"{calls} rps", **_alone(options))

    @classmethod
    def per_minute(cls, calls, **options):
        return cls(f"{calls} rpm", **_alone(options))

    @classmethod
    def per_hour(cls, calls, **options):
        return cls(f"{calls} rph", **_alone(options))

    @classmethod
    def per_day(cls, calls, **options):
        return cls(f"{calls} rpd", **_alone(options))

    @classmethod
    def bucket(cls, per_second, burst, **options):
        return cls(f"{per_second} rps", burst=burst, shape="bucket", **_alone(options))

    @classmethod
    def in_flight(cls, calls, **options):
        return cls(f"{calls} concurrent", **{"pace": "fixed", **options})

    @classmethod
    def from_file(cls, file, upstream=None, **rest):
        return cls(file=os.fspath(file), upstream=upstream, **rest)

    def __call__(self, function=None, /, **call):
        if call:
            retry = call.pop("retry", None)
            if not call.keys() <= _CALL:
                raise TypeError(f"{', '.join(call.keys() - _CALL)}: a call has {', '.join(sorted(_CALL | {'retry'}))}")
            if not (retry is None or callable(retry) or isinstance(retry, tuple)):
                raise ValueError(f"retry={retry!r}: expected a class of errors, a tuple of them, or a function of an error")
            permit = Permit(self, **call)
            permit._retry = retry
        else:
            permit = Permit(self)
        if self._forked:
            self._go_on_after_fork()
        return permit if function is None else permit(function)

    def _for_client(self, call):
        """A permit for a request of a client: that of the block or the function around it, where that made no call yet."""
        return _taken(self) or self(**call)

    async def acquire(self, **call):
        """Waits for a permit, which the caller ends: as a context, or with `done`, `failed` or `answered`."""
        permit = self(**call)
        await permit.again()
        return permit

    def acquire_sync(self, **call):
        """`acquire` for threads."""
        permit = self(**call)
        permit.again_sync()
        return permit

    def try_acquire(self, **call):
        """A permit if the call may leave at once, else `None`; nothing is left behind."""
        permit = self(**call)
        try:
            if permit._start() or permit._take():
                return permit
        except WouldWait:
            return None
        permit._cancel()
        return None

    def wait(self, *, scope=None, tokens=0):
        """How long a call would wait now: `(seconds, reason)`, or `None` if it could leave. The seconds are `None` where the wait
        ends with a call in flight."""
        return self._wait(scope, tokens)

    def run(self, function, /, *args, **kwargs):
        """Calls a function with a permit for each try; a coroutine function is awaited."""
        return self()(function)(*args, **kwargs)

    def map(self, function, items, /, *, at_once=64, ordered=True, return_exceptions=False, progress=None, **call):
        """Calls a function for each item, at most `at_once` at a time, and gives `(item, result)`. See docs/python.md."""
        from ._map import Map

        return Map(self, function, items, at_once, ordered, return_exceptions, progress, call)

    def snapshot(self):
        """The numbers that `explain` sums up: the account and each scope, as `paceline stats --json` shows them."""
        import json

        return json.loads(self._snapshot())

    def __repr__(self):
        return f"<paceline.Limiter: {self.explain()}>"

    def __reduce__(self):
        raise TypeError(
            "a limiter cannot be copied, nor sent to another process: each copy would keep to the whole limit, and together they "
            "would exceed it. Share this one among threads and tasks; in each process make one with its share of the limit"
        )

    def __enter__(self):
        raise TypeError("a limiter paces many calls, and a block is one of them: write `with limiter():`, with the brackets")

    async def __aenter__(self):
        raise TypeError("a limiter paces many calls, and a block is one of them: write `async with limiter():`, with the brackets")

    def __exit__(self, *error):
        pass  # no block was entered

    async def __aexit__(self, *error):
        pass

    # What the engine says of calls that wait.

    def _deliver(self, woken, delay, lines, fleet):
        for call in woken:
            waiter = call._waiter
            # Without one it has not begun to wait, and looks before it does.
            if waiter is not None:
                waiter[0].wake(call, waiter[1])
        if delay is not None:
            for home in tuple(self._homes.values()):
                home.arm(delay)
        if lines:
            logger = _logger()
            for line in lines:
                logger.warning(line)
        if fleet is not None and self._fleet is not None:
            self._fleet.ring(fleet)

    def _home(self, place, kind):
        home = self._homes.get(place)
        if home is None:
            with self._lock:
                home = self._homes.setdefault(place, kind(self, place))
        return home

    def _forget(self, home):
        with self._lock:
            if self._homes.get(home.place) is home:
                del self._homes[home.place]

    # After fork.

    def _after_fork(self):
        self._homes = {}
        self._lock = allocate_lock()
        self._forked = _FORKED
        if self._fleet is not None:
            self._forked, self._fleet = _FORKED_IN_FLEET, self._fleet.in_child()
        self._begin_anew(_seed())

    def _go_on_after_fork(self):
        message, self._forked = self._forked, None
        if self._fleet is not None:
            self._fleet.start()
            return
        import warnings

        warnings.warn(message, ForkWarning, stacklevel=3)


class Permit(Call):
    """One call: `with` it or `async with` it, or decorate a function with it."""

    _waiter = None
    _retry = None

    async def again(self):
        """Waits for the next try, after `answered`, `failed` or `report` said that there is one."""
        if not self._start():
            await _homes.present(self.limiter).wait(self)
        return self

    def again_sync(self):
        """`again` for threads."""
        if not self._start():
            self.limiter._home("threads", _homes.Threads).wait(self)
        return self

    async def __aenter__(self):
        if not self._start():
            await _homes.present(self.limiter).wait(self)
        _around.set([self])
        return self

    async def __aexit__(self, kind, error, trace):
        _around.set(None)
        if kind is None:
            self._succeed()
        else:
            self.failed(error)

    def __enter__(self):
        if not self._start():
            self.limiter._home("threads", _homes.Threads).wait(self)
        _around.set([self])
        return self

    def __exit__(self, kind, error, trace):
        _around.set(None)
        if kind is None:
            self._succeed()
        else:
            self.failed(error)

    def __reduce__(self):
        raise TypeError("a permit is for one call of this process: it cannot be copied")

    def __call__(self, function, /):
        from ._run import decorated

        return decorated(self, function)

    def done(self):
        """The call has succeeded."""
        self._succeed()

    def failed(self, error):
        """The call has failed with this error. Returns whether it may be sent again: then `again` waits for the next try."""
        from ._outcome import of_error

        return of_error(self, error)[0][0]

    def answered(self, response):
        """The call was answered. Returns whether it may be sent again."""
        from ._outcome import of_result

        return of_result(self, response)[0][0]

    def report(self, outcome, *, wait=None, reason=None, whole_account=False):
        """The end of the call by its class: `success`, `throttled`, `overloaded`, `transient`, `quota_exhausted`, `account`,
        `invalid`, `filtered` or `abandoned`; `wait`: the seconds that the server asked for. Returns whether it may be sent again."""
        return self._end(outcome, wait, reason, whole_account)[0]

    def withdraw(self):
        """No call was made: what it reserved is given back."""
        self._cancel()


def expect_limiter(limiter):
    """Returns what a client is to be paced by, if it is a limiter."""
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{limiter!r} is no limiter: make one with paceline.Limiter(...)")
    return limiter


def _taken(limiter):
    """The permit of that limiter around the code at hand, if no call was made under it."""
    offer = _around.get()
    if offer and offer[0].limiter is limiter and offer[0]._is_unused():
        return offer.pop()
    return None


def _alone(options):
    """A limit that is alone: nothing is learnt, and calls in flight are not limited."""
    fixed = options.get("pace", "fixed") == "fixed"
    return {"pace": "fixed", "concurrency": _MOST_IN_FLIGHT, **options} if fixed else options


def _options(limits, options):
    """The words of the configuration file for those of Python."""
    limits = _parts(limits)
    if limits:
        options["limits"] = limits
    if "max_retries" in options:
        retry = options.get("retry", {})
        if not isinstance(retry, dict):
            raise ValueError(f"retry={retry!r}: expected a dictionary, such as {{'base': '1s'}}")
        options["retry"] = {**retry, "max_retries": options.pop("max_retries")}
    if "tiers" in options:
        tiers = options.pop("tiers")
        if not isinstance(tiers, dict) or not all(isinstance(name, str) for name in tiers):
            raise ValueError(f"tiers={tiers!r}: expected a dictionary of models or paths, such as {{'gpt-4o': '50rpm'}}")
        options["tier"] = [_tier(name, _parts(limits)) for name, limits in tiers.items()]
    return {name: value for name, value in options.items() if value is not None}


def _parts(limits):
    try:
        parts = [limits] if isinstance(limits, str) else list(limits)
    except TypeError:
        parts = [limits]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"limits={limits!r}: expected a text, such as '500rpm, 200k tpm', or a list of such texts")
    return [limit.strip() for part in parts for limit in part.split(",")]


def _tier(name, limits):
    return {"match" if name.startswith("/") else "model": name, "limits": limits}


def _logger():
    import logging

    return logging.getLogger("paceline")


def _after_fork_in_child():
    for limiter in tuple(_limiters.values()):
        limiter = limiter()
        if limiter is not None:
            limiter._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
