"""Shared by all suites: a daemon, the list of skipped tests, and counts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections import Counter

import pytest

import memoird

_open = contextlib.ExitStack()
_counts: Counter[str] = Counter(collected=0, passed=0, skipped=0, failed=0)
_unused: list[str] = []
_listed: set[str] = set()
_unlisted: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    client = _open.enter_context(memoird.local(config=os.environ.get("SUITE_CONFIG", "")))
    os.environ["MEMOIRD_ADDR"] = client.addr
    os.environ.pop("MEMOIRD_KEY", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reads lines of the form `PATTERN  REASON`. The pattern is a part of the test's id."""
    file = pathlib.Path(os.environ["SUITE_SKIPPED"])
    for line in file.read_text().splitlines() if file.exists() else []:
        if not line or line.startswith("#"):
            continue
        pattern, _, reason = line.partition("  ")
        if not reason.strip():
            raise pytest.UsageError(f"{file.name}: no reason behind {pattern!r}")
        fitting = [item for item in items if pattern in item.nodeid]
        for item in fitting:
            item.add_marker(pytest.mark.skip(reason=reason.strip()))
            _listed.add(item.nodeid)
        if not fitting:
            _unused.append(pattern)


def pytest_collection_finish(session: pytest.Session) -> None:
    _counts["collected"] = len(session.items)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Reports modules that are skipped as a whole, because no line can name their tests."""
    if report.skipped:
        _unlisted.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid not in _listed and not hasattr(report, "wasxfail"):
        _unlisted.append(report.nodeid)
    if report.when == "call" or report.outcome != "passed":
        # A test whose setup or teardown fails has failed.
        _counts[report.outcome] += 1


def pytest_sessionfinish() -> None:
    file = pathlib.Path(os.environ["SUITE_COUNTS"])
    file.write_text(json.dumps({**_counts, "unused": _unused, "unlisted": _unlisted}))


def pytest_unconfigure() -> None:
    _open.close()
