"""Runs operations on documents in as few calls as the limits allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from . import errors
from ._batches import batched, operation_bytes
from ._steps import Call, Steps
from .types import (
    DeleteDocumentRequest,
    Document,
    DocumentOperation,
    DocumentResult,
    GetDocumentRequest,
)

PAGE_MAX = 1000


def asked(place: Sequence[str], key: str, ttl: timedelta | None = None) -> DocumentOperation:
    """Returns a read operation. If `ttl` is given, it restarts the document's time to live."""
    return DocumentOperation(get=GetDocumentRequest([*place], key, ttl=ttl))


def removed(place: Sequence[str], key: str) -> DocumentOperation:
    """Returns a delete operation."""
    return DocumentOperation(delete=DeleteDocumentRequest([*place], key))


def minutes(ttl: float | None) -> timedelta | None:
    """Converts minutes to a timedelta."""
    return None if ttl is None else timedelta(minutes=ttl)


def done(operations: Sequence[DocumentOperation]) -> Steps[list[DocumentResult]]:
    """Runs operations and returns their results. Each batch is one transaction."""
    results: list[DocumentResult] = []
    for batch in batches(operations):
        results += yield from _made(batch)
    return results


def _made(batch: Sequence[DocumentOperation]) -> Steps[list[DocumentResult]]:
    try:
        made = yield Call("batch_documents", operations=batch)
    except errors.MemoirdError as error:
        # The documents read may be larger than a response allows: split a batch of reads.
        if error.reason != "DOCUMENTS_TOO_LARGE" or len(batch) == 1 or any(not it.get for it in batch):
            raise
        middle = len(batch) // 2
        first = yield from _made(batch[:middle])
        return first + (yield from _made(batch[middle:]))
    return made.results  # type: ignore[no-any-return]


def batches(operations: Sequence[DocumentOperation]) -> Iterator[list[DocumentOperation]]:
    """Splits operations into as few transactions as possible."""
    return batched(operations, operation_bytes)


def each_document(take: Callable[[Document], None], **where: Any) -> Steps[Any]:
    """Lists all pages of documents."""
    token = ""
    while True:
        page = yield Call("list_documents", page_size=PAGE_MAX, page_token=token, **where)
        for document in page.documents:
            take(document)
        token = page.next_page_token
        if not token:
            return
