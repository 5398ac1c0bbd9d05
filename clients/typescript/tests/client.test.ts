/** The client against a real daemon, named by `MEMOIRD_BIN` if it is not on PATH. */

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { constants, createServer } from "node:http2";
import type { ServerHttp2Session, ServerHttp2Stream } from "node:http2";
import { connect as connectSocket, createServer as createTcpServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pipeline } from "node:stream";
import { after, before, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { createServer as createTlsServer } from "node:tls";

import { create, toBinary } from "@bufbuild/protobuf";
import { anyPack, timestampDate, timestampFromDate, AnySchema } from "@bufbuild/protobuf/wkt";
import * as memoird from "memoird";
import { AppendRequestSchema, GetSessionResponseSchema } from "memoird";
import { errors, MemoryKind, MessageFormat, RememberOutcome, Role } from "memoird";

import { ErrorInfoSchema, RetryInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";

let client: memoird.Client;
before(async () => {
  client = await memoird.local();
});
after(() => client.close());

async function listen(server: Server): Promise<string> {
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** A temporary directory for one test. */
function temporary(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `memoird-${name}-`));
  after(() => rmSync(folder, { recursive: true }));
  return folder;
}

function toDaemon(socket: Socket): void {
  const daemon = connectSocket(Number(client.addr.split(":").at(-1)), "127.0.0.1");
  // If either end closes, the other one does too.
  pipeline(socket, daemon, socket, () => undefined);
}

describe("calls", () => {
  test("what is said is read again", async () => {
    const said = [
      memoird.user("Where is my parcel?"),
      memoird.toolUse("c1", "find", { order: 7 }),
      memoird.toolResult("c1", "in Oslo"),
      memoird.assistant("In Oslo."),
    ];
    const at = new Date("2026-05-01T12:00:00.123Z");
    said[0]!.timestamp = timestampFromDate(at);
    said[0]!.metadata = { from: "ann" };
    const answer = await client.append({ sessionId: "said", turns: said, subject: "ann" });
    assert.deepEqual([answer.firstSeq, answer.lastSeq, answer.duplicate], [1n, 4n, false]);
    const { turns } = await client.getHistory({ sessionId: "said" });
    assert.deepEqual(timestampDate(turns[0]!.timestamp!), at);
    assert.deepEqual(turns[0]!.metadata, { from: "ann" });
    assert.deepEqual(
      turns.map((turn) => turn.role),
      [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT],
    );
    const { part } = turns[1]!.parts[0]!;
    assert.equal(part.case === "toolUse" && part.value.inputJson, '{"order":7}');
    const { session } = await client.getSession({ sessionId: "said" });
    assert.deepEqual([session?.subject, session?.lastSeq], ["ann", 4n]);
  });

  test("a window is the provider's own", async () => {
    const window = await client.buildContext({
      sessionId: "window",
      append: {
        messagesJson: JSON.stringify([{ role: "user", content: "Hi" }]),
        format: MessageFormat.OPENAI,
      },
      system: "Be kind.",
      format: MessageFormat.OPENAI,
    });
    assert.deepEqual(JSON.parse(window.messagesJson), [
      { role: "system", content: "Be kind." },
      { role: "user", content: "Hi" },
    ]);
    assert.ok(window.report!.tokensTotal > 0n);
  });

  test("state and memories", async () => {
    await client.append({ sessionId: "state", turns: [memoird.user("hello")] });
    const patched = await client.updateSession({ sessionId: "state", statePatchJson: '{"step":1}' });
    assert.deepEqual(JSON.parse(patched.session!.stateJson), { step: 1 });
    const made = await client.remember({ subject: "ann", kind: MemoryKind.USER, content: "Ann likes tea" });
    assert.equal(made.outcome, RememberOutcome.CREATED);
    const { hits } = await client.recall({ query: "tea", subjects: ["ann"] });
    assert.deepEqual(
      hits.map((hit) => hit.memory!.content),
      ["Ann likes tea"],
    );
    const removed = await client.forget({ target: { case: "id", value: made.memory!.id } });
    assert.equal(removed.memories, 1n);
  });

  test("events are streamed until they are not wanted any more", async () => {
    const stop = new AbortController();
    const events = client.watchEvents({}, { signal: stop.signal })[Symbol.asyncIterator]();
    let event = events.next();
    await client.append({ sessionId: "watched", turns: [memoird.user("hello")] });
    // The stream may begin after the first append.
    const more = setInterval(() => {
      void client.append({ sessionId: "watched", turns: [memoird.user("hello")] });
    }, 20);
    try {
      assert.equal((await event).value?.event?.sessionId, "watched");
    } finally {
      clearInterval(more);
    }
    stop.abort();
    await assert.rejects(async () => {
      for (;;) {
        await events.next();
      }
    }, errors.Canceled);
  });
});

test("a stream ends where its loop is left", async () => {
  let ended = false;
  const event = Buffer.from([0, 0, 0, 0, 0]);
  const streaming = (stream: ServerHttp2Stream) => {
    stream.on("close", () => (ended = true));
    stream.respond({ ":status": 200, "content-type": "application/grpc" });
    stream.write(event);
  };
  await scripted([streaming], async ({ addr }) => {
    await using other = memoird.connect({ addr });
    for await (const _ of other.watchEvents({})) {
      break;
    }
    while (!ended) {
      await setImmediate();
    }
  });
});

test("a stream begins with its loop", async () => {
  await scripted([answer()], async ({ addr, seen }) => {
    await using other = memoird.connect({ addr });
    // A response that is not read cannot be closed, and its failure would end the process.
    other.watchEvents({});
    await other.listSessions({});
    assert.deepEqual(seen.map((headers) => headers[":path"]), ["/memoird.v1.SessionService/ListSessions"]);
  });
});

describe("refusals", () => {
  test("are errors by reason", async () => {
    await assert.rejects(client.getSession({ sessionId: "nobody" }), (error) => {
      assert.ok(error instanceof errors.SessionNotFound && error instanceof memoird.MemoirdError);
      assert.equal(error.reason, "SESSION_NOT_FOUND");
      assert.match(error.message, /^SESSION_NOT_FOUND: /);
      return true;
    });
    await client.append({ sessionId: "stale", turns: [memoird.user("one")] });
    const two = { sessionId: "stale", turns: [memoird.user("two")] };
    await assert.rejects(client.append({ ...two, expectedSeq: 0n }), (error) => {
      assert.ok(error instanceof errors.StaleSeq && error instanceof errors.Conflict);
      assert.equal(error.retryAfter, undefined);
      return true;
    });
    await assert.rejects(client.append({ ...two, sessionId: "" }), errors.InvalidArgument);
    await assert.rejects(client.append({ sessionId: "stale", turns: [{}] }), errors.InvalidArgument);
  });

  test("what a field does not take is refused with its name, and not sent", async () => {
    const [at, hi] = [{ sessionId: "s" }, memoird.user("hi")];
    const spot = { namespace: ["users"], key: "k" };
    const json = { case: "json", value: "1" };
    const half = "\ud800";
    const refused: [string, RegExp, keyof memoird.Client, unknown][] = [
      ["sessionId", /a text, not 4711/, "append", { sessionId: 4711, turns: [hi] }],
      ["sessionId", /without halves of characters/, "append", { sessionId: half, turns: [hi] }],
      ["turns", /a list, not a text/, "append", { ...at, turns: "hello" }],
      ["turns", /a list, not an object/, "append", { ...at, turns: hi }],
      ["turns[1]", /a Turn, not a text/, "append", { ...at, turns: [hi, "hello"] }],
      ["turns[0].role", /a member of Role/, "append", { ...at, turns: [{ role: "user" }] }],
      ["turns[0].parts[0].part.value", /a text, not 5/, "append", { ...at, turns: [memoird.user(5 as never)] }],
      ["turns[0].parts", /a list/, "append", { ...at, turns: [{ parts: "hello" }] }],
      ["turn.parts[0].text", /is it part: \{ case/, "updateTurn", { ...at, turn: { parts: [{ text: "x" }] } }],
      ["turns[0].timestamp", /timestampFromDate/, "append", { ...at, turns: [{ ...hi, timestamp: new Date() }] }],
      ["turns[0].pinned", /true or false/, "append", { ...at, turns: [{ ...hi, pinned: "yes" }] }],
      ["turns[0].salience", /a number/, "append", { ...at, turns: [{ ...hi, salience: "1" }] }],
      ["labels", /an object with texts/, "append", { ...at, turns: [hi], labels: ["a"] }],
      ['labels["a"]', /a text, not 1/, "append", { ...at, turns: [hi], labels: { a: 1 } }],
      ["expectedSeq", /a bigint from 0n/, "append", { ...at, turns: [hi], expectedSeq: -1n }],
      ["expected_seq", /is it expectedSeq/, "append", { ...at, turns: [hi], expected_seq: 1n }],
      ["append", /a AppendRequest/, "buildContext", { ...at, append: "x" }],
      ["append.turns", /a list/, "buildContext", { ...at, append: { turns: "x" } }],
      ["limit", /to 4294967295, not 4294967296/, "getHistory", { ...at, limit: 2 ** 32 }],
      ["namespace", /a list/, "putDocument", { ...spot, namespace: "users", value: json }],
      ["value.case", /one of json, bytes/, "putDocument", { ...spot, value: { case: "jsn", value: "1" } }],
      ["value.value", /a Uint8Array/, "putDocument", { ...spot, value: { case: "bytes", value: "1" } }],
      ["ttl", /durationFromMs/, "putDocument", { ...spot, value: json, ttl: 60 }],
      ["operations[0].put", /is it operation/, "batchDocuments", { operations: [{ put: {} }] }],
      ["updateMask", /\{ paths/, "updateMemory", { memory: {}, updateMask: ["content"] }],
      ["vector[1]", /a number/, "recall", { query: "tea", subjects: ["ann"], vector: [1, "x"] }],
      ["sesion", /it takes sessionId, includeState/, "getSession", { ...at, sesion: 1 }],
      ["request", /a GetSessionRequest, not a text/, "getSession", "s"],
    ];
    await scripted([], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      for (const [field, says, call, request] of refused) {
        const made = async () => (other[call] as (request: unknown) => Promise<unknown>)(request);
        await assert.rejects(made, (error) => {
          assert.ok(error instanceof errors.InvalidArgument, `${field}: ${String(error)}`);
          assert.deepEqual(error.facts, { field });
          assert.match(error.message, says);
          assert.ok(error.message.startsWith(field));
          return true;
        });
      }
      const events = other.watchEvents({ afterCursor: 1 as never })[Symbol.asyncIterator]();
      await assert.rejects(events.next(), (error) => error instanceof errors.InvalidArgument);
      assert.equal(seen.length, 0);
    });
  });

  test("a setting that is none is refused with its name", async () => {
    const settings = { addr: 5, key: "two\nlines", timeoutMs: "5", adr: "http://x" };
    for (const [field, value] of Object.entries(settings)) {
      const connect = () => memoird.connect({ [field]: value } as memoird.Options);
      assert.throws(connect, (error) => {
        assert.ok(error instanceof errors.InvalidArgument);
        assert.deepEqual(error.facts, { field });
        return true;
      });
    }
    const timed = client.getSession({ sessionId: "s" }, { timeoutMs: NaN });
    await assert.rejects(timed, errors.InvalidArgument);
  });

  test("a key makes an append done once", async () => {
    const append = { sessionId: "once", turns: [memoird.user("once")], idempotencyKey: "k" };
    const first = await client.append(append);
    const again = await client.append(append);
    assert.deepEqual([again.duplicate, again.lastSeq], [true, first.lastSeq]);
    const other = { ...append, turns: [memoird.user("other")] };
    await assert.rejects(client.append(other), errors.IdempotencyKeyReused);
  });

  test("a key makes a rewind done once", async () => {
    const turns = ["0", "1", "2"].map((text) => memoird.user(text));
    await client.append({ sessionId: "popped", turns });
    const pop = { sessionId: "popped", afterSeq: 2n, idempotencyKey: "pop" };
    const first = await client.rewindSession(pop);
    const again = await client.rewindSession(pop);
    assert.deepEqual([first.duplicate, first.removedTurns], [false, 1n]);
    assert.deepEqual([again.duplicate, again.removed], [true, first.removed]);
    await assert.rejects(client.rewindSession({ ...pop, afterSeq: 1n }), errors.IdempotencyKeyReused);
    const stale = { sessionId: "popped", afterSeq: 1n, expectedSeq: 3n };
    await assert.rejects(client.rewindSession(stale), errors.StaleSeq);
  });

  test("keys make an end, a reset and an update done once", async () => {
    const sessionId = "late";
    await client.append({ sessionId, turns: [memoird.user("old")] });
    const calls = [
      () => client.updateTurn({ sessionId, seq: 1n, turn: memoird.user("edited"), idempotencyKey: "update" }),
      () => client.resetSession({ sessionId, idempotencyKey: "reset" }),
      () => client.endSession({ sessionId, idempotencyKey: "end" }),
    ];
    for (const call of calls) {
      assert.equal((await call()).duplicate, false);
      const { session } = await client.append({ sessionId, turns: [memoird.user("new")] });
      assert.equal((await call()).duplicate, true);
      assert.equal((await client.getSession({ sessionId })).session?.generation, session?.generation);
    }
    const stale = { sessionId, expectedGeneration: "01ARZ3NDEKTSV4RRFFQ69G5FAV" };
    await assert.rejects(client.resetSession(stale), errors.StaleGeneration);
    await assert.rejects(client.endSession(stale), errors.StaleGeneration);
  });

  test("a turn is overwritten, and a session forked", async () => {
    await client.append({ sessionId: "old", turns: [memoird.user("secret"), memoird.assistant("noted")] });
    const updated = await client.updateTurn({ sessionId: "old", seq: 1n, turn: memoird.user("gone") });
    assert.equal(updated.turn?.seq, 1n);
    const copy = { sessionId: "old", throughSeq: 1n, targetSessionId: "fork" };
    const fork = await client.copySession(copy);
    assert.deepEqual([fork.turns, fork.duplicate, fork.session?.lastSeq], [1n, false, 1n]);
    const [turn] = (await client.getHistory({ sessionId: "fork" })).turns;
    assert.deepEqual(turn?.parts, updated.turn?.parts);
    await assert.rejects(client.copySession(copy), (error) => {
      assert.ok(error instanceof errors.MemoirdError);
      assert.equal(error.reason, "TARGET_LIVES");
      return true;
    });
  });

  test("what the daemon refuses in a field names it", async () => {
    const calls: [string, () => Promise<unknown>][] = [
      ["session_id", () => client.getSession({ sessionId: "" })],
      ["append.turns", () => client.buildContext({ sessionId: "s", append: {} })],
      ["turns[1]", () => client.append({ sessionId: "s", turns: [memoird.user("hi"), {}] })],
      ["state_patch_json", () => client.updateSession({ sessionId: "s", statePatchJson: "[]", allowMissing: true })],
      ["memory.id", () => client.updateMemory({ memory: { id: "x" }, updateMask: { paths: ["content"] } })],
      ["operations[0].get.key", () => {
        const get = { namespace: ["a"], key: "" };
        return client.batchDocuments({ operations: [{ operation: { case: "get", value: get } }] });
      }],
    ];
    for (const [field, call] of calls) {
      await assert.rejects(call(), (error) => {
        assert.ok(error instanceof errors.InvalidArgument);
        assert.notEqual(error.reason, "");
        assert.equal(error.field, field);
        return true;
      });
    }
  });

  test("a request that is used twice is two appends", async () => {
    const request = create(AppendRequestSchema, { sessionId: "twice", turns: [memoird.user("hi")] });
    await client.append(request);
    assert.equal((await client.append(request)).lastSeq, 2n);
    assert.equal((await client.buildContext({ sessionId: "twice", append: request })).session?.lastSeq, 3n);
    assert.equal(request.idempotencyKey, "");
  });
});

describe("where a daemon is", () => {
  test("all the time there is", async () => {
    for (const timeoutMs of [2 ** 40, Infinity]) {
      await client.append({ sessionId: "patient", turns: [memoird.user("x")] }, { timeoutMs });
    }
  });

  test("a server that is no daemon is not called an older one", async () => {
    const web = (stream: ServerHttp2Stream) => {
      stream.respond({ ":status": 404, "content-type": "text/html" });
      stream.end("<h1>Not found</h1>");
    };
    await scripted([web], async ({ addr }) => {
      await using other = memoird.connect({ addr });
      await assert.rejects(other.getSession({ sessionId: "chat" }), (error) => {
        assert.ok(error instanceof errors.Unimplemented && !(error instanceof errors.MissingCall));
        assert.match(error.message, /no memoird daemon.*404.*address/);
        return true;
      });
    });
  });

  test("nobody listens", async () => {
    await using nobody = memoird.connect({ addr: "http://127.0.0.1:1", timeoutMs: 300 });
    await assert.rejects(nobody.getSession({ sessionId: "chat" }), errors.Unavailable);
  });

  for (const addr of ["ftp://x", "http://", "unix:", "unix://", "http://:x"]) {
    test(`${addr} is no address`, () => {
      assert.throws(() => memoird.connect({ addr }), /is no address/);
    });
  }

  test("a path of a socket, and the environment", async () => {
    const path = join(temporary("socket"), "s");
    const relay = createTcpServer(toDaemon);
    await new Promise<void>((done) => relay.listen(path, done));
    try {
      for (const addr of [`unix:${path}`, `unix://${path}`]) {
        process.env.MEMOIRD_ADDR = addr;
        await using other = memoird.connect();
        assert.equal(other.addr, addr);
        await other.append({ sessionId: "socket", turns: [memoird.user("hi")] });
      }
    } finally {
      delete process.env.MEMOIRD_ADDR;
      relay.close();
    }
  });

  test("certificates of both sides, from the environment too", async () => {
    const folder = temporary("certs");
    execFileSync(process.env.MEMOIRD_BIN ?? "memoird", ["cert", folder, "--tenant", "acme"]);
    const file = (name: string) => join(folder, name);
    const relay = createTlsServer(
      {
        ca: readFileSync(file("ca.pem")),
        cert: readFileSync(file("server.pem")),
        key: readFileSync(file("server-key.pem")),
        requestCert: true,
        ALPNProtocols: ["h2"],
      },
      toDaemon,
    );
    relay.on("tlsClientError", () => undefined);
    const addr = (await listen(relay)).replace("http:", "https:").replace("127.0.0.1", "localhost");
    const tls = {
      ca: file("ca.pem"),
      cert: file("client-acme.pem"),
      certKey: file("client-acme-key.pem"),
    };
    const append = { sessionId: "tls", turns: [memoird.user("hi")] };
    const environment = { MEMOIRD_CA: tls.ca, MEMOIRD_CERT: tls.cert, MEMOIRD_CERT_KEY: tls.certKey };
    try {
      await using given = memoird.connect({ addr, tls });
      await given.append(append);
      for (const incomplete of [{}, { ca: tls.ca }]) {
        await using other = memoird.connect({ addr, tls: incomplete, timeoutMs: 300 });
        await assert.rejects(other.append(append), errors.MemoirdError);
      }
      Object.assign(process.env, environment);
      await using found = memoird.connect({ addr });
      await found.append(append);
    } finally {
      Object.keys(environment).forEach((name) => delete process.env[name]);
      relay.close();
    }
    assert.throws(() => memoird.connect({ addr: "http://localhost", tls }), /begins with https/);
    const half = { addr, tls: { cert: tls.cert } };
    assert.throws(() => memoird.connect(half), /tls takes cert and certKey together/);
  });

  test("keys: the tenant's is told, another is refused", async () => {
    const key = "a-key-of-a-tenant-0123456789abcdef";
    const file = join(temporary("key"), "key");
    writeFileSync(file, key, { mode: 0o600 });
    await using daemon = await memoird.local({
      config: `tenants: [{ id: acme, keys: [{ file: ${JSON.stringify(file)} }] }]\n`,
      key,
    });
    const append = { sessionId: "keyed", turns: [memoird.user("hi")] };
    assert.equal((await daemon.append(append)).lastSeq, 1n);
    await using wrong = memoird.connect({ addr: daemon.addr, key: "wrong" });
    await assert.rejects(wrong.append(append), errors.Unauthenticated);
    process.env.MEMOIRD_KEY = key;
    try {
      await using right = memoird.connect({ addr: daemon.addr });
      assert.equal((await right.append(append)).lastSeq, 2n);
      // A local daemon requires no key.
      await using keyless = await memoird.local();
      assert.equal((await keyless.append(append)).lastSeq, 1n);
    } finally {
      delete process.env.MEMOIRD_KEY;
    }
  });

  test("a program that does not start says why", async () => {
    await assert.rejects(memoird.local({ config: "nonsense: 1\n" }), /did not start: .*nonsense/s);
    await assert.rejects(memoird.local({ binary: "/nowhere/memoird" }), /did not start: .*ENOENT/s);
  });
});

/** A daemon that sends the scripted responses, one per call, and then UNIMPLEMENTED. */
async function scripted(
  script: ((stream: ServerHttp2Stream) => void)[],
  calls: (memo: { addr: string; seen: Record<string, string>[] }) => Promise<void>,
): Promise<void> {
  const seen: Record<string, string>[] = [];
  const sockets = new Set<Socket>();
  const server = createServer();
  server.on("connection", (socket: Socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  server.on("stream", (stream, headers) => {
    seen.push(headers as Record<string, string>);
    stream.on("error", () => undefined);
    stream.resume();
    (script.shift() ?? refuse(12))(stream);
  });
  const addr = await listen(server);
  try {
    await calls({ addr, seen });
  } finally {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  }
}

function refuse(status: number, reason = "", retryMs?: number): (stream: ServerHttp2Stream) => void {
  // google.rpc.Status: a code, a message, details.
  const details = [];
  if (reason) {
    details.push(anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason, metadata: { limit: "7" } })));
  }
  if (retryMs !== undefined) {
    const retryDelay = { seconds: 0n, nanos: retryMs * 1e6 };
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  const bytes = [Buffer.from([0x08, status])];
  for (const detail of details) {
    const one = toBinary(AnySchema, detail);
    assert.ok(one.length < 128, "a length of one byte");
    bytes.push(Buffer.from([0x1a, one.length]), Buffer.from(one));
  }
  return (stream) =>
    stream.respond(
      {
        ":status": 200,
        "content-type": "application/grpc",
        "grpc-status": String(status),
        ...(reason ? { "grpc-status-details-bin": Buffer.concat(bytes).toString("base64") } : {}),
      },
      { endStream: true },
    );
}

function hangUp(stream: ServerHttp2Stream): void {
  stream.session!.destroy();
}

/** Breaks the connection without a goodbye, as a machine that disappears. */
function reset(stream: ServerHttp2Stream): void {
  stream.session!.socket.resetAndDestroy();
}

/** Breaks the connection in the middle of a response. */
function halve(stream: ServerHttp2Stream): void {
  stream.respond({ ":status": 200, "content-type": "application/grpc" });
  stream.write(Buffer.from([0, 0, 0]), () => reset(stream));
}

/** Ends a response without its status, as a load balancer does if its daemon died. */
function cut(stream: ServerHttp2Stream): void {
  stream.respond({ ":status": 200, "content-type": "application/grpc" });
  stream.end();
}

function answer(message = new Uint8Array()): (stream: ServerHttp2Stream) => void {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return (stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.write(head);
    stream.end(message);
  };
}

test("documents by namespace and key", async () => {
  const at = { namespace: ["users", "ann"], key: "likes" };
  const value = { case: "json", value: '{"tea":true}' } as const;
  const made = await client.putDocument({ ...at, value, expectedVersion: 0n });
  assert.equal(made.document?.version, 1n);
  assert.deepEqual((await client.getDocument(at)).document?.value, value);
  await assert.rejects(client.putDocument({ ...at, value, expectedVersion: 0n }), (refused) => {
    assert(refused instanceof errors.StaleVersion);
    assert.equal(refused.facts.version, "1");
    return true;
  });
  const late = { namespace: ["users", "late"], key: "likes", value, idempotencyKey: "put" };
  await client.putDocument(late);
  await client.putDocument({ ...late, value: { case: "json", value: "2" }, idempotencyKey: "" });
  const again = await client.putDocument(late);
  assert.deepEqual([again.duplicate, again.document?.version], [true, 1n]);
  const { results } = await client.batchDocuments({
    operations: [
      { operation: { case: "delete", value: { ...at, expectedVersion: 1n } } },
      { operation: { case: "get", value: at } },
    ],
  });
  assert.deepEqual([results[0]?.deleted, results[1]?.document], [true, undefined]);
  await assert.rejects(client.getDocument(at), errors.DocumentNotFound);
});

test("messages of more than four megabytes", async () => {
  const summaryText = "x".repeat(6 << 20);
  const large = toBinary(GetSessionResponseSchema, create(GetSessionResponseSchema, { summaryText }));
  await scripted([answer(), answer(large)], async ({ addr }) => {
    await using other = memoird.connect({ addr });
    await other.append({ sessionId: "large", turns: [memoird.user(summaryText)] });
    assert.equal((await other.getSession({ sessionId: "large" })).summaryText, summaryText);
  });
});

test("a message that is too large, or an id, leaves the connection to others", async () => {
  await using own = await memoird.local();
  const turns = [memoird.user("x".repeat(40 << 20))];
  const tooLarge = (error: errors.MemoirdError) => error.reason === "REQUEST_TOO_LARGE";
  await assert.rejects(own.append({ sessionId: "large", turns }, { timeoutMs: 10_000 }), tooLarge);
  const badId = (error: errors.MemoirdError) => error.reason === "ID_INVALID";
  await assert.rejects(own.getSession({ sessionId: "é".repeat(20_000) }), badId);
  await own.listSessions({});
});

describe("what is tried again", () => {
  const turns = [memoird.user("hi")];

  test("an append that was not reached, with the same key and less time", async () => {
    await scripted([refuse(14), hangUp, answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr, key: "secret" });
      await other.append({ sessionId: "a chat/é!", turns });
      assert.equal(seen.length, 3);
      const left = seen.map((headers) => parseInt(headers["grpc-timeout"]!));
      assert.ok(left[0]! <= 30_000 && left[0]! > left[1]! && left[1]! > left[2]!, String(left));
      assert.equal(seen[2]!["memoird-session"], "a%20chat%2F%C3%A9%21");
      assert.equal(seen[2]!["authorization"], "Bearer secret");
    });
  });

  test("what a balancer may choose a daemon by", async () => {
    await scripted(Array.from({ length: 6 }, () => answer()), async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await other.append({ sessionId: "a chat/é!", subject: "ann", turns });
      await other.eraseSubject({ subject: "ann" });
      await other.remember({ subject: "ann/1", content: "likes tea", idempotencyKey: "m" });
      await other.recall({ query: "tea", subjects: ["bob", "ann"], sessionId: "chat" });
      await other.forget({ target: { case: "filter", value: { subject: "ann" } } });
      await other.listSessions({});
      const places = seen.map((headers) => headers["memoird-session"]);
      assert.deepEqual(places, ["a%20chat%2F%C3%A9%21", "ann", "ann%2F1", "bob", "ann", undefined]);
    });
  });

  test("an append whose stream or connection a daemon ended that goes away", async () => {
    const { NGHTTP2_ENHANCE_YOUR_CALM: calm, NGHTTP2_REFUSED_STREAM: refused } = constants;
    const away = (stream: ServerHttp2Stream) => stream.session!.destroy(undefined, calm);
    await scripted([(stream) => stream.close(refused), away, answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await other.append({ sessionId: "chat", turns });
      assert.equal(seen.length, 3);
    });
  });

  test("an append whose answer was cut short", async () => {
    await scripted([cut, answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await other.append({ sessionId: "chat", turns });
      assert.equal(seen.length, 2);
    });
  });

  test("a change that was not reached", async () => {
    const value = { case: "json", value: "1" } as const;
    const put = { namespace: ["a"], key: "k", value, expectedVersion: 0n };
    const calls: ((other: memoird.Client) => Promise<unknown>)[] = [
      (other) => other.rewindSession({ sessionId: "chat", afterSeq: 1n }),
      (other) => other.updateSession({ sessionId: "chat", statePatchJson: "{}" }),
      (other) => other.updateSession({ sessionId: "chat", statePatchJson: "{}", expectedStateVersion: 0n }),
      (other) => other.updateTurn({ sessionId: "chat", seq: 1n, turn: memoird.user("new") }),
      (other) => other.resetSession({ sessionId: "chat" }),
      (other) => other.endSession({ sessionId: "chat" }),
      (other) => other.putDocument(put),
      (other) => other.batchDocuments({ operations: [{ operation: { case: "put", value: put } }] }),
    ];
    for (const call of calls) {
      await scripted([refuse(14), answer()], async ({ addr, seen }) => {
        await using other = memoird.connect({ addr });
        await call(other);
        assert.equal(seen.length, 2);
      });
    }
  });

  test("an append whose answer was lost, and it is done once", async () => {
    const connections: Socket[] = [];
    const relay = createTcpServer((socket) => {
      if (connections.push(socket) > 1) {
        toDaemon(socket);
        return;
      }
      // The daemon receives packets of the client, but its own are lost.
      const daemon = connectSocket(Number(client.addr.split(":").at(-1)), "127.0.0.1");
      daemon.resume();
      pipeline(socket, daemon, () => undefined);
    });
    const addr = await listen(relay);
    try {
      await using other = memoird.connect({ addr });
      const answer = other.append({ sessionId: "lost", turns });
      const isDone = () =>
        client.getSession({ sessionId: "lost" }).then(
          () => true,
          () => false,
        );
      while (!(await isDone())) {
        await setImmediate();
      }
      connections[0]!.resetAndDestroy();
      const { duplicate, lastSeq } = await answer;
      assert.deepEqual([duplicate, lastSeq, connections.length], [true, 1n, 2]);
    } finally {
      relay.close();
    }
  });

  test("nothing that may have been done and is not known again", async () => {
    const calls: ((other: memoird.Client) => Promise<unknown>)[] = [
      (other) => other.remember({ subject: "ann", content: "tea" }),
    ];
    for (const call of calls) {
      for (const failure of [refuse(14), hangUp, reset, halve]) {
        await scripted([failure, answer()], async ({ addr, seen }) => {
          await using other = memoird.connect({ addr });
          await assert.rejects(call(other), errors.Unavailable);
          assert.equal(seen.length, 1);
        });
      }
    }
    await scripted([refuse(14), answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr, idempotent: false });
      await assert.rejects(other.buildContext({ sessionId: "c", append: { turns } }), errors.Unavailable);
      assert.equal(seen.length, 1);
    });
    await scripted([refuse(14)], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr, idempotent: false });
      await assert.rejects(other.endSession({ sessionId: "c" }), errors.Unavailable);
      assert.equal(seen.length, 1);
    });
    await scripted([refuse(14), answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr, idempotent: false });
      await assert.rejects(other.rewindSession({ sessionId: "c" }), errors.Unavailable);
      assert.equal(seen.length, 1);
      await other.buildContext({ sessionId: "c" });
    });
  });

  test("what the daemon has no room for, when it says so", async () => {
    const script = [refuse(8, "TOO_MANY_CALLS", 40), answer()];
    await scripted(script, async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      const begin = performance.now();
      await other.updateSession({ sessionId: "chat", statePatchJson: "{}" });
      assert.ok(performance.now() - begin >= 39);
      assert.equal(seen.length, 2);
    });
    await scripted([refuse(8, "SESSIONS_FULL")], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await assert.rejects(other.append({ sessionId: "chat", turns }), (error) => {
        assert.ok(error instanceof errors.ResourceExhausted);
        assert.deepEqual([error.reason, error.facts], ["SESSIONS_FULL", { limit: "7" }]);
        return true;
      });
      assert.equal(seen.length, 1);
    });
  });

  test("no window that has no room, whose append may be done and has no key", async () => {
    for (const idempotent of [true, false]) {
      const script = [refuse(8, "MEMORY_FULL", 1), answer(), refuse(8, "MEMORY_FULL", 1), answer()];
      await scripted(script, async ({ addr, seen }) => {
        await using other = memoird.connect({ addr, idempotent });
        await other.append({ sessionId: "chat", turns });
        assert.equal(seen.length, 2);
        const window = other.buildContext({ sessionId: "chat", append: { turns } });
        await (idempotent ? window : assert.rejects(window, errors.ResourceExhausted));
        assert.equal(seen.length, idempotent ? 4 : 3);
      });
    }
    await scripted([refuse(8, "MEMORY_FULL", 1), answer()], async ({ addr }) => {
      await using other = memoird.connect({ addr, idempotent: false });
      await other.buildContext({ sessionId: "chat" });
    });
  });

  test("what the daemon could not do, where it says when", async () => {
    for (const retryMs of [undefined, 1]) {
      await scripted([refuse(14, "COMPACTION_FAILED", retryMs), answer()], async ({ addr, seen }) => {
        await using other = memoird.connect({ addr });
        const call = other.compactSession({ sessionId: "chat" });
        await (retryMs ? call : assert.rejects(call, errors.Unavailable));
        assert.equal(seen.length, retryMs ? 2 : 1);
      });
    }
    await scripted([refuse(14, "TRANSPORT"), answer()], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await other.compactSession({ sessionId: "chat" });
      assert.equal(seen.length, 2);
    });
  });

  test("no conflict, even with a time to wait", async () => {
    await scripted([refuse(10, "STALE_SEQ", 1)], async ({ addr, seen }) => {
      await using other = memoird.connect({ addr });
      await assert.rejects(other.append({ sessionId: "chat", turns }), (error) => {
        assert.ok(error instanceof errors.StaleSeq);
        assert.equal(error.retryAfter, 0.001);
        return true;
      });
      assert.equal(seen.length, 1);
    });
  });

  test("nothing that the time does not suffice for", async () => {
    await scripted([refuse(14, "STARTING", 900)], async ({ addr }) => {
      await using other = memoird.connect({ addr });
      const begin = performance.now();
      const call = other.getSession({ sessionId: "chat" }, { timeoutMs: 500 });
      await assert.rejects(call, (error) => error instanceof errors.Unavailable && error.retryAfter === 0.9);
      assert.ok(performance.now() - begin < 400);
    });
    const silent = Array.from({ length: 3 }, () => () => undefined);
    await scripted(silent, async ({ addr, seen }) => {
      await using other = memoird.connect({ addr, timeoutMs: 200 });
      await assert.rejects(other.getSession({ sessionId: "chat" }), errors.DeadlineExceeded);
      const signal = AbortSignal.timeout(50);
      await assert.rejects(other.getSession({ sessionId: "chat" }, { signal }), errors.Canceled);
      assert.equal(seen.length, 2);
    });
  });

  test("a call that an older daemon has not", async () => {
    await scripted([], async ({ addr }) => {
      await using other = memoird.connect({ addr });
      await assert.rejects(other.getErasure({ id: "1" }), (error) => {
        assert.ok(error instanceof errors.MissingCall);
        assert.match(error.message, /no call GetErasure: it is older/);
        assert.equal(error.facts.call, "GetErasure");
        return true;
      });
    });
  });

  test("a call that no daemon of a cluster has", async () => {
    await scripted([refuse(12, "NOT_IN_CLUSTER")], async ({ addr }) => {
      await using other = memoird.connect({ addr });
      await assert.rejects(other.searchTranscripts({ query: "parcel" }), (error) => {
        assert.ok(error instanceof errors.Unimplemented && !(error instanceof errors.MissingCall));
        assert.equal(error.reason, "NOT_IN_CLUSTER");
        return true;
      });
    });
  });

  test("a call on a connection that died without a word", async (it) => {
    let died = false;
    let connections = 0;
    await scripted([answer(), answer()], async ({ addr, seen }) => {
      const relay = createTcpServer((socket) => {
        const isFirst = connections++ === 0;
        const server = connectSocket(Number(addr.split(":").at(-1)), "127.0.0.1");
        for (const [from, to] of [[socket, server], [server, socket]] as const) {
          from.on("data", (data) => (isFirst && died) || to.write(data));
          from.on("error", () => undefined).on("close", () => to.destroy());
        }
      });
      await using other = memoird.connect({ addr: await listen(relay) });
      it.mock.timers.enable({ apis: ["setTimeout"] });
      await other.getSession({ sessionId: "chat" });
      died = true;
      let isDone = false;
      const call = other.getSession({ sessionId: "chat" }).finally(() => (isDone = true));
      for (let seconds = 0; !isDone && seconds < 29; seconds++) {
        it.mock.timers.tick(1_000);
        for (let turn = 0; !isDone && turn < 50; turn++) {
          await setImmediate();
        }
      }
      await call;
      it.mock.timers.reset();
      assert.deepEqual([seen.length, connections], [2, 2]);
      relay.close();
    });
  });

  test("connection_that_was_idle_is_closed_before_a_proxy_drops_it", async (it) => {
    let isDropping = false;
    let connections = 0;
    await scripted([answer(), answer()], async ({ addr, seen }) => {
      const relay = createTcpServer((socket) => {
        const isFirst = connections++ === 0;
        const server = connectSocket(Number(addr.split(":").at(-1)), "127.0.0.1");
        for (const [from, to] of [[socket, server], [server, socket]] as const) {
          from.on("data", (data) => (isFirst && isDropping) || to.write(data));
          from.on("error", () => undefined).on("close", () => to.destroy());
        }
      });
      await using other = memoird.connect({ addr: await listen(relay) });
      it.mock.timers.enable({ apis: ["setTimeout"] });
      await other.getSession({ sessionId: "chat" });
      for (let turn = 0; turn < 50; turn++) {
        await setImmediate();
      }
      it.mock.timers.tick(10_000);
      isDropping = true;
      // This call must not have to wait for a timer.
      await other.getSession({ sessionId: "chat" });
      it.mock.timers.reset();
      assert.deepEqual([seen.length, connections], [2, 2]);
      relay.close();
    });
  });

  test("first_connection_is_given_up_and_names_the_command", async (it) => {
    const silent = createTcpServer((socket) => void socket.on("error", () => undefined));
    const tls = (await listen(silent)).replace("http:", "https:");
    const socket = `unix:${join(temporary("nobody"), "s")}`;
    for (const addr of ["http://127.0.0.1:1", socket, tls]) {
      await using other = memoird.connect({ addr });
      it.mock.timers.enable({ apis: ["setTimeout"] });
      for (const call of [
        () => other.getSession({ sessionId: "chat" }),
        () => other.append({ sessionId: "chat", turns }),
        () => other.forget({ target: { case: "subject", value: "ann" } }),
        () => other.watchEvents({})[Symbol.asyncIterator]().next(),
      ]) {
        let failure: unknown;
        call().catch((error: unknown) => (failure = error));
        let milliseconds = 0;
        for (; !failure && milliseconds < 10_000; milliseconds += 50) {
          it.mock.timers.tick(50);
          for (let turn = 0; !failure && turn < 20; turn++) {
            await setImmediate();
          }
        }
        assert.ok(failure instanceof errors.Unavailable, `${addr}: ${failure}`);
        assert.ok(failure.message.startsWith(`no memoird daemon at ${addr}: start one with \`memoird serve\``));
        assert.ok(milliseconds >= 3_000 && milliseconds <= 3_200, `${milliseconds} ms`);
      }
      it.mock.timers.reset();
    }
    silent.close();
  });

  test("proxy_without_a_daemon_is_given_up_and_names_the_command", async (it) => {
    let attempts = 0;
    const proxy = createTcpServer((accepted) => {
      attempts += 1;
      accepted.on("error", () => undefined).destroy();
    });
    const addr = await listen(proxy);
    await using other = memoird.connect({ addr });
    it.mock.timers.enable({ apis: ["setTimeout"] });
    for (const call of [
      () => other.getSession({ sessionId: "chat" }),
      () => other.watchEvents({})[Symbol.asyncIterator]().next(),
    ]) {
      let failure: unknown;
      call().catch((error: unknown) => (failure = error));
      while (!failure) {
        it.mock.timers.tick(10);
        for (let turn = 0; !failure && turn < 20; turn++) {
          await setImmediate();
        }
      }
      assert.ok(failure instanceof errors.Unavailable);
      assert.ok(failure.message.startsWith(`no memoird daemon at ${addr}: start one with \`memoird serve\``));
    }
    it.mock.timers.reset();
    assert.ok(attempts > 3 && attempts < 15, `${attempts} attempts`);
    proxy.close();
  });

  test("first_connection_ends_with_its_signal_and_its_client", async () => {
    const other = memoird.connect({ addr: "http://127.0.0.1:1" });
    const stop = new AbortController();
    const stopped = other.getSession({ sessionId: "chat" }, { signal: stop.signal });
    stop.abort();
    await assert.rejects(stopped, errors.Canceled);
    await assert.rejects(other.getSession({ sessionId: "chat" }, { signal: AbortSignal.abort() }), errors.Canceled);
    const closed = other.getSession({ sessionId: "chat" });
    await other.close();
    await assert.rejects(closed, errors.Canceled);
  });

  test("client_that_waits_for_its_first_connection_calls_a_daemon_that_starts", async () => {
    const [closed] = [createTcpServer()];
    const addr = await listen(closed!);
    closed!.close();
    await once(closed!, "close");
    await using other = memoird.connect({ addr });
    const call = other.getSession({ sessionId: "chat" });
    const server = createServer();
    server.on("stream", (stream) => answer()(stream));
    await setImmediate();
    await new Promise<void>((done) => server.listen(Number(addr.split(":").at(-1)), "127.0.0.1", done));
    await call;
    await other.close();
    server.close();
  });

  test("client_that_was_connected_waits_longer_for_a_daemon_that_restarts", async (it) => {
    const serve = async (port = 0) => {
      const server = createServer();
      const sessions = new Set<ServerHttp2Session>();
      server.on("session", (session) => sessions.add(session));
      server.on("stream", (stream) => answer()(stream));
      await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
      const { port: own } = server.address() as AddressInfo;
      const stop = async () => {
        sessions.forEach((session) => session.destroy());
        server.close();
        await once(server, "close");
      };
      return { port: own, stop };
    };
    const before = await serve();
    await using other = memoird.connect({ addr: `http://127.0.0.1:${before.port}` });
    it.mock.timers.enable({ apis: ["setTimeout"] });
    await other.getSession({ sessionId: "chat" });
    await before.stop();
    let isDone = false;
    const call = other.getSession({ sessionId: "chat" }).finally(() => (isDone = true));
    const wait = async (seconds: number) => {
      for (let ticks = 0; !isDone && ticks < seconds * 10; ticks++) {
        it.mock.timers.tick(100);
        for (let turn = 0; turn < 20; turn++) {
          await setImmediate();
        }
      }
    };
    await wait(6);
    assert.ok(!isDone);
    const after = await serve(before.port);
    await wait(6);
    await call;
    it.mock.timers.reset();
    await other.close();
    await after.stop();
  });

  test("nothing once the client is closed", async () => {
    await scripted([refuse(14, "STARTING", 300), () => undefined], async ({ addr, seen }) => {
      const other = memoird.connect({ addr });
      const calls = [1, 2].map(() => other.getSession({ sessionId: "chat" }));
      const ended = calls.map((call) => assert.rejects(call, errors.Canceled));
      while (seen.length < 2) {
        await setImmediate();
      }
      await other.close();
      await Promise.all(ended);
      await assert.rejects(other.getSession({ sessionId: "chat" }), errors.Canceled);
      await assert.rejects(other.watchEvents({})[Symbol.asyncIterator]().next(), errors.Canceled);
      assert.equal(seen.length, 2);
    });
  });

  test("a daemon that starts again", async () => {
    const dataDir = temporary("again");
    await using first = await memoird.local({ dataDir });
    await first.append({ sessionId: "again", turns });
    await first.close();
    await using second = await memoird.local({ dataDir });
    assert.equal((await second.append({ sessionId: "again", turns })).lastSeq, 2n);
  });

  test("who is killed leaves no daemon behind", async () => {
    const code = 'const own = await (await import("memoird")).local(); console.log(own.addr); setInterval(() => 0, 1000)';
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      const killed = spawn(process.execPath, ["--input-type=module", "-e", code], { cwd: ROOT });
      const [addr] = await once(killed.stdout, "data");
      killed.kill(signal);
      const port = Number(/:(\d+)/.exec(String(addr))![1]);
      const isServed = () =>
        new Promise((done) => {
          const socket = connectSocket(port, "127.0.0.1", () => done(true)).on("error", () => done(false));
          socket.on("connect", () => socket.destroy());
        });
      while (await isServed()) {
        await setImmediate();
      }
    }
  });

  test("a daemon that was killed is not called", async () => {
    const dataDir = temporary("killed");
    writeFileSync(join(dataDir, "endpoints.json"), JSON.stringify({ grpc: "127.0.0.1:1" }));
    await using own = await memoird.local({ dataDir });
    assert.equal((await own.append({ sessionId: "killed", turns })).lastSeq, 1n);
  });
});

