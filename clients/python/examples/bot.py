"""A bot on OpenAI's API that answers each message once, despite failures at any point.

Each message is appended before the bot acts on it, and the window's last message determines the
next step. So if a platform delivers a message again, the bot continues where the first delivery
stopped.
"""

import json
from typing import Any, Callable

from memoird import AppendRequest, Client, MessageFormat, ModelUsage

STEPS_MAX = 8
READ_EARLIER_TURNS = "read_earlier_turns"


class Bot:
    """Answers the messages of chats."""

    def __init__(self, client: Client, openai: Any, model: str, system: str) -> None:
        self.client, self.openai = client, openai
        self.model, self.system = model, system
        self.tools: list[dict[str, Any]] = []
        self.functions: dict[str, Callable[..., str]] = {}

    def answer(self, chat: str, message_id: str, text: str) -> str:
        """Returns the answer to a message: the same one if the message is delivered again."""
        window = self._say(chat, [{"role": "user", "content": text}], key=message_id)
        for _ in range(STEPS_MAX):
            last = window.messages[-1]
            calls = last.get("tool_calls")
            if last["role"] == "assistant" and not calls:
                return str(last["content"])
            if calls:
                # memoird answers calls of its own tool.
                own = [call for call in calls if call["function"]["name"] != READ_EARLIER_TURNS]
                window = self._say(chat, [self._run(call) for call in own])
                continue
            reply = self.openai.chat.completions.create(
                model=self.model,
                messages=window.messages,
                tools=[*self.tools, window.recall_tool],
            )
            said = reply.choices[0].message.model_dump(exclude_none=True)
            usage = ModelUsage(reply.model, reply.usage.prompt_tokens, reply.usage.completion_tokens)
            window = self._say(chat, [said], usage=usage)
        return "I could not find an end to this."

    def _say(self, chat: str, messages: list[Any], *, key: str = "", usage: Any = None) -> Any:
        append = AppendRequest(
            messages_json=messages,
            format=MessageFormat.OPENAI,
            idempotency_key=key,
            usage=usage,
        )
        return self.client.build_context(
            chat,
            append,
            model=self.model,
            system=self.system,
            tools_json=self.tools,
            format=MessageFormat.OPENAI,
            recall_tool=True,
        )

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        try:
            content = self.functions[function["name"]](**json.loads(function["arguments"]))
        except Exception as problem:
            content = f"Error: {problem}"
        return {"role": "tool", "tool_call_id": call["id"], "content": content}
