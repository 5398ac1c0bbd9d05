/** Errors of calls: a class for each reason that a program can handle. */

import { Code, ConnectError } from "@connectrpc/connect";

import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** Details of a failed call. */
export interface Refusal {
  /** The gRPC status code. */
  code: Code;
  /** Stable reason such as `STALE_SEQ`. Empty if the error is not from a daemon. */
  reason: string;
  /** Metadata of the error, such as the field, the limit or the current value. */
  facts: Readonly<Record<string, string>>;
  /** Seconds after which to retry the same call. Undefined if a retry does not help. */
  retryAfter: number | undefined;
  /** The underlying error of Connect. */
  cause: ConnectError;
}

/** A failed call. The message states what to do. */
export class MemoirdError extends Error implements Refusal {
  readonly code: Code;
  readonly reason: string;
  readonly facts: Readonly<Record<string, string>>;
  readonly retryAfter: number | undefined;
  override readonly cause: ConnectError;
  /** Path of the invalid field, such as `append.turns[1]`. Empty if no field is at fault. */
  readonly field: string;

  constructor(message: string, refusal: Refusal) {
    super(message);
    this.name = new.target.name;
    this.code = refusal.code;
    this.reason = refusal.reason;
    this.facts = refusal.facts;
    this.field = refusal.facts.field ?? "";
    this.retryAfter = refusal.retryAfter;
    this.cause = refusal.cause;
  }
}

/** A field, or an option of `connect`, is invalid: `field`. */
export class InvalidArgument extends MemoirdError {}
/** The required content of a window does not fit its budget. */
export class CurrentTurnTooLarge extends InvalidArgument {}
/** `messagesJson` does not match the provider's format. */
export class MessagesInvalid extends InvalidArgument {}
/** The rewind would separate a tool call from its result. */
export class ToolUnitSplit extends InvalidArgument {}
/** The requested object does not exist, or is not visible to this key. */
export class NotFound extends MemoirdError {}
/** The session is not live: it was never started, or has ended. */
export class SessionNotFound extends NotFound {}
/** The session had no such generation, or the journal no longer has it. */
export class GenerationNotFound extends NotFound {}
/** No memory has this id. */
export class MemoryNotFound extends NotFound {}
/** No document has this key, or it has expired. */
export class DocumentNotFound extends NotFound {}
/** The current state does not match the call's expectations. Do not retry; read the state first. */
export class Conflict extends MemoirdError {}
/** `expectedSeq` is not the newest turn. */
export class StaleSeq extends Conflict {}
/** `expectedGeneration` is not the live generation. */
export class StaleGeneration extends Conflict {}
/** The state does not have the expected version. */
export class StaleStateVersion extends Conflict {}
/** The document does not have `expectedVersion`. `facts.version` is its version, 0 if it does not exist. */
export class StaleVersion extends Conflict {}
/** The idempotency key was used for a different request. */
export class IdempotencyKeyReused extends Conflict {}
/** The turns appended with this idempotency key were rewound. */
export class IdempotencyKeyRewound extends Conflict {}
/** A tool call has no result yet, or a reply is streaming. */
export class CallPending extends Conflict {}
/** The extraction lease has expired. */
export class LeaseLost extends Conflict {}
/** A limit is reached. `reason` and `facts` name it, `retryAfter` is the time to wait. */
export class ResourceExhausted extends MemoirdError {}
/** The daemon's disk is full. Nothing was stored. */
export class JournalFull extends ResourceExhausted {}
/** The daemon cannot be reached, or accepts no calls now. */
export class Unavailable extends MemoirdError {}
/** The call exceeded its time limit. Its outcome is unknown. */
export class DeadlineExceeded extends MemoirdError {}
/** The caller's signal, or `close`, canceled the call. Its outcome is unknown. */
export class Canceled extends MemoirdError {}
/** The key is unknown, or missing. */
export class Unauthenticated extends MemoirdError {}
/** The key does not permit the call. */
export class PermissionDenied extends MemoirdError {}
/** The daemon does not support the call as configured: `reason`. */
export class Unimplemented extends MemoirdError {}
/** The daemon is older than this client and has no such call: `facts.call`. */
export class MissingCall extends Unimplemented {}
/** A bug in the daemon, or damaged data. */
export class Internal extends MemoirdError {}

type Kind = new (message: string, refusal: Refusal) => MemoirdError;

