"""Tests of LangGraph's stores: what they keep in memory, memoird keeps; each store has a namespace of its own."""

from __future__ import annotations

import uuid
from typing import Any

import langgraph.store.memory

from memoird.langgraph import MemoirdStore


class InMemoryStore(MemoirdStore):
    """A store that is made as LangGraph's is."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(index=index, namespace=("suite", uuid.uuid4().hex))


langgraph.store.memory.InMemoryStore = InMemoryStore
