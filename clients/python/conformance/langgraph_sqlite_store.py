"""LangGraph's tests of its SQLite store on memoird's store. A file name is a namespace."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import langgraph.store.sqlite
import langgraph.store.sqlite.aio

from memoird.langgraph import MemoirdStore


class _Made(MemoirdStore):
    def __init__(self, name: str, index: Any, ttl: Any) -> None:
        if index and "text_fields" in index:
            index = {**index, "fields": index["text_fields"]}
        super().__init__(index=index, ttl=ttl, namespace=("suite", name))

    def sweep_ttl(self) -> int:
        return 0

    def start_ttl_sweeper(self, *_: Any) -> Any:
        return None

    def stop_ttl_sweeper(self, *_: Any) -> bool:
        return True


def _name(conn_string: str) -> str:
    return uuid.uuid4().hex if conn_string == ":memory:" else conn_string


class SqliteStore(_Made):
    """For threads."""

    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None) -> Iterator[Any]:
        yield cls(_name(conn_string), index, ttl)

    def setup(self) -> None:
        pass


class AsyncSqliteStore(_Made):
    """For event loops."""

    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(
        cls, conn_string: str, *, index: Any = None, ttl: Any = None
    ) -> AsyncIterator[Any]:
        yield cls(_name(conn_string), index, ttl)

    async def setup(self) -> None:
        pass

    async def sweep_ttl(self) -> int:
        return 0

    async def start_ttl_sweeper(self, *_: Any) -> Any:
        return None

    async def stop_ttl_sweeper(self, *_: Any) -> bool:
        return True


langgraph.store.sqlite.SqliteStore = SqliteStore
langgraph.store.sqlite.AsyncSqliteStore = AsyncSqliteStore
langgraph.store.sqlite.aio.AsyncSqliteStore = AsyncSqliteStore
