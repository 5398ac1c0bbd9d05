/** The memory tool of Anthropic's SDK against a real daemon. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomInt, randomUUID } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";

import { Code, ConnectError } from "@connectrpc/connect";
import Anthropic from "@anthropic-ai/sdk";
import { betaMemoryTool } from "@anthropic-ai/sdk/helpers/beta/memory";
import type { BetaMemoryTool20250818Command } from "@anthropic-ai/sdk/resources/beta";
import { BetaLocalFilesystemMemoryTool } from "@anthropic-ai/sdk/tools/memory/node";
import { errors, local } from "memoird";
import type { Client } from "memoird";
import { MemoryTool } from "memoird/anthropic";

type Command = BetaMemoryTool20250818Command;

// The package's directory.
const ROOT = join(import.meta.dirname, "../..");

let client: Client;
before(async () => {
  client = await local();
});
after(() => client.close());

const newPlace = () => ["memories", randomUUID()];
const view = (path: string, view_range?: number[]): Command =>
  view_range ? { command: "view", path, view_range } : { command: "view", path };
const create = (path: string, file_text: string): Command => ({ command: "create", path, file_text });
const insert = (path: string, insert_line: number, insert_text: string): Command => ({
  command: "insert",
  path,
  insert_line,
  insert_text,
});
const replace = (path: string, old_str: string, new_str: string): Command => ({
  command: "str_replace",
  path,
  old_str,
  new_str,
});
const remove = (path: string): Command => ({ command: "delete", path });
const rename = (old_path: string, new_path: string): Command => ({ command: "rename", old_path, new_path });

const run = async (handlers: MemoryTool | BetaLocalFilesystemMemoryTool, command: Command): Promise<string> =>
  (await betaMemoryTool(handlers).run(command)) as string;

/** Returns the texts of all files by path. */
async function files(place: string[]): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  let pageToken = "";
  do {
    const page = await client.listDocuments({ namespacePrefix: place, pageSize: 1_000, pageToken });
    for (const { namespace, key, value } of page.documents) {
      const text = value.case === "bytes" ? Buffer.from(value.value).toString() : "";
      found[[...namespace.slice(place.length), key].join("/")] = text;
    }
    pageToken = page.nextPageToken;
  } while (pageToken);
  return found;
}

/** A client that runs `act` once, before the first call of this name that fits. */
function racing<K extends "putDocument" | "batchDocuments">(
  name: K,
  act: () => Promise<unknown>,
  fits: (request: any) => boolean = () => true,
): Client {
  let isDone = false;
  const call = async (request: any) => {
    if (!isDone && fits(request)) {
      isDone = true;
      await act();
    }
    return client[name](request);
  };
  return new Proxy(client, { get: (target, key) => (key === name ? call : Reflect.get(target, key)) });
}

const isMove = ({ operations }: any) => operations.some((it: any) => it.operation.case === "put");

test("a file is a document", async () => {
  const place = newPlace();
  const tool = new MemoryTool(client, place);
  const created = await run(tool, create("/memories/trips/oslo.txt", "at 6:02 \u00fc"));
  assert.equal(created, "File created successfully at: /memories/trips/oslo.txt");
  await run(tool, replace("/memories/trips/oslo.txt", "6:02", "$&"));
  const { document } = await client.getDocument({ namespace: [...place, "trips"], key: "oslo.txt" });
  assert.equal(Buffer.from(document!.value.value as Uint8Array).toString(), "at $& \u00fc");
  assert.equal(document!.version, 2n);
  await tool.clear();
  assert.deepEqual(await files(place), {});
});

/** Returns a result or an error without sizes of directories. Undefined for errors of the operating system. */
async function outcome(
  handlers: MemoryTool | BetaLocalFilesystemMemoryTool,
  command: Command,
): Promise<string | undefined> {
  try {
    const result = await run(handlers, command);
    return result.includes("levels deep")
      ? result.replace(/^\S+\t(\/memories\S*)$/m, "$1").replace(/^\S+\t(\S+\/)$/gm, "$1")
      : result;
  } catch (error) {
    return (error as NodeJS.ErrnoException).errno === undefined ? `error: ${(error as Error).message}` : undefined;
  }
}

