"""Windows for LangChain's agents: `pip install memoird[langchain-agents]`.

    agent = create_agent(model, tools, middleware=[MemoirdMiddleware()], checkpointer=MemoirdSaver())
    config = {"configurable": {"thread_id": "telegram:4711"}}
    agent.invoke({"messages": [("user", "Where is my parcel?")]}, config)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ._extras import needs

needs("langchain-agents")

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langgraph.config import get_config

from ._history import Window
from .client import AsyncClient, Client
from .langgraph.window import Chooser

__all__ = ["MemoirdMiddleware", "Window"]


class MemoirdMiddleware(AgentMiddleware[Any, Any, Any]):
    """Replaces the messages of each model call of an agent by a window.

    The session has the thread's id, as with `memoird.langgraph.window`. The agent's state is not
    changed. `client` may be of either kind; by default it is configured by the environment
    (`MEMOIRD_ADDR`, `MEMOIRD_KEY`). The agent's system prompt and tools are not part of the window:
    reserve tokens for them with `Window.overhead_tokens`.
    """

    def __init__(
        self, window: Window | None = None, *, client: Client | AsyncClient | None = None
    ) -> None:
        super().__init__()
        self._chooser = Chooser(window, client)

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Calls the model with the messages of a window."""
        steps = self._chooser.choose(request.messages, get_config())
        chosen: Any = self._chooser.clients.do(steps)
        return handler(request.override(messages=chosen))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """`wrap_model_call`, in an event loop."""
        steps = self._chooser.choose(request.messages, get_config())
        chosen: Any = await self._chooser.clients.ado(steps)
        return await handler(request.override(messages=chosen))
