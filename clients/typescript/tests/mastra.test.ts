/**
 * Mastra's storage. Expectations of all stores are checked against Mastra's in-memory store first, to prove that they
 * are correct.
 */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, describe, test } from "node:test";

import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import { Code, ConnectError } from "@connectrpc/connect";
import { Agent } from "@mastra/core/agent";
import { Mastra } from "@mastra/core/mastra";
import { InMemoryStore } from "@mastra/core/storage";
import type { MastraCompositeStore, MemoryStorage, WorkflowsStorage } from "@mastra/core/storage";
import { createTool } from "@mastra/core/tools";
import { createStep, createWorkflow } from "@mastra/core/workflows";
import { Memory } from "@mastra/memory";
import { MockLanguageModelV3 } from "ai/test";
import { assistant, errors, HistoryScope, local, MessageFormat, toolResult, toolUse, user } from "memoird";
import type { Client } from "memoird";
import { MemoirdStore } from "memoird/mastra";
import type { StoreOptions } from "memoird/mastra";
import { z } from "zod";

let client: Client;
before(async () => {
  client = await local();
});
after(() => client.close());

const DAY = 24 * 60 * 60 * 1000;
const START = new Date("2026-03-01T12:00:00.000Z").getTime();

const MAKERS: Record<string, () => MastraCompositeStore> = {
  "Mastra's in memory": () => new InMemoryStore(),
  memoird: () => new MemoirdStore({ client, prefix: `${randomUUID()}/` }),
};

function thread(more: Partial<StorageThreadType> = {}): StorageThreadType {
  return {
    id: `thread-${randomUUID()}`,
    resourceId: `resource-${randomUUID()}`,
    title: "Test Thread",
    createdAt: new Date(START),
    updatedAt: new Date(START),
    metadata: { key: "value" },
    ...more,
  };
}

/** A message; `at` is in seconds. */
function message(of: StorageThreadType, text: string, more: Partial<MastraDBMessage> = {}, at = 0): MastraDBMessage {
  return {
    id: `message-${randomUUID()}`,
    threadId: of.id,
    resourceId: of.resourceId,
    role: "user",
    type: "v2",
    createdAt: new Date(START + at * 1000),
    content: { format: 2, parts: [{ type: "text", text }], content: text },
    ...more,
  };
}

/** An error as the client throws it if a response was lost. */
const unavailable = () => {
  const [code, message] = [Code.Unavailable, "the answer was lost"];
  const cause = new ConnectError(message, code);
  return new errors.Unavailable(message, { code, reason: "", facts: {}, retryAfter: undefined, cause });
};

// As encoded in JSON.
const plain = (value: unknown) => JSON.parse(JSON.stringify(value));
const texts = (messages: MastraDBMessage[]) => messages.map(({ content }) => content.content);
const call = (id: string, more: object) => ({
  type: "tool-invocation" as const,
  toolInvocation: { toolCallId: id, toolName: "trains", args: { to: "Oslo" }, ...more } as any,
});

