from ._errors import DeadlineExceeded as DeadlineExceeded
from ._errors import Error as Error
from ._errors import ForkWarning as ForkWarning
from ._errors import RetryWarning as RetryWarning
from ._errors import Stopped as Stopped
from ._errors import TooLarge as TooLarge
from ._errors import WouldWait as WouldWait
from ._limiter import Limiter as Limiter
from ._limiter import Permit as Permit
from .batch import run as run

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
