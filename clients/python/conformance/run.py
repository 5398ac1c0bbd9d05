"""Runs a framework's own tests, from its source package, against memoird.

    MEMOIRD_BIN=../../target/debug/memoird python conformance/run.py openai-agents [pytest's arguments]
    MEMOIRD_BIN=../../target/debug/memoird python conformance/run.py adk DIRECTORY [pytest's arguments]

The package is downloaded during the run, with a pinned version and hash, and deleted afterwards. If
no package contains the tests, the directory must be a checkout of the suite's repository and
commit. A module of this directory replaces the framework's classes by memoird's.
`skipped/SUITE.txt` lists the skipped tests with a reason each. The run fails if a test fails, if
fewer tests are found than the pinned number, if a line of that file matches no test, or if a test
or a whole module is skipped without a line, for example because a package is not installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).parent


@dataclass(frozen=True)
class Suite:
    """Tests of a framework."""

    plugin: str
    """Module of this directory that prepares the tests."""
    collected_min: int
    """Minimum number of tests. Fewer are an error of the suite."""
    tests: list[str]
    """Files or directories in the source package, or in this directory if there is no package."""
    package: str = ""
    """Source package with version."""
    sha256: str = ""
    """SHA-256 of the package."""
    checkout: str = ""
    """Repository and commit of the tests, if no package contains them."""
    options: list[str] = field(default_factory=list)
    """Additional arguments of pytest."""


SUITES = {
    "openai-agents": Suite(
        plugin="openai_agents",
        package="openai-agents==0.24.0",
        sha256="4b4b285f4fed81fdf1b4ac426a9101658d9cd29b4fb1aaeee18f639b77e704e3",
        # The other tests are those of the runner that use sessions.
        tests=[
            "tests/memory",
            "tests/extensions/memory/test_encrypt_session.py",
            "tests/test_agent_runner.py",
            "tests/test_agent_runner_streamed.py",
            "tests/test_max_turns.py",
            "tests/test_native_tool_failure_history.py",
            "tests/test_programmatic_tool_calling.py",
            "tests/test_run_impl_resume_paths.py",
            "tests/test_soft_cancel.py",
            "tests/test_tool_batch_failure_history.py",
            "tests/test_tool_failure_boundaries.py",
        ],
        collected_min=1505,
    ),
    "langchain-core": Suite(
        plugin="langchain_history",
        package="langchain-core==1.7.2",
        sha256="7810d029eaa4286838baad56752efb771868a5eebaf52aefe45764645dbea649",
        tests=["tests/unit_tests/chat_history", "tests/unit_tests/runnables/test_history.py"],
        collected_min=29,
    ),
    "langchain-stores": Suite(
        plugin="plugin",
        tests=["stores_test.py"],
        collected_min=36,
        options=["-o", "asyncio_mode=auto"],
    ),
}

SUITES["langgraph-checkpoint"] = Suite(
    plugin="plugin", collected_min=81, tests=["langgraph_checkpoint_test.py"]
)
SUITES["langgraph-store"] = Suite(
    plugin="langgraph_store",
    collected_min=117,
    tests=["tests/test_store.py"],
    package="langgraph-checkpoint==4.3.2",
    sha256="fcab8468c7e965d7055e2a35c253d73a145624ef4728b150ca7c361f4afca286",
    options=["-o", "asyncio_mode=auto"],
)
SUITES["langgraph-sqlite-store"] = Suite(
    plugin="langgraph_sqlite_store",
    collected_min=153,
    tests=["tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"],
    package="langgraph-checkpoint-sqlite==3.1.2",
    sha256="4e3f376fa6f192d6ad2a1a4643b039986f1593552ef870e9e45281575de6fbf2",
    options=["-o", "asyncio_mode=auto", "-o", "markers=flaky"],
)
OTHERS = "not (light_copy or database] or sqlite] or redis] or per_agent_database])"
SUITES["adk"] = Suite(
    plugin="adk_services",
    collected_min=118,
    tests=[
        "tests/unittests/sessions/test_session_service.py",
        "tests/unittests/memory/test_in_memory_memory_service.py",
    ],
    checkout="google/adk-python at d9f4d3d288257593471fc708a9ab851779005ca5",
    # Excludes tests of services other than the in-memory one.
    options=["-o", "asyncio_mode=auto", "-k", OTHERS],
)
SUITES["agent-framework"] = Suite(
    plugin="agent_framework_histories",
    collected_min=34,
    tests=["python/packages/core/tests/core/test_sessions.py"],
    checkout="microsoft/agent-framework at 5eb3eb745e16324ac7bffb1dbe006d8f13c8d993",
    options=["-o", "asyncio_mode=auto", "-k", "HistoryProvider"],
)
SUITES["anthropic-memory"] = Suite(
    plugin="anthropic_memory",
    collected_min=99,
    tests=["tests/lib/tools/memory_tools/test_filesystem.py"],
    package="anthropic==2.14.0",
    sha256="afb02f4df8efba429ff769bbfd71340d8b244b41ba42c073a45cc307702549fe",
    # The SDK's conftest.py needs packages for tests of its HTTP client.
    options=["--noconftest", "-o", "addopts=", "-o", "asyncio_mode=auto"],
)


def main() -> int:
    name, *rest = sys.argv[1:] or [""]
    suite = SUITES.get(name)
    if suite is None or (suite.checkout and not rest):
        print(f"usage: run.py {'|'.join(SUITES)} [DIRECTORY] [pytest's arguments]", file=sys.stderr)
        return 64
    checkout = pathlib.Path(rest.pop(0)).resolve() if suite.checkout else HERE
    with tempfile.TemporaryDirectory(prefix="memoird-suite-") as scratch:
        folder = pathlib.Path(scratch)
        root = _fetched(suite, folder) if suite.package else checkout
        counts = folder / "counts.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider",
             "-p", "plugin", "-p", suite.plugin, *suite.options, *suite.tests, *rest],
            cwd=root,
            env=os.environ | {
                "PYTHONPATH": os.pathsep.join([str(HERE), str(root)]),
                "SUITE_SKIPPED": str(HERE / "skipped" / f"{name}.txt"),
                "SUITE_COUNTS": str(counts),
            },
        )
        if not counts.exists():
            return done.returncode or 1
        counted = json.loads(counts.read_text())
    print(f"{name} {suite.package or suite.checkout}: {json.dumps(counted)}")
    if not rest and counted["collected"] < suite.collected_min:
        print(f"{counted['collected']} tests were found, not {suite.collected_min}", file=sys.stderr)
        return 1
    if not rest and counted["unused"]:
        print(f"these lines of skipped/{name}.txt fit no test: {counted['unused']}", file=sys.stderr)
        return 1
    if counted["unlisted"]:
        print(f"skipped, but not in skipped/{name}.txt: {counted['unlisted']}", file=sys.stderr)
        return 1
    return done.returncode


def _fetched(suite: Suite, folder: pathlib.Path) -> pathlib.Path:
    """Downloads and unpacks the source package. Returns its directory."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-binary", ":all:", "--dest", str(folder), suite.package],
        check=True,
    )
    [archive] = folder.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != suite.sha256:
        raise SystemExit(f"{archive.name} has the hash {found}, not {suite.sha256}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    [root] = (folder / "source").iterdir()
    return root


if __name__ == "__main__":
    sys.exit(main())
