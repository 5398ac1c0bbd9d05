/** What a daemon refuses, and what does not reach it: an error for each reason a program can act upon. */

import { Code, ConnectError } from "@connectrpc/connect";

import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** What is known of a refusal. */
export interface Refusal {
  /** The status of gRPC. */
  code: Code;
  /** Why, as a stable word such as `STALE_SEQ`; empty where no daemon said it. */
  reason: string;
  /** What the daemon says of it: which field, which limit, what there is instead. */
  facts: Readonly<Record<string, string>>;
  /** Seconds after which the same call may be taken; undefined: it will not. */
  retryAfter: number | undefined;
  /** What Connect made of it. */
  cause: ConnectError;
}

/** A call was not done. Says in words what to do about it. */
export class MemoirdError extends Error implements Refusal {
  readonly code: Code;
  readonly reason: string;
  readonly facts: Readonly<Record<string, string>>;
  readonly retryAfter: number | undefined;
  override readonly cause: ConnectError;
  /** The path of the field that it is about, such as `append.turns[1]`; empty where it is about none. */
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

/** A field, or a setting of `connect`, is not as it has to be: `field`. */
export class InvalidArgument extends MemoirdError {}
/** What may not be left out of a window does not fit its budget. */
export class CurrentTurnTooLarge extends InvalidArgument {}
/** The provider's messages are not as the provider has them. */
export class MessagesInvalid extends InvalidArgument {}
/** What is taken back would leave a part of a tool unit. */
export class ToolUnitSplit extends InvalidArgument {}
/** There is no such thing, or not for this key. */
export class NotFound extends MemoirdError {}
/** The session does not live: it never began, or has ended. */
export class SessionNotFound extends NotFound {}
/** The session had no such life, or the journal does not keep it any more. */
export class GenerationNotFound extends NotFound {}
/** There is no memory of this id. */
export class MemoryNotFound extends NotFound {}
/** There is no document of this key, or it has expired. */
export class DocumentNotFound extends NotFound {}
/** Things are not as the call expected them. To repeat it does not help: read first. */
export class Conflict extends MemoirdError {}
/** The newest turn is another one than `expectedSeq`. */
export class StaleSeq extends Conflict {}
/** Another life of the session is live than `expectedGeneration`. */
export class StaleGeneration extends Conflict {}
/** The state has another version than was expected. */
export class StaleStateVersion extends Conflict {}
/** The document has another version than `expectedVersion`; `facts.version` has it, 0: none. */
export class StaleVersion extends Conflict {}
/** The key was used for another content. */
export class IdempotencyKeyReused extends Conflict {}
/** The turns that were appended with this key were taken back. */
export class IdempotencyKeyRewound extends Conflict {}
/** A tool's call waits for its result, or a reply is streaming. */
export class CallPending extends Conflict {}
/** The lease has ended. */
export class LeaseLost extends Conflict {}
/** A limit is reached; `reason` and `facts` name it, `retryAfter` says when to try again. */
export class ResourceExhausted extends MemoirdError {}
/** The disk has no room. Nothing was taken. */
export class JournalFull extends ResourceExhausted {}
/** The daemon is not reached, or does not take calls now. */
export class Unavailable extends MemoirdError {}
/** The call took longer than its time limit; it may have been done. */
export class DeadlineExceeded extends MemoirdError {}
/** The caller's signal, or `close`, ended the call; it may have been done. */
export class Canceled extends MemoirdError {}
/** The daemon does not know the key, or wants one. */
export class Unauthenticated extends MemoirdError {}
/** The key may not do this. */
export class PermissionDenied extends MemoirdError {}
/** The daemon does not do this, as it is configured: `reason`. */
export class Unimplemented extends MemoirdError {}
/** The daemon is older than this client and has no such call: `facts.call`. */
export class MissingCall extends Unimplemented {}
/** A defect of the daemon, or damage of its data. */
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

/** The error for a failed call; `isWanted` is false where the caller itself ended it. */
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

/** Whether the connection ended without an answer, which Connect has several codes for. */
function isLost(error: ConnectError): boolean {
  if (error.metadata.has("grpc-status")) {
    return false;
  }
  // Streams of a connection that breaks are canceled.
  if (error.code === Code.Canceled || error.code === Code.Aborted) {
    return true;
  }
  // A balancer ends the answer of a daemon that died, as if it were whole.
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

/** Whether it ended a stream or the connection, such as a daemon's that goes away. */
function isOfHttp2(error: Error): boolean {
  return "code" in error && ["ERR_HTTP2_SESSION_ERROR", "ERR_HTTP2_STREAM_ERROR"].includes(String(error.code));
}
