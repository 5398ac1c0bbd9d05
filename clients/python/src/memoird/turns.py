"""Turns in one word each."""

from __future__ import annotations

from .types import Json, Part, Role, ToolResult, ToolUse, Turn


def user(text: str) -> Turn:
    """What the person says."""
    return Turn(Role.USER, [Part(text=text)])


def assistant(text: str) -> Turn:
    """What the model says."""
    return Turn(Role.ASSISTANT, [Part(text=text)])


def system(text: str) -> Turn:
    """What the bot's author says."""
    return Turn(Role.SYSTEM, [Part(text=text)])


def tool_use(id: str, name: str, input: Json) -> Turn:
    """A call of a tool by the model."""
    return Turn(Role.ASSISTANT, [Part(tool_use=ToolUse(id, name, input))])


def tool_result(tool_use_id: str, content: str, *, is_error: bool = False) -> Turn:
    """What a tool answered."""
    return Turn(Role.TOOL, [Part(tool_result=ToolResult(tool_use_id, content, is_error=is_error))])
