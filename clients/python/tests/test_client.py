"""Both clients against a real daemon, named by `MEMOIRD_BIN` if it is not on PATH."""

import asyncio
import contextlib
import dataclasses
import datetime
import importlib.util
import itertools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

import memoird
from memoird import _calls, _extras, client as clients, errors, types
from memoird.v1 import document_pb2, session_pb2

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def client():
    with memoird.local() as client:
        yield client


def test_what_is_said_is_read_again(client):
    said = [
        memoird.user("Where is my parcel?"),
        memoird.tool_use("c1", "find", {"order": 7}),
        memoird.tool_result("c1", "in Oslo"),
        memoird.assistant("In Oslo."),
    ]
    said[0].timestamp = datetime.datetime(2026, 5, 1, 12, 0, 0, 123000, datetime.timezone.utc)
    said[0].metadata = {"from": "ann"}
    answer = client.append("said", said, subject="ann")
    assert (answer.first_seq, answer.last_seq, answer.duplicate) == (1, 4, False)
    read = client.get_history("said").turns
    assert read[0].timestamp == said[0].timestamp
    assert read[0].metadata == {"from": "ann"}
    assert [turn.role for turn in read] == [turn.role for turn in said]
    assert read[1].parts[0].tool_use.input == {"order": 7}
    session = client.get_session("said").session
    assert session.subject == "ann" and session.last_seq == 4
    assert session.expires_at > session.last_access


def test_a_window_is_the_providers_own(client):
    append = memoird.AppendRequest(
        messages_json=[{"role": "user", "content": "Hi"}], format=memoird.MessageFormat.OPENAI
    )
    window = client.build_context(
        "window", append, system="Be kind.", format=memoird.MessageFormat.OPENAI
    )
    assert window.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]
    assert window.report.tokens_total > 0


def test_state_and_memories(client):
    client.append("state", [memoird.user("hello")])
    assert client.update_session("state", {"step": 1}).session.state == {"step": 1}
    made = client.remember("ann", memoird.MemoryKind.USER, "Ann likes tea")
    assert made.outcome is memoird.RememberOutcome.CREATED
    [hit] = client.recall("tea", ["ann"]).hits
    assert hit.memory.content == "Ann likes tea" and hit.age >= datetime.timedelta(0)
    changed = client.update_memory(
        memoird.Memory(id=made.memory.id, importance=0.75), ["importance"]
    )
    assert changed.memory.importance == 0.75
    assert client.forget(id=made.memory.id).memories == 1


def test_documents(client):
    space = ["users", "ann"]
    made = client.put_document(space, "likes", json={"tea": True}, expected_version=0).document
    assert (made.version, made.value) == (1, None)
    assert client.get_document(space, "likes").document.value == {"tea": True}
    hour = datetime.timedelta(hours=1)
    client.put_document(space, "raw", bytes=b"\x00\xff", ttl=hour)
    raw = client.get_document(space, "raw").document
    assert raw.bytes == b"\x00\xff" and raw.expires_at - raw.updated_at == hour
    with pytest.raises(errors.StaleVersion) as refused:
        client.put_document(space, "likes", json="1", expected_version=7)
    assert refused.value.facts["version"] == "1"
    [newest] = client.list_documents(["users"], descending=True, page_size=1).documents
    assert newest.key == "raw"
    [found] = client.list_documents(["users"], filter_json={"tea": {"$ne": False}}).documents
    assert found.key == "likes"
    assert client.list_namespaces(max_depth=1).namespaces == [memoird.Namespace(["users"])]
    results = client.batch_documents(
        [
            memoird.DocumentOperation(put=memoird.PutDocumentRequest(space, "new", json=[1])),
            memoird.DocumentOperation(delete=memoird.DeleteDocumentRequest(space, "raw")),
            memoird.DocumentOperation(get=memoird.GetDocumentRequest(space, "raw")),
        ]
    ).results
    assert results[0].document.version == 1 and results[1].deleted and not results[2].document
    assert client.delete_documents(["users"]).deleted == 2
    with pytest.raises(errors.DocumentNotFound):
        client.get_document(space, "likes")


def test_refusals_are_exceptions_by_reason(client):
    with pytest.raises(errors.SessionNotFound) as refused:
        client.get_session("nobody")
    assert refused.value.reason == "SESSION_NOT_FOUND"
    client.append("stale", [memoird.user("one")])
    with pytest.raises(errors.StaleSeq) as refused:
        client.append("stale", [memoird.user("two")], expected_seq=0)
    assert isinstance(refused.value, errors.Conflict) and refused.value.retry_after is None
    with pytest.raises(errors.InvalidArgument):
        client.append("", [memoird.user("two")])
    with pytest.raises(errors.InvalidArgument):
        client.append("stale", [memoird.Turn()])


USER, HELLO = memoird.Role.USER, memoird.Part(text="hello")