for (const [name, make] of Object.entries(MAKERS)) {
  describe(`${name}: memory`, () => {
    let memory: MemoryStorage;
    before(async () => {
      memory = (await make().getStore("memory"))!;
    });

    /** A thread with messages of these texts, a second apart. */
    async function filled(...said: string[]) {
      const of = thread();
      await memory.saveThread({ thread: of });
      const messages = said.map((text, at) => message(of, text, {}, at));
      await memory.saveMessages({ messages });
      return { of, messages };
    }
    const listed = async (threadId: string) => (await memory.listMessages({ threadId, perPage: false })).messages;

    test("a thread comes back as it was saved", async () => {
      const plain = thread();
      const rich = thread({
        title: "Special 'quotes' and \"double quotes\" and emoji 🎉",
        metadata: { nested: { list: [1, null, { a: "b" }], no: null }, long: "x".repeat(10_000) },
      });
      const bare = thread({ metadata: {}, title: "" });
      for (const one of [plain, rich, bare]) {
        assert.deepEqual(await memory.saveThread({ thread: structuredClone(one) }), one);
        assert.deepEqual(await memory.getThreadById({ threadId: one.id }), one);
        assert.deepEqual(await memory.getThreadById({ threadId: one.id, resourceId: one.resourceId }), one);
        assert.equal(await memory.getThreadById({ threadId: one.id, resourceId: "another" }), null);
      }
      assert.equal(await memory.getThreadById({ threadId: "none" }), null);
      const again = { ...plain, metadata: { only: "this" } };
      await memory.saveThread({ thread: again });
      assert.deepEqual(await memory.getThreadById({ threadId: plain.id }), again);
    });

    test("what is not named of a thread stays when it is updated", async () => {
      const one = thread();
      await memory.saveThread({ thread: structuredClone(one) });
      const renamed = await memory.updateThread({ id: one.id, title: "New" });
      assert.deepEqual([renamed.title, renamed.metadata], ["New", one.metadata]);
      assert.ok(renamed.updatedAt > one.updatedAt);
      const labelled = await memory.updateThread({ id: one.id, metadata: { more: [null] } });
      assert.deepEqual([labelled.title, labelled.metadata], ["New", { key: "value", more: [null] }]);
      assert.deepEqual(await memory.getThreadById({ threadId: one.id }), labelled);
      await Promise.all(
        Array.from({ length: 8 }, (_, n) => memory.updateThread({ id: one.id, metadata: { [`n${n}`]: n } })),
      );
      const { metadata } = (await memory.getThreadById({ threadId: one.id }))!;
      assert.equal(Object.keys(metadata!).length, 10, "each update counts");
      await assert.rejects(memory.updateThread({ id: "none", title: "x" }), /not found/);
    });

    test("threads are listed by resource and metadata, in order and pages", async () => {
      const resourceId = `resource-${randomUUID()}`;
      const threads = Array.from({ length: 17 }, (_, n) =>
        thread({
          resourceId,
          createdAt: new Date(START + n * 1000),
          updatedAt: new Date(START + (17 - n) * 1000),
          metadata: { even: n % 2 === 0, of: { n: n % 3 } },
        }),
      );
      for (const one of [...threads, thread()]) {
        await memory.saveThread({ thread: structuredClone(one) });
      }
      const filter = { resourceId };
      const first = await memory.listThreads({ filter, perPage: 7 });
      assert.deepEqual([first.total, first.page, first.perPage, first.hasMore], [17, 0, 7, true]);
      assert.deepEqual(first.threads, threads.slice(-7).reverse(), "the newest first");
      const last = await memory.listThreads({ filter, perPage: 7, page: 2 });
      assert.deepEqual([last.threads.length, last.hasMore], [3, false]);
      const all = await memory.listThreads({
        filter,
        perPage: false,
        orderBy: { field: "updatedAt", direction: "ASC" },
      });
      assert.deepEqual(all.threads, [...threads].reverse());
      const some = await memory.listThreads({ filter: { ...filter, metadata: { even: true, of: { n: 0 } } } });
      assert.deepEqual(
        some.threads.map(({ id }) => id).sort(),
        threads.filter((_, n) => n % 6 === 0).map(({ id }) => id).sort(),
      );
      assert.equal((await memory.listThreads({ filter: { resourceId: "nobody" } })).total, 0);
      assert.equal((await memory.listThreads({ perPage: 1 })).total > 17, true);
      await assert.rejects(memory.listThreads({ page: -1 }), /page must be >= 0/);
      await assert.rejects(memory.listThreads({ filter: { metadata: { "a-b": 1 } } }), /Invalid metadata key/);
    });

    test("a thread goes with its messages", async () => {
      const { of, messages } = await filled("one", "two");
      await memory.deleteThread({ threadId: of.id });
      assert.equal(await memory.getThreadById({ threadId: of.id }), null);
      assert.deepEqual(await listed(of.id), []);
      assert.deepEqual((await memory.listMessagesById({ messageIds: [messages[0]!.id] })).messages, []);
      await memory.deleteThread({ threadId: of.id });
    });

    test("a message comes back as it was saved", async () => {
      const { of } = await filled();
      const result = [{ at: "6:02", seats: null, note: "a text that is long enough to be kept once, not twice or more" }];
      const messages = [
        message(of, "Is there a train?"),
        message(of, JSON.stringify({ looks: ["like", "JSON"] }), {}, 1),
        message(of, "", { role: "user", content: { format: 2, parts: [
          { type: "text", text: "See this." },
          { type: "file", mimeType: "image/png", data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==" },
          { type: "file", mimeType: "application/pdf", data: "https://example.com/plan.pdf" },
        ] } }, 2),
        message(of, "", { role: "assistant", content: { format: 2, metadata: { tokens: 12 }, content: "At 6:02.", parts: [
          { type: "step-start" },
          { type: "reasoning", reasoning: "I must look.", details: [{ type: "text", text: "I must look." }] },
          { type: "text", text: "I look." },
          call("c1", { state: "result", result }),
          call("c2", { state: "result", result: "no such station", isError: true }),
          { type: "text", text: "And now by bus." },
          call("c1", { state: "result", result: { $memoird: [0, "text"] } }),
          call("c3", { state: "call" }),
          { type: "step-start" },
          { type: "source", source: { sourceType: "url", id: "s1", url: "https://example.com" } } as any,
          { type: "text", text: "At 6:02.", providerMetadata: { openai: { id: "rs_1" } } },
        ] } }, 3),
        message(of, "", { role: "assistant", content: { format: 2, parts: [] } }, 4),
        message(of, "thanks", { role: "signal" }, 5),
        message(of, "", { role: "user", content: { format: 2, parts: [call("c9", { state: "result", result: 1 })] } }, 6),
      ];
      await memory.saveMessages({ messages });
      assert.deepEqual(await listed(of.id), messages);
    });

    test("messages that are saved again take their places", async () => {
      const { of, messages } = await filled("one", "two", "three");
      const second = message(of, "2", { id: messages[1]!.id, role: "assistant" }, 1);
      const last = message(of, "", { id: messages[2]!.id, content: { format: 2, parts: [] } }, 2);
      const added = message(of, "four", {}, 3);
      await memory.saveMessages({ messages: [second, added] });
      await memory.saveMessages({ messages: [last] });
      await memory.saveMessages({ messages: [last, last] });
      assert.deepEqual(await listed(of.id), [messages[0], second, last, added]);
      // As an agent saves it, step by step.
      const parts: any[] = [{ type: "text", text: "I look." }];
      const answer = message(of, "", { role: "assistant", content: { format: 2, parts } }, 4);
      for (const part of [
        call("c1", { state: "call" }),
        call("c1", { state: "result", result: "6:02" }),
        { type: "text", text: "At 6:02." },
      ]) {
        if (parts.at(-1).toolInvocation?.state === "call") {
          parts.pop();
        }
        parts.push(part);
        await memory.saveMessages({ messages: [structuredClone(answer)] });
        assert.deepEqual((await listed(of.id)).at(-1), answer);
      }
      assert.equal((await listed(of.id)).length, 5);
    });

    test("a message that is saved to another thread is there", async () => {
      const [{ of, messages }, other] = [await filled("one", "two", "three"), await filled("x")];
      const moved = { ...messages[1]!, threadId: other.of.id };
      await memory.saveMessages({ messages: [moved] });
      await memory.updateMessages({ messages: [{ id: messages[0]!.id, threadId: other.of.id }] });
      assert.deepEqual(texts(await listed(of.id)), ["three"]);
      assert.deepEqual(texts(await listed(other.of.id)).sort(), ["one", "two", "x"]);
    });

    test("saving, updating and deleting messages updates their thread", async () => {
      const { of, messages } = await filled("one", "two");
      const updatedAt = async () => (await memory.getThreadById({ threadId: of.id }))!.updatedAt.getTime();
      let before = await updatedAt();
      assert.ok(before > START);
      for (const change of [
        () => memory.saveMessages({ messages: [message(of, "three", {}, 3)] }),
        () => memory.updateMessages({ messages: [{ id: messages[0]!.id, role: "assistant" }] }),
        () => memory.deleteMessages([messages[1]!.id]),
      ]) {
        while (Date.now() <= before) {
          await new Promise(setImmediate);
        }
        await change();
        assert.ok((await updatedAt()) > before);
        before = await updatedAt();
      }
    });

    test("updates of messages are merged into them", async () => {
      const { of, messages } = await filled("one", "two", "three");
      const [first, second, third] = messages.map(({ id }) => id);
      await memory.updateMessages({ messages: [{ id: second!, content: { metadata: { a: 1 } } as any }] });
      const updated = await memory.updateMessages({
        messages: [
          { id: first!, role: "assistant" },
          { id: second!, content: { content: "2", metadata: { b: 2 } } as any },
          { id: "none", role: "assistant" },
        ],
      });
      assert.deepEqual(
        updated.map(({ id, role }) => [id, role]),
        [
          [first, "assistant"],
          [second, "user"],
        ],
      );
      const found = await listed(of.id);
      assert.deepEqual(found[0], { ...messages[0], role: "assistant" });
      const { parts } = messages[1]!.content;
      assert.deepEqual(found[1]!.content, { format: 2, parts, content: "2", metadata: { a: 1, b: 2 } });
      assert.deepEqual(found[2], messages[2]);
      assert.equal(found[2]!.id, third);
    });

    test("messages are deleted at the end, in the middle, in several threads", async () => {
      const [one, other] = [await filled("1", "2", "3", "4", "5"), await filled("a", "b")];
      await memory.deleteMessages([one.messages[4]!.id]);
      assert.deepEqual(texts(await listed(one.of.id)), ["1", "2", "3", "4"]);
      await memory.deleteMessages([one.messages[1]!.id, other.messages[0]!.id, "none"]);
      assert.deepEqual(texts(await listed(one.of.id)), ["1", "3", "4"]);
      assert.deepEqual(texts(await listed(other.of.id)), ["b"]);
      await memory.deleteMessages([]);
      await memory.deleteMessages(one.messages.map(({ id }) => id));
      assert.deepEqual(await listed(one.of.id), []);
      await memory.saveMessages({ messages: [one.messages[2]!] });
      assert.deepEqual(await listed(one.of.id), [one.messages[2]]);
    });

    test("messages are listed in pages", async () => {
      const { of } = await filled(..."abcdefghijklmno");
      const page = async (more: object) => {
        const { messages, ...about } = await memory.listMessages({ threadId: of.id, ...more });
        return { ...about, said: texts(messages).join("") };
      };
      assert.deepEqual(await page({}), { total: 15, page: 0, perPage: 40, hasMore: false, said: "abcdefghijklmno" });
      assert.deepEqual(await page({ perPage: 6, page: 1 }), { total: 15, page: 1, perPage: 6, hasMore: true, said: "ghijkl" });
      assert.deepEqual(await page({ perPage: 6, page: 2 }), { total: 15, page: 2, perPage: 6, hasMore: false, said: "mno" });
      assert.deepEqual(await page({ perPage: 6, page: 3 }), { total: 15, page: 3, perPage: 6, hasMore: false, said: "" });
      assert.deepEqual(await page({ perPage: 0 }), { total: 0, page: 0, perPage: 0, hasMore: false, said: "" });
      const down = { orderBy: { field: "createdAt", direction: "DESC" } };
      assert.deepEqual((await page({ perPage: 4, ...down })).said, "onml");
      // As agents read.
      for (const perPage of [1, 4, 15, 40]) {
        const { said, hasMore } = await page({ perPage, ...down, includeTotal: false, resourceId: of.resourceId });
        assert.deepEqual([said, hasMore], ["onmlkjihgfedcba".slice(0, perPage), perPage < 15]);
      }
      await assert.rejects(page({ page: -1 }), /page must be >= 0/);
      for (const threadId of ["", "  ", []]) {
        await assert.rejects(page({ threadId }), /threadId must be a non-empty string/);
      }
      assert.deepEqual((await page({ threadId: "none" })).total, 0);
    });

    test("messages are listed by time, resource, metadata and of several threads", async () => {
      const { of, messages } = await filled("one", "two", "three");
      const other = await filled("four");
      await memory.saveMessages({
        messages: [
          message(of, "old", { createdAt: new Date(START - DAY) }),
          message(of, "theirs", { resourceId: "them" }, 7),
          message(of, "marked", { content: { format: 2, parts: [], content: "marked", metadata: { mark: 1 } } }, 8),
        ],
      });
      const said = async (more: object) => texts((await memory.listMessages({ threadId: of.id, ...more })).messages);
      assert.deepEqual(await said({}), ["old", "one", "two", "three", "theirs", "marked"]);
      const newest = { orderBy: { field: "createdAt", direction: "DESC" }, includeTotal: false };
      assert.deepEqual(await said({ ...newest, perPage: 5 }), ["marked", "theirs", "three", "two", "one"]);
      assert.deepEqual(await said({ resourceId: "them" }), ["theirs"]);
      assert.deepEqual(await said({ ...newest, resourceId: "them", perPage: 2 }), ["theirs"]);
      const [start, end] = [messages[0]!.createdAt, messages[2]!.createdAt];
      assert.deepEqual(await said({ filter: { dateRange: { start, end } } }), ["one", "two", "three"]);
      const exclusive = { start, end, startExclusive: true, endExclusive: true };
      assert.deepEqual(await said({ filter: { dateRange: exclusive } }), ["two"]);
      assert.deepEqual(await said({ filter: { dateRange: { end: start } }, perPage: 1, page: 1 }), ["one"]);
      assert.deepEqual(await said({ filter: { metadata: { mark: 1 } } }), ["marked"]);
      assert.equal((await said({ threadId: [of.id, other.of.id] })).length, 7);
      const byResource = await memory.listMessagesByResourceId({ resourceId: other.of.resourceId });
      assert.deepEqual([byResource.total, texts(byResource.messages)], [1, ["four"]]);
      const { messages: byId } = await memory.listMessagesById({
        messageIds: [other.messages[0]!.id, messages[1]!.id, "none"],
      });
      assert.deepEqual(texts(byId).sort(), ["four", "two"]);
    });

    test("messages are included with those around them, from other threads too", async () => {
      const [{ of, messages }, other] = [await filled(..."abcdef"), await filled("x", "y", "z")];
      const said = async (include: object[], more: object = {}) => {
        const { messages, ...about } = await memory.listMessages({ threadId: of.id, perPage: 0, include, ...more } as any);
        return [texts(messages).sort().join(""), about.hasMore];
      };
      const around = { id: messages[2]!.id, withPreviousMessages: 1, withNextMessages: 2 };
      assert.deepEqual(await said([around]), ["bcde", false]);
      assert.deepEqual(await said([around, { id: messages[0]!.id, withNextMessages: 1 }]), ["abcde", false]);
      const theirs = { id: other.messages[1]!.id, threadId: other.of.id, withPreviousMessages: 1 };
      assert.deepEqual(await said([theirs, { id: "none", withNextMessages: 3 }]), ["xy", false]);
      assert.deepEqual(await said([theirs], { resourceId: of.resourceId }), ["", false], "of another resource");
      assert.deepEqual(await said([around], { perPage: 2 }), ["abcde", true]);
      assert.deepEqual(await said([{ id: messages[0]!.id, withNextMessages: 9 }], { perPage: 2 }), ["abcdef", false]);
    });

    test("a thread is copied, all of it or some", async () => {
      const { of, messages } = await filled("one", "two", "three");
      const copy = await memory.cloneThread({ sourceThreadId: of.id, metadata: { why: "a test" } });
      assert.notEqual(copy.thread.id, of.id);
      assert.equal(copy.thread.title, "Clone of Test Thread");
      assert.equal(copy.thread.resourceId, of.resourceId);
      const { clone, ...metadata } = copy.thread.metadata as any;
      assert.deepEqual([metadata, clone.sourceThreadId], [{ why: "a test" }, of.id]);
      assert.equal(clone.lastMessageId, messages[2]!.id);
      assert.deepEqual(texts(await listed(copy.thread.id)), ["one", "two", "three"]);
      const ids = copy.clonedMessages.map(({ id }) => id);
      assert.deepEqual(ids, messages.map(({ id }) => copy.messageIdMap![id]));
      assert.ok(messages.every(({ id }) => !ids.includes(id)), "ids are new");
      await memory.saveMessages({ messages: [message(copy.thread, "four", {}, 9)] });
      assert.deepEqual(texts(await listed(of.id)), ["one", "two", "three"]);

      const some = { newThreadId: `copy-${randomUUID()}`, resourceId: "another", title: "Some", sourceThreadId: of.id };
      const last = await memory.cloneThread({ ...some, options: { messageLimit: 2 } });
      assert.deepEqual([last.thread.id, last.thread.title], [some.newThreadId, "Some"]);
      assert.deepEqual(texts(last.clonedMessages), ["two", "three"]);
      assert.ok(last.clonedMessages.every(({ resourceId }) => resourceId === "another"));
      const messageFilter = { endDate: messages[1]!.createdAt, messageIds: [messages[1]!.id, messages[2]!.id] };
      const by = await memory.cloneThread({ sourceThreadId: of.id, options: { messageFilter } });
      assert.deepEqual(texts(by.clonedMessages), ["two"]);
      await assert.rejects(memory.cloneThread(some), /already exists/);
      await assert.rejects(memory.cloneThread({ sourceThreadId: "none" }), /not found/);
    });

    test("a thread goes to another resource, with its messages", async () => {
      const { of } = await filled("one", "two");
      const moved = await memory.updateThreadResourceId({ threadId: of.id, resourceId: "new-owner" });
      assert.deepEqual([moved.resourceId, moved.createdAt], ["new-owner", of.createdAt]);
      assert.ok((await listed(of.id)).every(({ resourceId }) => resourceId === "new-owner"));
      assert.equal((await memory.listThreads({ filter: { resourceId: of.resourceId } })).total, 0);
      assert.equal((await memory.listThreads({ filter: { resourceId: "new-owner" } })).total, 1);
    });

    test("resources come back as they were saved, and are updated", async () => {
      const at = new Date("2023-01-01T00:00:00Z");
      const resource = {
        id: `resource-${randomUUID()}`,
        workingMemory: "likes tea ".repeat(1_000),
        metadata: { nested: { list: [1, null] } },
        createdAt: at,
        updatedAt: at,
      };
      assert.equal(await memory.getResourceById({ resourceId: resource.id }), null);
      await memory.saveResource({ resource });
      assert.deepEqual(await memory.getResourceById({ resourceId: resource.id }), resource);
      const updated = await memory.updateResource({ resourceId: resource.id, workingMemory: "" });
      assert.deepEqual([updated.workingMemory, updated.metadata], ["", resource.metadata]);
      assert.ok(updated.updatedAt > at && updated.createdAt.getTime() === at.getTime());
      await Promise.all(
        Array.from({ length: 8 }, (_, n) =>
          memory.updateResource({ resourceId: resource.id, metadata: { [`n${n}`]: n } }),
        ),
      );
      const found = (await memory.getResourceById({ resourceId: resource.id }))!;
      assert.deepEqual([Object.keys(found.metadata!).length, found.workingMemory], [9, ""]);
      const made = await memory.updateResource({ resourceId: `new-${randomUUID()}`, workingMemory: "w" });
      assert.deepEqual(await memory.getResourceById({ resourceId: made.id }), made);
      assert.deepEqual([made.workingMemory, made.metadata], ["w", {}]);
    });

    test("many messages, and some of them changed", async () => {
      const { of, messages } = await filled(...Array.from({ length: 600 }, (_, n) => `n${n}`));
      assert.deepEqual(texts(await listed(of.id)), texts(messages));
      const [early, late] = [messages[3]!, messages[590]!];
      await memory.saveMessages({ messages: [message(of, "changed", { id: early.id }, 3)] });
      await memory.saveMessages({
        messages: [message(of, "other role", { id: late.id, role: "assistant" }, 590)],
      });
      await memory.saveMessages({ messages: [message(of, "other role", { id: messages[5]!.id, role: "assistant" }, 5)] });
      await memory.deleteMessages([messages[7]!.id, messages[599]!.id]);
      const wanted = texts(messages);
      wanted[3] = "changed";
      wanted[590] = wanted[5] = "other role";
      wanted.splice(599, 1);
      wanted.splice(7, 1);
      assert.deepEqual(texts(await listed(of.id)), wanted);
    });

    test("observations are kept, buffered, and gathered in generations", async () => {
      const [threadId, resourceId] = [`thread-${randomUUID()}`, `resource-${randomUUID()}`];
      const newest = () => memory.getObservationalMemory(threadId, resourceId);
      assert.equal(await newest(), null);
      assert.deepEqual(await memory.getObservationalMemoryHistory(threadId, resourceId), []);
      const config = { observation: { threshold: 10, model: null } };
      const made = await memory.initializeObservationalMemory({ threadId, resourceId, scope: "thread", config });
      const { id } = made;
      assert.deepEqual(plain(await newest()), plain(made));
      assert.ok((await newest())!.createdAt instanceof Date);
      const lastObservedAt = new Date(START);
      await memory.updateActiveObservations({ id, observations: "likes tea", tokenCount: 5, lastObservedAt });
      for (const set of [
        memory.setReflectingFlag(id, true),
        memory.setObservingFlag(id, true),
        memory.setBufferingObservationFlag(id, true, 7),
        memory.setBufferingReflectionFlag(id, true),
        memory.setPendingMessageTokens(id, 90),
        memory.updateObservationalMemoryConfig({ id, config: { observation: { threshold: 20 } } }),
      ]) {
        await set;
      }
      const chunk = (n: number) => ({
        cycleId: `cycle${n}`,
        observations: `saw ${n}`,
        tokenCount: 3,
        messageIds: [`m${n}`],
        messageTokens: 40,
        lastObservedAt: new Date(START + n),
      });
      await Promise.all([1, 2, 3].map((n) => memory.updateBufferedObservations({ id, chunk: chunk(n) })));
      await memory.updateBufferedObservations({ id, chunk: chunk(2) });
      const buffered = (await newest())!;
      assert.deepEqual([buffered.activeObservations, buffered.lastObservedAt], ["likes tea", lastObservedAt]);
      assert.deepEqual(
        [buffered.isReflecting, buffered.isObserving, buffered.isBufferingObservation, buffered.isBufferingReflection],
        [true, true, true, true],
      );
      assert.deepEqual([buffered.lastBufferedAtTokens, buffered.pendingMessageTokens], [7, 90]);
      assert.deepEqual(buffered.config, { observation: { threshold: 20, model: null } });
      assert.deepEqual(buffered.bufferedObservationChunks!.map(({ cycleId }) => cycleId).sort(), ["cycle1", "cycle2", "cycle3"]);
      const swapped = await memory.swapBufferedToActive({
        id,
        activationRatio: 1,
        messageTokensThreshold: 100,
        currentPendingTokens: 120,
      });
      assert.deepEqual([swapped.chunksActivated, swapped.messageTokensActivated], [3, 120]);
      const active = (await newest())!;
      assert.match(active.activeObservations, /^likes tea[^]*message boundary[^]*saw 3/);
      assert.equal(active.bufferedObservationChunks, undefined);

      const reflected = await memory.createReflectionGeneration({ currentRecord: active, reflection: "all", tokenCount: 1 });
      assert.deepEqual([reflected.generationCount, reflected.originType], [1, "reflection"]);
      assert.equal((await newest())!.id, reflected.id);
      await memory.updateBufferedReflection({
        id: reflected.id,
        reflection: "tea",
        tokenCount: 1,
        inputTokenCount: 2,
        reflectedObservationLineCount: 1,
      });
      const currentRecord = (await newest())!;
      const last = await memory.swapBufferedReflectionToActive({ currentRecord, tokenCount: 1 });
      assert.deepEqual([last.activeObservations, last.generationCount], ["tea", 2]);
      const ids = async (limit?: number, options?: object) =>
        (await memory.getObservationalMemoryHistory(threadId, resourceId, limit, options)).map((record) => record.id);
      assert.deepEqual(await ids(), [last.id, reflected.id, id]);
      assert.deepEqual(await ids(1, { offset: 1 }), [reflected.id]);
      assert.deepEqual(await ids(9, { to: new Date(START) }), []);
      const between = { ...reflected, id: randomUUID(), generationCount: 1 };
      await memory.insertObservationalMemoryRecord(between);
      assert.deepEqual(await ids(), [last.id, between.id, reflected.id, id]);
      assert.equal(await memory.getObservationalMemory(null, resourceId), null, "the resource has its own");
      await memory.clearObservationalMemory(threadId, resourceId);
      assert.equal(await newest(), null);
      await assert.rejects(memory.setObservingFlag(id, false), /record not found/);
    });

    test("all of it is cleared", async () => {
      memory = (await make().getStore("memory"))!;
      const { of } = await filled("one");
      await memory.saveResource({ resource: { id: "cleared", createdAt: new Date(), updatedAt: new Date() } });
      await memory.dangerouslyClearAll();
      assert.equal((await memory.listThreads({})).total, 0);
      assert.deepEqual(await listed(of.id), []);
      assert.equal(await memory.getResourceById({ resourceId: "cleared" }), null);
    });
  });
  describe(`${name}: workflows`, () => {
    let workflows: WorkflowsStorage;
    before(async () => {
      workflows = (await make().getStore("workflows"))!;
    });
    const snapshot = (runId: string, status = "running") =>
      ({ runId, status, value: {}, context: { input: { a: [null, 1] } }, timestamp: START }) as any;

    test("a snapshot comes back as it was persisted, and is replaced", async () => {
      const run = { workflowName: "book", runId: randomUUID() };
      assert.equal(await workflows.loadWorkflowSnapshot(run), null);
      assert.equal(await workflows.getWorkflowRunById(run), null);
      await workflows.persistWorkflowSnapshot({ ...run, resourceId: "ann", snapshot: snapshot(run.runId) });
      assert.deepEqual(await workflows.loadWorkflowSnapshot(run), snapshot(run.runId));
      const first = (await workflows.getWorkflowRunById({ runId: run.runId }))!;
      assert.deepEqual([first.workflowName, first.resourceId], ["book", "ann"]);
      assert.ok(first.createdAt instanceof Date && first.updatedAt instanceof Date);
      await workflows.persistWorkflowSnapshot({ ...run, snapshot: snapshot(run.runId, "success") });
      const second = (await workflows.getWorkflowRunById(run))!;
      assert.deepEqual(second.snapshot, snapshot(run.runId, "success"));
      assert.deepEqual([second.resourceId, second.createdAt], ["ann", first.createdAt]);
      await workflows.deleteWorkflowRunById(run);
      assert.equal(await workflows.loadWorkflowSnapshot(run), null);
      await workflows.deleteWorkflowRunById(run);
    });

    test("results of steps that run side by side all count", async () => {
      const run = { workflowName: "parallel", runId: randomUUID() };
      const none = await workflows.updateWorkflowResults({ ...run, stepId: "s", result: {} as any, requestContext: {} });
      assert.deepEqual(none, {});
      await workflows.persistWorkflowSnapshot({ ...run, snapshot: snapshot(run.runId) });
      await Promise.all(
        Array.from({ length: 12 }, (_, n) =>
          workflows.updateWorkflowResults({
            ...run,
            stepId: `step${n}`,
            result: { status: "success", output: n } as any,
            requestContext: { [`key${n}`]: n },
          }),
        ),
      );
      const { context, requestContext } = (await workflows.loadWorkflowSnapshot(run))! as any;
      assert.deepEqual(context.step7, { status: "success", output: 7 });
      assert.deepEqual([Object.keys(context).length, Object.keys(requestContext).length], [13, 12]);
    });

    test("the state of a run is updated, from the status that is expected", async () => {
      const run = { workflowName: "state", runId: randomUUID() };
      assert.equal(await workflows.updateWorkflowState({ ...run, opts: { status: "running" } }), undefined);
      await workflows.persistWorkflowSnapshot({ ...run, snapshot: snapshot(run.runId, "suspended") });
      const opts = { status: "running", expectedStatus: "suspended" } as any;
      const both = await Promise.all([1, 2].map(() => workflows.updateWorkflowState({ ...run, opts })));
      assert.equal(both.filter(Boolean).length, 1, "one of two resumes it");
      assert.equal((await workflows.loadWorkflowSnapshot(run))!.status, "running");
    });

    test("runs are listed by workflow, resource, status and time, in pages", async () => {
      for (let n = 0; n < 5; n++) {
        const at = new Date(START + n * DAY);
        await workflows.persistWorkflowSnapshot({
          workflowName: n < 3 ? "listed" : "listed-too",
          runId: `run${n}`,
          resourceId: n % 2 ? "odd" : "even",
          snapshot: snapshot(`run${n}`, n === 4 ? "failed" : "success"),
          createdAt: at,
          updatedAt: at,
        });
      }
      const listed = async (args: object) => {
        const { runs, total } = await workflows.listWorkflowRuns(args);
        return [runs.map(({ runId }) => runId).join(" "), total];
      };
      assert.deepEqual(await listed({ workflowName: "listed" }), ["run2 run1 run0", 3]);
      assert.deepEqual(await listed({ workflowName: "listed", perPage: 2, page: 1 }), ["run0", 3]);
      assert.deepEqual(await listed({ resourceId: "odd" }), ["run3 run1", 2]);
      assert.deepEqual(await listed({ status: "failed" }), ["run4", 1]);
      const fromDate = new Date(START + DAY);
      assert.deepEqual(await listed({ fromDate, toDate: new Date(START + 2 * DAY) }), ["run2 run1", 2]);
      assert.deepEqual(await listed({ workflowName: "none" }), ["", 0]);
      await workflows.dangerouslyClearAll();
      assert.deepEqual(await listed({}), ["", 0]);
    });
  });

  describe(`${name}: state of threads`, () => {
    test("a state of each type is set, replaced and deleted", async () => {
      const states = (await make().getStore("threadState"))!;
      const [tasks, goal] = [{ threadId: "t/1", type: "task" }, { threadId: "t/1", type: "goal" }];
      assert.equal(await states.getState(tasks), undefined);
      await states.setState({ ...tasks, value: [{ id: "1", content: "book" }] });
      await states.setState({ ...goal, value: { objective: "Oslo", pausedReason: null } });
      assert.deepEqual(await states.getState(tasks), [{ id: "1", content: "book" }]);
      assert.deepEqual(await states.getState(goal), { objective: "Oslo", pausedReason: null });
      await states.setState({ ...tasks, value: [] });
      assert.deepEqual(await states.getState(tasks), []);
      assert.equal(await states.getState({ ...tasks, threadId: "t" }), undefined);
      await states.deleteState(tasks);
      assert.equal(await states.getState(tasks), undefined);
      await states.dangerouslyClearAll();
      assert.equal(await states.getState(goal), undefined);
    });
  });
}

describe("memoird beneath Mastra", () => {
  const store = (more: StoreOptions = {}) => new MemoirdStore({ client, prefix: `${randomUUID()}/`, ...more });

  async function filled(memory: MemoryStorage, ...said: string[]) {
    const of = thread();
    await memory.saveThread({ thread: of });
    const messages = said.map((text, at) => message(of, text, { role: at % 2 ? "assistant" : "user" }, at));
    await memory.saveMessages({ messages });
    return { of, messages };
  }
  const AGENTS = { orderBy: { field: "createdAt", direction: "DESC" }, includeTotal: false } as const;

  /** A model that requests a train if asked for one, and otherwise reports the number of messages. */
  function model(prompts: any[][]) {
    const usage = { inputTokens: { total: 10 }, outputTokens: { total: 3 } } as any;
    return new MockLanguageModelV3({
      doGenerate: async ({ prompt }) => {
        prompts.push(prompt);
        const isAsked = prompt.at(-1)!.role === "user" && JSON.stringify(prompt.at(-1)).includes("train");
        const content = isAsked
          ? { type: "tool-call" as const, toolCallId: `c${prompts.length}`, toolName: "trains", input: '{"to":"Oslo"}' }
          : { type: "text" as const, text: `You said ${prompt.length} things.` };
        const unified = isAsked ? "tool-calls" : "stop";
        return { finishReason: { unified, raw: unified }, usage, content: [content], warnings: [] };
      },
    });
  }

  for (const window of [undefined, { overheadTokens: 100n }]) {
    test(`an agent goes on with what was said${window ? ", in memoird's window" : ""}`, async () => {
      const [prompts, prefix]: [any[][], string] = [[], `${randomUUID()}/`];
      const trains = createTool({
        id: "trains",
        description: "When trains go",
        inputSchema: z.object({ to: z.string() }),
        execute: async () => ({ at: "6:02" }),
      });
      const memory = { thread: "web:4711", resource: "ann" };
      for (const question of ["Where is my parcel?", "Is there a train?", "Thanks"]) {
        // As after a restart.
        const storage = store({ prefix, window });
        const agent = new Agent({
          id: "bot",
          name: "bot",
          instructions: "You book trains.",
          model: model(prompts),
          tools: { trains },
          memory: new Memory({ storage }),
        });
        await agent.generate(question, { memory });
      }
      assert.deepEqual(
        prompts.at(-1)!.map(({ role }) => role),
        ["system", "user", "assistant", "user", "assistant", "tool", "assistant", "user"],
      );
      const { turns, session } = await client.getHistory({ sessionId: `${prefix}web:4711` });
      assert.deepEqual(
        turns.map((turn) => turn.parts.map(({ part }) => part.case).join()),
        ["text", "text", "text", "toolUse", "toolResult", "text", "text", "text"],
      );
      assert.equal(session!.subject, "ann", "what is remembered is of the resource");
      // A provider gets the content of the messages, and no other fields.
      const { messagesJson } = await client.buildContext({
        sessionId: `${prefix}web:4711`,
        format: MessageFormat.OPENAI,
      });
      assert.match(messagesJson, /6:02/);
      assert.doesNotMatch(messagesJson, /mastra|createdAt/);
    });
  }

  test("a workflow that waits goes on in another process", async () => {
    const prefix = `${randomUUID()}/`;
    const booking = () => {
      const ask = createStep({
        id: "ask",
        inputSchema: z.object({ to: z.string() }),
        resumeSchema: z.object({ sure: z.boolean() }),
        outputSchema: z.object({ booked: z.string() }),
        execute: async ({ inputData, resumeData, suspend }) =>
          resumeData ? { booked: resumeData.sure ? inputData.to : "nothing" } : await suspend({}),
      });
      const schemas = { inputSchema: z.object({ to: z.string() }), outputSchema: z.object({ booked: z.string() }) };
      const workflow = createWorkflow({ id: "booking", ...schemas }).then(ask).commit();
      return new Mastra({ storage: store({ prefix }), workflows: { workflow }, logger: false }).getWorkflow("workflow");
    };
    const run = await booking().createRun();
    assert.equal((await run.start({ inputData: { to: "Oslo" } })).status, "suspended");
    const again = await booking().createRun({ runId: run.runId });
    const done = await again.resume({ step: "ask", resumeData: { sure: true } });
    assert.deepEqual(done.status === "success" && done.result, { booked: "Oslo" });
    const runs = await store({ prefix }).stores.workflows.listWorkflowRuns({ workflowName: "booking" });
    assert.deepEqual(runs.runs.map(({ snapshot }) => (snapshot as any).status), ["success"]);
  });

  test("memoird's window is within its budget, and is for agents only", async () => {
    const budget = { contextWindow: 4_000n, maxReplyTokens: 500n, safetyHeadroom: 0n, toolResultHeadroom: 0n };
    const { memory } = store({ window: { budget, policy: { policy: { case: "headTail", value: {} } } } }).stores;
    const said = Array.from({ length: 100 }, (_, n) => `${n}: ${"some words ".repeat(25)}`);
    const { of, messages } = await filled(memory, ...said);
    const { messages: window } = await memory.listMessages({ threadId: of.id, resourceId: of.resourceId, ...AGENTS });
    const own = window.filter(({ id }) => !id.startsWith("memoird-"));
    assert.ok(own.length > 2 && own.length < 60, `${own.length} messages`);
    assert.ok(own.length < window.length, "something says what is left out");
    const byId = new Map(messages.map((one) => [one.id, one]));
    assert.deepEqual(own, own.map(({ id }) => byId.get(id)), "messages are as they were saved");
    assert.deepEqual(window[0], messages.at(-1));
    assert.ok(window.every(({ createdAt }) => createdAt.getTime() >= START));
    assert.ok(window.every(({ createdAt }, at) => at === 0 || createdAt <= window[at - 1]!.createdAt));
    assert.equal((await memory.listMessages({ threadId: of.id })).total, 100);
    const one = await memory.listMessages({ threadId: of.id, perPage: 1, ...AGENTS });
    assert.deepEqual(one.messages, [messages.at(-1)], "who asks whether there is any");
    const theirs = await memory.listMessages({ threadId: of.id, resourceId: "them", ...AGENTS });
    assert.deepEqual(theirs.messages, []);
    assert.deepEqual((await memory.listMessages({ threadId: "none", ...AGENTS })).messages, []);
  });

  test("unanswered_call_gets_a_note_and_no_user_message", async () => {
    const { memory } = store({ window: {} }).stores;
    const { of, messages } = await filled(memory, "Is there a train?");
    const call = (toolCallId: string, state: string) => ({
      type: "tool-invocation",
      toolInvocation: { state, toolCallId, toolName: "trains", args: { to: "Oslo" } },
    });
    const parts = [{ type: "step-start" }, call("c1", "call"), call("c2", "partial-call")];
    const asking = message(of, "", { role: "assistant", content: { format: 2, parts } as any }, 1);
    const hello = message(of, "Hello?", {}, 2);
    await memory.saveMessages({ messages: [asking, hello] });
    const which = { threadId: of.id, resourceId: of.resourceId };
    const { messages: window } = await memory.listMessages({ ...which, ...AGENTS });
    assert.deepEqual(
      window.filter(({ role }) => role === "user"),
      [hello, messages[0]],
    );
    const shown: any[] = window.find(({ id }) => id === asking.id)!.content.parts;
    for (const { toolInvocation } of shown.slice(1)) {
      assert.equal(toolInvocation.state, "result");
      assert.match(toolInvocation.result, /no result/);
    }
    const { messages: all } = await memory.listMessages({ ...which, perPage: false });
    assert.deepEqual(all, [messages[0], asking, hello], "the saved messages stay as they are");
  });

  test("sealed_reasoning_is_counted", async () => {
    const prefix = `${randomUUID()}/`;
    const { memory } = store({ prefix }).stores;
    const { of, messages } = await filled(memory, "Hello");
    const sealed = Buffer.from(Array.from({ length: 30_000 }, (_, at) => (at * at) % 251)).toString("base64");
    const reasoning = [
      { type: "reasoning", reasoning: "", details: [], providerMetadata: { openai: { reasoningEncryptedContent: sealed } } },
      { type: "reasoning", reasoning: "Hm.", details: [{ type: "text", text: "Hm.", signature: sealed }] },
    ];
    const answers = reasoning.map((part, at) =>
      message(of, "", { role: "assistant", content: { format: 2, parts: [part, { type: "text", text: "Hi" }] } as any }, at + 1),
    );
    await memory.saveMessages({ messages: answers });
    const { messages: all } = await memory.listMessages({ threadId: of.id, perPage: false });
    assert.deepEqual(all, [messages[0], ...answers]);
    const budget = { contextWindow: 1_000_000n };
    const window = await client.buildContext({ sessionId: prefix + of.id, model: "claude-sonnet-4-5", budget, peek: true });
    window.report!.turnTokens.slice(1).forEach((tokens) => assert.ok(tokens > 5_000n, `${tokens}`));
    window.turns.forEach(({ clientJson }) => assert.ok(clientJson.length < 1_000, "sealed data is stored once"));
  });

  test("what is taken back is in no window, and what is old is overwritten", async () => {
    const { memory } = store({ prefix: "" }).stores;
    const said = Array.from({ length: 300 }, (_, n) => `word${n}`);
    const { of, messages } = await filled(memory, ...said);
    await memory.deleteMessages([messages[299]!.id, messages[290]!.id, messages[2]!.id]);
    const { turns } = await client.getHistory({ sessionId: of.id, scope: HistoryScope.LONGEST });
    const texts = turns.map(({ parts }) => parts[0]!.part.value);
    assert.equal(texts.length, 298);
    assert.ok(!texts.includes("word290") && !texts.includes("word299"));
    assert.equal(texts[2], "(deleted)");
    const all = await client.getHistory({ sessionId: of.id, scope: HistoryScope.JOURNAL });
    assert.doesNotMatch(JSON.stringify(all.turns.map(({ clientJson, parts }) => [clientJson, parts])), /word2"/);
  });

  test("messages of more bytes than one call takes", async () => {
    const { memory } = store().stores;
    const said = Array.from({ length: 10 }, (_, n) => `${n}: ${"parcel ".repeat(130_000)}`);
    const { of, messages } = await filled(memory, ...said);
    const listed = async () => (await memory.listMessages({ threadId: of.id, perPage: false })).messages;
    assert.deepEqual(await listed(), messages);
    await memory.deleteMessages([messages[0]!.id]);
    assert.deepEqual(await listed(), messages.slice(1));
  });

  test("several processes write to one thread", async () => {
    const prefix = `${randomUUID()}/`;
    const [one, other] = [store({ prefix }).stores.memory, store({ prefix }).stores.memory];
    const { of, messages } = await filled(one, "one", "two");
    await Promise.all(
      Array.from({ length: 10 }, async (_, n) => {
        const memory = n % 2 ? one : other;
        await memory.saveMessages({ messages: [message(of, `new${n}`, {}, 10 + n)] });
        const parts = Array.from({ length: n + 1 }, (_, at) => [{ type: "step-start" }, { type: "text", text: `${at}` }]);
        const content = { format: 2 as const, parts: parts.flat() as any[], content: `two, ${n}` };
        await memory.saveMessages({ messages: [{ ...messages[1]!, content }] });
      }),
    );
    const { messages: found } = await one.listMessages({ threadId: of.id, perPage: false });
    assert.deepEqual(
      texts(found).filter((text) => text!.startsWith("new")),
      Array.from({ length: 10 }, (_, n) => `new${n}`),
    );
    assert.equal(found.filter(({ id }) => id === messages[1]!.id).length, 1);
    assert.equal(found.length, 12);
  });

  test("a new message that two processes save at once stands once", async () => {
    const prefix = `${randomUUID()}/`;
    const { memory: other } = store({ prefix }).stores;
    const { of } = await filled(other, "one");
    for (const text of ["as they have it", "in other words"]) {
      const said = message(of, "as they have it", {}, 1);
      let isRaced = false;
      const append: Client["append"] = async (request) => {
        if (!isRaced) {
          isRaced = true;
          await other.saveMessages({ messages: [said] });
        }
        return client.append(request);
      };
      const { memory } = new MemoirdStore({ client: { ...client, append }, prefix }).stores;
      const messages = [{ ...message(of, text, {}, 1), id: said.id }];
      await memory.saveMessages({ messages });
      const { messages: found } = await memory.listMessages({ threadId: of.id, perPage: false });
      assert.deepEqual(found.filter(({ id }) => id === said.id), messages);
      const { turns } = await client.getHistory({ sessionId: prefix + of.id });
      assert.equal(turns.filter(({ clientId }) => clientId === said.id).length, 1);
    }
  });

  test("a message that went is there when it is saved again", async () => {
    const { memory } = store({ prefix: "" }).stores;
    const { of, messages } = await filled(memory, ...Array.from({ length: 260 }, (_, n) => `${n}`));
    const some = [messages[1]!, messages[259]!];
    await memory.deleteMessages(some.map(({ id }) => id));
    for (const one of [...some, ...some]) {
      await memory.saveMessages({ messages: [one] });
    }
    const listed = async () => (await memory.listMessages({ threadId: of.id, perPage: false })).messages;
    assert.deepEqual(await listed(), messages);
    await memory.deleteMessages([messages[259]!.id]);
    await memory.saveMessages({ messages: [messages[259]!] });
    assert.deepEqual(await listed(), messages);
    const { turns } = await client.getHistory({ sessionId: of.id, scope: HistoryScope.LONGEST });
    const ids = turns.flatMap(({ clientId }) => clientId || []);
    assert.equal(ids.length, new Set(ids).size, "each is there once");
    await client.endSession({ sessionId: of.id });
    await memory.saveMessages({ messages: [messages[259]!] });
    assert.deepEqual(await listed(), [messages[259]!]);
  });

  test("a change whose answer was lost is done once", async () => {
    let isLost = false;
    const putDocument: Client["putDocument"] = async (put) => {
      const answer = await client.putDocument(put);
      if (put.expectedVersion === undefined || isLost) {
        return answer;
      }
      isLost = true;
      throw unavailable();
    };
    const { memory } = new MemoirdStore({ client: { ...client, putDocument }, prefix: `${randomUUID()}/` }).stores;
    const of = thread();
    const { resourceId, id: threadId } = of;
    await memory.updateResource({ resourceId, workingMemory: "tea" });
    assert.ok(isLost);
    assert.equal((await memory.getResourceById({ resourceId }))!.workingMemory, "tea");
    isLost = false;
    await memory.initializeObservationalMemory({ threadId, resourceId, scope: "thread", config: {} });
    const records = await memory.getObservationalMemoryHistory(threadId, resourceId);
    assert.deepEqual([isLost, records.length], [true, 1]);
  });

  test("a turn that comes amid a read is not taken back", async () => {
    const { memory } = store({ prefix: "" }).stores;
    const { of, messages } = await filled(memory, "one", "two");
    let isRaced = false;
    // The session of a page may be newer than its turns.
    const getHistory: Client["getHistory"] = async (which) => {
      const page = await client.getHistory(which);
      if (isRaced) {
        return page;
      }
      isRaced = true;
      await client.append({ sessionId: of.id, turns: [user("from another channel")] });
      return { ...page, session: (await client.getSession({ sessionId: of.id })).session };
    };
    const racing = new MemoirdStore({ client: { ...client, getHistory }, prefix: "" }).stores.memory;
    await racing.deleteMessages([messages[1]!.id]);
    const { turns } = await client.getHistory({ sessionId: of.id });
    assert.deepEqual(
      turns.map(({ parts }) => parts[0]!.part.value),
      ["one", "from another channel"],
    );
  });

  test("what other clients say is read too", async () => {
    const { memory } = store({ prefix: "" }).stores;
    const { of } = await filled(memory, "one");
    const turns = [
      user("Is there a train?"),
      toolUse("c1", "trains", { to: "Oslo" }),
      toolResult("c1", '{"at":"6:02"}'),
      assistant("At 6:02."),
    ];
    await client.append({ sessionId: of.id, turns });
    const { messages } = await memory.listMessages({ threadId: of.id });
    assert.deepEqual(
      messages.map(({ role }) => role),
      ["user", "user", "assistant", "assistant"],
    );
    const [{ toolInvocation }] = messages[2]!.content.parts as any;
    const result = { at: "6:02" };
    assert.deepEqual(toolInvocation, { state: "result", toolCallId: "c1", toolName: "trains", args: { to: "Oslo" }, result });
    assert.ok(messages.every(({ threadId, resourceId }) => threadId === of.id && resourceId === of.resourceId));
    await memory.saveMessages({ messages: [message(of, "two", {}, 9_999_999)] });
    assert.equal((await memory.listMessages({ threadId: of.id })).total, 5);
  });

  test("messages that others would not store", async () => {
    const { memory } = store().stores;
    const { of } = await filled(memory);
    const many = Array.from({ length: 300 }, (_, n) => ({ type: "text" as const, text: `${n}` }));
    const steps = Array.from({ length: 700 }, (_, n) => [{ type: "step-start" as const }, many[n % 300]!]);
    const odd = [
      message(of, "", { content: { format: 2, parts: many } }),
      message(of, "", { role: "assistant", content: { format: 2, parts: steps.flat() } }, 1),
      message(of, "zero \0", {}, 2),
      message(of, "", { role: "assistant", content: { format: 2, parts: [call("c1", { state: "result", result: "x".repeat(500_000) })] } }, 3),
      message(of, "", { role: "assistant", content: { format: 2, parts: [call("", { state: "call" })] } }, 4),
      message(of, "", { role: "assistant", content: { format: 2, parts: [call("open", { state: "call" })] } }, 5),
      message(of, "", { role: "assistant", content: { format: 2, parts: [call("open", { state: "call" })] } }, 6),
    ];
    await memory.saveMessages({ messages: odd });
    assert.deepEqual((await memory.listMessages({ threadId: of.id })).messages, odd);
    await memory.saveMessages({ messages: [message(of, "half of \ud83d", {}, 7)] });
    const { messages } = await memory.listMessages({ threadId: of.id, perPage: 1, ...AGENTS });
    assert.equal(messages[0]!.content.content, "half of \ufffd");
    const big = message(of, "", { content: { format: 2, parts: [], metadata: { big: "x".repeat(300_000) } } });
    await assert.rejects(memory.saveMessages({ messages: [big] }), (error) => {
      assert.ok(error instanceof errors.InvalidArgument);
      assert.match(error.message, /client_json/);
      return true;
    });
  });

  test("stores of other prefixes and tenants' other sessions are not touched", async () => {
    const [one, other] = [store(), store()];
    const { of } = await filled(one.stores.memory, "one");
    const elsewhere = await filled(other.stores.memory, "two");
    await client.append({ sessionId: "not-mastra", turns: [user("hello")] });
    assert.equal(await other.stores.memory.getThreadById({ threadId: of.id }), null);
    await one.stores.memory.dangerouslyClearAll();
    assert.equal((await other.stores.memory.listMessages({ threadId: elsewhere.of.id })).total, 1);
    assert.equal((await client.getSession({ sessionId: "not-mastra" })).session!.lastSeq, 1n);
    assert.equal(await store({ prefix: "" }).stores.memory.getThreadById({ threadId: "not-mastra" }), null);
  });

  test("a store sees nothing of one whose prefix begins with its own", async () => {
    const prefix = `${randomUUID()}/`;
    const [one, other] = [store({ prefix }), store({ prefix: `${prefix}other:` })];
    const { of } = await filled(one.stores.memory, "one");
    const elsewhere = await filled(other.stores.memory, "two");
    const resourceId = of.resourceId;
    await other.stores.memory.saveThread({ thread: { ...elsewhere.of, resourceId } });
    const { threads } = await one.stores.memory.listThreads({ filter: { resourceId } });
    assert.deepEqual(threads.map(({ id }) => id), [of.id]);
    const { messages } = await one.stores.memory.listMessagesByResourceId({ resourceId });
    assert.deepEqual(texts(messages), ["one"]);
    await one.stores.memory.dangerouslyClearAll();
    assert.equal((await other.stores.memory.listMessages({ threadId: elsewhere.of.id })).total, 1);
  });

  test("a thread lives as its class says", async () => {
    const config = "short_term: { ttl_classes: { forever: never } }\n";
    await using other = await local({ config });
    const { memory } = new MemoirdStore({ client: other, ttlClass: "forever" }).stores;
    const { of } = await filled(memory, "one");
    const unsaved = thread();
    await memory.saveMessages({ messages: [message(unsaved, "two")] });
    for (const { id } of [of, unsaved]) {
      const { session } = await other.getSession({ sessionId: id });
      assert.deepEqual([session!.ttlClass, session!.expiresAt], ["forever", undefined]);
    }
  });

  test("refusals are typed", async () => {
    const { memory } = store({ ttlClass: "for-ever" }).stores;
    await assert.rejects(memory.saveThread({ thread: thread() }), (error) => {
      assert.ok(error instanceof errors.InvalidArgument);
      assert.equal(error.reason, "TTL_CLASS_UNKNOWN");
      return true;
    });
    const plain = store().stores.memory;
    const { of } = await filled(plain, "one");
    await assert.rejects(plain.saveThread({ thread: thread({ id: "x".repeat(300) }) }), errors.InvalidArgument);
    const metadata = { long: "x".repeat(100_000) };
    await assert.rejects(plain.updateThread({ id: of.id, metadata }), errors.MemoirdError);
    const homeless = message(of, "x");
    delete homeless.threadId;
    await assert.rejects(plain.saveMessages({ messages: [homeless] }), /has no threadId/);
    assert.equal(await store().getStore("scores"), undefined, "a domain of another store");
  });
});
