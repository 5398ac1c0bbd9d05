/** Chats of the AI SDK, saved as its routes do: all messages, again and again. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { isDeepStrictEqual } from "node:util";

import { convertToModelMessages, validateUIMessages } from "ai";
import type { UIMessage } from "ai";
import { assistant, errors, local, MessageFormat, user } from "memoird";
import type { Client } from "memoird";
import { chooseChat, loadChat, saveChat } from "memoird/ai-sdk";

let client: Client;
before(async () => {
  client = await local();
});
after(() => client.close());

const QUESTION: UIMessage = {
  id: "u1",
  role: "user",
  metadata: { at: 1_700_000_000 },
  parts: [
    { type: "text", text: "Is there a train on this plan?" },
    { type: "file", mediaType: "image/png", filename: "plan.png", url: "data:image/png;base64,iVBORw0KGgo=" },
    { type: "file", mediaType: "application/pdf", url: "https://example.com/plan.pdf" },
  ],
};
const ASKING: UIMessage = {
  id: "a1",
  role: "assistant",
  parts: [
    { type: "step-start" },
    { type: "reasoning", text: "I must look.", state: "done", providerMetadata: { openai: { id: "rs_1" } } },
    { type: "text", text: "I look.", state: "done" },
    { type: "tool-trains", toolCallId: "c1", state: "input-available", input: { to: "Oslo" } },
    { type: "tool-trains", toolCallId: "c2", state: "input-available", input: { to: "Bergen" } },
  ],
};
const ANSWERED: UIMessage = {
  ...ASKING,
  metadata: { tokens: 12 },
  parts: [
    ...ASKING.parts.slice(0, 3),
    {
      type: "tool-trains",
      toolCallId: "c1",
      state: "output-available",
      input: { to: "Oslo" },
      output: [{ at: "6:02" }],
    },
    {
      type: "tool-trains",
      toolCallId: "c2",
      state: "output-error",
      input: { to: "Bergen" },
      errorText: "no such station",
    },
    { type: "step-start" },
    { type: "data-map", id: "d1", data: { zoom: 3 } },
    { type: "source-url", sourceId: "s1", url: "https://example.com", title: "Trains" },
    {
      type: "dynamic-tool",
      toolName: "note",
      toolCallId: "c3",
      state: "output-available",
      input: "x",
      output: "noted",
    },
    { type: "step-start" },
    { type: "text", text: "At 6:02.", state: "done" },
  ],
};
const THANKS: UIMessage = { id: "u2", role: "user", parts: [{ type: "text", text: "Thanks" }] };
const EMPTY: UIMessage = { id: "a2", role: "assistant", parts: [{ type: "step-start" }] };
const EMPTY_STEPS: UIMessage = {
  id: "a3",
  role: "assistant",
  parts: [{ type: "step-start" }, { type: "data-map", id: "d2", data: {} }, { type: "step-start" }],
};

test("a chat is loaded as it was saved", async () => {
  assert.deepEqual(await loadChat(client, "chat"), []);
  const steps = [[QUESTION], [QUESTION, ASKING], [QUESTION, ANSWERED], [QUESTION, ANSWERED, THANKS, EMPTY, EMPTY_STEPS]];
  for (const messages of steps) {
    for (const again of [1, 2]) {
      await saveChat(client, "chat", messages);
      assert.deepEqual(await loadChat<UIMessage>(client, "chat"), messages, `time ${again}`);
    }
  }
  const loaded = await loadChat<UIMessage>(client, "chat");
  await validateUIMessages({ messages: loaded });
  assert.deepEqual(await convertToModelMessages(loaded), await convertToModelMessages(steps.at(-1)!));
  const { session } = await client.getSession({ sessionId: "chat" });
  assert.equal(session!.lastSeq, 9n, "each turn is stored once");
});

test("a chat whose messages no turn takes as they are", async () => {
  const call = (toolCallId: string, output: unknown) =>
    ({ type: "tool-trains", toolCallId, state: "output-available", input: {}, output }) as UIMessage["parts"][number];
  const numbers = [...Array(300).keys()];
  const said: [string, UIMessage["parts"]][] = [
    ["an id of two calls", [call("c1", 1), { type: "step-start" }, call("c1", "two"), { type: "step-start" }, call("c1", 3)]],
    ["many calls", [{ type: "step-start" }, ...numbers.map((number) => call(`c${number}`, number))]],
    ["many texts", numbers.map((number) => ({ type: "text", text: `${number}` }))],
    ["a call without an id", [call("", 1), { type: "text", text: "It goes." }]],
    ["a file without a place", [{ type: "file", mediaType: "image/png", url: "" }]],
  ];
  for (const [chat, parts] of said) {
    const messages: UIMessage[] = [THANKS, { id: "a1", role: "assistant", parts }];
    for (const _ of [1, 2]) {
      await saveChat(client, chat, messages);
      assert.deepEqual(await loadChat<UIMessage>(client, chat), messages, chat);
    }
    assert.deepEqual(await chooseChat<UIMessage>(client, chat), messages, chat);
  }
});

test("memoird gives providers what the messages say, and nothing else of them", async () => {
  await saveChat(client, "window", [QUESTION, ANSWERED, THANKS]);
  const { messagesJson } = await client.getContext({ sessionId: "window", format: MessageFormat.OPENAI });
  const messages: { role: string; tool_calls?: { id: string }[] }[] = JSON.parse(messagesJson);
  assert.deepEqual(
    messages.map(({ role }) => role),
    ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"],
  );
  assert.deepEqual(
    messages[1]!.tool_calls!.map(({ id }) => id),
    ["c1", "c2"],
  );
  assert.doesNotMatch(messagesJson, /ai-sdk|zoom|1700000000/);
});

test("what a message has beside its words may be long", async () => {
  const thought = { openai: { reasoningEncryptedContent: "x".repeat(100_000) } };
  const parts = [{ type: "reasoning" as const, text: "I think.", providerMetadata: thought }, ...THANKS.parts];
  const message: UIMessage = { id: "a1", role: "assistant", parts };
  await saveChat(client, "encrypted", [message]);
  assert.deepEqual(await loadChat(client, "encrypted"), [message]);
});

test("half a character, as models sometimes leave it, stops no chat", async () => {
  const cut = (text: string): UIMessage => ({ ...THANKS, parts: [{ type: "text", text }] });
  for (const _ of [1, 2]) {
    await saveChat(client, "halved", [cut("Thanks \ud83d")]);
    assert.deepEqual(await loadChat(client, "halved"), [cut("Thanks \ufffd")]);
  }
});

test("what is no chat is refused, with the name of what is not taken", async () => {
  for (const [field, messages] of [
    ["messages", "text"],
    ["messages[0].parts", [{ id: "u1", role: "user" }]],
    ["messages[0].parts", [null]],
    ["messages[1].role", [QUESTION, { ...THANKS, role: "tool" }]],
    ["messages[0].id", [{ ...THANKS, id: undefined }]],
    ["messages[2].id", [QUESTION, ANSWERED, { ...THANKS, id: "u1" }]],
  ] as [string, any][]) {
    await assert.rejects(saveChat(client, "refused", messages), (error) => {
      assert.ok(error instanceof errors.InvalidArgument, field);
      assert.equal(error.facts.field, field);
      return true;
    });
  }
  assert.deepEqual(await loadChat(client, "refused"), []);
});

test("a model is shown what memoird chooses of a chat", async () => {
  assert.deepEqual(await chooseChat(client, "nobody"), []);
  await saveChat(client, "chosen", [QUESTION, ANSWERED, EMPTY, THANKS]);
  assert.deepEqual(await chooseChat(client, "chosen"), [QUESTION, ANSWERED, EMPTY, THANKS]);
  await client.append({ sessionId: "chosen", turns: [assistant("from another channel")] });
  const { seq } = (await client.getHistory({ sessionId: "chosen", last: 1 })).turns[0]!;
  assert.deepEqual((await chooseChat(client, "chosen")).at(-1), {
    id: `memoird-${seq}`,
    role: "assistant",
    parts: [{ type: "text", text: "from another channel" }],
  });
});

interface Piece {
  type: string;
  toolCallId?: string;
}

test("what memoird chooses of a long chat is within its budget, and fit for a model", async () => {
  const messages = Array.from({ length: 80 }, (_, number): UIMessage[] => [
    { id: `u${number}`, role: "user", parts: [{ type: "text", text: `Is there a train, number ${number}? `.repeat(8) }] },
    {
      id: `a${number}`,
      role: "assistant",
      parts: [
        { type: "step-start" },
        {
          type: "tool-trains",
          toolCallId: `c${number}`,
          state: "output-available",
          input: { number },
          output: { departures: Array.from({ length: 150 }, (_, minute) => `${number}:${minute}`) },
        },
        { type: "step-start" },
        { type: "text", text: `There is, number ${number}.`, state: "done" },
      ],
    },
  ]).flat();
  messages.push({ ...THANKS, id: "last" });
  await saveChat(client, "budget", messages);
  const budget = { contextWindow: 6_000n, maxReplyTokens: 500n, safetyHeadroom: 0n, toolResultHeadroom: 0n };
  const chosen = await chooseChat<UIMessage>(client, "budget", { budget });
  const known = new Map(messages.map((message) => [message.id, message]));
  const own = chosen.filter((message) => isDeepStrictEqual(message, known.get(message.id)));
  assert.ok(own.length > 1 && own.length < chosen.length && chosen.length < messages.length);
  assert.deepEqual(chosen.at(-1), messages.at(-1));
  assert.equal(new Set(chosen.map(({ id }) => id)).size, chosen.length, "each id is there once");
  await validateUIMessages({ messages: chosen });
  const shown = await convertToModelMessages(chosen);
  const pieces = shown.flatMap(({ content }): Piece[] => (typeof content === "string" ? [] : content));
  const ids = (type: string) => pieces.filter((piece) => piece.type === type).map(({ toolCallId }) => toolCallId);
  assert.deepEqual(ids("tool-result"), ids("tool-call"), "each call has its result");
  assert.ok(JSON.stringify(shown).length < 6_000 * 4);
  await assert.rejects(chooseChat(client, "budget", { model: "nobody's" }), errors.InvalidArgument);
});

test("what is changed or left out is not there any more", async () => {
  const other = { ...THANKS, parts: [{ type: "text" as const, text: "And back?" }] };
  const relabelled = { ...ANSWERED, metadata: { tokens: 13 } };
  for (const messages of [
    [QUESTION, ANSWERED, THANKS],
    [QUESTION, ANSWERED, other],
    [QUESTION, relabelled, other],
    [QUESTION],
    [],
    [THANKS],
  ]) {
    await saveChat(client, "changed", messages);
    assert.deepEqual(await loadChat(client, "changed"), messages);
  }
});

test("what stands before a change stays as it is, with the session", async () => {
  await saveChat(client, "regenerated", [QUESTION, ANSWERED, THANKS]);
  await client.patchState({ sessionId: "regenerated", mergePatchJson: '{"kept":true}' });
  const before = await client.getHistory({ sessionId: "regenerated" });
  const other = { ...THANKS, id: "u3", parts: [{ type: "text" as const, text: "And back?" }] };
  await saveChat(client, "regenerated", [QUESTION, ANSWERED, other]);
  const after = await client.getHistory({ sessionId: "regenerated" });
  assert.deepEqual(
    after.turns.slice(0, -1).map(({ seq }) => seq),
    before.turns.slice(0, -1).map(({ seq }) => seq),
  );
  assert.equal(after.session!.generation, before.session!.generation);
  const { stateJson } = await client.getSession({ sessionId: "regenerated", includeState: true });
  assert.equal(stateJson, '{"kept":true}');
});

test("many messages behind a change", async () => {
  const messages = Array.from({ length: 600 }, (_, number): UIMessage => {
    const parts = [{ type: "text" as const, text: `message ${number}` }];
    return { id: `m${number}`, role: number % 2 ? "assistant" : "user", parts };
  });
  await saveChat(client, "many", messages);
  messages.splice(3, 1);
  await saveChat(client, "many", messages);
  assert.deepEqual(await loadChat(client, "many"), messages);
  messages.splice(1);
  await saveChat(client, "many", messages);
  assert.deepEqual(await loadChat(client, "many"), messages);
});

test("messages of more bytes than one call takes", async () => {
  const messages = Array.from({ length: 10 }, (_, number): UIMessage => {
    const parts = [{ type: "text" as const, text: `${number}: ${"parcel ".repeat(130_000)}` }];
    return { id: `m${number}`, role: "user", parts };
  });
  await saveChat(client, "bytes", messages);
  assert.deepEqual(await loadChat(client, "bytes"), messages);
  messages.splice(0, 1);
  await saveChat(client, "bytes", messages);
  assert.deepEqual(await loadChat(client, "bytes"), messages);
});

test("a chat outlives its session", async () => {
  await saveChat(client, "ended", [QUESTION]);
  await client.endSession({ sessionId: "ended" });
  assert.deepEqual(await loadChat(client, "ended"), [QUESTION]);
  await saveChat(client, "ended", [QUESTION, ANSWERED]);
  assert.deepEqual(await loadChat(client, "ended"), [QUESTION, ANSWERED]);
  const { turns } = await client.getHistory({ sessionId: "ended" });
  assert.equal(turns[0]!.seq, 1n, "its next life has all of it");
});

test("without a journal a chat ends with its session", async () => {
  await using other = await local({ config: "journal: { durability: off }\n" });
  for (const _ of [1, 2]) {
    assert.deepEqual(await loadChat(other, "off"), []);
    await saveChat(other, "off", [QUESTION]);
    assert.deepEqual(await loadChat(other, "off"), [QUESTION]);
    await other.endSession({ sessionId: "off" });
  }
});

test("a turn that comes amid a read is not taken back", async () => {
  await saveChat(client, "raced", [QUESTION, THANKS]);
  // The turns of a page are of one moment, and its session of a later one.
  const getHistory: Client["getHistory"] = async (which) => {
    const page = await client.getHistory(which);
    await client.append({ sessionId: "raced", turns: [user("from another channel")] });
    return { ...page, session: (await client.getSession({ sessionId: "raced" })).session };
  };
  await assert.rejects(saveChat({ ...client, getHistory }, "raced", [QUESTION]), errors.StaleSeq);
  await assert.rejects(saveChat({ ...client, getHistory }, "raced", [QUESTION, THANKS, EMPTY]), errors.StaleSeq);
  assert.equal((await client.getHistory({ sessionId: "raced" })).turns.length, 4);
});

test("turns of others stay, and are no messages", async () => {
  await client.append({ sessionId: "shared", turns: [user("from another channel")] });
  await saveChat(client, "shared", [QUESTION]);
  assert.deepEqual(await loadChat(client, "shared"), [QUESTION]);
  assert.equal((await client.getSession({ sessionId: "shared" })).session!.lastSeq, 2n);
});

test("a long chat, and two that save at once", async () => {
  const messages = Array.from({ length: 600 }, (_, number): UIMessage => {
    const parts = [{ type: "text" as const, text: `message ${number}` }];
    return { id: `m${number}`, role: number % 2 ? "assistant" : "user", parts };
  });
  await saveChat(client, "long", messages);
  assert.deepEqual(await loadChat(client, "long"), messages);
  const both = await Promise.allSettled(
    ["x", "y"].map((id) => saveChat(client, "long", [...messages, { ...THANKS, id }])),
  );
  const refused = both.filter((one) => one.status === "rejected");
  assert.ok(refused.length <= 1);
  refused.forEach((one) => assert.ok(one.reason instanceof errors.StaleSeq));
});