@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("session_id", lambda it: it.append(4711, [memoird.user("x")])),
        ("session_id", lambda it: it.append("\ud800", [memoird.user("x")])),
        ("turns", lambda it: it.append("s", "hello")),
        ("turns", lambda it: it.append("s", memoird.user("x"))),
        ("turns[1]", lambda it: it.append("s", [memoird.user("x"), {"role": "user"}])),
        ("turns[0].role", lambda it: it.append("s", [memoird.Turn("user", [HELLO])])),
        ("turns[0].parts", lambda it: it.append("s", [memoird.Turn(USER, "hello")])),
        ("turns[0].parts[0].text", lambda it: it.append("s", [memoird.user(5)])),
        (
            "turns[0].parts[0].thinking",
            lambda it: it.append("s", [memoird.Turn(USER, [memoird.Part("x", thinking=memoird.Thinking("y"))])]),
        ),
        ("turns[0].timestamp", lambda it: it.append("s", [memoird.Turn(USER, [HELLO], "today")])),
        ("turns[0].metadata['a']", lambda it: it.append("s", [memoird.Turn(USER, [HELLO], metadata={"a": 1})])),
        ("messages_json", lambda it: it.append("s", messages_json=[object()])),
        ("labels", lambda it: it.append("s", [memoird.user("x")], labels=["a"])),
        ("expected_seq", lambda it: it.append("s", [memoird.user("x")], expected_seq=-1)),
        ("append.turns", lambda it: it.build_context("s", memoird.AppendRequest(turns="hello"))),
        ("budget.context_window", lambda it: it.build_context("s", budget=memoird.Budget(1 << 64))),
        ("limit", lambda it: it.get_history("s", limit=1 << 32)),
        ("namespace", lambda it: it.put_document("users", "k", json=1)),
        ("bytes", lambda it: it.put_document(["users"], "k", json=1, bytes=b"1")),
        ("ttl", lambda it: it.put_document(["users"], "k", json=1, ttl=60)),
        ("kind", lambda it: it.remember("ann", "user", "Ann likes tea")),
        ("subjects", lambda it: it.recall("tea", "ann")),
        ("update_mask", lambda it: it.update_memory(memoird.Memory(), "content")),
        ("subject", lambda it: it.forget(id="x", subject="ann")),
        ("after_cursor", lambda it: it.watch_events(1)),
    ],
)
def test_what_a_field_does_not_take_is_refused_with_its_name(client, field, call):
    for calls in (client, client.for_event_loops()):
        with pytest.raises(errors.InvalidArgument) as refused:
            answer = call(calls)
            if calls is not client:
                asyncio.run(answer)
        assert refused.value.facts == {"field": field}
        assert str(refused.value).startswith(field)


OPENAI = memoird.MessageFormat.OPENAI
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NONE = memoird.Budget(context_window=0)
NO_KEY = memoird.DocumentOperation(get=memoird.GetDocumentRequest(["a"], ""))
SAID = [memoird.user("hello")]
LATE = datetime.datetime(1969, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("session_id", lambda it: it.get_session("")),
        ("turns", lambda it: it.append("s", [])),
        ("turns[1]", lambda it: it.append("s", [*SAID, memoird.Turn()])),
        ("messages_json", lambda it: it.append("s", SAID, messages_json="[]")),
        ("messages_json[0].role", lambda it: it.append("s", messages_json=[{}], format=OPENAI)),
        ("format", lambda it: it.append("s", messages_json=[{}])),
        ("expected_generation", lambda it: it.append("s", SAID, expected_generation="x")),
        ("state_patch_json", lambda it: it.append("s", SAID, state_patch_json="[]")),
        ("expected_state_version", lambda it: it.append("s", SAID, expected_state_version=1)),
        ("ttl_class", lambda it: it.append("s", SAID, ttl_class="?")),
        ("labels", lambda it: it.append("s", SAID, labels={"": "x"})),
        ("append.turns", lambda it: it.build_context("s", memoird.AppendRequest())),
        ("model", lambda it: it.build_context("s", memoird.AppendRequest(turns=SAID), "nobody's")),
        ("tools_json", lambda it: it.build_context("s", tools_json="{}")),
        ("budget", lambda it: it.build_context("s", memoird.AppendRequest(turns=SAID), budget=NONE)),
        ("memories.mode", lambda it: it.build_context("s", memories=memoird.RecallRequest(mode=99))),
        ("limit", lambda it: it.get_history("s", limit=1, last=1)),
        ("generation", lambda it: it.get_history("s", "x")),
        ("page_token", lambda it: it.list_sessions(page_token="x")),
        ("updated_after", lambda it: it.list_sessions(updated_after=LATE)),
        ("state_patch_json", lambda it: it.update_session("s", "[]", allow_missing=True)),
        ("after_seq", lambda it: it.rewind_session("there", 99)),
        ("turn", lambda it: it.update_turn("there", 1)),
        ("target_session_id", lambda it: it.copy_session("there")),
        ("keep_exchanges", lambda it: it.compact_session("there", 1 << 31)),
        ("id", lambda it: it.get_erasure("x")),
        ("content", lambda it: it.remember("ann", memoird.MemoryKind.USER, "")),
        ("kind", lambda it: it.remember("ann", memoird.MemoryKind.UNSPECIFIED, "tea")),
        ("query", lambda it: it.recall("", ["ann"])),
        ("subjects[1]", lambda it: it.recall("tea", ["ann", ""])),
        ("target", lambda it: it.forget()),
        ("memory.id", lambda it: it.update_memory(memoird.Memory(id="x"), ["content"])),
        ("update_mask", lambda it: it.update_memory(memoird.Memory(id=ULID), ["nothing"])),
        ("namespace", lambda it: it.get_document([], "k")),
        ("key", lambda it: it.get_document(["a"], "")),
        ("value", lambda it: it.put_document(["a"], "k")),
        ("filter_json", lambda it: it.list_documents(["a"], filter_json="[]")),
        ("namespace_prefix", lambda it: it.delete_documents([])),
        ("operations", lambda it: it.batch_documents([])),
        ("operations[0].get.key", lambda it: it.batch_documents([NO_KEY])),
        ("query", lambda it: it.search_transcripts("")),
    ],
)
def test_what_the_daemon_refuses_in_a_field_names_it(client, field, call):
    client.append("there", SAID, idempotency_key="there")
    with pytest.raises(errors.InvalidArgument) as refused:
        call(client)
    assert refused.value.reason, "the daemon said it"
    assert refused.value.field == field, refused.value