const CODES: ReadonlyMap<Code, Kind> = new Map<Code, Kind>([
  [Code.InvalidArgument, InvalidArgument],
  [Code.OutOfRange, InvalidArgument],
  [Code.NotFound, NotFound],
  [Code.AlreadyExists, Conflict],
  [Code.FailedPrecondition, Conflict],
  [Code.Aborted, Conflict],
  [Code.ResourceExhausted, ResourceExhausted],
  [Code.Unavailable, Unavailable],
  [Code.DeadlineExceeded, DeadlineExceeded],
  [Code.Canceled, Canceled],
  [Code.Unauthenticated, Unauthenticated],
  [Code.PermissionDenied, PermissionDenied],
  [Code.Unimplemented, Unimplemented],
  [Code.Internal, Internal],
  [Code.DataLoss, Internal],
]);

const REASONS: ReadonlyMap<string, Kind> = new Map<string, Kind>([
  ["CURRENT_TURN_TOO_LARGE", CurrentTurnTooLarge],
  ["MESSAGES_INVALID", MessagesInvalid],
  ["TOOL_UNIT_SPLIT", ToolUnitSplit],
  ["SESSION_NOT_FOUND", SessionNotFound],
  ["GENERATION_NOT_FOUND", GenerationNotFound],
  ["MEMORY_NOT_FOUND", MemoryNotFound],
  ["DOCUMENT_NOT_FOUND", DocumentNotFound],
  ["STALE_SEQ", StaleSeq],
  ["STALE_GENERATION", StaleGeneration],
  ["STALE_STATE_VERSION", StaleStateVersion],
  ["STALE_VERSION", StaleVersion],
  ["IDEMPOTENCY_KEY_REUSED", IdempotencyKeyReused],
  ["IDEMPOTENCY_KEY_REWOUND", IdempotencyKeyRewound],
  ["CALL_PENDING", CallPending],
  ["LEASE_LOST", LeaseLost],
  ["JOURNAL_FULL", JournalFull],
]);

/** Returns the error of a failed call. `isWanted` is false if the caller itself canceled it. */
export function errorOf(failure: unknown, call: string, isWanted: boolean): MemoirdError {
  const cause = ConnectError.from(failure);
  const info = cause.findDetails(ErrorInfoSchema)[0];
  const delay = cause.findDetails(RetryInfoSchema)[0]?.retryDelay;
  const reason = info?.reason ?? "";
  const code = isWanted && isLost(cause) ? Code.Unavailable : cause.code;
  const facts = { ...info?.metadata };
  let message = cause.rawMessage || Code[code];
  let kind = REASONS.get(reason) ?? CODES.get(code) ?? MemoirdError;
  if (code === Code.Unimplemented && cause.rawMessage && !reason) {
    message = `who answers is no memoird daemon (${message}): look at the address`;
  } else if (code === Code.Unimplemented && (!reason || reason === "UNIMPLEMENTED")) {
    kind = MissingCall;
    facts.call = call;
    message = `this daemon has no call ${call}: it is older than this client; update it`;
  }
  return new kind(reason ? `${reason}: ${message}` : message, {
    code,
    reason,
    facts,
    retryAfter: delay && Number(delay.seconds) + delay.nanos / 1e9,
    cause,
  });
}

/** Whether the connection ended without a response. Connect reports that with several codes. */
function isLost(error: ConnectError): boolean {
  if (error.metadata.has("grpc-status")) {
    return false;
  }
  // Connect cancels the streams of a connection that breaks.
  if (error.code === Code.Canceled || error.code === Code.Aborted) {
    return true;
  }
  // A load balancer ends the response of a killed daemon as if it were complete.
  const isCut = error.code === Code.Unknown || error.code === Code.Internal;
  if (isCut && error.rawMessage.startsWith("protocol error: missing ")) {
    return true;
  }
  let cause = error.cause;
  while (cause instanceof Error && !("syscall" in cause) && !isOfHttp2(cause)) {
    cause = cause.cause;
  }
  return cause instanceof Error;
}

/** Whether HTTP/2 ended a stream or the connection, for example because the daemon is shutting down. */
function isOfHttp2(error: Error): boolean {
  return "code" in error && ["ERR_HTTP2_SESSION_ERROR", "ERR_HTTP2_STREAM_ERROR"].includes(String(error.code));
}
