"""Functions that make turns."""

from __future__ import annotations

from .types import Json, Part, Role, ToolResult, ToolUse, Turn


def user(text: str) -> Turn:
    """Returns a turn of the user."""
    return Turn(Role.USER, [Part(text=text)])


def assistant(text: str) -> Turn:
    """Returns a turn of the model."""
    return Turn(Role.ASSISTANT, [Part(text=text)])


def system(text: str) -> Turn:
    """Returns a turn with instructions by the bot's author."""
    return Turn(Role.SYSTEM, [Part(text=text)])


def tool_use(id: str, name: str, input: Json) -> Turn:
    """Returns a turn with a tool call by the model."""
    return Turn(Role.ASSISTANT, [Part(tool_use=ToolUse(id, name, input))])


def tool_result(tool_use_id: str, content: str, *, is_error: bool = False) -> Turn:
    """Returns a turn with the result of a tool call."""
    return Turn(Role.TOOL, [Part(tool_result=ToolResult(tool_use_id, content, is_error=is_error))])