def deep(levels):
    it = []
    for _ in range(levels):
        it = [it]
    return it


ITSELF = []
ITSELF.append(ITSELF)
ODD = [
    "x", "\ud800", b"x", 5, -1, 1 << 70, 1.5, float("nan"), True, object(), str, None,
    ["x"], [1], [None], ["\ud800"], {"a": 1}, {1: "b"}, {"x"}, [memoird.user("x")], memoird.user("x"),
    datetime.datetime.min, datetime.timedelta.max, deep(5000), ITSELF,
]  # fmt: skip


def odd_requests(kind, at="", inside=0):
    """Yields requests of a kind with an invalid value in one field, and the field's path."""
    for field in dataclasses.fields(kind):
        place = f"{at}{field.name}"
        for value in [*ODD, (it for it in ["x"])]:
            yield place, kind(**{field.name: value})
        hint = field.type.removesuffix(" | None")
        inner = getattr(types, hint.removeprefix("list[").removesuffix("]"), None)
        if inside < 2 and dataclasses.is_dataclass(inner):
            listed = hint.startswith("list[")
            for deeper, it in odd_requests(inner, place + ("[0]." if listed else "."), inside + 1):
                yield deeper, kind(**{field.name: [it] if listed else it})


CALLS = [it for it in vars(_calls).values() if isinstance(it, _calls.Call)]


@pytest.mark.parametrize("call", CALLS, ids=lambda it: it.name)
def test_whatever_a_field_is_given_is_sent_or_refused_with_its_name(call):
    for place, request in odd_requests(getattr(types, call.request.__name__)):
        try:
            clients._written(call, request).SerializeToString()
        except errors.InvalidArgument as refused:
            assert refused.facts["field"].startswith(place), f"{place}: {refused}"


@pytest.mark.parametrize(
    ("field", "says", "call"),
    [
        ("foo", "it takes session_id, include_state", lambda it: it.get_session("s", foo=1)),
        ("session", "is it session_id", lambda it: it.get_session(session="s")),
        ("session_id", "missing", lambda it: it.get_session()),
        ("session_id", "multiple values", lambda it: it.get_session("s", session_id="s")),
        ("rol", "Turn takes; is it role", lambda it: it.append("s", [memoird.Turn(rol=1)])),
        ("after_curser", "is it after_cursor", lambda it: it.watch_events(after_curser="1-0")),
        ("timeout", "a number, not '5'", lambda it: it.get_session("s", timeout="5")),
        ("timeout", "a number, not nan", lambda it: it.get_session("s", timeout=float("nan"))),
    ],
)
def test_an_argument_that_there_is_not_is_refused_with_its_name(client, field, says, call):
    for calls in (client, client.for_event_loops()):
        with pytest.raises(errors.InvalidArgument, match=says) as refused:
            answer = call(calls)
            if calls is not client:
                asyncio.run(answer)
        assert refused.value.facts == {"field": field}
        # Also an error as Python raises it.
        assert isinstance(refused.value, (TypeError, ValueError))


def test_too_many_arguments_are_refused(client):
    with pytest.raises(errors.InvalidArgument, match="get_session takes|of get_session"):
        client.get_session("s", True, 1, 2)


@pytest.mark.parametrize("kind", [memoird.Client, memoird.AsyncClient])
@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("addr", {"addr": 5}),
        ("addr", {"addr": "ftp://x"}),
        ("key", {"key": "two\nlines"}),
        ("key", {"key": "schl\u00fcssel"}),
        ("key", {"key": 5}),
        ("tls", {"tls": "ca.pem"}),
        ("tls", {"tls": memoird.Tls(cert="client.pem")}),
        ("tls", {"tls": memoird.Tls(cert_key="client-key.pem")}),
        ("timeout", {"timeout": "5"}),
        ("adr", {"adr": "http://x"}),
    ],
)
def test_a_setting_that_is_none_is_refused_with_its_name(kind, field, settings):
    with pytest.raises(errors.InvalidArgument) as refused:
        kind(**settings)
    assert refused.value.facts == {"field": field}


def test_all_the_time_there_is(client):
    client.append("patient", [memoird.user("x")], timeout=float("inf"))


def test_an_append_has_a_key_and_is_done_once(client):
    turns = [memoird.user("once")]
    first = client.append("once", turns, idempotency_key="k")
    again = client.append("once", turns, idempotency_key="k")
    assert (again.duplicate, again.last_seq) == (True, first.last_seq)
    with pytest.raises(errors.IdempotencyKeyReused):
        client.append("once", [memoird.user("other")], idempotency_key="k")


