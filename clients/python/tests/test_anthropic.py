"""The memory tool of Anthropic's SDK against a real daemon."""

import asyncio
import http.server
import json
import random
import re
import threading
import uuid

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool
from readme import example

import memoird
from memoird import errors
from memoird.anthropic import AsyncMemoryTool, MemoryTool


@pytest.fixture(scope="module")
def daemon():
    with memoird.local() as client:
        yield client


@pytest.fixture
def place():
    return ["memories", uuid.uuid4().hex]


@pytest.fixture
def tool(daemon, place):
    return MemoryTool(place, client=daemon)


def create(path, text):
    return {"command": "create", "path": path, "file_text": text}


def insert(path, line, text):
    return {"command": "insert", "path": path, "insert_line": line, "insert_text": text}


def str_replace(path, old, new):
    return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def rename(old, new):
    return {"command": "rename", "old_path": old, "new_path": new}


def view(path, **more):
    return {"command": "view", "path": path, **more}


def delete(path):
    return {"command": "delete", "path": path}


def files(daemon, place):
    """Returns the texts of all files by path."""
    found, token = {}, ""
    while True:
        page = daemon.list_documents(place, page_size=1000, page_token=token)
        for it in page.documents:
            found["/".join([*it.namespace[len(place) :], it.key])] = (it.bytes or b"").decode()
        token = page.next_page_token
        if not token:
            return found


def once_before(monkeypatch, client, call, act):
    """Runs `act` before the next call of this name."""
    real = getattr(client, call)

    def acting(**arguments):
        monkeypatch.setattr(client, call, real)
        act()
        return real(**arguments)

    monkeypatch.setattr(client, call, acting)


def test_a_file_is_a_document(daemon, place, tool):
    assert tool.call(create("/memories/trips/oslo.txt", "at 6:02 \u00fc")) == (
        "File created successfully at: /memories/trips/oslo.txt"
    )
    document = daemon.get_document([*place, "trips"], "oslo.txt").document
    assert (document.bytes, document.version) == ("at 6:02 \u00fc".encode(), 1)
    tool.call(str_replace("/memories/trips/oslo.txt", "6:02", "7:02"))
    document = daemon.get_document([*place, "trips"], "oslo.txt").document
    assert (document.bytes, document.version) == ("at 7:02 \u00fc".encode(), 2)


def outcome(tool, command):
    """Returns a result, or a ToolError's message, without sizes of directories. None for other errors."""
    try:
        result = tool.call(command)
    except ToolError as error:
        return f"error: {error}"
    except OSError:
        return None
    first = re.sub(r"^\S+\t(/memories\S*)$", r"\1", result, count=1, flags=re.MULTILINE)
    return re.sub(r"^\S+\t(\S+/)$", r"\1", first if "levels deep" in result else result, flags=re.MULTILINE)


def prune(directory):
    """Removes empty directories, which do not exist in memoird."""
    for below in list(directory.iterdir()):
        if below.is_dir():
            prune(below)
            if not any(below.iterdir()):
                below.rmdir()


