"""Replays real conversations into a real daemon and reads them back with another client.

Turns sent by `memoird replay` must be returned through Python's grpcio: the same messages in the
same order with identical content if the history has them all, otherwise a history without orphaned
calls and results. The replay is repeated while the daemon is killed. At last every session ends,
and its checkpoint in git must contain all of it.
"""

import argparse
import json
import pathlib
import subprocess
import time

from kit import CAP, Daemon, generated

KILLS = 3


def expected_parts(message):
    """Returns the parts that a turn of an OpenAI message must have."""
    if message["role"] == "tool":
        return [("result", message["tool_call_id"], message["content"])]
    parts = []
    if isinstance(message.get("content"), str):
        parts.append(("text", message["content"]))
    for call in message.get("tool_calls") or []:
        parts.append(("use", call["id"], call["function"]["name"], call["function"]["arguments"]))
    return parts


def found_parts(turn):
    parts = []
    for part in turn.parts:
        kind = part.WhichOneof("part")
        if kind == "text":
            parts.append(("text", part.text))
        elif kind == "tool_use":
            parts.append(("use", part.tool_use.id, part.tool_use.name, part.tool_use.input_json))
        elif kind == "tool_result":
            result = part.tool_result
            parts.append(("result", result.tool_use_id, result.content))
    return parts


def check_whole(name, messages, turns, api):
    roles = {"system": api.ROLE_SYSTEM, "user": api.ROLE_USER,
             "assistant": api.ROLE_ASSISTANT, "tool": api.ROLE_TOOL}
    assert len(turns) == len(messages), f"{name}: {len(turns)} of {len(messages)}"
    for seq, (message, turn) in enumerate(zip(messages, turns), start=1):
        assert turn.seq == seq, f"{name}: seq {turn.seq} in place {seq}"
        assert turn.role == roles[message["role"]], f"{name}: role of {seq}"
        assert found_parts(turn) == expected_parts(message), f"{name}: content of {seq}"


def check_bounded(name, messages, turns):
    """Checks for the anchor, the newest request, and then the newest turns in whole units."""
    anchor = next(i for i, message in enumerate(messages, start=1) if message["role"] == "user")
    assert turns[0].seq == anchor, f"{name}: no anchor"
    assert CAP / 2 < len(turns) <= CAP + 1, f"{name}: {len(turns)} turns"
    tail = [turn.seq for turn in turns[1:]]
    request = max(i for i, message in enumerate(messages, start=1) if message["role"] == "user")
    assert request in tail, f"{name}: no request"
    if tail[0] == request:
        # The history has dropped the request's place.
        tail = tail[1:]
    assert tail == list(range(tail[0], len(messages) + 1)), f"{name}: gaps in {tail}"
    waiting = []
    for turn in turns:
        assert found_parts(turn) == expected_parts(messages[turn.seq - 1]), f"{name}: {turn.seq}"
        for part in found_parts(turn):
            if part[0] == "use":
                waiting.append(part[1])
            elif part[0] == "result":
                assert part[1] in waiting, f"{name}: an orphan at {turn.seq}"
                waiting.remove(part[1])
    assert not waiting, f"{name}: calls without results"


def check_all(daemon, conversations, modules):
    grpc, api, session_pb2, session_grpc = modules
    whole = bounded = 0
    with grpc.insecure_channel(daemon.addr) as channel:
        sessions = session_grpc.SessionServiceStub(channel)
        for conversation in conversations:
            name, messages = conversation["id"], conversation["messages"]
            request = session_pb2.GetHistoryRequest(session_id=name)
            live = sessions.GetHistory(request).turns
            request.scope = session_pb2.HISTORY_SCOPE_JOURNAL
            check_whole(f"{name} (journal)", messages, sessions.GetHistory(request).turns, api)
            if len(messages) <= CAP + 1:
                check_whole(name, messages, live, api)
                whole += 1
            else:
                check_bounded(name, messages, live)
                bounded += 1
    print(f"  {whole} conversations whole, {bounded} bounded and without orphans")
    assert whole and bounded


