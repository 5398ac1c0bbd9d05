"""LangGraph's conformance tests of checkpointers, with all capabilities."""

import asyncio
import importlib
import pkgutil

import pytest
from langgraph.checkpoint.conformance import spec

from memoird.langgraph import MemoirdSaver


def _tests():
    for module in pkgutil.iter_modules(spec.__path__, f"{spec.__name__}."):
        names = vars(importlib.import_module(module.name))
        for name, value in names.items():
            if name.startswith("ALL_") and name.endswith("_TESTS"):
                yield from value


@pytest.mark.parametrize("conformance_test", list(_tests()), ids=lambda test: test.__name__)
def test_conformance(conformance_test):
    asyncio.run(conformance_test(MemoirdSaver()))
