"""One key's limits over many processes and hosts: a limiter's share of them, from a ledger on Redis or Valkey, over redis-py.

    async with paceline.fleet.join(limiter, "redis://redis.example.org", account="api.example.org, our key"):
        ...                                       # the limiter is used as ever

`with` is the same for threads. No call waits for the store: in the background the limiter asks for what its waiting calls need, and
gives back what they do not. Processes of Python and of the program `paceline` share one fleet. See docs/fleet.md.
"""

from ._engine import Member, account_of, fleet_of
from ._errors import FleetError
from ._limiter import _seed, expect_limiter

__all__ = ["Fleet", "FleetError", "join"]

_UNSET = object()


def join(limiter, store=None, *, account=None, host=None, key=_UNSET, weight=None, on_loss=None, lease=None, alone_share=None):
    """The place of a limiter in a fleet, for `async with` or `with`.

    `store`: an address (`redis://`, `rediss://`, `unix://`), or a client of redis-py, which may have TLS, users, Sentinel as you
    made it; without one it is the `fleet` of the file that the limiter was made from.
    `account`: whose limits are divided, in words that hold no secret, the same in all processes. `host` and `key` in its place name the
    account of an API as the program `paceline` does; the store learns a hash of them.
    `weight`: the part of this process where all want more than there is, 1 to 16 (default 1). `on_loss`: what it does once the store
    has been away for a lease: `"strict"` (the default), nothing leaves, or `"keep"`, it goes on with its last share. `lease`: seconds, 3
    to 300 (default 30), the same in all processes. `alone_share`: what it may use without a lease, one for each limit: `"6rpm, 2k tpm"`.
    It is set aside beforehand: the limits of the limiter are what the fleet divides, and they and what all processes may use alone are
    together at most what the account has.
    """
    limiter = expect_limiter(limiter)
    if limiter.clock.is_virtual:
        raise ValueError("a limiter in virtual time cannot join a fleet, whose store keeps to real time")
    named = fleet_of(limiter)
    if store is None:
        if named is None:
            raise TypeError("no store: name its address, such as redis://redis.example.org, or give a client of redis-py")
        store = named[0]
    if account is None:
        if host is None or key is _UNSET:
            raise TypeError("no account: name it with account=, the same words in all processes, or the API with host= and key=")
        account = account_of(limiter, host, key)
    elif host is not None or key is not _UNSET:
        raise TypeError("the account is named twice: with account=, and with host= and key=")
    _, *usual = named or (None, 1, "strict", 30.0, "")
    terms = (
        default if given is None else given for given, default in zip((weight, on_loss, lease, alone_share), usual)
    )
    return Fleet(limiter, store, account, *terms)


class Fleet:
    """The place of a limiter in a fleet, in a block. After it nothing leaves before the limiter joins anew."""

    def __init__(self, limiter, store, account, weight, on_loss, lease, alone_share):
        self.limiter = limiter
        self.account = account
        self._store = store
        self._terms = weight, on_loss, lease, alone_share
        self._place = None

    @property
    def problem(self):
        """Why the store cannot be asked, until it answers."""
        return self._place and self._place.problem

    def _member(self, server):
        return Member(self.limiter, self.account, server, *self._terms, _seed(), _seed())

    def _enter(self, kind):
        if self.limiter._fleet is not None:
            raise RuntimeError("this limiter has a place in a fleet already: leave that first")
        self._place = kind(self.limiter, kind.client(self._store), self._member)
        return self._place

    def __enter__(self):
        from ._fleet_thread import InThread

        self._enter(InThread).join()
        return self

    def __exit__(self, kind, error, trace):
        self._place.leave()

    async def __aenter__(self):
        from ._homes import in_trio

        if in_trio():
            import trio

            await trio.to_thread.run_sync(self.__enter__)
            return self
        from ._fleet_loop import InLoop

        await self._enter(InLoop).join()
        return self

    async def __aexit__(self, kind, error, trace):
        from ._homes import in_trio

        if in_trio():
            import trio

            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._place.leave)
        else:
            await self._place.leave()
