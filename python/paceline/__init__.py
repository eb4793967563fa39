"""Paces every call to a rate-limited API."""

from ._errors import DeadlineExceeded, Error, FleetError, ForkWarning, RetryWarning, Stopped, TooLarge, WouldWait
from ._limiter import Limiter, Permit

__all__ = [
    "DeadlineExceeded",
    "Error",
    "FleetError",
    "ForkWarning",
    "Limiter",
    "Permit",
    "RetryWarning",
    "Stopped",
    "TooLarge",
    "WouldWait",
    "run",
]


def __getattr__(name):
    # Each with what it needs, when it is named first.
    if name in ("batch", "boto", "fleet", "httpx", "langchain", "requests", "tasks", "testing"):
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(*args, **options):
    """A file of requests becomes a file of results, with the program `paceline`. See `paceline.batch`."""
    from .batch import run

    return run(*args, **options)
