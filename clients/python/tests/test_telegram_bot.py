"""The example bot on Telegram with fakes of Telegram and a model, and with a crash at each of its steps."""

import asyncio
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import memoird
from memoird import Role, errors
from provider import completion, example

telegram_bot = example("telegram_bot")
CHAT = 4711


class Killed(BaseException):
    """Simulates a crash of the process."""


class Finished(BaseException):
    """Raised when all updates are done."""


class World:
    """Everything the bot calls. It crashes before or after the step of this number."""

    def __init__(self, dies_at=None):
        self.dies_at, self.steps = dies_at, 0

    def step(self):
        self.steps += 1
        if self.steps == self.dies_at:
            raise Killed


class Telegram(ThreadingHTTPServer):
    """Telegram's API as used by the bot. Delivers updates again until a higher offset confirms them."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.updates, self.sent, self.confirmed, self.blocked = [], [], 0, set()

    def write(self, text, id=0, kind="message", chat=CHAT):
        number = len(self.updates) + 1
        message = {"message_id": id or number, "chat": {"id": chat}, "text": text}
        self.updates.append({"update_id": number, kind: message})

    def get_updates(self, offset, timeout):
        assert timeout > 0, "it asks all the time"
        self.confirmed = max(self.confirmed, offset)
        return [it for it in self.updates if it["update_id"] >= self.confirmed]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        fields = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path.startswith("/bottoken/")
        method, result = self.path.rpartition("/")[2], True
        if method == "getUpdates":
            result = self.server.get_updates(**fields)
        status = 200
        if method == "sendMessage":
            units = len(fields["text"].encode("utf-16-le")) // 2
            status = 403 if fields["chat_id"] in self.server.blocked else 200 if 0 < units <= 4096 else 400
            if status == 200:
                self.server.sent.append((fields["chat_id"], fields["text"]))
        body = json.dumps({"ok": status == 200, "result": result}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Caller(telegram_bot.Telegram):
    """The bot's client of Telegram. May crash before and after a message is sent."""

    def __init__(self, server, world):
        super().__init__("token", f"http://127.0.0.1:{server.server_port}")
        self.world = world

    async def call(self, method, **fields):
        if method == "sendMessage":
            self.world.step()
        result = await super().call(method, **fields)
        if method == "sendMessage":
            self.world.step()
        if method == "getUpdates" and not result:
            raise Finished
        return result


class Client(memoird.AsyncClient):
    """May crash before and after each call of memoird."""

    async def _call(self, call, request, timeout):
        self.world.step()
        answer = await super()._call(call, request, timeout)
        self.world.step()
        return answer


class Model:
    """Calls the reminder tool for each message, then answers with its result and a call number."""

    def __init__(self):
        self.asked, self.fails, self.world = [], [], World()
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, *, model, messages, tools=None):
        assert tools is None or tools[0]["function"]["name"] == "remind"
        self.asked.append(messages)
        if self.fails:
            raise self.fails.pop()
        self.world.step()
        last = messages[-1]
        if last["role"] == "tool" or tools is None:
            said = {"role": "assistant", "content": f"{last['content']} ({len(self.asked)})"}
        else:
            arguments = json.dumps({"what": last["content"]})
            call = {"name": "remind", "arguments": arguments}
            calls = [{"id": f"call-{len(self.asked)}", "type": "function", "function": call}]
            said = {"role": "assistant", "content": None, "tool_calls": calls}
        return completion(model, said)


@pytest.fixture(scope="module")
def daemon():
    with memoird.local(config="journal: { durability: off }") as client:
        yield client


@pytest.fixture
def telegram():
    with Telegram() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Bots:
    """The bot, restarted after each crash, with the same model and the same reminders."""

    def __init__(self, daemon, telegram):
        self.daemon, self.telegram = daemon, telegram
        self.model, self.reminders, self.has_tools = Model(), {}, True

    def work(self, dies_at=None):
        """Processes all updates. The first bot crashes at this step. Returns the world of the last one."""
        world = World(dies_at)
        try:
            asyncio.run(self._live(world))
        except Killed:
            return self.work()
        except Finished:
            return world

    async def _live(self, world):
        client, self.model.world = Client(self.daemon.addr), world
        client.world = world

        def remind(call_id, what):
            world.step()
            self.reminders[call_id] = what
            world.step()
            return f"Noted: {what}."

        bot = telegram_bot.Bot(Caller(self.telegram, world), client, self.model)
        bot.tools = [{"type": "function", "function": {"name": "remind"}}] if self.has_tools else []
        bot.functions = {"remind": remind}
        try:
            await bot.run()
        finally:
            await client.close()

    def texts(self, chat=CHAT):
        turns = self.daemon.get_history(f"telegram:{chat}").turns
        return [turn.parts[0].text for turn in turns]


