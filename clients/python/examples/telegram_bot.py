"""A bot on Telegram with long polling: many concurrent chats, and each message answered once.

Telegram delivers an update again until it is confirmed, and the bot confirms an update once it is
done. If the bot crashes in between, memoird has all messages up to then, so the next delivery
continues there, even in the middle of a tool step. A document has the last update that is done in
each chat. Actions are repeated if the bot crashes before memoird has their result: a model call, a
message to the chat, and a function call. Functions get the id of their call to detect this.

    TELEGRAM_TOKEN=... OPENAI_API_KEY=... python telegram_bot.py
"""

import asyncio
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from memoird import AppendRequest, AsyncClient, MessageFormat, ModelUsage, Part, Role, Turn, errors

MODEL, SYSTEM, FORMAT = "gpt-5-mini", "You remind people of what they ask you to.", MessageFormat.OPENAI
POLL_SECONDS, STEPS_MAX = 50, 8
# Telegram shows that the bot is typing for 5 seconds.
TYPING_SECONDS, MODEL_SECONDS = 4.0, 60.0
# Maximum characters of a message. Telegram's limit is 4,096 UTF-16 code units, one or two per
# character.
TEXT_MAX = 2048
NO_ANSWER = "I found no answer. Send /regenerate to let me try again."
# Key of the documents with the last update, and their time to live. Telegram keeps an update for a
# day.
DONE, DONE_TTL = ["telegram", "done"], timedelta(days=2)
# Number of turns among which an edited message is looked up.
TURNS = 200


class Telegram:
    """Telegram's API: https://core.telegram.org/bots/api"""

    def __init__(self, token: str, base: str = "https://api.telegram.org") -> None:
        self._url = f"{base}/bot{token}/"

    async def call(self, method: str, **fields: Any) -> Any:
        return await asyncio.to_thread(self._post, method, fields)

    def _post(self, method: str, fields: dict[str, Any]) -> Any:
        kind, body = {"content-type": "application/json"}, json.dumps(fields).encode()
        request = urllib.request.Request(self._url + method, body, kind)
        with urllib.request.urlopen(request, timeout=POLL_SECONDS + 10) as answer:
            return json.load(answer)["result"]


