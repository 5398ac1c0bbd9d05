"""Tests of the OpenAI Agents SDK with memoird's session in place of `SQLiteSession`.

Objects with the same file and id share a session. An in-memory session belongs to its object.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import agents.extensions.memory.encrypt_session  # knows the SDK's class: what it does with that alone is not asked for
import agents.memory
import agents.memory.sqlite_session
import grpc.aio._utils
from agents.memory import SessionSettings

from memoird import AsyncClient
from memoird.openai_agents import MemoirdSession


class Scoped(AsyncClient):
    """A client that prefixes session ids."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self._scope = scope

    async def _call(self, call: Any, request: Any, timeout: float | None) -> Any:
        if hasattr(request, "session_id"):
            request = replace(request, session_id=f"{self._scope}:{request.session_id}")
        return await super()._call(call, request, timeout)


_clients: dict[str, Scoped] = {}


class SQLiteSession(MemoirdSession):
    """A session of memoird with the constructor of the SDK's."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        scope = uuid.uuid4().hex
        if str(db_path) != ":memory:":
            scope = uuid.uuid5(uuid.NAMESPACE_URL, f"{db_path}|{messages_table}").hex
        client = _clients.setdefault(scope, Scoped(scope))
        super().__init__(session_id, client=client, session_settings=session_settings)
        self.db_path = db_path


# Tests of expiry freeze `time.time` for the whole process. gRPC needs the real one for deadlines.
grpc.aio._utils.time = SimpleNamespace(time=time.time)
agents.SQLiteSession = SQLiteSession
agents.memory.SQLiteSession = SQLiteSession
agents.memory.sqlite_session.SQLiteSession = SQLiteSession
