"""LangChain's standard tests of stores, for memoird's byte store."""

import os
import uuid

import pytest
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests

import memoird
from memoird.langchain import MemoirdByteStore


class _Made:
    @pytest.fixture
    def kv_store(self):
        return MemoirdByteStore(["store", uuid.uuid4().hex])

    @pytest.fixture
    def three_values(self):
        return (b"foo", b"\x00\xff", b"")


class TestByteStore(_Made, BaseStoreSyncTests):
    pass


class TestByteStoreInEventLoops(_Made, BaseStoreAsyncTests):
    pass


class TestByteStoreInEventLoopsWithAClientForThreads(_Made, BaseStoreAsyncTests):
    @pytest.fixture
    def kv_store(self):
        client = memoird.Client(os.environ["MEMOIRD_ADDR"])
        return MemoirdByteStore(["store", uuid.uuid4().hex], client=client)
