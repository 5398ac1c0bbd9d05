"""Compares memoird's session for the OpenAI Agents SDK with the SDK's own.

    pip install 'memoird[openai-agents]' redis && MEMOIRD_BIN=... python bench/sessions.py

Measures adding 2 items and reading the last 20, with 100 and 5,000 existing items. Every round runs
each operation once, in varying order, and the result is the median of all rounds. The floor is a
call of the same channel with an immediate response (`grpc.health.v1.Health/Check`): no gRPC client
for Python is faster. The SDK's RedisSession is included if `redis-server` and `redis` are
installed, with its own server, which writes each command to disk before it responds (`--appendfsync
always`), like durability `sync`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator

from agents import SQLiteSession

import memoird
from memoird.openai_agents import MemoirdSession

SIZES = (100, 5000)
SQLITE, REDIS = "SQLiteSession (file)", "RedisSession (AOF always)"
Operation = Callable[[], Awaitable[object]]


def item(number: int) -> dict[str, str]:
    role = "user" if number % 2 == 0 else "assistant"
    return {"role": role, "content": f"This is message {number}, about as long as people write."}


async def median_ms(operations: dict[str, Operation], rounds: int) -> dict[str, float]:
    """Returns the median of each operation in milliseconds."""
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


@contextlib.contextmanager
def redis_server() -> Iterator[str | None]:
    """Starts a Redis server and yields its address. None if it is not installed."""
    program = shutil.which("redis-server")
    if not program or not importlib.util.find_spec("redis"):
        print("RedisSession is left out: `redis-server` or the package `redis` is not installed")
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", folder]
        words = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        server = subprocess.Popen([program, "--bind", "127.0.0.1", "--port", str(port), *settings], **words)
        try:
            while server.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.01)
            else:
                raise SystemExit(f"redis-server did not start: {server.returncode}")
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def empty_call(calls: memoird.AsyncClient) -> Operation:
    method = calls._methods()[""].unary_unary("/grpc.health.v1.Health/Check")

    async def check() -> None:
        await method(b"")

    return check


async def measure(clients: dict[str, memoird.AsyncClient], redis_at: str | None, rounds: int) -> None:
    of_redis = f"{'of Redis':>12}" if redis_at else ""
    print(f"{'':34}{'ms, median':>12}{'of SQLite':>12}{of_redis}")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            sessions = {SQLITE: SQLiteSession("s", pathlib.Path(folder) / "db")}
            for name, calls in clients.items():
                sessions[f"memoird, durability {name}"] = MemoirdSession(f"s{size}", client=calls)
            if redis_at:
                from agents.extensions.memory import RedisSession

                redis = RedisSession.from_url(f"bench-{size}", url=redis_at)
                await redis.clear_session()
                sessions[REDIS] = redis
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
                figures = await median_ms({**floors, **operations}, rounds)
                print(f"{what}, {size:,} items before")
                bases = [figures[name] for name in (SQLITE, REDIS) if name in figures]
                for name, figure in figures.items():
                    ratios = "".join(f"{figure / base:12.2f}" for base in bases)
                    print(f"  {name:32}{figure:12.3f}{ratios}")
            if redis_at:
                await redis.close()
    for calls in clients.values():
        await calls.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    with contextlib.ExitStack() as open:
        clients = {}
        for durability in ("sync", "off"):
            # The same number of turns for both: without a journal, the history is all there is.
            config = (
                f"journal: {{ durability: {durability} }}\n"
                "short_term: { max_history_turns: 20000, max_history_bytes: 64MiB }\n"
            )
            daemon = open.enter_context(memoird.local(config=config))
            clients[durability] = memoird.AsyncClient(daemon.addr)
        redis_at = open.enter_context(redis_server())
        asyncio.run(measure(clients, redis_at, args.rounds))


if __name__ == "__main__":
    main()
