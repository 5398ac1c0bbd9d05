"""Compares memoird with the SQLite implementations of LangGraph's checkpointer and ADK's session
service.

    pip install 'memoird[langgraph,adk]' langgraph-checkpoint-sqlite && MEMOIRD_BIN=... python bench/langgraph_adk.py

Measures reading the newest of 300 checkpoints of a thread with 49 messages in its state; and with
300 sessions of 20 events each, 10 of them of one user: appending an event, reading a session, and
listing a user's sessions. Every round runs each operation once, in varying order, and the result is
the median of all rounds. The floor is a call of the same channel with an immediate response. For a
checkpoint it includes LangGraph's decoding, which both savers use.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

import memoird
from memoird.adk import MemoirdSessionService
from memoird.langgraph import MemoirdSaver

CHECKPOINTS, SESSIONS, OF_A_USER, EVENTS = 300, 300, 10, 20
TEXT = "This is message {}, about as long as people write."
EMPTY = "/grpc.health.v1.Health/Check"


def print_rows(what: str, taken: dict[str, list[float]], sqlite: str) -> None:
    figures = {name: statistics.median(times) * 1000 for name, times in taken.items()}
    print(what)
    for name, figure in figures.items():
        print(f"  {name:32}{figure:12.3f}{figure / figures[sqlite]:12.2f}")


def checkpoints(client: memoird.Client, folder: pathlib.Path, rounds: int) -> None:
    connection = sqlite3.connect(folder / "checkpoints", check_same_thread=False)
    savers: dict[str, Any] = {"SqliteSaver": SqliteSaver(connection), "memoird": MemoirdSaver(client)}
    config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    said = [kind(TEXT.format(n), id=f"m{n}") for n, kind in zip(range(50), cycle([HumanMessage, AIMessage]))]
    for saver in savers.values():
        checkpoint, at = empty_checkpoint(), config
        for step in range(CHECKPOINTS):
            checkpoint = create_checkpoint(checkpoint, None, step)
            checkpoint["channel_values"] = {"messages": said[: step % 50]}
            at = saver.put(at, checkpoint, {"source": "loop", "step": step}, {})
            saver.put_writes(at, [("messages", "said")], f"task-{step}")
        # The newest checkpoint has no writes, as after each run of a graph.
        saver.put(at, create_checkpoint(checkpoint, None, CHECKPOINTS), {"source": "loop"}, {})
    check = client._channel.unary_unary(EMPTY)
    operations = {name: lambda saver=saver: saver.get_tuple(config) for name, saver in savers.items()}
    operations["empty call"] = lambda: check(b"")
    serde = savers["memoird"].serde
    packed = serde.dumps_typed(savers["memoird"].get_tuple(config).checkpoint)
    operations["LangGraph, of bytes"] = lambda: serde.loads_typed(packed)
    taken: dict[str, list[float]] = {name: [] for name in operations}
    names = list(operations)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            start = time.perf_counter()
            operations[name]()
            taken[name].append(time.perf_counter() - start)
    print_rows(f"LangGraph: the newest of {CHECKPOINTS} checkpoints", taken, "SqliteSaver")


def event(number: int) -> Event:
    return Event(
        author="user" if number % 2 == 0 else "agent",
        content=types.Content(role="user", parts=[types.Part(text=TEXT.format(number))]),
        actions=EventActions(state_delta={"count": number}),
    )


async def sessions(client: memoird.AsyncClient, folder: pathlib.Path, rounds: int) -> None:
    services: dict[str, Any] = {
        "SqliteSessionService": SqliteSessionService(str(folder / "sessions")),
        "memoird": MemoirdSessionService(client),
    }
    current: dict[str, Any] = {}
    for name, service in services.items():
        for number in range(SESSIONS):
            user, id = f"user-{number // OF_A_USER}", str(number)
            made = await service.create_session(app_name="bench", user_id=user, session_id=id)
            for count in range(EVENTS):
                await service.append_event(made, event(count))
        current[name] = made
    of = {"app_name": "bench", "user_id": "user-0"}
    calls: dict[str, Callable[[Any, str], Callable[[], Awaitable[Any]]]] = {
        "append_event": lambda service, name: lambda: service.append_event(current[name], event(1)),
        "get_session": lambda service, _: lambda: service.get_session(**of, session_id="0"),
        "list_sessions": lambda service, _: lambda: service.list_sessions(**of),
    }
    check = client._methods()[""].unary_unary(EMPTY)
    for what, call in calls.items():
        operations = {name: call(service, name) for name, service in services.items()}
        operations["empty call"] = lambda: check(b"")
        taken: dict[str, list[float]] = {name: [] for name in operations}
        names = list(operations)
        for _ in range(rounds):
            random.shuffle(names)
            for name in names:
                start = time.perf_counter()
                await operations[name]()
                taken[name].append(time.perf_counter() - start)
        print_rows(f"ADK: {what}", taken, "SqliteSessionService")
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--durability", default="sync")
    args = parser.parse_args()
    config = f"journal: {{ durability: {args.durability} }}\n"
    with memoird.local(config=config) as client, tempfile.TemporaryDirectory() as scratch:
        print(f"{'':34}{'ms, median':>12}{'of SQLite':>12}")
        checkpoints(client, pathlib.Path(scratch), args.rounds)
        asyncio.run(sessions(client.for_event_loops(), pathlib.Path(scratch), args.rounds))


if __name__ == "__main__":
    main()
