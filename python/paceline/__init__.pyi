from ._errors import DeadlineExceeded as DeadlineExceeded
from ._errors import Error as Error
from ._errors import FleetError as FleetError
from ._errors import ForkWarning as ForkWarning
from ._errors import RetryWarning as RetryWarning
from ._errors import Stopped as Stopped
from ._errors import TooLarge as TooLarge
from ._errors import WouldWait as WouldWait
from ._limiter import Limiter as Limiter
from ._limiter import Permit as Permit
from . import batch as batch
from . import boto as boto
from . import fleet as fleet
from . import httpx as httpx
from . import langchain as langchain
from . import requests as requests
from . import tasks as tasks
from . import testing as testing
from .batch import run as run

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