def test_a_rewind_has_a_key_and_is_done_once(client):
    client.append("popped", [memoird.user(str(number)) for number in range(4)])
    popped = client.rewind_session("popped", 3, idempotency_key="pop")
    again = client.rewind_session("popped", 3, idempotency_key="pop")
    assert [turn.parts for turn in popped.removed] == [memoird.user("3").parts]
    assert (again.duplicate, again.removed) == (True, popped.removed)
    with pytest.raises(errors.IdempotencyKeyReused):
        client.rewind_session("popped", 2, idempotency_key="pop")
    with pytest.raises(errors.StaleSeq):
        client.rewind_session("popped", 2, expected_seq=4)
    appended = {"turns": [memoird.user("4")], "idempotency_key": "m4"}
    client.append("popped", **appended)
    client.rewind_session("popped", 3)
    with pytest.raises(errors.IdempotencyKeyRewound):
        client.append("popped", **appended)
    # Without idempotency keys, each call is separate.
    taken = [client.rewind_session("popped", seq).removed_turns for seq in (2, 1)]
    assert (taken, client.get_session("popped").session.last_seq) == ([1, 1], 1)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("RewindSession", lambda it: it.rewind_session("chat", 1)),
        ("UpdateSession", lambda it: it.update_session("chat", {"a": 1})),
        ("UpdateSession", lambda it: it.update_session("chat", {"a": 1}, expected_state_version=0)),
        ("UpdateTurn", lambda it: it.update_turn("chat", 1, memoird.user("new"))),
        ("ResetSession", lambda it: it.reset_session("chat")),
        ("EndSession", lambda it: it.end_session("chat")),
        ("PutDocument", lambda it: it.put_document(["a"], "k", json=1)),
        ("PutDocument", lambda it: it.put_document(["a"], "k", json=1, expected_version=0)),
    ],
)
@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED]
)
def test_a_call_whose_answer_was_lost_is_repeated_where_it_has_a_key(
    name, call, code, idempotent
):
    seen = []
    module = document_pb2 if name == "PutDocument" else session_pb2
    asked, answered = (getattr(module, f"{name}{what}") for what in ("Request", "Response"))

    class Lost(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(request, context):
                seen.append(request.idempotency_key)
                if len(seen) == 1:
                    context.abort(code, "lost")
                return answered(duplicate=True)

            return grpc.unary_unary_rpc_method_handler(
                answer, asked.FromString, answered.SerializeToString
            )

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Lost()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with memoird.Client(f"http://127.0.0.1:{port}", idempotent=idempotent) as other:
        if idempotent:
            assert call(other).duplicate
            assert len(seen) == 2 and seen[0] and seen[0] == seen[1]
        else:
            with pytest.raises(errors.Unavailable):
                call(other)
            assert seen == [""]
    server.stop(None)


@contextlib.contextmanager
def scripted(*answers):
    """Yields the address of a daemon that sends these responses in order, and the calls it received."""
    script, seen = list(answers), []

    class Scripted(grpc.GenericRpcHandler):
        def service(self, details):
            seen.append(details.method)
            return grpc.unary_unary_rpc_method_handler(lambda _, context: script.pop(0)(context))

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Scripted()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", seen
    server.stop(None)


def answered(context):
    return b""


class Answering(grpc.GenericRpcHandler):
    """A daemon that sends an empty response to each call."""

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def refused(code, reason, seconds=None):
    """Returns an error like the daemon's, optionally with a retry delay."""
    status = status_pb2.Status(code=code.value[0])
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason))
    if seconds is not None:
        delay = Duration(nanos=int(seconds * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))

    def refuse(context):
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(code, reason)

    return refuse


@pytest.mark.parametrize("reason", ["COMPACTION_FAILED", "TRANSPORT"])
@pytest.mark.parametrize("seconds", [None, 0.001])
def test_what_the_daemon_could_not_do_is_tried_again_where_it_says_so(reason, seconds):
    failure = refused(grpc.StatusCode.UNAVAILABLE, reason, seconds)
    with scripted(failure, answered) as (addr, seen), memoird.Client(addr) as other:
        if seconds is None and reason != "TRANSPORT":
            with pytest.raises(errors.Unavailable) as failed:
                other.compact_session("chat")
            assert (failed.value.reason, len(seen)) == (reason, 1)
        else:
            other.compact_session("chat")
            assert len(seen) == 2


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_window_that_was_refused_for_want_of_room_may_have_appended(idempotent):
    failure = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "MEMORY_FULL", 0.001)
    with scripted(failure, answered, failure, answered) as (addr, seen):
        with memoird.Client(addr, idempotent=idempotent) as other:
            other.append("chat", SAID)
            assert len(seen) == 2
            append = memoird.AppendRequest(turns=SAID)
            if idempotent:
                other.build_context("chat", append)
            else:
                with pytest.raises(errors.ResourceExhausted):
                    other.build_context("chat", append)
                other.build_context("chat")
            assert len(seen) == 4


def test_every_call_that_only_reads_is_tried_again():
    calls = [call for call in vars(_calls).values() if isinstance(call, _calls.Call)]
    reads = [call for call in calls if call.name.startswith(("Get", "List", "Recall", "Search"))]
    assert len(reads) > 10 and [call.name for call in reads if not call.repeatable] == []


def test_a_patch_has_a_key_and_is_done_once(client):
    patch = {"allow_missing": True, "expected_state_version": 0, "idempotency_key": "p1"}
    first = client.update_session("patched", {"a": 1}, **patch)
    again = client.update_session("patched", {"a": 1}, **patch)
    assert (first.duplicate, again.duplicate, again.session.state_version) == (False, True, 1)
    with pytest.raises(errors.IdempotencyKeyReused):
        client.update_session("patched", {"a": 2}, **patch)


