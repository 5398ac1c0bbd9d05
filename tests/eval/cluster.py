"""Checks a cluster of daemons behind balancers: rolling restarts, kills, and a failover of the
database.

Bots append with the project's own client in the meantime. All acknowledged turns must be stored
once and in order. `.ci/run` runs `rolling`. `failover` is run by hand: `just cluster failover`.
"""

import argparse
import atexit
import concurrent.futures
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

# Processes are started while calls are in progress.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import memoird  # noqa: E402
from memoird import HistoryScope  # noqa: E402

import kit  # noqa: E402

SESSIONS, WRITERS, DAEMONS = 24, 6, 3
DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"


def page(daemon, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.admin_port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, ""
    except OSError:
        return 0, ""


def appends(daemon):
    """Number of appends that a daemon has served."""
    for line in page(daemon, "/metrics")[1].splitlines():
        if line.startswith('memoird_call_seconds_count{method="Append"}'):
            return float(line.split()[-1])
    return 0


def eventually(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def answers(client):
    try:
        return client.list_sessions()
    except memoird.errors.Unavailable:
        return None


class Cluster:
    """Daemons over the databases at these ports, one of which is writable."""

    def __init__(self, memoird_bin, work, ports):
        hosts, numbers = ",".join("127.0.0.1" for _ in ports), ",".join(map(str, ports))
        where = f"host={hosts} port={numbers} user=memoird dbname=memoird target_session_attrs=read-write"
        journal = f"journal: {{ postgres: {{ url: '{where}', cluster: true }} }}\n"
        work.mkdir(exist_ok=True)
        self.daemons = []
        for number in range(DAEMONS):
            port = kit.free_port()
            daemon = kit.Daemon(memoird_bin, work / f"daemon-{number}", more=journal, admin_port=port)
            daemon.admin_port = port
            self.daemons.append(daemon)
        for daemon in self.daemons:
            self.is_ready(daemon)

    def is_ready(self, daemon):
        eventually("the daemon is ready", lambda: page(daemon, "/readyz")[0] == 200)

    def stop(self):
        for daemon in self.daemons:
            daemon.stop()


class Balancer:
    """A configuration of deploy/balancers with other addresses."""

    def __init__(self, name, program, work, daemons):
        self.name, self.port, folder = name, kit.free_port(), work / name
        folder.mkdir()
        text = getattr(self, name)(daemons)
        config = folder / ("envoy.yaml" if name == "envoy" else f"{name}.conf")
        config.write_text(text)
        argv = {
            "envoy": ["--config-path", config, "--disable-hot-restart", "--concurrency", "1"],
            "haproxy": ["-f", config],
            "nginx": ["-c", config, "-g", f"daemon off; pid {folder}/pid;"],
        }
        log = open(folder / "log", "wb")
        self.process = subprocess.Popen([program, *argv[name]], stdout=log, stderr=log)
        atexit.register(self.process.kill)
        with memoird.Client(self.addr) as client:
            # A new client gives up before Envoy has started on a busy machine.
            eventually("the balancer answers", lambda: answers(client))

    @property
    def addr(self):
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def replaced(text, changes):
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    def envoy(self, daemons):
        text = (DEPLOY / "balancers/envoy.yaml").read_text()
        line = next(line for line in text.splitlines(True) if "memoird-headless, port_value" in line)
        each = [
            self.replaced(
                line,
                {
                    "memoird-headless": "127.0.0.1",
                    "port_value: 7717": f"port_value: {daemon.port}",
                    "port_value: 7718": f"port_value: {daemon.admin_port}",
                },
            )
            for daemon in daemons
        ]
        listener = "{ address: 0.0.0.0, port_value: 7717 }"
        here = f"{{ address: 127.0.0.1, port_value: {self.port} }}"
        return self.replaced(text, {line: "".join(each), listener: here})

    def haproxy(self, daemons):
        text = (DEPLOY / "balancers/haproxy.cfg").read_text()
        first, second = "  server memoird-1 memoird-1:7717\n", "  server memoird-2 memoird-2:7717\n"
        each = [
            f"  server memoird-{daemon.port} 127.0.0.1:{daemon.port} port {daemon.admin_port}\n"
            for daemon in daemons
        ]
        return self.replaced(text, {first: "".join(each), second: "", "bind *:7717": f"bind 127.0.0.1:{self.port}"})

    def nginx(self, daemons):
        text = (DEPLOY / "balancers/nginx.conf").read_text()
        rules = " max_fails=1 fail_timeout=2s;\n"
        first, second = f"    server memoird-1:7717{rules}", f"    server memoird-2:7717{rules}"
        each = [f"    server 127.0.0.1:{daemon.port}{rules}" for daemon in daemons]
        changes = {first: "".join(each), second: "", "listen 7717": f"listen 127.0.0.1:{self.port}"}
        return self.replaced(text, changes).replace("http {", "http {\n  access_log off;")

    def stop(self):
        assert self.process.poll() is None, f"{self.name} has ended"
        self.process.terminate()
        self.process.wait()


class Load:
    """Bots that each append turns to their own sessions, one after another."""

    def __init__(self, addrs, prefix):
        self.clients = [memoird.Client(addr, timeout=30) for addr in addrs]
        self.sessions = [f"{prefix}/{number}" for number in range(SESSIONS)]
        # Acknowledged turns: text and seq.
        self.told = {session: [] for session in self.sessions}
        self.errors, self.slowest, self.stopped = [], 0.0, threading.Event()
        # Acknowledged turns that were missing when read.
        self.missed = []
        # Daemon threads, so that a failing check exits at once.
        self.bots = [threading.Thread(target=self.write, args=[number], daemon=True) for number in range(WRITERS)]
        for bot in self.bots:
            bot.start()

    def write(self, number):
        for round in itertools.count():
            for place, session in enumerate(self.sessions[number::WRITERS]):
                if self.stopped.is_set():
                    return
                text, began = f"{session} says {round}", time.monotonic()
                client = self.clients[(round + place) % len(self.clients)]
                try:
                    told = client.append(session, [memoird.user(text)])
                    self.told[session].append((text, told.last_seq))
                    if round % 4 == 0:
                        newest = client.get_history(session, last=1).turns[-1]
                        if newest.parts[0].text != text:
                            self.missed.append((session, text))
                except Exception as error:  # noqa: BLE001
                    self.errors.append(f"{session}: {error!r}")
                self.slowest = max(self.slowest, time.monotonic() - began)

    def count(self):
        return sum(len(told) for told in self.told.values())

    def goes_on(self, turns=100):
        """Waits until this number of further turns is acknowledged."""
        before = self.count()
        eventually("appends go on", lambda: self.count() >= before + turns or self.errors)

    def stop(self):
        self.stopped.set()
        for bot in self.bots:
            bot.join(timeout=60)
            assert not bot.is_alive(), "a call does not end"

    def answers(self):
        """Returns the latency of the slowest session if all are read at once."""
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
            all(pool.map(lambda session: self.clients[0].get_session(session, timeout=10), self.sessions))
        return time.monotonic() - began

    def there(self, session):
        """Returns the journal's turns of a session, which must be the same from each daemon."""
        first, *others = [self.read(client, session) for client in self.clients]
        assert all(other == first for other in others), session
        return first

    def read(self, client, session):
        newest = [turn.seq for turn in client.get_history(session, last=1).turns]
        turns, after = [], 0
        while True:
            answer = client.get_history(session, scope=HistoryScope.JOURNAL, after_seq=after)
            turns += [(turn.parts[0].text, turn.seq) for turn in answer.turns]
            if answer.next_after_seq <= after:
                assert newest == [turns[-1][1]], (session, newest, turns[-1])
                return turns
            after = answer.next_after_seq

    def close(self):
        for client in self.clients:
            client.close()


def check_whole(load):
    """Checks that every acknowledged turn is stored once and in order, and no other."""
    assert not load.errors and not load.missed, (load.errors[:5], load.missed[:5])
    for session, told in load.told.items():
        assert load.there(session) == told, session


def is_here(name, program):
    """Whether a program is installed. In CI it must be."""
    if not program:
        word = f"{name} is not here"
        if os.environ.get("CI") == "true":
            sys.exit(word)
        print(f"skipped: {word}")
    return bool(program)


def says_that_nobody_is_there(memoird, balancer):
    """Checks for a gRPC error if no daemon is reachable. Clients cannot parse a page in HTML."""

    def told():
        command = [memoird, "--addr", balancer.addr, "health"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert "protocol error" not in asked.stderr, f"{balancer.addr}: {asked.stderr}"
        return asked.returncode == 69

    eventually("a balancer says that no daemon is there", told)


def rolling(args):
    if not is_here("PostgreSQL", kit.Postgres.PROGRAMS):
        return
    programs = {"envoy": args.envoy or shutil.which("envoy")}
    programs |= {name: shutil.which(name) for name in ("haproxy", "nginx")}
    programs = {name: program for name, program in programs.items() if is_here(name, program)}
    database = kit.Postgres()
    database.sql("CREATE DATABASE memoird", "postgres")
    cluster = Cluster(args.memoird, args.work, [database.port])
    for name, program in programs.items():
        balancer = Balancer(name, program, args.work, cluster.daemons)
        load = Load([balancer.addr], name)
        load.goes_on()
        for daemon in cluster.daemons:
            daemon.stop()
            load.goes_on()
            daemon.start()
            cluster.is_ready(daemon)
            # The next daemon is stopped once the balancer has found this one again.
            eventually("calls reach it", lambda: appends(daemon) or load.errors)
            load.goes_on()
        slowest = load.slowest
        killed = cluster.daemons[0]
        killed.kill()
        answered = load.answers()
        load.goes_on()
        killed.start()
        cluster.is_ready(killed)
        load.stop()
        check_whole(load)
        # The goal is 2 s. A busy machine may take longer.
        assert answered < 10, f"{answered:.2f} s"
        print(
            f"{name}: {load.count()} turns, 0 lost, 0 twice, 0 errors; the slowest call beside a restart "
            f"took {slowest:.2f} s; after kill -9 all sessions had answered in {answered:.2f} s"
        )
        load.close()
        for daemon in cluster.daemons:
            daemon.stop()
        says_that_nobody_is_there(args.memoird, balancer)
        for daemon in cluster.daemons:
            daemon.start()
            cluster.is_ready(daemon)
        balancer.stop()
    cluster.stop()
    database.remove()


def failover(args):
    if not is_here("PostgreSQL", kit.Postgres.PROGRAMS):
        return
    for is_synchronous in (True, False):
        primary = kit.Postgres()
        primary.sql("CREATE DATABASE memoird", "postgres")
        standby = kit.Postgres(primary=primary)
        name = "synchronous" if is_synchronous else "asynchronous"
        if is_synchronous:
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            primary.sql("SELECT pg_reload_conf()")
            state = "SELECT sync_state FROM pg_stat_replication"
            eventually("it is synchronous", lambda: primary.sql(state) == "sync")
        cluster = Cluster(args.memoird, args.work / name, [primary.port, standby.port])
        load = Load([f"http://{daemon.addr}" for daemon in cluster.daemons], name)
        load.goes_on(500)
        if not is_synchronous:
            # Cuts off replication to the standby.
            sender = int(primary.sql("SELECT pid FROM pg_stat_replication"))
            os.kill(sender, signal.SIGSTOP)
            load.goes_on(200)
        primary.pg_ctl("stop", "--mode", "immediate")
        began = time.monotonic()
        standby.pg_ctl("promote")
        before = {session: len(told) for session, told in load.told.items()}
        load.goes_on(1)
        away = time.monotonic() - began
        load.goes_on(500)
        load.stop()
        if is_synchronous:
            check_whole(load)
            lost = []
        else:
            lost = check_lost(load, before)
            assert lost, "the standby had all of it"
        print(f"{name}: {load.count()} turns acknowledged, {len(lost)} lost; appends went on {away:.2f} s after the promotion was asked for")
        for session, texts in itertools.groupby(lost, lambda one: one[0]):
            texts = [text for _, text in texts]
            print(f"  lost: {len(texts)} turns, from {texts[0]!r} to {texts[-1]!r}")
        logs = [(daemon.folder / "log").read_text() for daemon in cluster.daemons]
        told = sum("gone back in time" in log for log in logs)
        print(f"  {told} daemons say in their logs that the database has gone back in time")
        assert bool(told) == bool(lost)
        cluster.stop()
        load.close()
        standby.remove()
        primary.remove()


def check_lost(load, before):
    """Checks that the lost turns are the last ones acknowledged before the failover, and that later
    turns are stored once and in order, with the seqs that follow those on the standby."""
    assert not load.errors, load.errors[:5]
    lost = []
    for session, told in load.told.items():
        there = load.there(session)
        texts = [text for text, _ in there]
        assert [seq for _, seq in there] == list(range(1, len(there) + 1)), (session, there)
        gone = [place for place, (text, _) in enumerate(told) if text not in texts]
        assert [text for text, _ in told if text in texts] == texts, (session, told, there)
        if gone:
            assert gone == list(range(gone[0], gone[-1] + 1)), (session, gone)
            assert gone[-1] < before[session], (session, gone, before[session])
        lost += [(session, told[place][0]) for place in gone]
    return lost


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rolling", "failover"])
    parser.add_argument("--memoird", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--envoy")
    args = parser.parse_args()
    args.work.mkdir(exist_ok=True)
    {"rolling": rolling, "failover": failover}[args.what](args)


if __name__ == "__main__":
    main()
