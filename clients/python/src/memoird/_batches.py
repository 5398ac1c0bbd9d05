"""Splits items into as few calls as the daemon's limits allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from . import _wire

# Maximum number of turns of an append, or of operations on documents.
COUNT_MAX = 256
# A request may have at least 8 MiB by default (`server.max_request_bytes`). The rest is for other
# fields.
BYTES_MAX = 6 << 20

Item = TypeVar("Item")


def batched(items: Iterable[Item], bytes_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Splits items into batches that fit in one call. A batch has at least one item."""
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
    """Size of an encoded turn in bytes."""
    return _bytes(lambda: _wire.write_turn(turn).ByteSize())


def operation_bytes(operation: Any) -> int:
    """Size of an encoded operation on a document in bytes."""
    return _bytes(lambda: _wire.write_document_operation(operation).ByteSize())


def text_bytes(text: str) -> int:
    """Size of an encoded text in bytes."""
    return _bytes(lambda: len(text.encode()))


def _bytes(count: Callable[[], int]) -> int:
    try:
        return count()
    except Exception:
        # The call will fail with the name of the invalid field.
        return 0
