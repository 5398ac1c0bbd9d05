"""Errors of calls: an exception for each reason that a program can handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2


class MemoirdError(Exception):
    """A failed call. The message states what to do."""

    code: grpc.StatusCode
    """The gRPC status code."""
    reason: str
    """Stable reason such as `STALE_SEQ`. Empty if the error is not from a daemon."""
    facts: Mapping[str, str]
    """Metadata of the error, such as the field, the limit or the current value."""
    field: str
    """Path of the invalid field, such as `append.turns[1]`. Empty if no field is at fault."""
    retry_after: float | None
    """Seconds after which to retry the same call. None if a retry does not help."""

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
    """A field is invalid: `field`."""


class WrongArguments(InvalidArgument, TypeError):
    """An argument of a call or a dataclass is unknown or missing: `field`."""


class InvalidSetting(InvalidArgument, ValueError):
    """An argument of a client is invalid: `field`."""


class CurrentTurnTooLarge(InvalidArgument):
    """The required content of a window does not fit its budget."""


class MessagesInvalid(InvalidArgument):
    """`messages_json` does not match the provider's format."""


class ToolUnitSplit(InvalidArgument):
    """The rewind would separate a tool call from its result."""


class NotFound(MemoirdError):
    """The requested object does not exist, or is not visible to this key."""


class SessionNotFound(NotFound):
    """The session is not live: it was never started, or has ended."""


class GenerationNotFound(NotFound):
    """The session had no such generation, or the journal no longer has it."""


class MemoryNotFound(NotFound):
    """No memory has this id."""


class DocumentNotFound(NotFound):
    """No document has this key, or it has expired."""


class Conflict(MemoirdError):
    """The current state does not match the call's expectations. Do not retry; read the state first."""


class StaleSeq(Conflict):
    """`expected_seq` is not the newest turn."""


class StaleGeneration(Conflict):
    """`expected_generation` is not the live generation."""


class StaleStateVersion(Conflict):
    """The state does not have `expected_state_version`."""


class StaleVersion(Conflict):
    """The document does not have `expected_version`. `facts["version"]` is its version, 0 for none."""


class IdempotencyKeyReused(Conflict):
    """The idempotency key was used for a different request."""


class IdempotencyKeyRewound(Conflict):
    """The turns appended with this idempotency key were rewound."""


class CallPending(Conflict):
    """A tool call has no result yet, or a reply is streaming."""


class LeaseLost(Conflict):
    """The extraction lease has expired."""


class ResourceExhausted(MemoirdError):
    """A limit is reached. `reason` and `facts` name it, `retry_after` is the time to wait."""


class JournalFull(ResourceExhausted):
    """The daemon's disk is full. Nothing was stored."""


class Unavailable(MemoirdError):
    """The daemon cannot be reached, or accepts no calls now."""


class DeadlineExceeded(MemoirdError):
    """The call exceeded its `timeout`. Its outcome is unknown."""


class Cancelled(MemoirdError):
    """The client is closed. If it was closed during the call, the outcome is unknown."""


class Unauthenticated(MemoirdError):
    """The key is unknown, or missing."""


class PermissionDenied(MemoirdError):
    """The key does not permit the call."""


class Unimplemented(MemoirdError):
    """The daemon does not support the call as configured: `reason`."""


class MissingCall(Unimplemented):
    """The daemon is older than this client and has no such call: `facts["call"]`."""


class Internal(MemoirdError):
    """A bug in the daemon, or damaged data."""


_CODES: dict[grpc.StatusCode, type[MemoirdError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    # Not sent by the daemon: a load balancer ends the response of a killed daemon as if it were
    # complete.
    grpc.StatusCode.UNKNOWN: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    # Not caused by `close`, which raises its own error: the connection was ended by a fork or the
    # network.
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
    """Returns the exception of a failed gRPC call."""
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
