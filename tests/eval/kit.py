"""Shared by the checks: a daemon and a PostgreSQL of their own, and Python bindings."""

import atexit
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CAP = 50


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Daemon:
    """A memoird with its own data folder, always on the same port.

    `cap` is `max_history_turns`. With `None` the default applies.
    """

    def __init__(self, memoird, folder, cap=CAP, more="", admin_port=0):
        folder.mkdir()
        self.memoird, self.folder, self.port = memoird, folder, free_port()
        self.config = folder / "memoird.yaml"
        self.config.write_text(
            f"version: 1\ndata_dir: {folder / 'data'}\n"
            f"server: {{ listen: 127.0.0.1:{self.port}, admin_listen: 127.0.0.1:{admin_port}, "
            "allow_without_keys: true }\n"
            f"{f'short_term: {{ max_history_turns: {cap} }}' if cap else ''}\n"
            f"hooks: [ {{ name: checkpoint, git: {{ dir: {folder / 'checkpoints'} }} }} ]\n"
            f"{more}"
        )
        self.start()

    def start(self):
        self.log = open(self.folder / "log", "ab")
        argv = [self.memoird, "serve", "--config", self.config]
        self.process = subprocess.Popen(argv, stderr=self.log)
        atexit.register(self.process.kill)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the daemon does not listen"
                time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, (self.folder / "log").read_text()

    @property
    def addr(self):
        return f"127.0.0.1:{self.port}"

    def replay(self, file, **options):
        argv = [self.memoird, "--addr", self.addr, "--json", "replay", file, "--format", "openai"]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, **options)


class Postgres:
    """A PostgreSQL in its own folder, always on the same port. A standby if `primary` is given."""

    # Folders of Debian, one for each version.
    PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    # PostgreSQL refuses to run as root.
    USER = {"user": "postgres"} if os.getuid() == 0 else {}

    def __init__(self, options="", primary=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="memoird-postgres-"))
        if self.USER:
            shutil.chown(self.folder, "postgres")
        self.port, self.options, self.data = free_port(), options, self.folder / "data"
        atexit.register(self.remove)
        if primary is None:
            self.run("initdb", "--pgdata", self.data, "--username", "memoird", "--auth", "trust", "--no-sync")
        else:
            address = f"host=127.0.0.1 port={primary.port} user=memoird application_name=standby"
            self.run("pg_basebackup", "--pgdata", self.data, "--dbname", address, "-R", "--checkpoint=fast")
        self.start()

    def run(self, program, *args):
        argv = [pathlib.Path(self.PROGRAMS[-1]) / program, *args]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", **self.USER)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def pg_ctl(self, *args):
        self.run("pg_ctl", "--wait", "--pgdata", self.data, *args)

    def start(self):
        where = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder}"
        self.pg_ctl("start", "--log", self.folder / "log", "--options", f"{where} {self.options}")

    def sql(self, statement, database="memoird"):
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--username", "memoird"]
        return self.run("psql", *where, "-XAtc", statement, database).strip()

    def remove(self):
        if (self.data / "postmaster.pid").exists():
            self.pg_ctl("stop", "--mode", "immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def generated(work):
    """Generates Python bindings of the contract."""
    import grpc_tools
    from grpc_tools import protoc

    out = work / "bindings"
    out.mkdir()
    proto = pathlib.Path(__file__).resolve().parents[2] / "proto"
    files = sorted(str(file) for file in proto.glob("memoird/v1/*.proto"))
    google = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    outs = [f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main(["", f"-I{proto}", f"-I{google}", *outs, *files]) == 0
    sys.path.insert(0, str(out))
    import grpc
    from memoird.v1 import common_pb2, session_pb2, session_pb2_grpc

    return grpc, common_pb2, session_pb2, session_pb2_grpc


def settled(stub, api, name):
    """Waits until no compaction of a session is running, and returns the session."""
    deadline = time.monotonic() + 30
    while True:
        answer = stub.GetSession(api.GetSessionRequest(session_id=name))
        if not answer.session.compaction.running:
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.005)


def check_openai(messages):
    """Checks that every result directly follows its call. Returns the ids of calls still open."""
    waiting = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, f"an orphan: {message}"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"calls without results: {waiting}"
        waiting = {call["id"] for call in message.get("tool_calls") or []}
        assert message.get("content") or waiting, f"empty: {message}"
    return waiting