/** Removes empty directories, which do not exist in memoird. */
function prune(directory: string, isRoot = true): void {
  for (const it of readdirSync(directory, { withFileTypes: true })) {
    if (it.isDirectory()) {
      prune(join(directory, it.name), false);
    }
  }
  if (!isRoot && readdirSync(directory).length === 0) {
    rmdirSync(directory);
  }
}

test("results equal those of the SDK's tool for local files", async () => {
  const seed = randomInt(1, 2 ** 31);
  console.log(`seed ${seed}`);
  let state = seed;
  const next = (below: number) => {
    // xorshift32
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
  const one = <T>(of: readonly T[]): T => of[next(of.length)]!;
  const names = ["a", "a", "a", "b", "b", "A.txt", ".hidden", "node_modules", "\u00fc", "a.txt", "..", "."];
  const texts = ["", "\n", "one", "one\ntwo\n", "one\r\ntwo\r\none", "x\n\n\n", "two\n".repeat(600)];
  const path = () => ["/memories", ...Array.from({ length: one([0, 1, 1, 1, 2, 2, 3]) }, () => one(names))].join("/");
  const makers: (() => Command)[] = [
    () => create(path(), one(texts)),
    () => create(path(), one(texts)),
    () => insert(path(), next(5) - 1, one(texts)),
    () => replace(path(), one(["one", "two"]), one(["1", "\n2\n", ""])),
    () => rename(path(), path()),
    () => view(path()),
    () => view(path(), [next(5) - 1, next(5) - 1]),
    () => remove(path()),
  ];
  for (let round = 0; round < 4; round++) {
    const directory = mkdtempSync(join(tmpdir(), "memoird-memories-"));
    after(() => rmSync(directory, { recursive: true }));
    const theirs = await BetaLocalFilesystemMemoryTool.init(directory);
    const root = join(directory, "memories");
    const place = newPlace();
    const ours = new MemoryTool(client, place);
    for (let number = 0; number < 150; number++) {
      const command = one(makers)();
      const wanted = await outcome(theirs, command);
      const found = await outcome(ours, command);
      prune(root);
      const where = `seed ${seed}: ${JSON.stringify(command).slice(0, 200)}`;
      if (wanted === undefined) {
        assert.match(found!, /^error: /, where);
      } else {
        assert.equal(found, wanted, where);
      }
      const kept: Record<string, string> = {};
      for (const it of readdirSync(root, { recursive: true, withFileTypes: true })) {
        if (it.isFile()) {
          const file = join(it.parentPath, it.name);
          kept[relative(root, file)] = readFileSync(file, "utf8");
        }
      }
      assert.deepEqual(await files(place), kept, where);
    }
  }
});

test("a text of several lines is replaced, and two occurrences in a line are refused", async () => {
  const place = newPlace();
  const tool = new MemoryTool(client, place);
  await run(tool, create("/memories/a.txt", "one\ntwo\nthree"));
  await run(tool, replace("/memories/a.txt", "one\ntwo", "1 1"));
  assert.deepEqual(await files(place), { "a.txt": "1 1\nthree" });
  await assert.rejects(run(tool, replace("/memories/a.txt", "1", "one")), /old_str `1` in lines: 1, 1\./);
});

test("paths outside are refused by every verb", async () => {
  const user = randomUUID();
  const tool = new MemoryTool(client, ["memories", user, "ann"]);
  const value = { case: "bytes" as const, value: Buffer.from("secret") };
  await client.putDocument({ namespace: ["memories", user, "bob"], key: "secret.txt", value });
  await run(tool, create("/memories/own.txt", "own"));
  const outside = [
    "/memories/../bob/secret.txt",
    "/memories/a/../../bob/secret.txt",
    "/memories/..",
    "/memories-old/secret.txt",
    "/etc/passwd",
    "../secret.txt",
    "",
  ];
  for (const path of outside) {
    const commands = [
      view(path),
      create(path, "x"),
      insert(path, 0, "x"),
      replace(path, "secret", "x"),
      remove(path),
      rename(path, "/memories/x.txt"),
      rename("/memories/own.txt", path),
    ];
    for (const command of commands) {
      await assert.rejects(run(tool, command), /would escape \/memories directory|must start with \/memories/);
    }
  }
  assert.deepEqual(await files(["memories", user]), { "bob/secret.txt": "secret", "ann/own.txt": "own" });
  for (const namespace of ["ann" as any, []]) {
    assert.throws(() => new MemoryTool(client, namespace), TypeError);
  }
});

test("limits are errors for the model", async () => {
  const tool = new MemoryTool(client, newPlace());
  for (const path of [`/memories/${"d/".repeat(16)}a`, `/memories/${"x".repeat(513)}`, "/memories/a\0b"]) {
    await assert.rejects(run(tool, create(path, "x")), /DOCUMENT_INVALID/);
  }
  await assert.rejects(run(tool, create("/memories/a", "x".repeat((4 << 20) + 1))), /4194304/);
  await run(tool, create("/memories/lines.txt", "\n".repeat(999_999)));
  await assert.rejects(run(tool, view("/memories/lines.txt")), /too many lines \(1000000\)/);
});

test("documents that are no text are moved and not edited", async () => {
  const place = newPlace();
  const tool = new MemoryTool(client, place);
  const namespace = [...place, "d"];
  await client.putDocument({ namespace, key: "binary", value: { case: "bytes", value: Uint8Array.of(255, 0) } });
  await client.putDocument({ namespace, key: "json", value: { case: "json", value: '{"a":1}' } });
  for (const name of ["binary", "json"]) {
    await assert.rejects(run(tool, insert(`/memories/d/${name}`, 0, "x")), /is not a valid UTF-8 text file/);
  }
  await run(tool, rename("/memories/d", "/memories/e"));
  const { document } = await client.getDocument({ namespace: [...place, "e"], key: "json" });
  assert.deepEqual(document!.value, { case: "json", value: '{"a":1}' });
  const moved = await client.getDocument({ namespace: [...place, "e"], key: "binary" });
  assert.deepEqual([...(moved.document!.value.value as Uint8Array)], [255, 0]);
});

describe("concurrent changes", () => {
  test("an edit is repeated", async () => {
    const place = newPlace();
    const other = new MemoryTool(client, place);
    const during = (command: Command) => new MemoryTool(racing("putDocument", () => run(other, command)), place);
    await run(other, create("/memories/a.txt", "one\n"));
    await run(during(insert("/memories/a.txt", 1, "two")), insert("/memories/a.txt", 1, "three"));
    assert.deepEqual(await files(place), { "a.txt": "one\nthree\ntwo\n" });
    const replaced = during(replace("/memories/a.txt", "two", "2"));
    await assert.rejects(run(replaced, replace("/memories/a.txt", "two", "zwei")), /did not appear verbatim/);
    const removed = during(remove("/memories/a.txt"));
    await assert.rejects(run(removed, insert("/memories/a.txt", 0, "x")), /does not exist/);
    const created = during(create("/memories/a.txt", "other"));
    await assert.rejects(run(created, create("/memories/a.txt", "mine")), /File \/memories\/a.txt already exists/);
    assert.deepEqual(await files(place), { "a.txt": "other" });
  });

  test("edits by several processes are all applied", async () => {
    const place = newPlace();
    const tool = new MemoryTool(client, place);
    await run(tool, create("/memories/a.txt", "x"));
    await Promise.all(Array.from({ length: 8 }, (_, number) => run(tool, insert("/memories/a.txt", 0, `${number}`))));
    const { "a.txt": text } = await files(place);
    assert.deepEqual(text!.split("\n").sort(), ["0", "1", "2", "3", "4", "5", "6", "7", "x"]);
  });

  test("an edit that keeps conflicting fails in the end", async () => {
    const place = newPlace();
    const tool = new MemoryTool(client, place);
    await run(tool, create("/memories/a.txt", "x"));
    let tries = 0;
    const value = { case: "bytes" as const, value: Buffer.from("x") };
    const busy = new Proxy(client, {
      get: (target, key) => {
        const put = async (request: any) => {
          tries++;
          await target.putDocument({ namespace: place, key: "a.txt", value });
          return target.putDocument(request);
        };
        return key === "putDocument" ? put : Reflect.get(target, key);
      },
    });
    await assert.rejects(run(new MemoryTool(busy, place), insert("/memories/a.txt", 0, "y")), errors.StaleVersion);
    assert.equal(tries, 20);
  });
});

test("a delete that the client repeats after a lost response succeeds", async () => {
  const place = newPlace();
  const again = new Proxy(client, {
    get: (target, key) => {
      const call = Reflect.get(target, key) as any;
      const repeated = async (request: any) => [await call(request), await call(request)][1];
      return key === "deleteDocument" || key === "deleteDocuments" ? repeated : call;
    },
  });
  const tool = new MemoryTool(again, place);
  await run(tool, create("/memories/a.txt", "x"));
  await run(tool, create("/memories/d/b.txt", "x"));
  for (const path of ["/memories/a.txt", "/memories/d"]) {
    assert.equal(await run(tool, remove(path)), `Successfully deleted ${path}`);
  }
  assert.deepEqual(await files(place), {});
});

describe("renaming a directory", () => {
  test("is atomic", async () => {
    const place = newPlace();
    const other = new MemoryTool(client, place);
    const before = { "d/a.txt": "a", "d/.hidden": "h", "d/e/b.txt": "b", "d2/c.txt": "c" };
    for (const [path, text] of Object.entries(before)) {
      await run(other, create(`/memories/${path}`, text));
    }
    // A file that appears at the destination: nothing is moved.
    const value = { case: "bytes" as const, value: Buffer.from("other") };
    const put = () => client.putDocument({ namespace: [...place, "n", "e"], key: "b.txt", value });
    const late = new MemoryTool(racing("batchDocuments", put, isMove), place);
    await assert.rejects(run(late, rename("/memories/d", "/memories/n")), /The destination \/memories\/n already exists/);
    assert.deepEqual(await files(place), { ...before, "n/e/b.txt": "other" });
    await run(other, remove("/memories/n"));
    // A file that changes: its new text is moved.
    const change = () => run(other, replace("/memories/d/a.txt", "a", "A"));
    const early = new MemoryTool(racing("batchDocuments", change, isMove), place);
    await run(early, rename("/memories/d", "/memories/n/m"));
    const moved = { "n/m/a.txt": "A", "n/m/.hidden": "h", "n/m/e/b.txt": "b", "d2/c.txt": "c" };
    assert.deepEqual(await files(place), moved);
  });

  test("succeeds if its response is lost", async () => {
    const place = newPlace();
    const losing = (isDone: boolean) => {
      const call = async (request: any) => {
        if (!isMove(request)) {
          return client.batchDocuments(request);
        }
        if (isDone) {
          await client.batchDocuments(request);
        }
        const [message, code] = ["the response was lost", Code.Unavailable];
        const cause = new ConnectError(message, code);
        throw new errors.Unavailable(message, { code, reason: "", facts: {}, retryAfter: undefined, cause });
      };
      const lossy = new Proxy(client, { get: (of, key) => (key === "batchDocuments" ? call : Reflect.get(of, key)) });
      return new MemoryTool(lossy, place);
    };
    for (const name of ["a.txt", "b.txt"]) {
      await run(losing(true), create(`/memories/d/${name}`, name));
    }
    await assert.rejects(run(losing(false), rename("/memories/d", "/memories/e")), errors.Unavailable);
    assert.deepEqual(await files(place), { "d/a.txt": "a.txt", "d/b.txt": "b.txt" });
    await run(losing(true), rename("/memories/d", "/memories/e"));
    assert.deepEqual(await files(place), { "e/a.txt": "a.txt", "e/b.txt": "b.txt" });
  });

  test("above the limits of a transaction is refused", async () => {
    const place = newPlace();
    const tool = new MemoryTool(client, place);
    const put = (namespace: string[], key: string, size = 1) =>
      client.putDocument({ namespace, key, value: { case: "bytes", value: new Uint8Array(size) } });
    for (let number = 0; number < 128; number++) {
      await put([...place, "d"], `${number}`);
    }
    await run(tool, rename("/memories/d", "/memories/e"));
    await put([...place, "e"], "one more");
    const before = await files(place);
    assert.equal(Object.keys(before).length, 129);
    await assert.rejects(run(tool, rename("/memories/e", "/memories/f")), /more than 128 files or 6M in total/);
    assert.deepEqual(await files(place), before);
    await put([...place, "large"], "0", 3 << 20);
    await put([...place, "large"], "1", (3 << 20) + 1);
    await assert.rejects(run(tool, rename("/memories/large", "/memories/f")), /too large to be renamed/);
  });
});

/** Runs `work` with an API that requests these commands, one in each message. Returns the results of the calls. */
async function conversation(commands: Command[], work: (baseURL: string) => Promise<void>): Promise<any[]> {
  const rest = [...commands];
  const results = new Map<string, any>();
  const api = createServer(async (request, response) => {
    const { model, messages } = JSON.parse(Buffer.concat(await request.toArray()).toString());
    // A request may repeat the results of earlier ones.
    for (const block of messages.flatMap((it: any) => (Array.isArray(it.content) ? it.content : []))) {
      if (block.type === "tool_result") {
        results.set(block.tool_use_id, block);
      }
    }
    const command = rest.shift();
    const content = command
      ? { type: "tool_use", id: `t${rest.length}`, name: "memory", input: command }
      : { type: "text", text: "I will." };
    const message = {
      id: "m1",
      type: "message",
      role: "assistant",
      model,
      content: [content],
      stop_reason: command ? "tool_use" : "end_turn",
      stop_sequence: null,
      usage: { input_tokens: 1, output_tokens: 1 },
    };
    response.setHeader("content-type", "application/json").end(JSON.stringify(message));
  });
  await new Promise<void>((done) => api.listen(0, "127.0.0.1", done));
  try {
    await work(`http://127.0.0.1:${(api.address() as AddressInfo).port}`);
  } finally {
    api.closeAllConnections();
    api.close();
  }
  return [...results.values()];
}

test("a conversation with the SDK's tool runner", async () => {
  const place = newPlace();
  const commands = [create("/memories/a.txt", "one"), replace("/memories/a.txt", "one", "two"), view("/memories/b.txt")];
  const [created, edited, missing] = await conversation(commands, async (baseURL) => {
    const message = await new Anthropic({ baseURL, apiKey: "key" }).beta.messages.toolRunner({
      model: "claude-sonnet-5-5",
      max_tokens: 100,
      tools: [betaMemoryTool(new MemoryTool(client, place))],
      messages: [{ role: "user", content: "Remember it." }],
    });
    assert.deepEqual(message.content, [{ type: "text", text: "I will." }]);
  });
  assert.deepEqual(await files(place), { "a.txt": "two" });
  assert.equal(created.content, "File created successfully at: /memories/a.txt");
  assert.match(edited.content, /The memory file has been edited/);
  assert.equal(missing.is_error, true);
  assert.match(missing.content, /The path \/memories\/b.txt does not exist/);
});

test("the example of the README", async () => {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  const examples = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code!);
  const example = examples.find((code) => code.includes("@anthropic-ai/sdk"))!;
  assert.ok(example.split("\n").length <= 20);
  const folder = mkdtempSync(join(ROOT, "dist/readme-"));
  after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "readme.mjs"), example);
  await conversation([create("/memories/trains.txt", "6:02")], async (baseURL) => {
    const more = { MEMOIRD_ADDR: client.addr, ANTHROPIC_BASE_URL: baseURL, ANTHROPIC_API_KEY: "key" };
    const env = { ...process.env, ...more };
    const { stdout } = await promisify(execFile)(process.execPath, [join(folder, "readme.mjs")], { env });
    assert.match(stdout, /I will\./);
  });
  assert.deepEqual(await files(["memories", "ann"]), { "trains.txt": "6:02" });
});
