/** The client, which holds one connection. Create it once and reuse it. */

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect as connectSocket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { create, isMessage } from "@bufbuild/protobuf";
import type { DescMessage, Message, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import type { CallOptions, Client as ClientOf, Interceptor, Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import { createAsyncIterable } from "@connectrpc/connect/protocol";

import { Conflict, DeadlineExceeded, errorOf, ResourceExhausted, Unavailable } from "./errors.js";
import type { MemoirdError } from "./errors.js";
import {
  BatchDocumentsRequestSchema,
  DeleteDocumentRequestSchema,
  DocumentService,
  PutDocumentRequestSchema,
} from "./gen/memoird/v1/document_pb.js";
import { ForgetRequestSchema, MemoryService, RememberRequestSchema } from "./gen/memoird/v1/memory_pb.js";
import {
  AppendRequestSchema,
  CopySessionRequestSchema,
  EndSessionRequestSchema,
  BuildContextRequestSchema,
  UpdateSessionRequestSchema,
  ResetSessionRequestSchema,
  RewindSessionRequestSchema,
  SessionService,
  UpdateTurnRequestSchema,
} from "./gen/memoird/v1/session_pb.js";

import { look, misfit } from "./misfit.js";

const ADDR = "http://127.0.0.1:7717";
const TIMEOUT_MS = 30_000;
// Pause before the first retry, if the daemon names none. Doubled with each retry, with random jitter.
const FIRST_PAUSE_MS = 50;
const PAUSE_MS_MAX = 2_000;
const MESSAGE_BYTES_MAX = 256 << 20;
// Node's default is 10 MB for all concurrent calls. It rejects further calls while a larger one is in progress.
const SESSION_MEGABYTES_MAX = 1_000_000;
const PING_MS = 10_000;
// Closes connections before NAT gateways and proxies drop them silently. Must be below PING_MS: a connection that was
// idle for longer must answer a ping before it is used again.
const IDLE_MS_MAX = 9_000;
// For a client's first connection. Later calls wait for a restarting daemon as long as their time limit.
const FIRST_CONNECTION_MS_MAX = 3_000;
// Codes of errors made by the client or a proxy, if they have no reason.
const UNANSWERED = [Code.Unavailable, Code.Canceled, Code.DeadlineExceeded];
// The daemon rejects longer ids of sessions and subjects. Much longer metadata would end the connection.
const PLACE_MAX = 256;
// Calls that may be retried when their outcome is unknown.
const REPEATABLE: ReadonlySet<unknown> = new Set([
  SessionService.method.append,
  SessionService.method.updateSession,
  SessionService.method.rewindSession,
  SessionService.method.updateTurn,
  SessionService.method.copySession,
  SessionService.method.resetSession,
  SessionService.method.endSession,
  SessionService.method.buildContext,
  SessionService.method.resolveRecallTool,
  SessionService.method.getHistory,
  SessionService.method.getSession,
  SessionService.method.listSessions,
  SessionService.method.searchTranscripts,
  SessionService.method.compactSession,
  SessionService.method.eraseSession,
  SessionService.method.eraseSubject,
  SessionService.method.getErasure,
  MemoryService.method.remember,
  MemoryService.method.recall,
  MemoryService.method.getMemory,
  MemoryService.method.listMemories,
  MemoryService.method.listSubjects,
  MemoryService.method.listConflicts,
  MemoryService.method.forget,
  MemoryService.method.getManifest,
  MemoryService.method.commitExtraction,
  MemoryService.method.importMemories,
  MemoryService.method.getMemoryStats,
  DocumentService.method.getDocument,
  DocumentService.method.putDocument,
  DocumentService.method.deleteDocument,
  DocumentService.method.deleteDocuments,
  DocumentService.method.listDocuments,
  DocumentService.method.listNamespaces,
  DocumentService.method.batchDocuments,
]);

/** TLS certificates, as PEM files. */
export interface Tls {
  /** CA of the daemon's certificate. If unset, the CAs that Node trusts. */
  ca?: string | undefined;
  /** This client's own certificate, if the daemon requires one. */
  cert?: string | undefined;
  /** Private key of `cert`. */
  certKey?: string | undefined;
}

/** Address, credentials and limits of a client. */
export interface Options {
  /**
   * `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. If unset, `MEMOIRD_ADDR`, or the daemon on this machine.
   */
  addr?: string | undefined;
  /** The tenant's API key. If unset, `MEMOIRD_KEY`. */
  key?: string | undefined;
  /** For https only. If unset, `MEMOIRD_CA`, `MEMOIRD_CERT` and `MEMOIRD_CERT_KEY`. */
  tls?: Tls | undefined;
  /**
   * Time limit of a call including retries. Default 30,000. A call may override it with its own `timeoutMs`. Streams
   * have no limit unless they set one.
   */
  timeoutMs?: number | undefined;
  /**
   * Whether to send a generated idempotency key with each change of a session and each put of a document, so that it is
   * retried if its response is lost. Default true.
   */
  idempotent?: boolean | undefined;
  /** Connect interceptors. Each sees every try of a call. */
  interceptors?: Interceptor[] | undefined;
}

/** All calls of sessions, memories and documents. It holds one connection, so create it once and reuse it. */
export type Client = ClientOf<typeof SessionService> &
  ClientOf<typeof MemoryService> &
  ClientOf<typeof DocumentService> & {
    /** Address of the daemon. */
    readonly addr: string;
    /** Cancels calls in progress and closes the connection. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
  };

/**
 * Returns a client of a daemon. It connects with the first call.
 *
 * Until a daemon has answered once, calls throw `Unavailable` after 3 s without a connection. After that, they wait for
 * a restarting daemon for up to `timeoutMs`.
 */
export function connect(options: Options = {}): Client {
  const env = process.env;
  const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
  if (unknown !== undefined) {
    throw misfit(unknown, `is nothing that connect takes; it takes ${OPTIONS.join(", ")}`);
  }
  const addr: unknown = options.addr || env.MEMOIRD_ADDR || ADDR;
  const key: unknown = options.key ?? env.MEMOIRD_KEY ?? "";
  if (typeof addr !== "string") {
    throw misfit("addr", `takes a text, not a ${typeof addr}`);
  }
  if (typeof key !== "string" || !/^[\x20-\x7e]*$/.test(key)) {
    // The message must not contain the key.
    throw misfit("key", "takes a text of visible ASCII characters; a file's key has no line's end");
  }
  const { baseUrl, socket } = parse(addr);
  let nodeOptions = {};
  if (socket) {
    nodeOptions = { createConnection: () => connectSocket(socket) };
  } else if (baseUrl.startsWith("https:")) {
    const tls = options.tls ?? { ca: env.MEMOIRD_CA, cert: env.MEMOIRD_CERT, certKey: env.MEMOIRD_CERT_KEY };
    if (!tls.cert !== !tls.certKey) {
      throw misfit("tls", "takes cert and certKey together (MEMOIRD_CERT and MEMOIRD_CERT_KEY)");
    }
    nodeOptions = { ca: read(tls.ca), cert: read(tls.cert), key: read(tls.certKey) };
  } else if (options.tls) {
    throw misfit("tls", `needs an address that begins with https://, and this is ${JSON.stringify(addr)}`);
  }
  // Detects an unresponsive machine: while a call waits, pings check the connection.
  const alive = { pingIntervalMs: PING_MS, pingTimeoutMs: PING_MS, idleConnectionTimeoutMs: IDLE_MS_MAX };
  const sessionManager = new Http2SessionManager(baseUrl, alive, { ...nodeOptions, maxSessionMemory: SESSION_MEGABYTES_MAX });
  const grpc = createGrpcTransport({
    baseUrl,
    sessionManager,
    interceptors: options.interceptors ?? [],
    readMaxBytes: MESSAGE_BYTES_MAX,
    writeMaxBytes: MESSAGE_BYTES_MAX,
  });
  const closing = new AbortController();
  let isConnected = false;
  const transport = retrying(grpc, {
    addr,
    key,
    timeoutMs: milliseconds(options.timeoutMs) ?? TIMEOUT_MS,
    idempotent: options.idempotent ?? true,
    isClosed: () => closing.signal.aborted,
    async connected(timeoutMs, signal) {
      if (!isConnected) {
        const ends = AbortSignal.any(signal ? [closing.signal, signal] : [closing.signal]);
        await firstConnection(sessionManager, addr, Math.min(timeoutMs, FIRST_CONNECTION_MS_MAX), ends);
        isConnected = true;
      }
    },
  });
  const close = async () => {
    closing.abort();
    sessionManager.abort();
  };
  const sessions = createClient(SessionService, transport);
  return {
    ...sessions,
    watchEvents: ending(sessions.watchEvents),
    ...createClient(MemoryService, transport),
    ...createClient(DocumentService, transport),
    addr,
    close,
    [Symbol.asyncDispose]: close,
  };
}

/**
 * Wraps a streaming call so that it starts when its loop does and is canceled when the loop is left. Connect starts it
 * earlier and does not cancel it.
 */
function ending<I, O>(begin: Stream<I, O>): Stream<I, O> {
  return async function* (request, options = {}) {
    const left = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, left.signal]) : left.signal;
    try {
      yield* begin(request, { ...options, signal });
    } finally {
      left.abort();
    }
  };
}

type Stream<I, O> = (request: I, options?: CallOptions) => AsyncIterable<O>;

const OPTIONS = ["addr", "key", "tls", "timeoutMs", "idempotent", "interceptors"];

function milliseconds(limit: number | undefined): number | undefined {
  if (limit !== undefined && (typeof limit !== "number" || Number.isNaN(limit))) {
    throw misfit("timeoutMs", "takes milliseconds as a number");
  }
  // JavaScript timers with a longer delay fire at once.
  return limit === undefined || limit === Infinity ? limit : Math.min(limit, 2 ** 31 - 1);
}

function parse(addr: string): { baseUrl: string; socket?: string } {
  const socket = /^unix:(?:\/\/)?(?!\/\/)(.+)$/.exec(addr)?.[1];
  if (socket) {
    return { baseUrl: "http://localhost", socket };
  }
  const baseUrl = /^(\w+:\/|unix:)/.test(addr) ? addr : `http://${addr}`;
  if (!/^https?:\/\/[^/]/.test(baseUrl) || !URL.canParse(baseUrl)) {
    throw misfit("addr", `${JSON.stringify(addr)} is no address: http://HOST:PORT, https://HOST:PORT or unix:PATH`);
  }
  return { baseUrl: baseUrl.replace(/\/+$/, "") };
}

function read(file: string | undefined): Buffer | undefined {
  return file ? readFileSync(file) : undefined;
}

/** Opens the first connection of a client. Throws `Unavailable` if that takes too long, and other errors at once. */
async function firstConnection(
  sessions: Http2SessionManager,
  addr: string,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<void> {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), timeoutMs);
  const ends = AbortSignal.any([limit.signal, signal]);
  const ended = new Promise<string>((end) => ends.addEventListener("abort", () => end("ended"), { once: true }));
  let error: MemoirdError | undefined;
  try {
    for (let pause = FIRST_PAUSE_MS; !ends.aborted; pause *= 2) {
      const state = await Promise.race([sessions.connect(), ended]);
      if (state === "open" || state === "idle") {
        return;
      }
      const reason = sessions.error();
      error = reason ? errorOf(reason, "", true) : error;
      if (error && !(error instanceof Unavailable)) {
        throw error;
      }
      await sleep(pause, undefined, { signal: ends }).catch(() => undefined);
    }
    if (signal.aborted) {
      throw errorOf(new ConnectError("the call was canceled", Code.Canceled), "", false);
    }
    // The next call starts with a new connection.
    sessions.abort();
    error ??= errorOf(new ConnectError("no answer", Code.Unavailable), "", true);
    throw unreached(addr, error);
  } finally {
    clearTimeout(timer);
  }
}

