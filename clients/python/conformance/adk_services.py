"""ADK's tests of services with memoird's in place of ADK's own. Each test has its own daemon."""

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
    """A service made like ADK's, possibly before a test starts, that calls the test's daemon."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    _client = property(lambda self: _client, lambda self, made: None)
    _clients = property(lambda self: Clients(_client), lambda self, made: None)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        pass

    async def close(self) -> None:
        """Exists in ADK's database services."""


class SessionService(_OfTheTest, MemoirdSessionService):
    """Replaces the in-memory and database services."""


class MemoryService(_OfTheTest, MemoirdMemoryService):
    """Replaces the in-memory service."""


@pytest.fixture(autouse=True)
def daemon() -> Iterator[None]:
    """Starts a daemon for each test, because tests use the same names."""
    global _client
    with memoird.local() as client:
        _client = client.for_event_loops()
        yield


in_memory.InMemorySessionService = database.DatabaseSessionService = SessionService
sqlite.SqliteSessionService = SessionService
memories.InMemoryMemoryService = MemoryService
