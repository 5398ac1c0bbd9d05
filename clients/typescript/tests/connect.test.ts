/** Connect's own clients, for Node and for browsers, against a real daemon, named by `MEMOIRD_BIN`. */

import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import type { Transport } from "@connectrpc/connect";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport as nodeTransport } from "@connectrpc/connect-node";
import { createConnectTransport as webTransport } from "@connectrpc/connect-web";
import * as memoird from "memoird";
import { Role } from "memoird";

import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { SessionService } from "../src/gen/memoird/v1/session_pb.js";

const folder = mkdtempSync(join(tmpdir(), "memoird-connect-"));
let daemon: memoird.Client;
let baseUrl = "";

before(async () => {
  const dataDir = join(folder, "data");
  daemon = await memoird.local({ dataDir });
  baseUrl = `http://${JSON.parse(readFileSync(join(dataDir, "endpoints.json"), "utf8")).grpc}`;
});
after(async () => {
  await daemon.close();
  rmSync(folder, { recursive: true, force: true });
});

/** The reason of an error. */
function reason(problem: unknown): string | undefined {
  return ConnectError.from(problem).findDetails(ErrorInfoSchema)[0]?.reason;
}

const transports: [string, (useBinaryFormat: boolean) => Transport][] = [
  ["node over HTTP/1.1", (useBinaryFormat) => nodeTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat })],
  ["node over HTTP/2", (useBinaryFormat) => nodeTransport({ baseUrl, httpVersion: "2", useBinaryFormat })],
  ["web", (useBinaryFormat) => webTransport({ baseUrl, useBinaryFormat })],
];
for (const [name, transport] of transports) {
  for (const useBinaryFormat of [false, true]) {
    describe(`${name}, ${useBinaryFormat ? "protobuf" : "JSON"}`, () => {
      const client = () => createClient(SessionService, transport(useBinaryFormat));
      const sessionId = `${name} ${useBinaryFormat}`;

      test("calls and events", async () => {
        const sessions = client();
        const [stop, watching] = [new AbortController(), new EventEmitter()];
        const options = { onHeader: () => watching.emit("ready"), signal: stop.signal };
        const events = sessions.watchEvents({}, options)[Symbol.asyncIterator]();
        const ready = once(watching, "ready");
        const first = events.next();
        await ready;
        const parts = [{ part: { case: "text" as const, value: "hi ß" } }];
        const appended = await sessions.append({ sessionId, turns: [{ role: Role.USER, parts }] });
        assert.equal(appended.lastSeq, 1n);
        const history = await sessions.getHistory({ sessionId }, { timeoutMs: 30_000 });
        assert.equal(history.turns[0]?.parts[0]?.part.value, "hi ß");
        for (const [next, kind] of [
          [await first, "created"],
          [await events.next(), "appended"],
        ] as const) {
          assert.equal(next.value?.event?.sessionId, sessionId);
          assert.equal(next.value?.event?.kind.case, kind);
        }
        stop.abort();
      });

      test("errors with details, of calls and of streams", async () => {
        await assert.rejects(client().getSession({ sessionId: "none" }), (problem) => {
          assert.equal(ConnectError.from(problem).code, Code.NotFound);
          assert.equal(reason(problem), "SESSION_NOT_FOUND");
          return true;
        });
        const events = client().watchEvents({ afterCursor: "none" })[Symbol.asyncIterator]();
        await assert.rejects(events.next(), (problem) => {
          assert.equal(ConnectError.from(problem).code, Code.InvalidArgument);
          assert.equal(reason(problem), "CURSOR_INVALID");
          return true;
        });
      });
    });
  }
}
