"""Reports unknown and missing arguments of calls as errors of this package."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import grpc

from .errors import WrongArguments


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that wrong arguments raise `WrongArguments`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*given: Any, **named: Any) -> Any:
            try:
                return await function(*given, **named)
            except TypeError:
                _look(function, given, named)
                raise

        return awaited

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError:
            _look(function, given, named)
            raise

    return called


def _look(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises unless these are valid arguments of the function."""
    wanted = inspect.signature(function)
    try:
        wanted.bind(*given, **named)
        return
    except TypeError as problem:
        why = str(problem)
    takes = [name for name in wanted.parameters if name != "self"]
    field = next((name for name in named if name not in takes), "")
    whose = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    if field:
        near = difflib.get_close_matches(field, takes, 1)
        hint = f"is it {near[0]}?" if near else f"it takes {', '.join(takes)}"
        message = f"{field} is nothing that {whose} takes; {hint}"
    else:
        # The argument that is missing, duplicate or unknown.
        field = next((name for name in takes if f"'{name}'" in why), "")
        message = f"{field or 'arguments'} of {whose}: {why}; it takes {', '.join(takes)}"
    facts = {"field": field} if field else {}
    raise WrongArguments(message, code=grpc.StatusCode.INVALID_ARGUMENT, facts=facts) from None
