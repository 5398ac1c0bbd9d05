/** The client: cheap to keep, and meant to be kept. */

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
import type {
  AppendRequest,
  CopySessionRequest,
  PatchStateRequest,
  RewindSessionRequest,
} from "./gen/memoird/v1/session_pb.js";
import {
  AppendRequestSchema,
  CopySessionRequestSchema,
  GetContextRequestSchema,
  PatchStateRequestSchema,
  RewindSessionRequestSchema,
  SessionService,
} from "./gen/memoird/v1/session_pb.js";

import { look, misfit } from "./misfit.js";

const ADDR = "http://127.0.0.1:7717";
const TIMEOUT_MS = 30_000;
// Until the next try, where the daemon does not say: doubled each time, and diced.
const FIRST_PAUSE_MS = 50;
const PAUSE_MS_MAX = 2_000;
const MESSAGE_BYTES_MAX = 256 << 20;
// By itself Node has 10 for all calls that are under way, and refuses any other while a larger one is.
const SESSION_MEGABYTES_MAX = 1_000_000;
const PING_MS = 10_000;
// Closes connections before NAT gateways and proxies drop them silently. Below PING_MS: a connection that was idle for
// longer than that has to answer a ping before it is used again.
const IDLE_MS_MAX = 9_000;
// For a client that no daemon has answered yet. Others wait for a daemon that restarts as long as their calls may take.
const FIRST_CONNECTION_MS_MAX = 3_000;
// Codes of errors that the client or a proxy makes, as long as they have no reason.
const UNANSWERED = [Code.Unavailable, Code.Canceled, Code.DeadlineExceeded];
// The daemon refuses longer names of sessions and subjects. Much longer metadata would end the connection.
const PLACE_MAX = 256;
// Calls that may be made again when it is not known whether they were done.
const REPEATABLE: ReadonlySet<unknown> = new Set([
  SessionService.method.append,
  SessionService.method.patchState,
  SessionService.method.rewindSession,
  SessionService.method.updateTurn,
  SessionService.method.copySession,
  SessionService.method.getContext,
  SessionService.method.resolveRecallTool,
  SessionService.method.getHistory,
  SessionService.method.getSession,
  SessionService.method.listSessions,
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
  MemoryService.method.reindexMemories,
  MemoryService.method.searchTranscripts,
  DocumentService.method.getDocument,
  DocumentService.method.putDocument,
  DocumentService.method.deleteDocument,
  DocumentService.method.deleteDocuments,
  DocumentService.method.listDocuments,
  DocumentService.method.listNamespaces,
  DocumentService.method.batchDocuments,
]);

/** Certificates, as files in PEM. */
export interface Tls {
  /** Who signs the daemon's certificate; unset: whom Node trusts. */
  ca?: string | undefined;
  /** This client's own certificate, where the daemon asks for one. */
  cert?: string | undefined;
  /** The key of `cert`. */
  certKey?: string | undefined;
}

/** Where the daemon is, who calls it, and how patiently. */
export interface Options {
  /** `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`; unset: `MEMOIRD_ADDR`, or the daemon of this machine. */
  addr?: string | undefined;
  /** The tenant's key; unset: `MEMOIRD_KEY`. */
  key?: string | undefined;
  /** Unset: `MEMOIRD_CA`, `MEMOIRD_CERT` and `MEMOIRD_CERT_KEY`. For https only. */
  tls?: Tls | undefined;
  /** For all tries of a call together; 30,000 where unset. A call may have its own, `timeoutMs`; streams have only that. */
  timeoutMs?: number | undefined;
  /** Whether each append, patch, rewind and copy has a key of its own, and is repeated where its answer was lost; so where unset. */
  idempotent?: boolean | undefined;
  /** Interceptors of Connect: each sees every try of a call. */
  interceptors?: Interceptor[] | undefined;
}

/** Every call of sessions, memories and documents. Keep it: it holds one connection. */
export type Client = ClientOf<typeof SessionService> &
  ClientOf<typeof MemoryService> &
  ClientOf<typeof DocumentService> & {
    /** Where the daemon is. */
    readonly addr: string;
    /** Ends what is under way, and the connection. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
  };

/**
 * Returns a client of a daemon. It connects with the first call.
 *
 * Until a daemon has answered, calls throw `Unavailable` after 3 s without a connection. Later they wait for a daemon that
 * restarts, as long as `timeoutMs`.
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
    // Of a key nothing is said.
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
  // A machine that is gone says nothing: while a call waits, the connection is asked whether it lives.
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

/** The same call, whose stream begins with its loop and ends where that is left: Connect would begin before, and go on. */
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
  // Longer than that, timers of JavaScript end at once.
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

/** Opens the first connection of a client. Throws `Unavailable` if there is none in time, other errors at once. */
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
    // The next call starts a connection of its own.
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
  /** Waits for the client's first connection; does nothing once there was one. */
  connected: (timeoutMs: number, signal: AbortSignal | undefined) => Promise<void>;
}

