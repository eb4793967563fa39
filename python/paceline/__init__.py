"""Paces every call to a rate-limited API."""

from ._errors import DeadlineExceeded, Error, ForkWarning, RetryWarning, Stopped, TooLarge, WouldWait
from ._limiter import Limiter, Permit

__all__ = [
    "DeadlineExceeded",
    "Error",
    "ForkWarning",
    "Limiter",
    "Permit",
    "RetryWarning",
    "Stopped",
    "TooLarge",
    "WouldWait",
    "run",
]


def run(*args, **options):
    """A file of requests becomes a file of results, with the program `paceline`. See `paceline.batch`."""
    from .batch import run

    return run(*args, **options)
