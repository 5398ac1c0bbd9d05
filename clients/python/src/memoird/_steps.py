"""Which calls an adapter makes, apart from how they are made: one source for threads and event loops.

A method of an adapter is a generator of steps. It yields each `Step`, is sent the answer or thrown the
daemon's error, and returns its result; one with many yields them.
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
    """What is made in two ways."""

    __slots__ = ()

    def make(self, client: Client) -> Any:
        """In a thread."""
        raise NotImplementedError

    async def amake(self, client: AsyncClient) -> Any:
        """In an event loop."""
        raise NotImplementedError


class Call(Step):
    """A call of a client, by its name and arguments."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, **arguments: Any) -> None:
        self.name, self.arguments = name, arguments

    def make(self, client: Client) -> Any:
        return getattr(client, self.name)(**self.arguments)

    async def amake(self, client: AsyncClient) -> Any:
        return await getattr(client, self.name)(**self.arguments)


class Pause(Step):
    """Seconds to wait."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def make(self, client: Client) -> None:
        time.sleep(self.seconds)

    async def amake(self, client: AsyncClient) -> None:
        await asyncio.sleep(self.seconds)


# The client of the other kind, of the one that adapters were given: some are made for each message.
_OTHERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Clients:
    """A client for threads and one for event loops, of the same daemon, whichever of them is given."""

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
        """For threads."""
        if self._blocking is None:
            own = self._looping
            self._blocking = _other(own, AsyncClient.for_threads) if own else shared(Client)
        return self._blocking

    def looping(self) -> AsyncClient:
        """For event loops."""
        if self._looping is None:
            own = self._blocking
            self._looping = _other(own, Client.for_event_loops) if own else shared(AsyncClient)
        return self._looping

    def each(self, steps: Steps[Any]) -> Iterator[Any]:
        """Makes the calls, one after another, and gives the results."""
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
        """The same in an event loop."""
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
        """Makes the calls, and gives the one result."""
        found: Any = None
        for found in self.each(steps):
            pass
        return found  # type: ignore[no-any-return]

    async def ado(self, steps: Steps[Result]) -> Result:
        """The same in an event loop."""
        found: Any = None
        async for found in self.aeach(steps):
            pass
        return found  # type: ignore[no-any-return]


def _other(own: Any, make: Callable[[Any], Any]) -> Any:
    return _OTHERS.get(own) or _OTHERS.setdefault(own, make(own))