def test_an_end_a_reset_and_an_update_have_keys_and_are_done_once(client):
    client.append("late", [memoird.user("old")])
    calls = [
        lambda: client.update_turn("late", 1, memoird.user("edited"), idempotency_key="update"),
        lambda: client.reset_session("late", idempotency_key="reset"),
        lambda: client.end_session("late", idempotency_key="end"),
    ]
    for call in calls:
        assert not call().duplicate
        now = client.append("late", [memoird.user("new")]).session.generation
        assert call().duplicate
        assert client.get_session("late").session.generation == now
    for call in (client.reset_session, client.end_session):
        with pytest.raises(errors.StaleGeneration):
            call("late", expected_generation="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_a_put_has_a_key_and_is_done_once(client):
    put = {"json": 1, "idempotency_key": "put"}
    assert not client.put_document(["late"], "k", **put).duplicate
    client.put_document(["late"], "k", json=2)
    again = client.put_document(["late"], "k", **put)
    assert (again.duplicate, again.document.version) == (True, 1)
    with pytest.raises(errors.IdempotencyKeyReused):
        client.put_document(["late"], "k", json=3, idempotency_key="put")
    batch = [memoird.DocumentOperation(put=memoird.PutDocumentRequest(["late"], "k", **put))]
    [result] = client.batch_documents(batch).results
    assert (result.duplicate, client.get_document(["late"], "k").document.value) == (True, 2)


def test_what_a_balancer_may_choose_a_daemon_by():
    seen = []

    class Noted(grpc.GenericRpcHandler):
        def service(self, details):
            seen.append(dict(details.invocation_metadata).get("memoird-session"))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Noted()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with memoird.Client(f"http://127.0.0.1:{port}") as other:
        other.append("a chat/é!", [memoird.user("hi")], subject="ann")
        other.erase_subject("ann")
        other.remember("ann/1", content="likes tea")
        other.recall("tea", ["bob", "ann"], session_id="chat")
        other.forget(filter=memoird.MemoryFilter(subject="ann"))
        other.list_sessions()
    server.stop(None)
    assert seen == ["a%20chat%2F%C3%A9%21", "ann", "ann%2F1", "bob", "ann", None]


def test_an_id_that_is_too_long_is_refused_by_the_daemon(client):
    # As metadata it would exceed the limit of a connection, and end the calls of others.
    long = "é" * 20_000
    for call in (client.get_session, client.list_memories):
        with pytest.raises(errors.InvalidArgument) as refused:
            call(long, timeout=10)
        assert refused.value.reason == "ID_INVALID"
    client.append("é" * 128, [memoird.user("hello")])


def test_a_turn_is_overwritten_and_a_session_forked(client):
    client.append("old", [memoird.user("secret"), memoird.assistant("noted")])
    updated = client.update_turn("old", 1, memoird.user("gone"))
    assert updated.turn.parts == memoird.user("gone").parts and updated.turn.seq == 1
    with pytest.raises(errors.InvalidArgument):
        client.update_turn("old", 1, memoird.assistant("another role"))
    fork = client.copy_session("old", through_seq=1, target_session_id="fork")
    assert (fork.turns, fork.duplicate, fork.session.last_seq) == (1, False, 1)
    assert client.get_history("fork").turns[0].parts == updated.turn.parts
    with pytest.raises(errors.MemoirdError) as lives:
        client.copy_session("old", target_session_id="fork")
    assert lives.value.reason == "TARGET_LIVES"


def test_a_request_that_is_used_twice_is_two_appends(client):
    append = memoird.AppendRequest(turns=[memoird.user("again")])
    seqs = [client.build_context("twice", append).session.last_seq for _ in range(2)]
    assert (seqs, append.idempotency_key) == ([1, 2], "")


def test_a_client_that_is_closed_says_so(client):
    other = memoird.Client(client.addr)
    events = other.watch_events()
    other.append("closed", [memoird.user("before")])
    other.close()
    for call in (lambda: list(events), lambda: other.get_session("closed"), other.watch_events):
        with pytest.raises(errors.Cancelled, match="is closed"):
            call()


def test_a_daemon_of_ones_own_asks_for_no_key(monkeypatch):
    monkeypatch.setenv("MEMOIRD_KEY", "somebody's")
    with memoird.local() as own:
        assert own.list_sessions().sessions == []


def test_a_daemon_that_was_killed_is_not_called(tmp_path):
    with memoird.local(data_dir=tmp_path) as own:
        own.append("kept", [memoird.user("before")])
        left = (tmp_path / "endpoints.json").read_bytes()
    (tmp_path / "endpoints.json").write_bytes(left)
    with memoird.local(data_dir=tmp_path) as own:
        assert own.append("kept", [memoird.user("after")], timeout=5).last_seq == 2


INTERRUPTED = """
import os, signal, memoird
with memoird.local() as own:
    try:
        os.killpg(0, signal.SIGINT)
        signal.sigtimedwait([], 5)
    except KeyboardInterrupt:
        # A daemon that got the signal as well would soon reject new calls.
        for _ in range(200):
            own.append("kept", [memoird.user("after")], timeout=5)
"""


def test_an_interrupted_cell_leaves_the_daemon_alone():
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, start_new_session=True, timeout=60)


KILLED = """
import memoird, signal
with memoird.local() as own:
    print(own.addr, flush=True)
    signal.pause()
"""


def test_who_is_killed_leaves_no_daemon_behind():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as killed:
        host, _, port = killed.stdout.readline().strip().rpartition("/")[2].partition(":")
        killed.kill()
    ends = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            break
        except ConnectionResetError:
            # It is shutting down.
            pass
        assert time.monotonic() < ends, "it serves on"


FORKED = """
import asyncio, os, signal, sys, memoird
calls = memoird.AsyncClient(sys.argv[1])
asyncio.run(calls.get_memory_stats())
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        asyncio.run(calls.get_memory_stats(timeout=5))
    except memoird.MemoirdError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_an_event_loop_in_a_fork_is_refused_rather_than_hang(client):
    subprocess.run([sys.executable, "-c", FORKED, client.addr], check=True, timeout=60)


FORKED_AMID_CALLS = """
import os, signal, sys, threading, memoird
calls, is_over = memoird.Client(sys.argv[1]), False