def killed_in_the_middle(daemon, file, total):
    """Kills and restarts the daemon several times during the replay."""
    replay = daemon.replay(file)
    for kill in range(1, KILLS + 1):
        wait_for_turns(daemon, total * kill // (KILLS + 1))
        daemon.kill()
        daemon.start()
    out, _ = replay.communicate(timeout=300)
    assert replay.returncode == 0, out
    print(f"  killed {KILLS} times: {out.decode().strip()}")


def wait_for_turns(daemon, turns):
    deadline = time.monotonic() + 120
    while stats(daemon)["turns_live"] < turns:
        assert time.monotonic() < deadline, "the replay stands still"


def check_checkpoints(daemon, conversations, modules):
    """Kills the daemon while conversations end. Checkpoints must contain them completely."""
    grpc, api, session_pb2, session_grpc = modules
    names = [conversation["id"] for conversation in conversations]
    for place, name in enumerate(names):
        if place in (len(names) // 3, 2 * len(names) // 3):
            daemon.kill()
            daemon.start()
        with grpc.insecure_channel(daemon.addr) as channel:
            sessions = session_grpc.SessionServiceStub(channel)
            sessions.EndSession(session_pb2.EndSessionRequest(session_id=name))
    deadline = time.monotonic() + 120
    while stats(daemon)["hooks_pending"]:
        assert time.monotonic() < deadline, "checkpoints are still owed"
    repository = daemon.folder / "checkpoints" / "default.git"
    git = ["git", "-C", repository]
    subprocess.run([*git, "fsck", "--full", "--strict"], check=True, stderr=subprocess.PIPE)
    listed = subprocess.run([*git, "ls-tree", "-r", "--name-only", "main"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.splitlines()
    lines = [path for path in listed if path.endswith(".jsonl")]
    assert len(lines) == len(names) == len(listed) / 2, f"{len(lines)} of {len(names)}"
    found = {}
    for path in lines:
        text = subprocess.run([*git, "show", f"main:{path}"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        name = pathlib.Path(path).stem.rsplit("-", 1)[0]
        found[name] = [json.loads(line) for line in text.splitlines()]
    for conversation in conversations:
        name, messages = conversation["id"], conversation["messages"]
        turns = found[name]
        assert [turn["seq"] for turn in turns] == list(range(1, len(messages) + 1)), name
        for message, turn in zip(messages, turns):
            assert json_parts(turn) == expected_parts(message), f"{name}: {turn['seq']}"
    commits = subprocess.run([*git, "rev-list", "--count", "main"], check=True,
                             stdout=subprocess.PIPE, text=True).stdout.strip()
    print(f"  {len(lines)} checkpoints whole, in {commits} commits, fsck clean")


def json_parts(turn):
    parts = []
    for part in turn["parts"]:
        if "text" in part:
            parts.append(("text", part["text"]))
        elif "tool_use" in part:
            use = part["tool_use"]
            parts.append(("use", use["id"], use["name"], use["input_json"]))
        elif "tool_result" in part:
            result = part["tool_result"]
            parts.append(("result", result["tool_use_id"], result.get("content", "")))
    return parts


def stats(daemon):
    argv = [daemon.memoird, "--addr", daemon.addr, "--json", "stats"]
    return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)


def with_buf_curl(buf, daemon, session):
    """Checks that buf needs only the server's reflection."""
    url = f"http://{daemon.addr}/memoird.v1.SessionService/GetSession"
    argv = [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge",
            "-d", json.dumps({"sessionId": session}), url]
    answer = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    assert answer["session"]["sessionId"] == session, answer
    print(f"  buf curl: {session} has {answer['session']['historyTurns']} turns")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--buf", required=True)
    args = parser.parse_args()
    modules = generated(args.work)
    file = args.data / "tau_airline_openai.jsonl"
    conversations = [json.loads(line) for line in file.read_text().splitlines()]
    total = sum(len(conversation["messages"]) for conversation in conversations)

    daemon = Daemon(args.memoird, args.work / "quiet")
    replay = daemon.replay(file)
    out, _ = replay.communicate(timeout=300)
    assert replay.returncode == 0, out
    print(f"  replayed: {out.decode().strip()}")
    check_all(daemon, conversations, modules)
    with_buf_curl(args.buf, daemon, conversations[0]["id"])
    daemon.kill()
    daemon.start()
    check_all(daemon, conversations, modules)
    daemon.stop()

    daemon = Daemon(args.memoird, args.work / "killed")
    killed_in_the_middle(daemon, file, total)
    check_all(daemon, conversations, modules)
    check_checkpoints(daemon, conversations, modules)
    daemon.stop()


main()