function unreached(addr: string, error: MemoirdError): Unavailable {
  const advice = "start one with `memoird serve`, or set MEMOIRD_ADDR";
  return new Unavailable(`no memoird daemon at ${addr}: ${advice} (${error.message})`, error);
}

interface Rules {
  addr: string;
  key: string;
  timeoutMs: number;
  idempotent: boolean;
  isClosed: () => boolean;
  /** Waits for the client's first connection. Does nothing once it was established. */
  connected: (timeoutMs: number, signal: AbortSignal | undefined) => Promise<void>;
}

/**
 * Retries calls within one time limit, and throws the errors of this package.
 *
 * Not an interceptor: after the time limit, Connect would replace an error thrown there by its own, and each try must
 * send the remaining time limit to the daemon.
 */
function retrying(inner: Transport, rules: Rules): Transport {
  const isWanted = (signal: AbortSignal | undefined) => !signal?.aborted && !rules.isClosed();
  const checkOpen = () => {
    if (rules.isClosed()) {
      throw new ConnectError("this client is closed", Code.Canceled);
    }
  };
  let isAnswered = false;
  /** Returns the error of a call. Until the first response from the address, the error names the address. */
  const refusal = (failure: unknown, call: string, signal: AbortSignal | undefined) => {
    const error = errorOf(failure, call, isWanted(signal));
    isAnswered ||= error.reason !== "" || !UNANSWERED.includes(error.code);
    return isAnswered || error.code !== Code.Unavailable ? error : unreached(rules.addr, error);
  };
  return {
    async unary(method, signal, timeoutMs, header, input, contextValues) {
      look(method.input, input ?? {});
      const request = prepared(create(method.input, input), rules.idempotent);
      const headers = headersOf(header, rules.key, placeOf(method.parent.typeName, request));
      const limit = milliseconds(timeoutMs) ?? rules.timeoutMs;
      const ends = limit > 0 ? performance.now() + limit : Infinity;
      const left = () => Math.max(Math.ceil(ends - performance.now()), 1);
      const isRepeatable = REPEATABLE.has(method) && isKnownAgain(request);
      // A window's append is done before the window is rejected.
      const isUndone = !isMessage(request, BuildContextRequestSchema) || !request.append;
      let [next, waited] = [FIRST_PAUSE_MS, 0];
      await rules.connected(left(), signal);
      for (;;) {
        try {
          checkOpen();
          const tryMs = ends === Infinity ? 0 : left();
          const reply = await inner.unary(method, signal, tryMs, headers, request, contextValues);
          isAnswered = true;
          return reply;
        } catch (failure) {
          const error = refusal(failure, method.name, signal);
          let pause = error.retryAfter === undefined ? undefined : error.retryAfter * 1000;
          // Retry errors of the daemon itself only if it returns a retry delay.
          if (pause === undefined && error instanceof Unavailable && ["", "TRANSPORT"].includes(error.reason)) {
            pause = next * (0.5 + Math.random());
            next = Math.min(next * 2, PAUSE_MS_MAX);
          }
          // A call rejected for lack of room did nothing. Other failed calls may be in progress.
          const isSafe = isRepeatable || (isUndone && error instanceof ResourceExhausted);
          const isHopeless = error instanceof Conflict || error instanceof DeadlineExceeded;
          if (pause === undefined || isHopeless || !isSafe || pause >= left() || !isWanted(signal)) {
            throw error;
          }
          // A proxy may accept connections for a daemon that is not running.
          waited += pause;
          if (!isAnswered && waited > FIRST_CONNECTION_MS_MAX) {
            throw error;
          }
          // If the pause is aborted, the next try reports it.
          await sleep(pause, undefined, signal && { signal }).catch(() => undefined);
        }
      }
    },
    async stream(method, signal, timeoutMs, header, input, contextValues) {
      const headers = headersOf(header, rules.key);
      const limit = milliseconds(timeoutMs);
      const asked: MessageInitShape<typeof method.input>[] = [];
      for await (const one of input) {
        look(method.input, one);
        asked.push(one);
      }
      const thrown = (failure: unknown) => {
        throw refusal(failure, method.name, signal);
      };
      const begin = async () => {
        checkOpen();
        return inner.stream(method, signal, limit, headers, createAsyncIterable(asked), contextValues);
      };
      await rules.connected(limit || Infinity, signal);
      const answer = await begin().catch(thrown);
      async function* messages() {
        try {
          for await (const message of answer.message) {
            isAnswered = true;
            yield message;
          }
        } catch (failure) {
          thrown(failure);
        }
      }
      return { ...answer, message: messages() };
    },
  };
}

