"""LangChain's own tests of histories: what they keep in memory, memoird keeps."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import langchain_core.chat_history
from langchain_core.messages import BaseMessage

from memoird.langchain import MemoirdChatMessageHistory


class InMemoryChatMessageHistory(MemoirdChatMessageHistory):
    """A session of its own for each object."""

    def __init__(self, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(f"history-{uuid.uuid4().hex}")
        self.add_messages(messages)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, MemoirdChatMessageHistory) and self.messages == other.messages


langchain_core.chat_history.InMemoryChatMessageHistory = InMemoryChatMessageHistory