@pytest.fixture
def bots(daemon, telegram):
    yield Bots(daemon, telegram)
    for session in daemon.list_sessions().sessions:
        daemon.erase_session(session.session_id)
    daemon.delete_documents(telegram_bot.DONE)


def test_a_message_is_answered_once_wherever_the_bot_dies(daemon, telegram):
    for chat in itertools.count(1):
        bots = Bots(daemon, telegram)
        telegram.write("tea at five", chat=chat)
        world = bots.work(dies_at=chat)
        turns = daemon.get_history(f"telegram:{chat}").turns
        assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        # A message may be sent twice, with the same text.
        answer = turns[-1].parts[0].text
        assert {text for to, text in telegram.sent if to == chat} == {answer}
        assert answer.startswith("Noted: tea at five.")
        assert list(bots.reminders.values()) == ["tea at five"], "a call that is made again is the same one"
        if world.dies_at:
            # The bot survived all of its steps.
            break
        assert chat < 50
    assert len(bots.model.asked) == 2 and telegram.sent.count((chat, answer)) == 1
    # A missing document, the model twice, and before and after each of: four windows, a function, a
    # message, a document.
    assert world.steps == 1 + 2 + 2 * 7


def test_an_update_that_is_done_is_not_done_again(bots, telegram):
    telegram.write("tea at five")
    telegram.write("cake at six", chat=CHAT + 1)
    bots.work()
    telegram.confirmed = 0
    bots.work()
    assert len(telegram.sent) == 2 and len(bots.model.asked) == 4


def test_who_blocks_the_bot_stops_no_other_chat(bots, telegram):
    telegram.blocked.add(CHAT)
    telegram.write("tea at five")
    telegram.write("cake at six", chat=CHAT + 1)
    bots.work()
    telegram.write("tea at seven", chat=CHAT + 1)
    bots.work()
    assert [chat for chat, _ in telegram.sent] == [CHAT + 1] * 2


def test_a_long_answer_comes_in_pieces_and_a_bot_needs_no_tools(bots, telegram):
    bots.has_tools = False
    said = "\U0001f375 tea at five, " * 400
    telegram.write(said)
    bots.work()
    assert len(telegram.sent) > 1 and "".join(text for _, text in telegram.sent).startswith(said)


def test_what_is_forgotten_is_gone(bots, telegram, daemon):
    telegram.write("tea at five")
    telegram.write("/forget")
    bots.work()
    assert telegram.sent[-1][1] in ("All of it is forgotten.", "It is being forgotten.")
    with pytest.raises(errors.SessionNotFound):
        daemon.get_session(f"telegram:{CHAT}")
    telegram.write("cake at six")
    bots.work()
    assert bots.texts()[0] == "cake at six"


def test_an_answer_is_made_anew_once_wherever_the_bot_dies(daemon, telegram):
    for chat in itertools.count(101):
        bots = Bots(daemon, telegram)
        telegram.write("tea at five", chat=chat)
        bots.work()
        [first] = {text for to, text in telegram.sent if to == chat}
        telegram.write("/regenerate", chat=chat)
        world = bots.work(dies_at=chat - 100)
        [again] = {text for to, text in telegram.sent if to == chat} - {first}
        assert [turn for turn in bots.texts(chat) if turn] == ["tea at five", again]
        if world.dies_at:
            break
        assert chat < 150
    assert len(bots.model.asked) == 4


def test_the_newest_message_is_answered_anew_when_it_is_edited(bots, telegram):
    telegram.write("tea at five", id=1)
    bots.work()
    telegram.write("tea at six", id=1, kind="edited_message")
    bots.work(dies_at=6)
    assert [text for text in bots.texts() if text][0] == "tea at six"
    assert telegram.sent[-1][1].startswith("Noted: tea at six.") and len(telegram.sent) == 2


def test_an_older_message_that_is_edited_says_something_else(bots, telegram):
    telegram.write("tea at five", id=1)
    telegram.write("and cake", id=2)
    telegram.write("tea at six", id=1, kind="edited_message")
    telegram.write("of a chat that nobody knows", id=1, kind="edited_message", chat=CHAT + 1)
    bots.work()
    said = [text for text in bots.texts() if text]
    assert (said[0], said[2]) == ("tea at six", "and cake")
    assert len(telegram.sent) == 2


def test_a_model_that_fails_is_asked_again_when_somebody_wants_it(bots, telegram):
    bots.model.fails.append(ConnectionError("the provider is down"))
    telegram.write("tea at five")
    bots.work()
    assert telegram.sent == [(CHAT, telegram_bot.NO_ANSWER)]
    telegram.write("/regenerate")
    bots.work()
    assert telegram.sent[-1][1].startswith("Noted: tea at five.")
    assert len(bots.texts()) == 4
