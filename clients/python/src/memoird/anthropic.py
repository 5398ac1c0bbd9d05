"""The memory tool of Anthropic's SDK on memoird: `pip install memoird[anthropic]`.

    runner = client.beta.messages.tool_runner(..., tools=[MemoryTool(["memories", user])])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ._extras import needs

needs("anthropic")

import grpc
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaCacheControlEphemeralParam,
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from ._batches import BYTES_MAX, COUNT_MAX
from ._documents import asked, each_document
from ._steps import Call, Clients, Steps
from .client import AsyncClient, Client
from .errors import InvalidArgument, InvalidSetting, StaleVersion, Unavailable
from .types import DeleteDocumentRequest, Document, DocumentOperation, PutDocumentRequest

__all__ = ["AsyncMemoryTool", "MemoryTool"]

ROOT = "/memories"
# Deepest level that the view of a directory lists.
LEVELS = 2
LINES_MAX = 999_999
NUMBER_WIDTH = len(str(LINES_MAX))
# Lines shown before and after a replacement.
CONTEXT_LINES = 2
# Maximum number of tries of a change. Each failed one means that a concurrent change succeeded.
TRIES_MAX = 20
# A rename deletes and puts each file in one transaction.
MOVED_MAX = COUNT_MAX // 2


class MemoryTool(BetaAbstractMemoryTool):
    """Anthropic's memory tool for threads. Files are documents.

    `namespace` is where the files are stored, for example `["memories", user]`: a file
    `/memories/a/b.txt` is the document `b.txt` in the namespace `["memories", user, "a"]`. Give
    each user a namespace, and do not put one below another. By default the clients are configured
    by the environment (`MEMOIRD_ADDR`, `MEMOIRD_KEY`).

    Results and errors are those of the SDK's tool for local files. A directory exists as long as it
    contains files. Edits are retried if the file changes concurrently. A rename of a directory is
    atomic, and moves up to 128 files and 6 MiB. A file has at most 4 MiB by default
    (`long_term.document_bytes`).
    """

    def __init__(
        self,
        namespace: Sequence[str],
        *,
        client: Client | AsyncClient | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files, self._clients = _Files(namespace), Clients(client)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Returns the numbered lines of a file, or the entries of a directory."""
        return self._clients.do(self._files.view(command))

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Creates a file."""
        return self._clients.do(self._files.create(command))

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replaces a text that occurs once in a file."""
        return self._clients.do(self._files.str_replace(command))

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Inserts lines after a line of a file."""
        return self._clients.do(self._files.insert(command))

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Deletes a file or a directory."""
        return self._clients.do(self._files.delete(command))

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Moves a file or a directory."""
        return self._clients.do(self._files.rename(command))

    def clear_all_memory(self) -> str:
        """Deletes all files."""
        return self._clients.do(self._files.clear())


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """Anthropic's memory tool for event loops. See `MemoryTool`."""

    def __init__(
        self,
        namespace: Sequence[str],
        *,
        client: Client | AsyncClient | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files, self._clients = _Files(namespace), Clients(client)

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Returns the numbered lines of a file, or the entries of a directory."""
        return await self._clients.ado(self._files.view(command))

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Creates a file."""
        return await self._clients.ado(self._files.create(command))

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replaces a text that occurs once in a file."""
        return await self._clients.ado(self._files.str_replace(command))

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Inserts lines after a line of a file."""
        return await self._clients.ado(self._files.insert(command))

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Deletes a file or a directory."""
        return await self._clients.ado(self._files.delete(command))

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Moves a file or a directory."""
        return await self._clients.ado(self._files.rename(command))

    async def clear_all_memory(self) -> str:
        """Deletes all files."""
        return await self._clients.ado(self._files.clear())


def _reported(steps: Callable[..., Steps[str]]) -> Callable[..., Steps[str]]:
    """Reports limits of the daemon, such as the size of a file, to the model."""

    @functools.wraps(steps)
    def reported(files: _Files, command: Any) -> Steps[str]:
        try:
            return (yield from steps(files, command))
        except InvalidArgument as error:
            raise ToolError(str(error)) from error

    return reported


class _Files:
    """The files below a namespace, as steps."""

    def __init__(self, namespace: Sequence[str]) -> None:
        if isinstance(namespace, str) or not namespace:
            problem = "namespace must be a list of at least one part, e.g. ['memories', user]"
            invalid = grpc.StatusCode.INVALID_ARGUMENT
            raise InvalidSetting(problem, code=invalid, facts={"field": "namespace"})
        self._root = [*namespace]

    @_reported
    def view(self, command: BetaMemoryTool20250818ViewCommand) -> Steps[str]:
        path, parts = command.path, _parts(command.path)
        [file] = yield from self._found([parts])
        if file is not None:
            return _numbered(path, _text(path, file), command.view_range)
        files = yield from self._below(parts)
        if parts and not files:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        return _listed(path, [(self._path(it)[len(parts) :], it.size) for it in files])

    @_reported
    def create(self, command: BetaMemoryTool20250818CreateCommand) -> Steps[str]:
        path, parts = command.path, _parts(command.path)
        exists = f"File {path} already exists"
        if (yield from self._is_taken(parts)):
            raise ToolError(exists)
        try:
            yield Call("put_document", **self._put(parts, command.file_text.encode(), 0))
        except StaleVersion:
            raise ToolError(exists) from None
        return f"File created successfully at: {path}"

    @_reported
    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> Steps[str]:
        path, old, new = command.path, command.old_str, command.new_str

        def change(text: str) -> tuple[str, str]:
            before, found, after = text.partition(old) if old else (text, "", "")
            if not found:
                problem = f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
                raise ToolError(problem)
            if old in after:
                lines = ", ".join(map(str, _lines_with(text, old)))
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}. "
                    "Please ensure it is unique"
                )
            changed = before + new + after
            line = before.count("\n")
            first, last = max(0, line - CONTEXT_LINES), line + CONTEXT_LINES + 1
            snippet = _with_numbers(changed.split("\n")[first:last], first + 1)
            header = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
            return changed, f"{header}\n{snippet}"

        return (yield from self._edit(path, change))

    @_reported
    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> Steps[str]:
        path, at = command.path, command.insert_line

        def change(text: str) -> tuple[str, str]:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= at <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {at}. It should be within the range [0, {len(lines)}]."
                )
            lines.insert(at, command.insert_text.rstrip("\n"))
            changed = "\n".join(lines)
            return changed if changed.endswith("\n") else changed + "\n", f"The file {path} has been edited."

        return (yield from self._edit(path, change))

    @_reported
    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> Steps[str]:
        path, parts = command.path, _parts(command.path)
        if not parts:
            raise ToolError(f"Cannot delete the {ROOT} directory itself")
        # `deleted` of the response is false if the client repeated the deletion after a lost response.
        [file] = yield from self._found([parts])
        if file is not None:
            yield Call("delete_document", namespace=file.namespace, key=file.key)
        elif (yield from self._is_directory(parts)):
            yield Call("delete_documents", namespace_prefix=[*self._root, *parts])
        else:
            raise ToolError(f"The path {path} does not exist")
        return f"Successfully deleted {path}"

    @_reported
    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> Steps[str]:
        old, new = command.old_path, command.new_path
        source, target = _parts(old), _parts(new)
        if not source:
            raise ToolError(f"Cannot rename the {ROOT} directory itself")
        tries = 0
        while True:
            if (yield from self._is_taken(target)):
                raise ToolError(f"The destination {new} already exists")
            [file] = yield from self._found([source])
            files = [file] if file else (yield from self._movable(old, source))
            if not files:
                raise ToolError(f"The path {old} does not exist")
            if target[: len(source)] == source:
                raise ToolError(f"Cannot move {old} into itself")
            sources = [self._path(file) for file in files]
            targets = [[*target, *path[len(source) :]] for path in sources]
            try:
                yield Call("batch_documents", operations=self._moves(files, targets))
            except Unavailable:
                # If only the response was lost, the files have moved.
                found = yield from self._found([*sources, *targets])
                if any(found[: len(files)]) or not all(found[len(files) :]):
                    raise
                return f"Successfully renamed {old} to {new}"
            except StaleVersion:
                tries += 1
                if tries == TRIES_MAX:
                    raise
            else:
                return f"Successfully renamed {old} to {new}"

    def clear(self) -> Steps[str]:
        yield Call("delete_documents", namespace_prefix=self._root)
        return "All memory cleared"

    def _movable(self, old: str, parts: list[str]) -> Steps[list[Document]]:
        """Returns the files below a directory. Raises ToolError if one transaction cannot move them."""
        files = yield from self._below(parts)
        if len(files) > MOVED_MAX or sum(file.size for file in files) > BYTES_MAX:
            raise ToolError(
                f"{old} is too large to be renamed: it has more than {MOVED_MAX} files or {_size(BYTES_MAX)} "
                "in total. Rename its files or its subdirectories."
            )
        found = yield from self._found([self._path(file) for file in files])
        return [file for file in found if file is not None]

    def _moves(self, files: list[Document], targets: list[list[str]]) -> list[DocumentOperation]:
        """Returns the operations that move files, for one transaction."""
        operations: list[DocumentOperation] = []
        for file, target in zip(files, targets, strict=True):
            gone = DeleteDocumentRequest(file.namespace, file.key, expected_version=file.version)
            made = self._put(target, file.bytes, 0, json=file.json)
            operations += DocumentOperation(delete=gone), DocumentOperation(put=PutDocumentRequest(**made))
        return operations

    def _edit(self, path: str, change: Callable[[str], tuple[str, str]]) -> Steps[str]:
        """Replaces a text, and again if it changes concurrently. `change` returns the new text and the result."""
        parts = _parts(path)
        tries = 0
        while True:
            [file] = yield from self._found([parts])
            if file is None:
                is_directory = yield from self._is_directory(parts)
                problem = "is not a file." if is_directory else "does not exist. Please provide a valid path."
                raise ToolError(f"The path {path} {problem}")
            text, result = change(_text(path, file))
            try:
                yield Call("put_document", **self._put(parts, text.encode(), file.version))
            except StaleVersion:
                tries += 1
                if tries == TRIES_MAX:
                    raise
            else:
                return result

    def _is_taken(self, parts: list[str]) -> Steps[bool]:
        """Whether a file or a directory has this path. Raises ToolError if it cannot have one."""
        above = [parts[:depth] for depth in range(1, len(parts))]
        *files, file = yield from self._found([*above, parts])
        for place, other in zip(above, files, strict=True):
            if other is not None:
                raise ToolError(f"The path {'/'.join([ROOT, *place])} is not a directory.")
        return file is not None or (yield from self._is_directory(parts))

    def _is_directory(self, parts: list[str]) -> Steps[bool]:
        if not parts:
            return True
        page = yield Call(
            "list_documents",
            namespace_prefix=[*self._root, *parts],
            include_values=False,
            page_size=1,
        )
        return bool(page.documents)

    def _found(self, paths: list[list[str]]) -> Steps[list[Document | None]]:
        """Returns the file of each path, or None if there is none."""
        operations = [asked(*self._name(parts)) for parts in paths if parts]
        if not operations:
            return [None for _ in paths]
        made = yield Call("batch_documents", operations=operations)
        found = iter(made.results)
        return [next(found).document if parts else None for parts in paths]

    def _below(self, parts: list[str]) -> Steps[list[Document]]:
        """Returns all files below a directory, without their texts."""
        files: list[Document] = []
        place = [*self._root, *parts]
        yield from each_document(files.append, namespace_prefix=place, include_values=False)
        return files

    def _put(self, parts: list[str], text: bytes | None, version: int, json: str | None = None) -> dict[str, Any]:
        namespace, key = self._name(parts)
        value = {"bytes": text} if json is None else {"json": json}
        return {"namespace": namespace, "key": key, "expected_version": version, **value}

    def _name(self, parts: list[str]) -> tuple[list[str], str]:
        return [*self._root, *parts[:-1]], parts[-1]

    def _path(self, file: Document) -> list[str]:
        return [*file.namespace[len(self._root) :], file.key]