/** Returns the request, with generated idempotency keys where they are needed to retry it. The caller's own object is not changed. */
function prepared<I extends DescMessage>(request: MessageShape<I>, idempotent: boolean): MessageShape<I> {
  const keyed = <K extends { idempotencyKey: string }>(it: K) => ({
    ...it,
    idempotencyKey: it.idempotencyKey || randomUUID(),
  });
  const message: Message = request;
  if (idempotent && isKeyed(message)) {
    return keyed(message) as Message as MessageShape<I>;
  }
  if (idempotent && isMessage(message, BuildContextRequestSchema) && message.append) {
    return { ...message, append: keyed(message.append) } as Message as MessageShape<I>;
  }
  if (idempotent && isMessage(message, BatchDocumentsRequestSchema)) {
    const operations = message.operations.map((it) =>
      it.operation.case === "put" ? { ...it, operation: { case: "put", value: keyed(it.operation.value) } } : it,
    );
    return { ...message, operations } as Message as MessageShape<I>;
  }
  return request;
}

/** Requests that need an idempotency key to be retried. */
const KEYED = [
  AppendRequestSchema,
  CopySessionRequestSchema,
  EndSessionRequestSchema,
  UpdateSessionRequestSchema,
  PutDocumentRequestSchema,
  ResetSessionRequestSchema,
  RewindSessionRequestSchema,
  UpdateTurnRequestSchema,
];