def test_results_equal_those_of_the_sdks_tool_for_local_files(daemon, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    names = ["a", "b", "A.txt", ".hidden", "\u00fc", "a.txt", "..", "."]
    texts = ["", "\n", "one", "one\ntwo\n", "one\r\ntwo\r\none", "x\n\n\n", "two\n" * 600, "aaa"]
    olds = ["one", "two", "\n", "aa", "one\ntwo"]

    def path():
        depth = choose.choices([0, 1, 2, 3, 4], [1, 6, 6, 3, 1])[0]
        return "/".join(["/memories", *choose.choices(names, [6, 4, 3, 2, 2, 3, 1, 1], k=depth)])

    def command():
        return choose.choice(
            [
                lambda: create(path(), choose.choice(texts)),
                lambda: create(path(), choose.choice(texts)),
                lambda: insert(path(), choose.randrange(-1, 4), choose.choice(texts)),
                lambda: str_replace(path(), choose.choice(olds), choose.choice(texts)),
                lambda: rename(path(), path()),
                lambda: view(path()),
                lambda: view(path(), view_range=[choose.randrange(-1, 4), choose.randrange(-1, 4)]),
                lambda: delete(path()),
            ]
        )()

    for round in range(4):
        place = ["memories", uuid.uuid4().hex]
        theirs = BetaLocalFilesystemMemoryTool(str(tmp_path / str(round)))
        ours = MemoryTool(place, client=daemon)
        for _ in range(150):
            asked = command()
            wanted, found = outcome(theirs, asked), outcome(ours, asked)
            prune(theirs.memory_root)
            # Where the SDK's tool raises an error of the operating system, ours raises a ToolError.
            # A rename of a missing file to a path below a file has two errors.
            either = wanted is None or (wanted.startswith("error: ") and found.endswith("is not a directory."))
            agrees = found.startswith("error: ") if either else found == wanted
            assert agrees, f"seed {seed}: {asked}\n{wanted}\n{found}"
            texts_of = {
                str(it.relative_to(theirs.memory_root)): it.read_bytes().decode()
                for it in theirs.memory_root.rglob("*")
                if it.is_file()
            }
            assert files(daemon, place) == texts_of, f"seed {seed}: {asked}"


OUTSIDE = [
    "/memories/../bob/secret.txt",
    "/memories/a/../../bob/secret.txt",
    "/memories/..",
    "/memories-old/secret.txt",
    "/etc/passwd",
    "../secret.txt",
    "",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_are_refused_by_every_verb(daemon, path):
    user = uuid.uuid4().hex
    daemon.put_document(["memories", user, "bob"], "secret.txt", bytes=b"secret")
    tool = MemoryTool(["memories", user, "ann"], client=daemon)
    tool.call(create("/memories/own.txt", "own"))
    commands = [
        view(path),
        create(path, "x"),
        insert(path, 0, "x"),
        str_replace(path, "secret", "x"),
        delete(path),
        rename(path, "/memories/x.txt"),
        rename("/memories/own.txt", path),
    ]
    for command in commands:
        with pytest.raises(ToolError, match="would escape /memories directory|must start with /memories"):
            tool.call(command)
    assert files(daemon, ["memories", user]) == {"bob/secret.txt": "secret", "ann/own.txt": "own"}


@pytest.mark.parametrize("name", ["%2e%2e", "..%2fbob", "..\\bob", "*", "...", " "])
def test_names_that_only_look_like_traversal_are_names(daemon, place, tool, name):
    tool.call(create(f"/memories/{name}", "x"))
    assert files(daemon, place) == {name: "x"}


def test_namespaces_are_separate_and_must_be_lists(daemon):
    user = uuid.uuid4().hex
    ann = MemoryTool(["memories", user, "ann"], client=daemon)
    bob = MemoryTool(["memories", user, "bob"], client=daemon)
    ann.call(create("/memories/a.txt", "ann's"))
    assert "a.txt" not in bob.call(view("/memories"))
    bob.call(create("/memories/a.txt", "bob's"))
    assert ann.clear_all_memory() == "All memory cleared"
    assert files(daemon, ["memories", user]) == {"bob/a.txt": "bob's"}
    for namespace in ("ann", []):
        with pytest.raises(errors.InvalidSetting) as failed:
            MemoryTool(namespace, client=daemon)
        assert failed.value.field == "namespace"


def test_limits_and_invalid_names_are_errors_for_the_model(daemon, place, tool):
    paths = ["/memories/" + "d/" * 16 + "a", "/memories/" + "x" * 513, "/memories/a\0b"]
    for path in paths:
        with pytest.raises(ToolError, match="DOCUMENT_INVALID"):
            tool.call(create(path, "x"))
    with pytest.raises(ToolError, match="4194304"):
        tool.call(create("/memories/large.txt", "x" * (4 << 20) + "x"))
    tool.call(create("/memories/large.txt", "x" * (4 << 20)))
    with pytest.raises(ToolError, match="4194304"):
        tool.call(insert("/memories/large.txt", 0, "y"))
    assert tool.call(view("/memories")).endswith("4M\t/memories\n4M\t/memories/large.txt")


def test_too_many_lines_are_not_shown(tool):
    tool.call(create("/memories/lines.txt", "\n" * 999_998))
    assert tool.call(view("/memories/lines.txt", view_range=[999_999, -1])).endswith("\n999999\t")
    tool.call(create("/memories/more.txt", "\n" * 999_999))
    with pytest.raises(ToolError, match="exceeds maximum line limit of 999,999 lines"):
        tool.call(view("/memories/more.txt", view_range=[1, 2]))


def test_documents_that_are_no_text_are_moved_and_not_edited(daemon, place, tool):
    daemon.put_document([*place, "d"], "binary", bytes=b"\xff\x00")
    daemon.put_document([*place, "d"], "json", json='{"a": 1}')
    for name in ("binary", "json"):
        for command in (view(f"/memories/d/{name}"), insert(f"/memories/d/{name}", 0, "x")):
            with pytest.raises(ToolError, match="is not a valid UTF-8 text file"):
                tool.call(command)
    tool.call(rename("/memories/d", "/memories/e"))
    assert daemon.get_document([*place, "e"], "binary").document.bytes == b"\xff\x00"
    assert json.loads(daemon.get_document([*place, "e"], "json").document.json) == {"a": 1}


def test_an_edit_is_repeated_after_a_concurrent_edit(daemon, place, tool, monkeypatch):
    tool.call(create("/memories/a.txt", "one\n"))
    other = MemoryTool(place, client=memoird.Client(daemon.addr))
    once_before(monkeypatch, daemon, "put_document", lambda: other.call(insert("/memories/a.txt", 1, "two")))
    tool.call(insert("/memories/a.txt", 1, "three"))
    assert files(daemon, place) == {"a.txt": "one\nthree\ntwo\n"}
    # The text to replace is gone at the second try.
    once_before(monkeypatch, daemon, "put_document", lambda: other.call(str_replace("/memories/a.txt", "two", "2")))
    with pytest.raises(ToolError, match="old_str `two` did not appear verbatim"):
        tool.call(str_replace("/memories/a.txt", "two", "zwei"))
    once_before(monkeypatch, daemon, "put_document", lambda: other.call(delete("/memories/a.txt")))
    with pytest.raises(ToolError, match="does not exist"):
        tool.call(insert("/memories/a.txt", 0, "x"))
    once_before(monkeypatch, daemon, "put_document", lambda: other.call(create("/memories/a.txt", "other")))
    with pytest.raises(ToolError, match="File /memories/a.txt already exists"):
        tool.call(create("/memories/a.txt", "mine"))
    assert files(daemon, place) == {"a.txt": "other"}


def test_concurrent_edits_in_an_event_loop_are_all_applied(daemon, place):
    async def run():
        async with memoird.AsyncClient(daemon.addr) as client:
            tool = AsyncMemoryTool(place, client=client)
            await tool.call(create("/memories/a.txt", ""))
            lines = [insert("/memories/a.txt", 0, str(number)) for number in range(8)]
            await asyncio.gather(*(tool.call(line) for line in lines))
            assert sorted(files(daemon, place)["a.txt"].split()) == [str(number) for number in range(8)]
            assert await tool.call(rename("/memories/a.txt", "/memories/b/c.txt")) == (
                "Successfully renamed /memories/a.txt to /memories/b/c.txt"
            )
            assert await tool.call(delete("/memories/b/c.txt")) == "Successfully deleted /memories/b/c.txt"
            await tool.call(create("/memories/x.txt", "\n".join(map(str, range(8)))))
            shown = await tool.call(view("/memories/x.txt"))
            assert shown.endswith("     8\t7")

    asyncio.run(run())
    assert files(daemon, place) == {"x.txt": "0\n1\n2\n3\n4\n5\n6\n7"}


def test_a_directory_is_renamed_atomically(daemon, place, tool, monkeypatch):
    other = MemoryTool(place, client=memoird.Client(daemon.addr))
    before = {"d/a.txt": "a", "d/.hidden": "h", "d/e/b.txt": "b", "d2/c.txt": "c"}
    for path, text in before.items():
        tool.call(create(f"/memories/{path}", text))
    # A file that appears at the destination: nothing is moved.
    real, seen = daemon.batch_documents, []

    def racing(**arguments):
        moves = any(it.put for it in arguments["operations"])
        if moves and not seen:
            seen.append(daemon.put_document([*place, "n", "e"], "b.txt", bytes=b"other"))
        return real(**arguments)

    monkeypatch.setattr(daemon, "batch_documents", racing)
    with pytest.raises(ToolError, match="The destination /memories/n already exists"):
        tool.call(rename("/memories/d", "/memories/n"))
    assert files(daemon, place) == before | {"n/e/b.txt": "other"}
    other.call(delete("/memories/n"))
    # A file that changes: its new text is moved.
    changes = [lambda: other.call(str_replace("/memories/d/a.txt", "a", "A"))]

    def changing(**arguments):
        if changes and any(it.put for it in arguments["operations"]):
            changes.pop()()
        return real(**arguments)

    monkeypatch.setattr(daemon, "batch_documents", changing)
    tool.call(rename("/memories/d", "/memories/n/m"))
    moved = {"n/m/a.txt": "A", "n/m/.hidden": "h", "n/m/e/b.txt": "b", "d2/c.txt": "c"}
    assert not changes and files(daemon, place) == moved


def test_a_directory_above_the_limits_of_a_transaction_is_not_renamed(daemon, place, tool):
    for number in range(128):
        daemon.put_document([*place, "d"], f"{number}.txt", bytes=b"x")
    assert tool.call(rename("/memories/d", "/memories/e")) == "Successfully renamed /memories/d to /memories/e"
    daemon.put_document([*place, "e"], "one more.txt", bytes=b"x")
    before = files(daemon, place)
    assert len(before) == 129
    with pytest.raises(ToolError, match="more than 128 files or 6M in total"):
        tool.call(rename("/memories/e", "/memories/f"))
    assert files(daemon, place) == before
    for number in range(2):
        daemon.put_document([*place, "large"], str(number), bytes=b"x" * ((3 << 20) + number))
    with pytest.raises(ToolError, match="too large to be renamed"):
        tool.call(rename("/memories/large", "/memories/f"))
    assert tool.call(rename("/memories/large/0", "/memories/f")).startswith("Successfully")


def test_a_delete_that_the_client_repeats_succeeds(daemon, place, tool, monkeypatch):
    """A response is lost, so the client sends the request again, and then nothing is left to delete."""
    for call in ("delete_document", "delete_documents"):
        real = getattr(daemon, call)
        monkeypatch.setattr(daemon, call, lambda real=real, **given: (real(**given), real(**given))[1])
    for path in ("/memories/a.txt", "/memories/d/b.txt"):
        tool.call(create(path, "x"))
    for path in ("/memories/a.txt", "/memories/d"):
        assert tool.call(delete(path)) == f"Successfully deleted {path}"
    assert files(daemon, place) == {}


def test_a_rename_succeeds_if_its_response_is_lost(daemon, place, tool, monkeypatch):
    real = daemon.batch_documents

    def losing(is_done):
        def call(**given):
            if not any(it.put for it in given["operations"]):
                return real(**given)
            if is_done:
                real(**given)
            raise errors.Unavailable("the response was lost")

        return call

    for name in ("a.txt", "b.txt"):
        tool.call(create(f"/memories/d/{name}", name))
    monkeypatch.setattr(daemon, "batch_documents", losing(is_done=False))
    with pytest.raises(errors.Unavailable):
        tool.call(rename("/memories/d", "/memories/e"))
    assert files(daemon, place) == {"d/a.txt": "a.txt", "d/b.txt": "b.txt"}
    monkeypatch.setattr(daemon, "batch_documents", losing(is_done=True))
    assert tool.call(rename("/memories/d", "/memories/e")) == "Successfully renamed /memories/d to /memories/e"
    assert files(daemon, place) == {"e/a.txt": "a.txt", "e/b.txt": "b.txt"}


def test_changes_that_keep_conflicting_fail_in_the_end(daemon, place, tool, monkeypatch):
    tool.call(create("/memories/a.txt", "x"))
    stale = errors.StaleVersion("stale")

    def fail(**arguments):
        raise stale

    monkeypatch.setattr(daemon, "put_document", fail)
    with pytest.raises(errors.StaleVersion):
        tool.call(insert("/memories/a.txt", 0, "y"))


class Model(http.server.BaseHTTPRequestHandler):
    """An API that requests the commands of the test, one in each message, and then ends its turn."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        commands = self.server.commands
        if commands:
            content = {"type": "tool_use", "id": f"t{len(commands)}", "name": "memory", "input": commands.pop(0)}
        else:
            content = {"type": "text", "text": "I will."}
        answer = {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [content],
            "stop_reason": "tool_use" if content["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def model(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        server.asked, server.commands = [], []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        yield server
        server.shutdown()
        thread.join()


def results(server):
    """Returns the results of all tool calls, in order. A request may repeat those of earlier ones."""
    found = {}
    for asked in server.asked:
        blocks = [block for message in asked["messages"] for block in message["content"]]
        for block in blocks:
            if isinstance(block, dict) and block["type"] == "tool_result":
                found[block["tool_use_id"]] = (block["content"], block.get("is_error", False))
    return [*found.values()]


def test_the_example_of_the_readme(daemon, model, monkeypatch):
    monkeypatch.setenv("MEMOIRD_ADDR", daemon.addr)
    model.commands += [view("/memories"), create("/memories/trains.txt", "6:02"), view("/memories/no.txt")]
    assert example("memoird[anthropic]", {})["answer"] == "I will."
    assert daemon.get_document(["memories", "ann"], "trains.txt").document.bytes == b"6:02"
    [(listed, _), (created, _), (missing, is_error)] = results(model)
    assert listed.endswith("0B\t/memories")
    assert created == "File created successfully at: /memories/trains.txt"
    assert is_error and missing == "The path /memories/no.txt does not exist. Please provide a valid path."
    [tool] = model.asked[0]["tools"]
    assert tool == {"type": "memory_20250818", "name": "memory"}


def test_a_conversation_in_an_event_loop(daemon, place, model):
    model.commands += [create("/memories/a.txt", "one"), str_replace("/memories/a.txt", "one", "two")]

    async def run():
        async with AsyncAnthropic() as provider:
            tool = AsyncMemoryTool(place, client=daemon, cache_control={"type": "ephemeral"})
            runner = provider.beta.messages.tool_runner(
                model="claude-sonnet-5-5",
                max_tokens=100,
                tools=[tool],
                messages=[{"role": "user", "content": "Remember it."}],
            )
            await runner.until_done()

    asyncio.run(run())
    assert files(daemon, place) == {"a.txt": "two"}
    assert [is_error for _, is_error in results(model)] == [False, False]
    assert model.asked[0]["tools"][0]["cache_control"] == {"type": "ephemeral"}
