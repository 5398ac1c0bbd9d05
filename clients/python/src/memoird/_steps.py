"""Which calls an adapter makes, apart from how they are made: one source for threads and event loops.

A method of an adapter is a generator of steps. It yields each `Call`, is sent the answer or thrown the
error, and yields its results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from .client import AsyncClient, Client
from .errors import MemoirdError

Steps = Generator[Any, Any, Any]


class Call:
    """A call of a client, by its name and arguments."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, **arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class Clients:
    """A client for threads and one for event loops; who is not given is made when it is used first."""

    def __init__(self, client: Client | AsyncClient | None) -> None:
        client = Client() if client is None else client
        self._blocking = client if isinstance(client, Client) else None
        self._looping = client if isinstance(client, AsyncClient) else None

    def blocking(self) -> Client:
        """For threads."""
        if self._blocking is None:
            assert self._looping is not None
            self._blocking = self._looping.for_threads()
        return self._blocking

    def looping(self) -> AsyncClient:
        """For event loops."""
        if self._looping is None:
            assert self._blocking is not None
            self._looping = self._blocking.for_event_loops()
        return self._looping

    def each(self, steps: Steps) -> Iterator[Any]:
        """Makes the calls, and gives the results."""
        client, send, answer = self.blocking(), steps.send, None
        while True:
            try:
                step = send(answer)
            except StopIteration:
                return
            send, answer = steps.send, None
            if not isinstance(step, Call):
                yield step
                continue
            try:
                answer = getattr(client, step.name)(**step.arguments)
            except MemoirdError as error:
                send, answer = steps.throw, error  # type: ignore[assignment]

    async def aeach(self, steps: Steps) -> AsyncIterator[Any]:
        """The same in an event loop."""
        client, send, answer = self.looping(), steps.send, None
        while True:
            try:
                step = send(answer)
            except StopIteration:
                return
            send, answer = steps.send, None
            if not isinstance(step, Call):
                yield step
                continue
            try:
                answer = await getattr(client, step.name)(**step.arguments)
            except MemoirdError as error:
                send, answer = steps.throw, error  # type: ignore[assignment]

    def do(self, steps: Steps) -> Any:
        """Makes the calls, and gives the one result, or None."""
        found = None
        for found in self.each(steps):
            pass
        return found

    async def ado(self, steps: Steps) -> Any:
        """The same in an event loop."""
        found = None
        async for found in self.aeach(steps):
            pass
        return found
