"""LangChain's tests of chat histories, with memoird's in place of the in-memory one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import langchain_core.chat_history
from langchain_core.messages import BaseMessage

from memoird.langchain import MemoirdChatMessageHistory


class InMemoryChatMessageHistory(MemoirdChatMessageHistory):
    """Each object has its own session."""

    def __init__(self, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(f"history-{uuid.uuid4().hex}")
        self.add_messages(messages)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, MemoirdChatMessageHistory) and self.messages == other.messages


langchain_core.chat_history.InMemoryChatMessageHistory = InMemoryChatMessageHistory
