"""A function under a limiter: each try has a permit, and what may pass is tried again."""

import functools
import inspect

from ._course import drive, drive_sync, enter, enter_sync, of_function
from ._limiter import Permit, _taken


def decorated(options, function, enter_sync=enter_sync):
    """The function with a permit for each try. `options` is a permit that is never asked for: what each call is like."""

    def fresh():
        permit = _taken(options.limiter) or Permit(options)
        permit._retry = options._retry
        return permit

    if not callable(function):
        raise TypeError(f"{function!r} is no function: what a call is like has a name, as in limiter(scope='search')")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator, whose items come after the call: use `with` inside it")
    if is_coroutine_function(function):

        @functools.wraps(function)
        async def paced(*args, **kwargs):
            return await drive(of_function(fresh(), enter, lambda: function(*args, **kwargs)))

    else:

        @functools.wraps(function)
        def paced(*args, **kwargs):
            return drive_sync(of_function(fresh(), enter_sync, lambda: function(*args, **kwargs)))

    return paced


def is_coroutine_function(function):
    while isinstance(function, functools.partial):
        function = function.func
    called = getattr(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
