"""A local daemon for notebooks and tests."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .client import Client
from .errors import Unavailable

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 40.0
ENDPOINTS = "endpoints.json"


def _binary(binary: str | os.PathLike[str] | None) -> str:
    found = binary or os.environ.get("MEMOIRD_BIN") or shutil.which("memoird")
    if not found:
        raise FileNotFoundError(
            "there is no memoird on PATH: install it, or name it with MEMOIRD_BIN or binary="
        )
    return os.fspath(found)


@contextmanager
def local(
    *,
    config: str = "",
    data_dir: str | os.PathLike[str] | None = None,
    binary: str | os.PathLike[str] | None = None,
) -> Iterator[Client]:
    """Starts a daemon on this machine, yields a client of it, and stops the daemon at the end.

    The daemon is stopped even if this process is killed. `config` is YAML to append to its
    configuration, which sets the addresses and the data directory. Without `data_dir`, the data is
    removed at the end. Other clients connect to `client.addr`.
    """
    program = _binary(binary)
    with tempfile.TemporaryDirectory(prefix="memoird-") as scratch:
        folder = pathlib.Path(scratch)
        data = pathlib.Path(data_dir) if data_dir else folder / "data"
        file, log = folder / "memoird.yaml", folder / "log"
        file.write_text(_settings(data) + config)
        before = _written(data / ENDPOINTS)
        with log.open("wb") as words:
            daemon = subprocess.Popen(
                [program, "serve", "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                # A new session, so that Ctrl+C or the interruption of a notebook cell reaches only
                # this program.
                start_new_session=True,
            )
        watcher = _watcher(daemon)
        try:
            with Client(_address(daemon, data, log, before), key="") as client:
                yield client
        finally:
            if watcher:
                watcher.kill()
                watcher.communicate()
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _watcher(daemon: subprocess.Popen[bytes]) -> subprocess.Popen[bytes] | None:
    """Starts a process that stops the daemon when its input ends, because this process was killed.

    Returns None without a shell.
    """
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill "$0"', str(daemon.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


def _settings(data: pathlib.Path) -> str:
    return (
        "version: 1\n"
        "server: { listen: '127.0.0.1:0', admin_listen: '127.0.0.1:0', "
        "allow_without_keys: true }\n"
        f"data_dir: {json.dumps(str(data))}\n"
    )


def _written(file: pathlib.Path) -> int:
    """Modification time of a file in nanoseconds. 0 if it does not exist."""
    return file.stat().st_mtime_ns if file.exists() else 0


def _address(
    daemon: subprocess.Popen[bytes], data: pathlib.Path, log: pathlib.Path, before: int
) -> str:
    """Waits for the daemon's address. Ignores a file as old as `before`, which a killed daemon left."""
    ends = time.monotonic() + START_SECONDS_MAX
    endpoints = data / ENDPOINTS
    while daemon.poll() is None and time.monotonic() < ends:
        try:
            if _written(endpoints) != before:
                return str(json.loads(endpoints.read_text())["grpc"])
        except (OSError, ValueError):
            pass
        time.sleep(0.005)
    said = log.read_text(errors="replace")[-2000:].strip()
    raise Unavailable(f"the daemon did not start: {said}")
