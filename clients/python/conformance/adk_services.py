"""ADK's tests of services: wherever they make one of ADK's, it is memoird's. Each test has a daemon of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google.adk.memory.in_memory_memory_service as memories
import google.adk.sessions.database_session_service as database
import google.adk.sessions.in_memory_session_service as in_memory
import google.adk.sessions.sqlite_session_service as sqlite
import pytest

import memoird
from memoird._steps import Clients
from memoird.adk import MemoirdMemoryService, MemoirdSessionService

_client: memoird.AsyncClient | None = None


class _OfTheTest:
    """Services are made as ADK's are, some before a test begins, and call its daemon."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    _client = property(lambda self: _client, lambda self, made: None)
    _clients = property(lambda self: Clients(_client), lambda self, made: None)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        pass

    async def close(self) -> None:
        """ADK's databases have it."""


class SessionService(_OfTheTest, MemoirdSessionService):
    """In the place of those in memory and in databases."""


class MemoryService(_OfTheTest, MemoirdMemoryService):
    """In the place of that in memory."""


@pytest.fixture(autouse=True)
def daemon() -> Iterator[None]:
    """Tests use the same names."""
    global _client
    with memoird.local() as client:
        _client = client.for_event_loops()
        yield


in_memory.InMemorySessionService = database.DatabaseSessionService = SessionService
sqlite.SqliteSessionService = SessionService
memories.InMemoryMemoryService = MemoryService