def _parts(path: str) -> list[str]:
    """Splits a path below the root. Raises ToolError if it is outside."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    parts: list[str] = []
    for name in path.removeprefix(ROOT).split("/"):
        if name == "..":
            if not parts:
                raise ToolError(f"Path {path} would escape {ROOT} directory")
            parts.pop()
        elif name not in ("", "."):
            parts.append(name)
    return parts


def _text(path: str, file: Document) -> str:
    try:
        return (file.bytes if file.bytes is not None else b"\xff").decode()
    except UnicodeDecodeError:
        raise ToolError(f"The file {path} is not a valid UTF-8 text file.") from None


def _lines_with(text: str, part: str) -> list[int]:
    """Returns the line of each occurrence."""
    lines: list[int] = []
    at = text.find(part)
    while at >= 0:
        lines.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + 1)
    return lines


def _numbered(path: str, text: str, view_range: list[int] | None) -> str:
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        raise ToolError(f"File {path} exceeds maximum line limit of {LINES_MAX:,} lines.")
    first = 0
    if view_range and len(view_range) == 2:
        first, last = max(1, view_range[0]) - 1, view_range[1]
        lines = lines[first : len(lines) if last == -1 else last]
    return f"Here's the content of {path} with line numbers:\n{_with_numbers(lines, first + 1)}"


def _with_numbers(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>{NUMBER_WIDTH}}\t{line}" for number, line in enumerate(lines, first))


def _listed(path: str, files: list[tuple[list[str], int]]) -> str:
    """Returns the view of a directory. The size of a directory is that of its files."""
    sizes: dict[tuple[str, ...], int] = {(): 0}
    directories: set[tuple[str, ...]] = set()
    for name, size in files:
        for depth in range(len(name) + 1):
            place = tuple(name[:depth])
            if place and place[-1].startswith("."):
                break
            sizes[place] = sizes.get(place, 0) + size
            if depth < len(name):
                directories.add(place)
    entries = [f"{_size(sizes.pop(()))}\t{path}"]
    for place in sorted(sizes):
        if len(place) <= LEVELS:
            end = "/" if place in directories else ""
            entries.append(f"{_size(sizes[place])}\t{path}/{'/'.join(place)}{end}")
    header = f"Here're the files and directories up to {LEVELS} levels deep in {path}, excluding hidden items:"
    return "\n".join([header, *entries])


def _size(size: int) -> str:
    unit = min(max(size.bit_length() - 1, 0) // 10, 3)
    scaled = size / 1024**unit
    return f"{scaled:.0f}{'BKMG'[unit]}" if scaled == int(scaled) else f"{scaled:.1f}{'BKMG'[unit]}"
