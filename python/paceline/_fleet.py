"""A limiter's place in a fleet, over redis-py: what a task in a loop of asyncio (_fleet_loop.py) and a thread (_fleet_thread.py) carry.

The engine's `Member` says what to say to the store and when; a place says it, on one connection at a time. A connection that redis-py
would make anew by itself may lead to a server that has lost the ledger, so none is kept after an error.
"""

from asyncio import TimeoutError as LoopTimeoutError
from importlib.util import find_spec
from time import monotonic

from ._engine import without_keys
from ._limiter import _logger

if find_spec("redis") is None:
    raise ModuleNotFoundError("a fleet needs redis-py: pip install 'paceline[fleet]'", name="redis")

import redis

SILENT = 2.0  # seconds; a connection that does not answer for so long is given up. A member gives a request up before
CONNECTS = 5.0  # seconds that one try to connect may take, of a client that is made here
LEAVES = 2.0  # seconds that a bye may take: where the store is away, the share comes back with its lease
LONGEST = 10.0  # seconds between two looks at the subscription, which redis-py tests then
FAULTS = (redis.RedisError, OSError, TimeoutError, LoopTimeoutError)
UNREAD = ValueError  # of an answer that is none of a ledger
# The first word of an error of the server, which redis-py takes away where it has a class for it.
CODES = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.ExecAbortError: "EXECABORT",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
}


class Place:
    """What both carriers do. `course` says what is to be done; `_open`, `_say`, `_listen`, `_wait` and `_close` do it."""

    def __init__(self, limiter, client, member):
        self.limiter = limiter
        self.client = client
        self.server = _server(client)
        self.make = member
        self.member = member(self.server)
        self.problem = None
        self.is_linked = self.leaves = self.has_told = False
        self.tries = 0.0
        self.due = None  # when the limiter wants the member to be asked
        self.cut = None  # why the subscription has ended
        limiter._fleet = self
        limiter._forked = None

    def course(self):
        """What is to be done, one after the other: pairs of a step and its argument, which are sent what came of them."""
        while True:
            try:
                if not self.is_linked and not self.leaves and monotonic() >= self.tries:
                    yield from self.link()
                if self.cut is not None:
                    raise self.cut
                said, wait = self.poll()
                if said is None:
                    return
                if said and self.is_linked:
                    for number, words in said:
                        yield from self.ask(number, words)
                    continue
                if not self.is_linked and not self.leaves:
                    tries = max(self.tries - monotonic(), 0.0)
                    wait = tries if wait is None else min(wait, tries)
                yield self._wait, wait
            except (*FAULTS, UNREAD) as error:
                yield self._close, None
                self.failed(error)

    def link(self):
        yield self._open, None
        *_, answers = yield self._say, [["MULTI"], *self.member.greeting(), ["EXEC"]]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        yield self._say, self.member.preparation()
        yield self._listen, self.member.channel()
        self.member.linked(answers)
        self.is_linked = True

    def ask(self, number, words):
        try:
            (answer,) = yield self._say, [words]
        except redis.exceptions.NoScriptError:
            *_, answer = yield self._say, [self.member.load(), words]
        self.member.answered(number, answer)
        if self.problem is not None:
            self.problem = None
            _logger().info("the store of the fleet on %s answers again", self.server)
        self.joined()

    def poll(self):
        """What to say, and the seconds until there may be more; neither once it has left."""
        self.due = None
        if self.leaves and not self.has_told:
            self.has_told = True
            self.member.leave()
        said, wait, changes = self.member.poll()
        for change in changes:
            if change == "alone":
                _logger().warning("the store of the fleet on %s has not answered for a lease", self.server)
            elif change == "joined":
                _logger().debug("this process has a share of the limits on %s", self.server)
            elif change == "unanswered":
                self.cut = redis.TimeoutError("it has answered no request within half a second for two seconds")
            else:
                return None, None
        return said, wait

    def failed(self, error):
        self.is_linked, self.cut = False, None
        text, pause = self.member.failed(*_said(error))
        self.tries = monotonic() + pause
        if self.problem is None:
            _logger().warning("%s; asking again", text)
        self.problem = text
        self.joined()

    def ended(self):
        if self.limiter._fleet is self:
            self.limiter._fleet = None

    def noticed(self, message):
        if message is not None and message["type"] == "message":
            self.member.noticed(message["data"])
            self.ring(0.0)

    def ring(self, delay):
        """The member is to be asked in so many seconds, or before."""
        due = monotonic() + delay
        if self.due is None or due < self.due:
            self.due = due
        self.wake()

    def left(self, end):
        """The seconds that are left to wait until then; none where there is something to do before."""
        if self.leaves and not self.has_told or self.cut is not None:
            return 0.0
        ends = [each - monotonic() for each in (end, self.due) if each is not None]
        return min([LONGEST, *ends])


def _said(error):
    """What an error says, the word with which the server began it, and whether the store is only away."""
    words = without_keys(str(error)) or "it has not answered in time"
    is_refused = isinstance(error, (redis.AuthenticationError, UNREAD))
    if not is_refused and not isinstance(error, redis.ResponseError):
        return words, None, True
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
    if code is None and not is_refused:
        first, _, rest = words.partition(" ")
        if first.isupper():
            return rest, first, False
    return words, code, False


def _server(client):
    """The store for people, without a password."""
    pool = client.connection_pool
    named = pool.connection_kwargs
    if "path" in named:
        return named["path"]
    return getattr(pool, "service_name", None) or f"{named.get('host', 'localhost')}:{named.get('port', 6379)}"


def address(store):
    scheme, _, rest = store.partition("://")
    if scheme not in ("redis", "rediss", "unix", "redis+unix") or not rest:
        # Its words may hold a password.
        raise ValueError("that is no address of a fleet's store: expected redis://, rediss:// or unix:// with a host or a path")
    return f"unix://{rest}" if scheme == "redis+unix" else store


def usual(retry):
    """How a client is made here. It does not try again by itself: that is for the place."""
    return {
        "socket_connect_timeout": CONNECTS,
        "socket_timeout": CONNECTS,
        "health_check_interval": 10,
        "retry": retry(redis.backoff.NoBackoff(), 0),
    }


def no_store(store, expected):
    kind = type(store)
    what = "does not fit here" if kind.__module__.partition(".")[0] == "redis" else "is no store of a fleet"
    return TypeError(f"{kind.__module__}.{kind.__name__} {what}: expected {expected}, or an address")