function isKeyed(request: Message): request is MessageShape<(typeof KEYED)[number]> {
  return KEYED.some((schema) => isMessage(request, schema));
}

/** Whether repeating the request has the same effect as sending it once. */
function isKnownAgain(request: Message): boolean {
  if (isKeyed(request) || isMessage(request, RememberRequestSchema)) {
    return request.idempotencyKey !== "";
  }
  if (isMessage(request, BatchDocumentsRequestSchema)) {
    return request.operations.every(({ operation: { value } }) => !value || isKnownAgain(value));
  }
  if (isMessage(request, DeleteDocumentRequestSchema)) {
    // With an expected version, the repetition of a completed deletion fails.
    return request.expectedVersion === undefined;
  }
  return !isMessage(request, BuildContextRequestSchema) || request.append?.idempotencyKey !== "";
}

/** Returns the session id of a request, or for memories the subject if it names one. */
function placeOf(service: string, request: Message): string {
  let named = request as Message & { sessionId?: string; subject?: string; subjects?: string[] };
  if (isMessage(request, ForgetRequestSchema)) {
    const { target } = request;
    named = target.case === "filter" ? target.value : { ...request, subject: target.case === "subject" ? target.value : "" };
  }
  const { sessionId = "", subject = named.subjects?.[0] ?? "" } = named;
  return service === MemoryService.typeName ? subject || sessionId : sessionId || subject;
}

function headersOf(given: HeadersInit | undefined, key: string, place = ""): Headers {
  const headers = new Headers(given);
  if (key && !headers.has("authorization")) {
    headers.set("authorization", `Bearer ${key}`);
  }
  // The daemon refuses replies over 4 MiB unless a call asks for more.
  headers.set("memoird-max-reply-bytes", String(MESSAGE_BYTES_MAX));
  if (place && place.length <= PLACE_MAX) {
    // Load balancers route all calls of a session to the same daemon by it. Quoted as in the other clients.
    const quoted = encodeURIComponent(place).replace(
      /[!'()*]/g,
      (mark) => `%${mark.charCodeAt(0).toString(16).toUpperCase()}`,
    );
    headers.set("memoird-session", quoted);
  }
  return headers;
}
