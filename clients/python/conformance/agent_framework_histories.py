"""The Agent Framework's tests of history providers, with memoird's in place of its own."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import agent_framework
import pytest
from agent_framework import Message

import memoird
from memoird._history import read_all
from memoird._steps import Clients
from memoird.agent_framework import MemoirdHistoryProvider, _message


class InMemoryHistoryProvider(MemoirdHistoryProvider):
    """Has its own messages, or those of a directory."""

    def __init__(self, source_id: str = "in_memory", *, place: str = "", **options: Any) -> None:
        super().__init__(source_id, prefix=f"{place or uuid.uuid4().hex}:", **options)


class FileHistoryProvider(InMemoryHistoryProvider):
    """Has the constructor of the provider for files."""

    def __init__(self, path: Path, *, source_id: str = "file_history", **options: Any) -> None:
        super().__init__(source_id, place=str(path), **options)


class ConcreteHistoryProvider(InMemoryHistoryProvider):
    """Replaces the tests' own class, which has initial messages and exposes the stored ones."""

    def __init__(self, source_id: str, stored_messages: Sequence[Message] = (), **options: Any) -> None:
        super().__init__(source_id, **options)
        if stored_messages:
            memoird.Client().append(self._id("s1"), [memoird.user(it.text) for it in stored_messages])

    @property
    def stored(self) -> list[Message]:
        """Returns all messages."""
        pages = Clients().do(read_all(self._id("s1")))
        return [_message(turn) for page in pages for turn in page.turns]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        module.ConcreteHistoryProvider = ConcreteHistoryProvider


agent_framework.InMemoryHistoryProvider = InMemoryHistoryProvider
agent_framework.FileHistoryProvider = FileHistoryProvider
