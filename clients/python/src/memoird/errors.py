"""What a daemon refuses, and what does not reach it: an exception for each reason a program can act upon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2


class MemoirdError(Exception):
    """A call was not done. Says in words what to do about it."""

    code: grpc.StatusCode
    """The status of gRPC."""
    reason: str
    """Why, as a stable word such as `STALE_SEQ`; empty where no daemon said it."""
    facts: Mapping[str, str]
    """What the daemon says of it: which field, which limit, what there is instead."""
    field: str
    """The path of the field that it is about, such as `append.turns[1]`; empty where it is about none."""
    retry_after: float | None
    """Seconds after which the same call may be taken; None: it will not."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason
        self.facts, self.retry_after = dict(facts or {}), retry_after
        self.field = self.facts.get("field", "")


class InvalidArgument(MemoirdError):
    """A field is not as the contract has it: `field`."""


class WrongArguments(InvalidArgument, TypeError):
    """A call or a dataclass has no such argument, or wants one more: `field`."""


class InvalidSetting(InvalidArgument, ValueError):
    """What a client is made with is not as it has to be: `field`."""


class CurrentTurnTooLarge(InvalidArgument):
    """What may not be left out of a window does not fit its budget."""


class MessagesInvalid(InvalidArgument):
    """The provider's messages are not as the provider has them."""


class ToolUnitSplit(InvalidArgument):
    """A rewind would part a tool's call from its result."""


class NotFound(MemoirdError):
    """There is no such thing, or not for this key."""


class SessionNotFound(NotFound):
    """The session does not live: it never began, or has ended."""


class GenerationNotFound(NotFound):
    """The session had no such life, or the journal does not keep it any more."""


class MemoryNotFound(NotFound):
    """There is no memory of this id."""


class DocumentNotFound(NotFound):
    """There is no document of this key, or it has expired."""


class Conflict(MemoirdError):
    """Things are not as the call expected them. To repeat it does not help: read first."""


class StaleSeq(Conflict):
    """The newest turn is another one than `expected_seq`."""


class StaleGeneration(Conflict):
    """Another life of the session is live than `expected_generation`."""


class StaleStateVersion(Conflict):
    """The state has another version than `expected_version`."""


class StaleVersion(Conflict):
    """The document has another version than `expected_version`; `facts["version"]` has it, 0: none."""


class IdempotencyKeyReused(Conflict):
    """The key was used for another content."""


class IdempotencyKeyRewound(Conflict):
    """The turns that were appended with this key were taken back."""


class CallPending(Conflict):
    """A tool's call waits for its result, or a reply is streaming."""


class LeaseLost(Conflict):
    """The lease has ended."""


class ResourceExhausted(MemoirdError):
    """A limit is reached; `reason` and `facts` name it, `retry_after` says when to try again."""


class JournalFull(ResourceExhausted):
    """The disk has no room. Nothing was taken."""


class Unavailable(MemoirdError):
    """The daemon is not reached, or does not take calls now."""


class DeadlineExceeded(MemoirdError):
    """The call took longer than its `timeout`; it may have been done."""


class Cancelled(MemoirdError):
    """The client is closed, or was while the call was under way; then it may have been done."""


class Unauthenticated(MemoirdError):
    """The daemon does not know the key, or wants one."""


class PermissionDenied(MemoirdError):
    """The key may not do this."""


class Unimplemented(MemoirdError):
    """The daemon does not do this, as it is configured: `reason`."""


class MissingCall(Unimplemented):
    """The daemon is older than this client and has no such call: `facts["call"]`."""


class Internal(MemoirdError):
    """A defect of the daemon, or damage of its data."""


_CODES: dict[grpc.StatusCode, type[MemoirdError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    # The daemon has none: a balancer ends the answer of a daemon that died, as if it were whole.
    grpc.StatusCode.UNKNOWN: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    # Who is closed says so itself: else the connection was ended, by a fork or on the way.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.DATA_LOSS: Internal,
}
_REASONS: dict[str, type[MemoirdError]] = {
    "CURRENT_TURN_TOO_LARGE": CurrentTurnTooLarge,
    "MESSAGES_INVALID": MessagesInvalid,
    "TOOL_UNIT_SPLIT": ToolUnitSplit,
    "SESSION_NOT_FOUND": SessionNotFound,
    "GENERATION_NOT_FOUND": GenerationNotFound,
    "MEMORY_NOT_FOUND": MemoryNotFound,
    "DOCUMENT_NOT_FOUND": DocumentNotFound,
    "STALE_SEQ": StaleSeq,
    "STALE_GENERATION": StaleGeneration,
    "STALE_STATE_VERSION": StaleStateVersion,
    "STALE_VERSION": StaleVersion,
    "IDEMPOTENCY_KEY_REUSED": IdempotencyKeyReused,
    "IDEMPOTENCY_KEY_REWOUND": IdempotencyKeyRewound,
    "CALL_PENDING": CallPending,
    "LEASE_LOST": LeaseLost,
    "JOURNAL_FULL": JournalFull,
}


def error_of(failure: Any, call: str) -> MemoirdError:
    """The exception for a failed call of gRPC."""
    code, message = failure.code(), failure.details() or ""
    reason, facts, retry_after = "", {}, None
    for key, value in failure.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                reason, facts = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    kind = _REASONS.get(reason) or _CODES.get(code, MemoirdError)
    if code == grpc.StatusCode.UNIMPLEMENTED and message and not reason:
        message = f"who answers is no memoird daemon ({message}): look at the address"
    elif code == grpc.StatusCode.UNIMPLEMENTED and reason in ("", "UNIMPLEMENTED"):
        kind = MissingCall
        message = f"this daemon has no call {call}: it is older than this client; update it"
        facts["call"] = call
    return kind(
        f"{reason}: {message}" if reason else message or code.name,
        code=code,
        reason=reason,
        facts=facts,
        retry_after=retry_after,
    )
