"""Why a call gets no permit. To wait for a limit is no error."""


class Error(Exception):
    """Paceline gives no permit."""


class TooLarge(Error, ValueError):
    """The call costs more than a limit ever allows at once, so it could never start."""


class DeadlineExceeded(Error, TimeoutError):
    """The call cannot start within the time that it was given (`within`, `deadline`)."""


class Stopped(Error):
    """The scope or the account is stopped until a person acts: a bad key, no credit. `Limiter.resume` ends it."""


class WouldWait(Error):
    """The call would have to wait longer than it takes (`max_wait`): `seconds`, where that is known, and `reason`."""

    def __init__(self, seconds, reason):
        super().__init__(seconds, reason)
        self.seconds = seconds
        self.reason = reason

    def __str__(self):
        length = "" if self.seconds is None else f" {self.seconds:.3g} s"
        return f"the call would wait{length} for {self.reason}"


class FleetError(Error):
    """The store of a fleet refuses, or its members share other limits. One that is only away is waited for."""


class ForkWarning(RuntimeWarning):
    """A limiter was copied by fork: parent and child each keep to the whole limit, and together they exceed it."""


class RetryWarning(RuntimeWarning):
    """A client sends again by itself what the limiter sends again: each retry of one is multiplied by those of the other."""