const ROOT = join(import.meta.dirname, "../..");

test("what is generated is fresh", () => {
  const folder = temporary("generated");
  execFileSync("npm", ["run", "--silent", "generate", "--", "--output", folder], { cwd: ROOT });
  const files = (from: string) =>
    readdirSync(from, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(from.length))
      .sort();
  const [kept, fresh] = [join(ROOT, "src/gen"), join(folder, "src/gen")];
  assert.deepEqual(files(kept), files(fresh));
  for (const name of files(fresh)) {
    assert.equal(readFileSync(kept + name, "utf8"), readFileSync(fresh + name, "utf8"), `${name} is stale`);
  }
});

test("tarball_has_the_licenses_and_every_file_that_the_readme_links", () => {
  const packed = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: ROOT, encoding: "utf8" });
  const [{ files }] = JSON.parse(packed) as [{ files: { path: string }[] }];
  const paths = new Set(files.map(({ path }) => path));
  for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) {
    assert.ok(paths.has(name));
    assert.equal(readFileSync(join(ROOT, name), "utf8"), readFileSync(join(ROOT, "../..", name), "utf8"));
  }
  const { keywords, exports } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  assert.ok(keywords.length > 0);
  for (const entry of Object.values<Record<string, string>>(exports)) {
    Object.values(entry).forEach((path) => assert.ok(paths.has(path.slice("./".length)), path));
  }
  const links = readFileSync(join(ROOT, "README.md"), "utf8").matchAll(/\]\((?!https:)([^)#]+)/g);
  assert.deepEqual(
    [...links].map(([, path]) => path!).filter((path) => !paths.has(path)),
    [],
  );
});

