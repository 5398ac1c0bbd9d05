"""The calls of an adapter as generators, so that threads and event loops share one implementation.

A method of an adapter is a generator of steps. It yields each `Step`, receives the response or the
daemon's error, and returns its result. A method with several results yields them.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, TypeVar

import grpc

from .client import AsyncClient, Client, shared
from .errors import InvalidSetting, MemoirdError

Result = TypeVar("Result")
Steps = Generator[Any, Any, Result]


class Step:
    """An operation that can be run in a thread or in an event loop."""

    __slots__ = ()

    def make(self, client: Client) -> Any:
        """Runs it in a thread."""
        raise NotImplementedError

    async def amake(self, client: AsyncClient) -> Any:
        """Runs it in an event loop."""
        raise NotImplementedError


class Call(Step):
    """A call of a client, by name and arguments."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, **arguments: Any) -> None:
        self.name, self.arguments = name, arguments

    def make(self, client: Client) -> Any:
        return getattr(client, self.name)(**self.arguments)

    async def amake(self, client: AsyncClient) -> Any:
        return await getattr(client, self.name)(**self.arguments)


class Pause(Step):
    """A pause in seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def make(self, client: Client) -> None:
        time.sleep(self.seconds)

    async def amake(self, client: AsyncClient) -> None:
        await asyncio.sleep(self.seconds)


# Client of the other kind for each client given to adapters. Cached, because some are made per
# message.
_OTHERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Clients:
    """A client for threads and one for event loops, of the same daemon, made from either of them."""

    def __init__(self, *given: Client | AsyncClient | None) -> None:
        self._blocking: Client | None = None
        self._looping: AsyncClient | None = None
        for client in given:
            if isinstance(client, Client):
                self._blocking = client
            elif isinstance(client, AsyncClient):
                self._looping = client
            elif client is not None:
                problem = f"client takes a memoird Client or AsyncClient, not a {type(client).__name__}"
                invalid = grpc.StatusCode.INVALID_ARGUMENT
                raise InvalidSetting(problem, code=invalid, facts={"field": "client"})

    def blocking(self) -> Client:
        """The client for threads."""
        if self._blocking is None:
            own = self._looping
            self._blocking = _other(own, AsyncClient.for_threads) if own else shared(Client)
        return self._blocking

    def looping(self) -> AsyncClient:
        """The client for event loops."""
        if self._looping is None:
            own = self._blocking
            self._looping = _other(own, Client.for_event_loops) if own else shared(AsyncClient)
        return self._looping

    def each(self, steps: Steps[Any]) -> Iterator[Any]:
        """Runs the steps and yields the results."""
        client, send, answer = self.blocking(), steps.send, None
        while True:
            try:
                step = send(answer)
            except StopIteration as end:
                if end.value is not None:
                    yield end.value
                return
            send, answer = steps.send, None
            if not isinstance(step, Step):
                yield step
                continue
            try:
                answer = step.make(client)
            except MemoirdError as error:
                send, answer = steps.throw, error

    async def aeach(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        """Runs the steps in an event loop and yields the results."""
        client, send, answer = self.looping(), steps.send, None
        while True:
            try:
                step = send(answer)
            except StopIteration as end:
                if end.value is not None:
                    yield end.value
                return
            send, answer = steps.send, None
            if not isinstance(step, Step):
                yield step
                continue
            try:
                answer = await step.amake(client)
            except MemoirdError as error:
                send, answer = steps.throw, error

    def do(self, steps: Steps[Result]) -> Result:
        """Runs the steps and returns the result."""
        found: Any = None
        for found in self.each(steps):
            pass
        return found  # type: ignore[no-any-return]

    async def ado(self, steps: Steps[Result]) -> Result:
        """Runs the steps in an event loop and returns the result."""
        found: Any = None
        async for found in self.aeach(steps):
            pass
        return found  # type: ignore[no-any-return]


def _other(own: Any, make: Callable[[Any], Any]) -> Any:
    return _OTHERS.get(own) or _OTHERS.setdefault(own, make(own))
