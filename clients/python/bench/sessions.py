"""Sessions of the OpenAI Agents SDK: memoird's beside the SDK's own, in one process and one run.

    pip install 'memoird[openai-agents]' && MEMOIRD_BIN=... python bench/sessions.py

For 100 and 5,000 items before: to add 2 items, and to read the last 20. Every round asks each of them once, in an
order that changes, and the figure is the median of all rounds. The floor is a call of the same channel that is
answered at once (`grpc.health.v1.Health/Check`): no client by gRPC for Python is faster. With `--redis ADDR` the
SDK's RedisSession is there, too; start that server with `--appendonly yes --appendfsync always`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

from agents import SQLiteSession

import memoird
from memoird.openai_agents import MemoirdSession

SIZES = (100, 5000)
Operation = Callable[[], Awaitable[object]]


def item(number: int) -> dict[str, str]:
    role = "user" if number % 2 == 0 else "assistant"
    return {"role": role, "content": f"This is message {number}, about as long as people write."}


async def median_ms(operations: dict[str, Operation], rounds: int) -> dict[str, float]:
    """Of each operation, in milliseconds."""
    taken: dict[str, list[float]] = {name: [] for name in operations}
    names = list(operations)
    for round in range(rounds + rounds // 10):
        random.shuffle(names)
        for name in names:
            start = time.perf_counter()
            await operations[name]()
            if round >= rounds // 10:
                taken[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(times) for name, times in taken.items()}


def empty_call(calls: memoird.AsyncClient) -> Operation:
    method = calls._methods()[""].unary_unary("/grpc.health.v1.Health/Check")

    async def check() -> None:
        await method(b"")

    return check


async def measure(clients: dict[str, memoird.AsyncClient], args: argparse.Namespace) -> None:
    print(f"{'':34}{'ms, median':>12}{'of SQLite':>12}")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            sessions = {"SQLiteSession (file)": SQLiteSession("s", pathlib.Path(folder) / "db")}
            for name, calls in clients.items():
                sessions[f"memoird, durability {name}"] = MemoirdSession(f"s{size}", client=calls)
            if args.redis:
                from agents.extensions.memory import RedisSession

                redis = RedisSession.from_url(f"bench-{size}", url=args.redis)
                await redis.clear_session()
                sessions["RedisSession"] = redis
            for session in sessions.values():
                for start in range(0, size, 200):
                    many = range(start, min(size, start + 200))
                    await session.add_items([item(number) for number in many])
            two, floors = [item(0), item(1)], {"empty call": empty_call(next(iter(clients.values())))}
            for what, of in {
                "last 20": lambda session: lambda: session.get_items(20),
                "append of 2": lambda session: lambda: session.add_items(two),
            }.items():
                operations = {name: of(session) for name, session in sessions.items()}
                figures = await median_ms({**floors, **operations}, args.rounds)
                print(f"{what}, {size:,} items before")
                sqlite = figures["SQLiteSession (file)"]
                for name, figure in figures.items():
                    print(f"  {name:32}{figure:12.3f}{figure / sqlite:12.2f}")
    for calls in clients.values():
        await calls.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--redis", default="", help="redis://127.0.0.1:6379")
    args = parser.parse_args()
    with contextlib.ExitStack() as open:
        clients = {}
        for durability in ("sync", "off"):
            # As many turns stay in both: without a journal the history is all there is.
            config = (
                f"journal: {{ durability: {durability} }}\n"
                "short_term: { max_history_turns: 20000, max_history_bytes: 64MiB }\n"
            )
            daemon = open.enter_context(memoird.local(config=config))
            clients[durability] = memoird.AsyncClient(daemon.addr)
        asyncio.run(measure(clients, args))


if __name__ == "__main__":
    main()