test("missing_peer_dependency_is_named", () => {
  const folder = temporary("peers");
  const packages = join(folder, "node_modules");
  cpSync(join(ROOT, "dist/src"), join(packages, "memoird/dist/src"), { recursive: true });
  cpSync(join(ROOT, "package.json"), join(packages, "memoird/package.json"));
  for (const scope of ["@bufbuild", "@connectrpc"]) {
    symlinkSync(join(ROOT, "node_modules", scope), join(packages, scope));
  }
  const imported = (name: string) => {
    const code = `await import(${JSON.stringify(name)})`;
    return spawnSync(process.execPath, ["--input-type=module", "-e", code], { cwd: folder, encoding: "utf8" });
  };
  assert.match(imported("memoird/mastra").stderr, /Cannot find package '@mastra\/core'/);
  // The AI SDK is not imported: the application passes its functions.
  assert.equal(imported("memoird/ai-sdk").status, 0);
  // Only types of Anthropic's SDK are imported.
  assert.equal(imported("memoird/anthropic").status, 0);
});

test("the examples of the README", async () => {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  const all = [...readme.matchAll(/```ts\n(.*?)```/gs)];
  assert.equal(all.length, 6);
  // anthropic.test.ts runs the example with Anthropic's SDK.
  const examples = all.filter(([, code]) => !code!.includes("@anthropic-ai/sdk"));
  assert.equal(examples.length, 5);
  // A model without network access.
  const fake =
    'new (await import("ai/test")).MockLanguageModelV3({ doGenerate: async () => ({ finishReason: { unified: "stop" },' +
    'usage: { inputTokens: {}, outputTokens: {} }, content: [{ type: "text", text: "In Oslo." }], warnings: [] }) })';
  // Inside the package, its name refers to itself.
  const folder = mkdtempSync(join(ROOT, "dist/readme-"));
  try {
    const env = { ...process.env, MEMOIRD_ADDR: client.addr };
    for (const [, code] of examples) {
      assert.ok(code!.split("\n").length <= 20);
      writeFileSync(join(folder, "readme.mjs"), code!.replace('"openai/gpt-4.1"', fake));
      const said = execFileSync(process.execPath, [join(folder, "readme.mjs")], { env, encoding: "utf8" });
      assert.match(said, /Where is my parcel\?/);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
