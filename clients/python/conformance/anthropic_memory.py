"""Anthropic's tests of the memory tool for local files, with memoird's tools in its place.

The tests write and read files in a directory. Each verb first stores the directory's files as
documents, then runs on the documents, and then writes them to the directory.
"""

from __future__ import annotations

import pathlib
import shutil
import uuid

import anyio
from anthropic.lib.tools import _beta_builtin_memory_tool as sdk

import memoird
from memoird.anthropic import AsyncMemoryTool, MemoryTool


class _Mirror:
    """A directory with the same files as a namespace."""

    def __init__(self, base_path: str) -> None:
        self.base_path = pathlib.Path(base_path)
        self.memory_root = self.base_path / "memories"
        self.memory_root.mkdir(parents=True, exist_ok=True)
        self.namespace = ["memories", uuid.uuid4().hex]
        self.client = memoird.Client()

    def store(self) -> None:
        self.client.delete_documents(self.namespace)
        for file in self.memory_root.rglob("*"):
            if file.is_file():
                *above, key = file.relative_to(self.memory_root).parts
                self.client.put_document([*self.namespace, *above], key, bytes=file.read_bytes())

    def load(self) -> None:
        shutil.rmtree(self.memory_root)
        self.memory_root.mkdir()
        for document in self.client.list_documents(self.namespace).documents:
            above = document.namespace[len(self.namespace) :]
            directory = self.memory_root.joinpath(*above)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / document.key).write_bytes(document.bytes)


class LocalFilesystemMemoryTool(MemoryTool):
    def __init__(self, base_path: str) -> None:
        self._mirror = _Mirror(base_path)
        self.base_path, self.memory_root = self._mirror.base_path, self._mirror.memory_root
        super().__init__(self._mirror.namespace)


class AsyncLocalFilesystemMemoryTool(AsyncMemoryTool):
    def __init__(self, base_path: str) -> None:
        self._mirror = _Mirror(base_path)
        self.base_path = anyio.Path(self._mirror.base_path)
        self.memory_root = anyio.Path(self._mirror.memory_root)
        super().__init__(self._mirror.namespace)


def _mirrored(verb):
    def run(self, command):
        self._mirror.store()
        try:
            return verb(self, command)
        finally:
            self._mirror.load()

    return run


def _mirrored_in_event_loops(verb):
    async def run(self, command):
        self._mirror.store()
        try:
            return await verb(self, command)
        finally:
            self._mirror.load()

    return run


for _verb in ("view", "create", "str_replace", "insert", "delete", "rename"):
    setattr(LocalFilesystemMemoryTool, _verb, _mirrored(getattr(MemoryTool, _verb)))
    _looping = _mirrored_in_event_loops(getattr(AsyncMemoryTool, _verb))
    setattr(AsyncLocalFilesystemMemoryTool, _verb, _looping)
sdk.BetaLocalFilesystemMemoryTool = LocalFilesystemMemoryTool
sdk.BetaAsyncLocalFilesystemMemoryTool = AsyncLocalFilesystemMemoryTool