class Bot:
    """Answers chats until something other than the model fails. After a restart it continues."""

    def __init__(self, telegram: Telegram, client: AsyncClient, openai: Any) -> None:
        self.telegram, self.client, self.openai = telegram, client, openai
        self.model_seconds = MODEL_SECONDS
        self.tools: list[dict[str, Any]] = []
        # By name. Each function takes the id of its call, and the arguments by name.
        self.functions: dict[str, Callable[..., str]] = {}

    async def run(self) -> None:
        offset = 0
        while True:
            updates = await self.telegram.call("getUpdates", offset=offset, timeout=POLL_SECONDS)
            chats: dict[int, list[dict[str, Any]]] = {}
            for update in updates:
                message = update.get("message") or update.get("edited_message") or {}
                if "text" in message:
                    chats.setdefault(message["chat"]["id"], []).append(update)
                offset = update["update_id"] + 1
            await asyncio.gather(*(self._chat(chat, some) for chat, some in chats.items()))

    async def _chat(self, chat: int, updates: list[dict[str, Any]]) -> None:
        """Processes the updates of a chat, one after another."""
        try:
            done = (await self.client.get_document(DONE, str(chat))).document
        except errors.DocumentNotFound:
            done = None
        for update in updates:
            number = update["update_id"]
            if done and number <= done.value:
                continue
            if reply := await self._reply(f"telegram:{chat}", update):
                await self._send(chat, reply)
            await self.client.put_document(DONE, str(chat), json=number, ttl=DONE_TTL)

    async def _send(self, chat: int, text: str) -> None:
        for start in range(0, len(text), TEXT_MAX):
            piece = text[start : start + TEXT_MAX]
            try:
                await self.telegram.call("sendMessage", chat_id=chat, text=piece)
            except urllib.error.HTTPError as refused:
                # A user who blocks the bot, for example, must not stop other chats.
                if refused.code not in (400, 403):
                    raise
                logging.warning("the chat %s does not take what it is told: %s", chat, refused)

    async def _reply(self, session: str, update: dict[str, Any]) -> str | None:
        key = f"update {update['update_id']}"
        if "edited_message" in update:
            return await self._edited(session, update["edited_message"])
        message = update["message"]
        if message["text"] == "/forget":
            erasure = (await self.client.erase_session(session)).erasure
            return "All of it is forgotten." if erasure.done else "It is being forgotten."
        if message["text"] == "/regenerate":
            return await self._regenerated(session, key)
        said = AppendRequest(messages_json=[_said(message)], format=FORMAT, idempotency_key=key)
        return await self._answer(session, said)

    async def _regenerated(self, session: str, key: str) -> str | None:
        """Rewinds to the last message of the user and answers it again."""
        asked = await self._asked(session)
        if not asked:
            return None
        # With an idempotency key, so that it is done once if the update is delivered again.
        await self.client.rewind_session(session, asked[-1].seq, idempotency_key=key)
        return await self._answer(session)

    async def _edited(self, session: str, message: dict[str, Any]) -> str | None:
        """Updates an edited message. If it is the newest one, answers it again."""
        id, text = str(message["message_id"]), message["text"]
        asked = await self._asked(session)
        old = next((turn for turn in asked if turn.client_id == id), None)
        if old is None:
            return None
        if old is not asked[-1]:
            await self.client.update_turn(session, old.seq, Turn(Role.USER, [Part(text=text)], client_id=id))
            return None
        if old.parts[0].text != text:
            await self.client.rewind_session(
                session, old.seq - 1, messages_json=[_said(message)], format=FORMAT
            )
        return await self._answer(session)

    async def _asked(self, session: str) -> list[Turn]:
        """Returns the messages of the user among the newest turns."""
        try:
            turns = (await self.client.get_history(session, last=TURNS)).turns
        except errors.SessionNotFound:
            return []
        return [turn for turn in turns if turn.role is Role.USER]

    async def _answer(self, session: str, said: AppendRequest | None = None) -> str:
        """Returns the model's answer to the newest message, which may be stored already."""
        typing = asyncio.create_task(self._type(int(session.partition(":")[2])))
        try:
            for _ in range(STEPS_MAX):
                window = await self.client.build_context(
                    session, said, model=MODEL, system=SYSTEM, tools_json=self.tools, format=FORMAT
                )
                last = window.messages[-1]
                if calls := last.get("tool_calls"):
                    results = [self._run(call) for call in calls]
                    said = AppendRequest(messages_json=results, format=FORMAT)
                elif last["role"] == "assistant":
                    return str(last["content"])
                else:
                    said = await self._ask(window.messages)
                    if said is None:
                        return NO_ANSWER
            return NO_ANSWER
        finally:
            typing.cancel()

    async def _ask(self, messages: list[Any]) -> AppendRequest | None:
        """Returns the model's next message. None if the model fails."""
        # OpenAI rejects an empty list.
        tools = {"tools": self.tools} if self.tools else {}
        asked = self.openai.chat.completions.create(model=MODEL, messages=messages, **tools)
        try:
            reply = await asyncio.wait_for(asked, self.model_seconds)
        except Exception:
            # Nothing is lost: the message is stored and can be answered later.
            logging.exception("the model gave no answer")
            return None
        usage = ModelUsage(reply.model, reply.usage.prompt_tokens, reply.usage.completion_tokens)
        told = [reply.choices[0].message.model_dump(exclude_none=True)]
        return AppendRequest(messages_json=told, format=FORMAT, usage=usage)

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        try:
            content = self.functions[function["name"]](call["id"], **json.loads(function["arguments"]))
        except Exception as problem:
            content = f"Error: {problem}"
        return {"role": "tool", "tool_call_id": call["id"], "content": content}

    async def _type(self, chat: int) -> None:
        while True:
            await self.telegram.call("sendChatAction", chat_id=chat, action="typing")
            await asyncio.sleep(TYPING_SECONDS)


def _said(message: dict[str, Any]) -> dict[str, Any]:
    id = str(message["message_id"])
    return {"role": "user", "content": message["text"], "memoird_client_id": id}


def main() -> None:
    from openai import AsyncOpenAI

    reminders: dict[str, str] = {}

    def remind(call_id: str, what: str, when: str) -> str:
        # Stored by the id of its call, so that a repeated call makes no second reminder.
        reminders[call_id] = f"{when}: {what}"
        return f"You will be reminded of {what} at {when}."

    bot = Bot(Telegram(os.environ["TELEGRAM_TOKEN"]), AsyncClient(), AsyncOpenAI())
    text = {"type": "string"}
    parameters = {"type": "object", "properties": {"what": text, "when": text}}
    bot.tools = [{"type": "function", "function": {"name": "remind", "parameters": parameters}}]
    bot.functions = {"remind": remind}
    asyncio.run(bot.run())


if __name__ == "__main__":
    main()