def busy():
    while not is_over:
        calls.get_memory_stats()

threads = [threading.Thread(target=busy, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if not child:
        signal.alarm(20)
        calls.get_memory_stats(timeout=5)
        memoird.Client(sys.argv[1]).get_memory_stats(timeout=5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
is_over = True
"""


def test_a_client_works_in_a_fork_of_a_process_whose_threads_call(client):
    subprocess.run([sys.executable, "-c", FORKED_AMID_CALLS, client.addr], check=True, timeout=120)


FORKED_AMID_CALLS_OF_A_LOOP = """
import asyncio, grpc, os, signal, sys, threading, memoird
calls, is_over, is_busy = memoird.Client(sys.argv[1]), False, threading.Event()
looping = calls.for_event_loops()
# Older ones are refused, whether a call is under way or not.
is_old = tuple(map(int, grpc.__version__.split(".")[:2])) < (1, 80)

def fork():
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            calls.get_memory_stats(timeout=5)
        except memoird.MemoirdError as error:
            reasons = {"forked amid a call": 7, "1.80 or newer": 8}
            os._exit(next((code for words, code in reasons.items() if words in str(error)), 1))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def call():
    while not is_over:
        await looping.get_memory_stats()
        is_busy.set()

async def busy():
    await asyncio.gather(*(call() for _ in range(4)))

thread = threading.Thread(target=lambda: asyncio.run(busy()), daemon=True)
thread.start()
is_busy.wait()
forked = [fork() for _ in range(10)]
assert forked == [8 if is_old else 0] * 10, forked
is_over = True
thread.join()

async def own():
    under_way = asyncio.ensure_future(looping.get_memory_stats())
    await asyncio.sleep(0)
    forked = fork()
    await under_way
    return forked

# Its loop stands still: what is under way there is not waited for with success.
assert asyncio.run(own()) == (8 if is_old else 7)
"""


def test_a_client_works_in_a_fork_of_a_process_whose_event_loops_call(client):
    script = [sys.executable, "-c", FORKED_AMID_CALLS_OF_A_LOOP, client.addr]
    subprocess.run(script, check=True, timeout=120)


FORKED_AMID_A_STREAM = """
import os, signal, sys, threading, memoird
calls = memoird.Client(sys.argv[1])
events = calls.watch_events()
thread = threading.Thread(target=lambda: next(events), daemon=True)
thread.start()
while not calls.append("stream", [memoird.user("Hello")]) or thread.is_alive():
    thread.join(0.01)
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        memoird.Client(sys.argv[1]).get_memory_stats(timeout=5)
    except memoird.MemoirdError as error:
        os._exit(7 if "forked amid a call" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
calls.get_memory_stats()
"""


def test_a_client_refuses_calls_in_a_fork_amid_a_stream(client):
    subprocess.run([sys.executable, "-c", FORKED_AMID_A_STREAM, client.addr], check=True, timeout=60)


def test_a_memory_is_read_by_its_external_key(client):
    client.remember("keyed", memoird.MemoryKind.PROJECT, "The parcel is red", external_key="parcel")
    found = client.get_memory(subject="keyed", external_key="parcel").memory
    assert found.content == "The parcel is red"
    assert found in client.list_memories(subject_prefix="key").memories
    assert "keyed" in [it.subject for it in client.list_subjects().subjects]


def test_a_daemon_that_is_older(client, monkeypatch):
    monkeypatch.setattr(_calls.GET_SESSION, "path", "/memoird.v1.SessionService/TellMe")
    monkeypatch.setattr(_calls.GET_SESSION, "name", "TellMe")
    with pytest.raises(errors.MissingCall, match="has no call TellMe") as missing:
        client.get_session("chat")
    assert missing.value.facts["call"] == "TellMe"


def test_what_no_daemon_of_a_cluster_does_is_no_older_daemon():
    with scripted(refused(grpc.StatusCode.UNIMPLEMENTED, "NOT_IN_CLUSTER")) as (addr, _):
        with memoird.Client(addr) as other, pytest.raises(errors.Unimplemented) as failed:
            other.search_transcripts("parcel")
    assert not isinstance(failed.value, errors.MissingCall)
    assert (failed.value.reason, failed.value.facts) == ("NOT_IN_CLUSTER", {})


def test_a_server_that_is_no_daemon_is_not_called_an_older_one():
    def refuse(context):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404")

    with scripted(refuse) as (addr, _), memoird.Client(addr) as other:
        with pytest.raises(errors.Unimplemented, match="no memoird daemon.*404.*address") as failed:
            other.get_session("chat")
    assert not isinstance(failed.value, errors.MissingCall)


def test_a_daemon_that_comes_back_is_reached_soon():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with memoird.Client(f"http://127.0.0.1:{port}", timeout=0.01) as other:
        with pytest.raises(errors.MemoirdError):
            other.get_session("chat")
        server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Answering()])
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        server.start()
        # gRPC's default first backoff is at least 0.8 s.
        assert other.get_session("chat", timeout=0.75)
        server.stop(None)


def test_a_connection_that_died_without_a_word_is_made_anew(monkeypatch):
    # Shortens the times to a thirtieth.
    options = [(name, value // 30 if "alive" in name or "ping" in name else value) for name, value in clients._OPTIONS]
    monkeypatch.setattr(clients, "_OPTIONS", options)
    died = threading.Event()

    def forward(source, target, is_first):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not (is_first and died.is_set()):
                    target.sendall(data)

    def relay(listener, port):
        with contextlib.suppress(OSError):
            for number in itertools.count():
                ends = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                for pair in (ends, ends[::-1]):
                    threading.Thread(target=forward, args=(*pair, number == 0), daemon=True).start()

    with scripted(answered, answered) as (addr, seen), socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(addr.rpartition(":")[2])
        threading.Thread(target=relay, args=(listener, port), daemon=True).start()
        with memoird.Client("http://127.0.0.1:%d" % listener.getsockname()[1], timeout=20) as calls:
            calls.get_session("chat")
            died.set()
            calls.get_session("chat")
        assert len(seen) == 2


def test_an_idle_connection_is_closed_before_a_proxy_drops_it(monkeypatch):
    idle = dict(clients._OPTIONS)["grpc.client_idle_timeout_ms"]
    # gRPC closes it within twice the time. Proxies drop idle connections after a minute or more.
    assert 0 < 2 * idle < 60_000
    options = [(name, 1_000 if "idle" in name else value) for name, value in clients._OPTIONS]
    monkeypatch.setattr(clients, "_OPTIONS", options)
    closed = threading.Event()
    connections = itertools.count()

    def forward(source, target, is_to_daemon):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        if is_to_daemon:
            closed.set()

    def relay(listener, port):
        with contextlib.suppress(OSError):
            while True:
                ends = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                next(connections)
                for pair, is_to_daemon in ((ends, True), (ends[::-1], False)):
                    arguments = (*pair, is_to_daemon)
                    threading.Thread(target=forward, args=arguments, daemon=True).start()

    with scripted(answered, answered) as (addr, seen), socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(addr.rpartition(":")[2])
        threading.Thread(target=relay, args=(listener, port), daemon=True).start()
        with memoird.Client("http://127.0.0.1:%d" % listener.getsockname()[1]) as calls:
            calls.get_session("chat")
            assert closed.wait(30)
            calls.get_session("chat")
        assert len(seen) == 2 and next(connections) == 2


def call_in(kind, addr, **settings):
    """A call of a new client of either kind."""
    if kind is memoird.Client:
        with memoird.Client(addr, **settings) as calls:
            return calls.get_session("chat")

    async def call():
        async with memoird.AsyncClient(addr, **settings) as calls:
            return await calls.get_session("chat")

    return asyncio.run(call())


@pytest.mark.parametrize("kind", [memoird.Client, memoird.AsyncClient])
@pytest.mark.parametrize("end", ["refuses", "is silent"])
def test_a_client_that_never_reached_a_daemon_names_the_command(monkeypatch, kind, end):
    assert clients.FIRST_CONTACT == 3
    monkeypatch.setattr(clients, "FIRST_CONTACT", 0.2)
    options = [(name, 200 if "min_reconnect" in name else value) for name, value in clients._OPTIONS]
    monkeypatch.setattr(clients, "_OPTIONS", options)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addr = "http://127.0.0.1:%d" % (silent.getsockname()[1] if end == "is silent" else 1)
        with pytest.raises(errors.Unavailable, match="memoird serve") as failed:
            # Much sooner than the call's timeout.
            call_in(kind, addr, timeout=3600)
        assert addr in str(failed.value) and failed.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("kind", [memoird.Client, memoird.AsyncClient])
def test_a_client_that_reached_a_daemon_waits_for_it(monkeypatch, kind):
    monkeypatch.setattr(clients, "FIRST_CONTACT", 0)

    def gone(context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is gone")

    async def call(addr):
        async with memoird.AsyncClient(addr) as calls:
            for _ in range(2):
                await calls.get_session("chat")

    for first in (answered, refused(grpc.StatusCode.UNAVAILABLE, "STOPPING", 0.001)):
        with scripted(first, gone, gone, answered, answered) as (addr, seen):
            if kind is memoird.AsyncClient:
                asyncio.run(call(addr))
            else:
                with memoird.Client(addr) as calls:
                    for _ in range(2):
                        calls.get_session("chat")
            assert len(seen) >= 4
    with scripted(gone, answered) as (addr, seen):
        with pytest.raises(errors.Unavailable, match="memoird serve"):
            call_in(kind, addr)
        assert len(seen) == 1


def test_a_missing_extra_is_named():
    section = (HERE.parent / "pyproject.toml").read_text().split("[project.optional-dependencies]\n")[1]
    extras = [line.split(" = ")[0] for line in section.split("\n\n")[0].splitlines()]
    assert set(_extras._PACKAGES) == set(extras)
    for extra, packages in _extras._PACKAGES.items():
        module = f"memoird.{extra.replace('-', '_')}"
        for package in packages:
            missing = f"import sys; sys.modules[{package!r}] = None; import {module}"
            ended = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True)
            assert "ModuleNotFoundError: this adapter needs" in ended.stderr
            assert f"pip install 'memoird[{extra}]'" in ended.stderr


PROXIED = """
import asyncio, memoird
with memoird.local() as own:
    own.append("chat", [memoird.user("hi")], timeout=5)
    asyncio.run(own.for_event_loops().get_session("chat", timeout=5))
    memoird.Client(own.addr.replace("127.0.0.1", "localhost"), key="").get_session("chat", timeout=5)
"""


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_the_daemon_of_this_machine_is_called_without_a_proxy(variable):
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    environment[variable] = "http://127.0.0.1:1"
    subprocess.run([sys.executable, "-c", PROXIED], check=True, env=environment, timeout=60)


def test_nobody_listens():
    with memoird.Client("http://127.0.0.1:1", timeout=0.3) as nobody:
        with pytest.raises(errors.Unavailable):
            nobody.get_session("chat")


def test_a_socket_in_the_file_system(client, tmp_path):
    # Needs the real daemon: a fake server would not check the authority of a call.
    path = tmp_path / "memoird.sock"
    settings = pathlib.Path(tmp_path / "memoird.yaml")
    data = json.dumps(str(tmp_path / "data"))
    listens = f"listen: 'unix:{path}', admin_listen: '127.0.0.1:0', allow_without_keys: true"
    settings.write_text(f"version: 1\nserver: {{ {listens} }}\ndata_dir: {data}\n")
    daemon = subprocess.Popen([os.environ["MEMOIRD_BIN"], "serve", "--config", str(settings)])
    try:
        for addr in (f"unix:{path}", f"unix://{path}"):
            with memoird.Client(addr, key="") as calls:
                assert calls.append("chat", SAID, timeout=30).last_seq
                assert asyncio.run(calls.for_event_loops().get_session("chat")).session.last_seq
    finally:
        daemon.terminate()
        daemon.wait()


@pytest.mark.parametrize(
    "addr",
    ["ftp://x", "http://", "unix:", "http://x:y", "http://x:7717/path", "http://a:b@x", "http://[::1", "http://:7717"],
)
def test_an_address_that_is_none(addr):
    with pytest.raises(ValueError, match="is no address"):
        memoird.Client(addr)


def test_an_address_without_a_port_has_that_of_its_scheme():
    with memoird.Client("http://127.0.0.1", timeout=0.3) as nobody:
        with pytest.raises(errors.Unavailable, match=":80:"):
            nobody.get_session("chat")


def test_each_event_loop_has_its_own_connection(client):
    calls = memoird.AsyncClient(client.addr)

    async def chat(name):
        appends = (calls.append(name, [memoird.user(str(number))]) for number in range(10))
        await asyncio.gather(*appends)
        page = await calls.get_history(name)
        await calls.close()
        return len(page.turns)

    assert [asyncio.run(chat(name)) for name in ("one", "two")] == [10, 10]


def test_a_client_that_is_closed_in_its_loop_says_so(client):
    async def close():
        answers = threading.Event()
        with scripted(*[lambda _: answers.wait(20) and b""] * 2) as (addr, seen):
            calls = memoird.AsyncClient(addr)
            ended, closed = (asyncio.ensure_future(calls.get_session("chat")) for _ in range(2))
            while len(seen) < 2:
                await asyncio.sleep(0)
            ended.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended
            await calls.close()
            with pytest.raises(errors.Cancelled, match="is closed"):
                await closed
            answers.set()
        calls = client.for_event_loops()
        events = calls.watch_events()
        await calls.close()
        with pytest.raises(errors.Cancelled, match="is closed"):
            await anext(events)

    asyncio.run(close())


def test_a_client_that_is_closed_between_two_tries_says_so(monkeypatch):
    async def call(addr):
        calls = memoird.AsyncClient(addr)
        monkeypatch.setattr(asyncio, "sleep", lambda _: calls.close())
        with pytest.raises(errors.Cancelled, match="is closed"):
            await calls.get_session("chat")

    with scripted(refused(grpc.StatusCode.UNAVAILABLE, "STOPPING", 0.001)) as (addr, _):
        asyncio.run(call(addr))


def test_event_loops_of_many_threads_begin_at_once():
    class Loop:
        """A long-lived loop, because searching through many takes long."""

        def is_closed(self):
            return False

    calls, lasting = memoird.AsyncClient("http://127.0.0.1:1"), [Loop() for _ in range(2000)]
    calls._loops.update((loop, {}) for loop in lasting)

    async def begin():
        calls._methods()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with futures.ThreadPoolExecutor(8) as threads:
            for begun in [threads.submit(asyncio.run, begin()) for _ in range(80)]:
                begun.result()
    finally:
        sys.setswitchinterval(interval)


def test_events_are_streamed(client):
    events = client.watch_events(timeout=20)
    client.append("watched", [memoird.user("hello")])
    for answer in events:
        if answer.event and answer.event.session_id == "watched":
            assert answer.event.created
            break
        client.append("watched", [memoird.user("hello")])
    events.close()


def test_a_stream_that_nobody_reads_ends(client):
    async def begin():
        calls = client.for_event_loops()
        for _ in range(3):
            calls.watch_events()
        # gRPC has a task for each.
        ends = time.monotonic() + 20
        while len(asyncio.all_tasks()) > 1:
            assert time.monotonic() < ends
            await asyncio.sleep(0)

    asyncio.run(begin())


def test_numbers_of_newer_daemons_are_kept():
    role = memoird.Role(4711)
    assert role == 4711 and memoird.Role(4711) is role


def test_what_is_generated_is_fresh():
    if not importlib.util.find_spec("grpc_tools"):
        pytest.skip("grpcio-tools is not installed")
    spec = importlib.util.spec_from_file_location("generate", HERE.parent / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, text in generate.generated().items():
        if not name.startswith("v1/"):
            assert (HERE.parent / "src/memoird" / name).read_text() == text, f"{name} is stale"


def test_the_package_has_its_licenses_and_no_link_that_leaves_it():
    root = HERE.parent.parent.parent
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        assert (HERE.parent / name).read_bytes() == (root / name).read_bytes()
    # Relative links would be broken in a wheel.
    links = re.findall(r"\]\(([^)]+)\)", (HERE.parent / "README.md").read_text())
    assert [link for link in links if not link.startswith(("#", "https://"))] == []
