"""In as few calls as the daemon takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from . import _wire

# Turns of an append, or operations on documents.
COUNT_MAX = 256
# A request may have at least 8 MiB by default (`server.max_request_bytes`): room is left for what else is in it.
BYTES_MAX = 6 << 20

Item = TypeVar("Item")


def batched(items: Iterable[Item], bytes_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """So many items as one call may have; at least one."""
    batch: list[Item] = []
    room = BYTES_MAX
    for item in items:
        size = bytes_of(item)
        if batch and (len(batch) == COUNT_MAX or size > room):
            yield batch
            batch, room = [], BYTES_MAX
        batch.append(item)
        room -= size
    if batch:
        yield batch


def turn_bytes(turn: Any) -> int:
    """What a turn has on the wire."""
    return _bytes(lambda: _wire.write_turn(turn).ByteSize())


def operation_bytes(operation: Any) -> int:
    """What an operation on a document has on the wire."""
    return _bytes(lambda: _wire.write_document_operation(operation).ByteSize())


def text_bytes(text: str) -> int:
    """What a text has on the wire."""
    return _bytes(lambda: len(text.encode()))


def _bytes(count: Callable[[], int]) -> int:
    try:
        return count()
    except Exception:
        # Refused when it is sent, with the name of what is wrong.
        return 0