/**
 * Repeats what may be repeated, within one time limit, and throws the errors of this package.
 *
 * Not an interceptor: Connect puts an error of its own in the place of what an interceptor throws
 * after the time limit, and the daemon has to be told what is left of it at each try.
 */
function retrying(inner: Transport, rules: Rules): Transport {
  const isWanted = (signal: AbortSignal | undefined) => !signal?.aborted && !rules.isClosed();
  const checkOpen = () => {
    if (rules.isClosed()) {
      throw new ConnectError("this client is closed", Code.Canceled);
    }
  };
  let isAnswered = false;
  /** The error of a call; it names the address until the client had an answer from it. */
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
      // A window's append is done before the window is refused.
      const isUndone = !isMessage(request, GetContextRequestSchema) || !request.append;
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
          // What the daemon itself could not do, it does again where it says so.
          if (pause === undefined && error instanceof Unavailable && ["", "TRANSPORT"].includes(error.reason)) {
            pause = next * (0.5 + Math.random());
            next = Math.min(next * 2, PAUSE_MS_MAX);
          }
          // A refusal for want of room did nothing; whatever else is refused may be under way.
          const isSafe = isRepeatable || (isUndone && error instanceof ResourceExhausted);
          const isHopeless = error instanceof Conflict || error instanceof DeadlineExceeded;
          if (pause === undefined || isHopeless || !isSafe || pause >= left() || !isWanted(signal)) {
            throw error;
          }
          // A proxy may accept connections for a daemon that does not run.
          waited += pause;
          if (!isAnswered && waited > FIRST_CONNECTION_MS_MAX) {
            throw error;
          }
          // An aborted pause leads to a try that says so.
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

/**
 * The request with a key for what is not safe to repeat without. The caller's own object stays
 * as it is.
 */
function prepared<I extends DescMessage>(request: MessageShape<I>, idempotent: boolean): MessageShape<I> {
  const keyed = <K extends { idempotencyKey: string }>(it: K) => ({
    ...it,
    idempotencyKey: it.idempotencyKey || randomUUID(),
  });
  const message: Message = request;
  if (idempotent && isKeyed(message)) {
    return keyed(message) as Message as MessageShape<I>;
  }
  if (idempotent && isMessage(message, GetContextRequestSchema) && message.append) {
    return { ...message, append: keyed(message.append) } as Message as MessageShape<I>;
  }
  return request;
}

function isKeyed(
  request: Message,
): request is AppendRequest | CopySessionRequest | PatchStateRequest | RewindSessionRequest {
  return (
    isMessage(request, AppendRequestSchema) ||
    isMessage(request, CopySessionRequestSchema) ||
    isMessage(request, PatchStateRequestSchema) ||
    isMessage(request, RewindSessionRequestSchema)
  );
}

/** Whether the daemon knows the request again when it comes twice, or does not mind. */
function isKnownAgain(request: Message): boolean {
  if (isKeyed(request) || isMessage(request, RememberRequestSchema)) {
    return request.idempotencyKey !== "";
  }
  if (isMessage(request, BatchDocumentsRequestSchema)) {
    return request.operations.every(({ operation: { value } }) => !value || isKnownAgain(value));
  }
  if (isMessage(request, PutDocumentRequestSchema) || isMessage(request, DeleteDocumentRequestSchema)) {
    // Done once, it is refused the second time.
    return request.expectedVersion === undefined;
  }
  return !isMessage(request, GetContextRequestSchema) || request.append?.idempotencyKey !== "";
}

/** The session that a request names; of memories the subject, where it names one. */
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
    // For balancers: all calls of a session go to the same daemon. Quoted as other clients do.
    const quoted = encodeURIComponent(place).replace(
      /[!'()*]/g,
      (mark) => `%${mark.charCodeAt(0).toString(16).toUpperCase()}`,
    );
    headers.set("memoird-session", quoted);
  }
  return headers;
}
