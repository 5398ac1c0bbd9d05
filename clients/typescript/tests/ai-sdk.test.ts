/** Chats of the AI SDK, saved as its routes do: the whole list of messages each time. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { isDeepStrictEqual } from "node:util";

import { convertToModelMessages, generateText, jsonSchema, stepCountIs, streamText, tool, validateUIMessages } from "ai";
import type { ToolSet, UIMessage } from "ai";
import { convertArrayToReadableStream, MockLanguageModelV3 } from "ai/test";
import { assistant, errors, HistoryScope, local, MessageFormat, user } from "memoird";
import type { Client } from "memoird";
import { chooseChat, loadChat, saveChat, windowPerStep } from "memoird/ai-sdk";

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
  const { messagesJson } = await client.buildContext({ sessionId: "window", format: MessageFormat.OPENAI });
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

function textMessage(id: string, role: UIMessage["role"], text: string): UIMessage {
  return { id, role, parts: [{ type: "text", text }] };
}

const CALL = { toolCallId: "c1", input: { to: "Oslo" } };
const UNANSWERED: [string, Record<string, unknown>][] = [
  ["input-available", { type: "tool-trains", ...CALL, state: "input-available" }],
  ["input-available, dynamic", { type: "dynamic-tool", toolName: "trains", ...CALL, state: "input-available" }],
  ["input-available, by the provider", { type: "tool-trains", ...CALL, state: "input-available", providerExecuted: true }],
  ["input-streaming", { type: "tool-trains", ...CALL, state: "input-streaming" }],
  ["input-streaming without input", { type: "tool-trains", toolCallId: "c1", state: "input-streaming", input: undefined }],
  ["approval-requested", { type: "tool-trains", ...CALL, state: "approval-requested", approval: { id: "p1" } }],
  ["approval granted", { type: "tool-trains", ...CALL, state: "approval-responded", approval: { id: "p1", approved: true } }],
  ["approval denied", { type: "tool-trains", ...CALL, state: "approval-responded", approval: { id: "p1", approved: false } }],
  ["output-denied", { type: "tool-trains", ...CALL, state: "output-denied", approval: { id: "p1", approved: false } }],
];

for (const [state, call] of UNANSWERED) {
  test(`unanswered_call_before_a_user_message_is_accepted_by_the_ai_sdk: ${state}`, async () => {
    const parts = [{ type: "step-start" }, { type: "text", text: "I look." }, call, { ...call, toolCallId: "c2" }];
    const asking = { id: "a1", role: "assistant", parts } as unknown as UIMessage;
    const users = [textMessage("u1", "user", "Is there a train?"), textMessage("u2", "user", "Hello?")];
    const messages = [users[0]!, asking, users[1]!];
    await saveChat(client, `unanswered ${state}`, messages);
    const chosen = await chooseChat<UIMessage>(client, `unanswered ${state}`);
    assert.deepEqual(
      chosen.filter(({ role }) => role === "user"),
      users,
    );
    await validateUIMessages({ messages: chosen });
    const model = new MockLanguageModelV3({ doGenerate: REPLY });
    await generateText({ model, messages: await convertToModelMessages(chosen) });
    const sent = model.doGenerateCalls[0]!.prompt.filter(({ role }) => role === "user");
    assert.deepEqual(
      sent.map(({ content }) => (content[0] as { text: string }).text),
      ["Is there a train?", "Hello?"],
    );
    const loaded = await loadChat(client, `unanswered ${state}`);
    assert.deepEqual(loaded, JSON.parse(JSON.stringify(messages)), "the saved messages stay as they are");
  });
}

const USAGE = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const REPLY: any = {
  content: [{ type: "text", text: "Yes." }],
  finishReason: { unified: "stop" },
  usage: USAGE,
  warnings: [],
};

test("message_that_goes_on_after_an_unanswered_call_keeps_its_parts", async () => {
  const metadata = { providerMetadata: { openai: { itemId: "msg_1" } } };
  const call = (toolCallId: string) => ({ type: "tool-trains", ...CALL, toolCallId, state: "input-available" });
  const parts = [
    ...[{ type: "step-start" }, { type: "text", text: "I look.", ...metadata }, call("c1"), call("c1")],
    ...[{ type: "step-start" }, { type: "text", text: "I look again.", ...metadata }, call("c1")],
    ...[{ type: "step-start" }, { type: "text", text: "I wait.", ...metadata }],
  ];
  const messages = [
    textMessage("u1", "user", "Is there a train?"),
    { id: "a1", role: "assistant", parts } as unknown as UIMessage,
  ];
  await saveChat(client, "goes on", messages);
  const chosen = await chooseChat<UIMessage>(client, "goes on");
  assert.deepEqual(
    chosen.map(({ id, parts }) => [id, parts.map(({ type }) => type)]),
    messages.map(({ id, parts }) => [id, parts.map(({ type }) => type)]),
  );
  assert.deepEqual(chosen[1]!.parts[1], parts[1]);
  const model = new MockLanguageModelV3({ doGenerate: REPLY });
  await generateText({ model, messages: await convertToModelMessages(chosen) });
});

test("call_waiting_for_its_result_at_the_end_of_a_chat_stays_as_it_is", async () => {
  await saveChat(client, "waiting", [QUESTION, ASKING]);
  assert.deepEqual(await chooseChat(client, "waiting"), [QUESTION, ASKING]);
});

test("tabs_that_save_one_chat_in_turns_keep_all_messages", async () => {
  const start = [textMessage("u1", "user", "Hello"), textMessage("a1", "assistant", "Hi")];
  await saveChat(client, "tabs", start);
  const first = [...start, textMessage("first", "user", "From the first tab")];
  const second = [...start, textMessage("second", "user", "From the second tab")];
  const ids = async () => (await loadChat(client, "tabs")).map(({ id }) => id);
  await saveChat(client, "tabs", first);
  await saveChat(client, "tabs", second);
  assert.deepEqual(await ids(), ["u1", "a1", "first", "second"]);
  first.push(textMessage("to first", "assistant", "Answer to the first tab"));
  await saveChat(client, "tabs", first);
  second.push(textMessage("to second", "assistant", "Answer to the second tab"));
  await saveChat(client, "tabs", second);
  const all = ["u1", "a1", "first", "second", "to first", "to second"];
  assert.deepEqual(await ids(), all);
  for (const list of [first, second]) {
    await saveChat(client, "tabs", list);
    assert.deepEqual(await ids(), all, "a list that is saved again changes nothing");
  }
  // Each tab regenerates its own answer.
  await saveChat(client, "tabs", first.slice(0, -1));
  assert.deepEqual(await ids(), ["u1", "a1", "first", "second", "to second"]);
  await saveChat(client, "tabs", [...first.slice(0, -1), textMessage("again", "assistant", "Another answer")]);
  await saveChat(client, "tabs", [...second.slice(0, -1), textMessage("other", "assistant", "Another answer")]);
  assert.deepEqual(await ids(), ["u1", "a1", "first", "second", "again", "other"]);
  await saveChat(client, "tabs", start);
  assert.deepEqual(await ids(), ["u1", "a1"]);
});

test("run_keeps_the_newer_messages_of_another_tab", async () => {
  const asked = textMessage("u1", "user", "Hello");
  const newer = textMessage("u2", "user", "Are you there?");
  const run = { originalMessages: [asked], messageId: "a2", convert: convertToModelMessages };
  const next = { steps: [], messages: [] };
  await saveChat(client, "newer", [asked, newer]);
  await windowPerStep(client, "newer", run)(next);
  assert.deepEqual(await loadChat(client, "newer"), [asked, newer]);
  // A regenerated answer replaces the old one.
  await saveChat(client, "newer", [asked, textMessage("a1", "assistant", "Hi")]);
  await windowPerStep(client, "newer", run)(next);
  assert.deepEqual(await loadChat(client, "newer"), [asked, newer]);
});

test("tabs_that_save_one_chat_at_the_same_time_keep_all_messages", async () => {
  for (const start of [[], [textMessage("u0", "user", "Hello"), textMessage("a0", "assistant", "Hi")]]) {
    const chat = `at once after ${start.length}`;
    await saveChat(client, chat, start);
    const tabs = Array.from({ length: 8 }, (_, tab) => [
      textMessage(`u${tab + 1}`, "user", `Question ${tab}`),
      textMessage(`a${tab + 1}`, "assistant", `Answer ${tab}`),
    ]);
    await Promise.all(tabs.map(([asked]) => saveChat(client, chat, [...start, asked!])));
    await Promise.all(tabs.map((said) => saveChat(client, chat, [...start, ...said])));
    const loaded = await loadChat<UIMessage>(client, chat);
    assert.equal(loaded.length, start.length + 16);
    const known = new Map(loaded.map((message) => [message.id, message]));
    assert.deepEqual(
      [...start, ...tabs.flat()].map(({ id }) => known.get(id)),
      [...start, ...tabs.flat()],
    );
  }
});

test("tabs_that_add_edit_and_regenerate_at_random_lose_no_message", async () => {
  let seed = 7;
  const random = (below: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31;
    return Math.floor(seed / 65_536) % below;
  };
  for (let round = 0; round < 12; round++) {
    // The expected state: each message with its parent.
    const chat = new Map<string, { message: UIMessage; parent: string }>();
    const children = (id: string) => [...chat].filter(([, { parent }]) => parent === id).map(([child]) => child);
    const remove = (id: string) => {
      children(id).forEach(remove);
      chat.delete(id);
    };
    const newest = (): UIMessage[] => {
      const path = [];
      for (let id = children("").at(-1); id !== undefined; id = children(id).at(-1)) {
        path.push(chat.get(id)!.message);
      }
      return path;
    };
    const tabs: string[][] = [[], [], []];
    for (let change = 0; change < 20; change++) {
      const tab = random(tabs.length);
      // A tab reloads if its messages were removed.
      const isWhole = tabs[tab]!.every((id) => chat.has(id));
      let list = isWhole ? tabs[tab]!.map((id) => chat.get(id)!.message) : newest();
      const tip = list.at(-1);
      const add = (message: UIMessage) => {
        chat.set(message.id, { message, parent: list.at(-1)?.id ?? "" });
        list = [...list, message];
      };
      const [text, kind] = [`${round} ${change}`, random(5)];
      if (kind === 0) {
        add(textMessage(`u${change}`, "user", text));
      } else if (kind === 1 && tip?.role === "user") {
        children(tip.id).filter((id) => id.startsWith("a")).forEach(remove);
        add(textMessage(`a${change}`, "assistant", text));
      } else if (kind === 2 && tip?.role === "assistant") {
        const message = { ...tip, parts: [...tip.parts, { type: "step-start" as const }, { type: "text" as const, text }] };
        chat.get(tip.id)!.message = message;
        list = [...list.slice(0, -1), message];
      } else if (kind === 3 && list.length) {
        const at = random(list.length);
        const { id, role } = list[at]!;
        remove(id);
        list = list.slice(0, at);
        add(textMessage(id, role, text));
      } else if (kind === 4 && list.length > 1) {
        list = list.slice(0, 1 + random(list.length - 1));
        children(list.at(-1)!.id).forEach(remove);
      } else {
        continue;
      }
      tabs[tab] = list.map(({ id }) => id);
      await saveChat(client, `random ${round}`, list);
      const byId = (one: UIMessage, other: UIMessage) => (one.id < other.id ? -1 : 1);
      const loaded = await loadChat<UIMessage>(client, `random ${round}`);
      assert.deepEqual(loaded.sort(byId), [...chat.values()].map(({ message }) => message).sort(byId));
    }
  }
});

test("answer_with_calls_goes_on_after_the_message_of_another_tab", async () => {
  const asked = textMessage("u1", "user", "Is there a train?");
  await saveChat(client, "interleaved", [asked, ASKING]);
  await saveChat(client, "interleaved", [asked, ASKING, THANKS]);
  await saveChat(client, "interleaved", [asked, ANSWERED]);
  assert.deepEqual(await loadChat(client, "interleaved"), [asked, ANSWERED, THANKS]);
  const chosen = await chooseChat<UIMessage>(client, "interleaved");
  const model = new MockLanguageModelV3({ doGenerate: REPLY });
  await generateText({ model, messages: await convertToModelMessages(chosen) });
  const roles = model.doGenerateCalls[0]!.prompt.map(({ role }) => role);
  assert.deepEqual(roles, ["user", "assistant", "tool", "user", "assistant", "tool", "assistant"]);
  // A change before an interrupted answer replaces the whole answer.
  await saveChat(client, "interleaved", [{ ...asked, id: "other" }, ANSWERED]);
  assert.deepEqual(await loadChat(client, "interleaved"), [{ ...asked, id: "other" }, ANSWERED]);
});

/** Tokens of each turn of the chat's window. */
async function tokensOf(chat: string, model = "claude-sonnet-4-5"): Promise<number[]> {
  const budget = { contextWindow: 10_000_000n };
  const { report } = await client.buildContext({ sessionId: chat, model, budget, peek: true });
  return report!.turnTokens.map(Number);
}

const SEALED = Buffer.from(Array.from({ length: 30_000 }, (_, at) => (at * at) % 251)).toString("base64");
const SEALS: [string, string, Record<string, unknown>][] = [
  ["a signature", "I think.", { anthropic: { signature: SEALED } }],
  ["redacted reasoning", "", { anthropic: { redactedData: SEALED } }],
  ["encrypted reasoning", "", { openai: { itemId: "rs_1", reasoningEncryptedContent: SEALED } }],
  ["encrypted reasoning with a summary", "I think.", { azure: { reasoningEncryptedContent: SEALED, itemId: "rs_1" } }],
  ["custom content", "custom", { openai: { encryptedContent: SEALED } }],
  ["reasoning details", "I think.", { openrouter: { reasoning_details: [{ type: "reasoning.encrypted", data: SEALED }] } }],
];

for (const [name, text, providerMetadata] of SEALS) {
  test(`sealed_reasoning_is_counted_and_comes_back_equal: ${name}`, async () => {
    const sealed = text === "custom" ? { type: "custom", kind: "openai.compaction" } : { type: "reasoning", text };
    const parts = [{ type: "step-start" }, { ...sealed, providerMetadata }, { type: "text", text: "Yes." }];
    const messages = [textMessage("u1", "user", "Hello"), { id: "a1", role: "assistant", parts } as unknown as UIMessage];
    for (const _ of [1, 2]) {
      await saveChat(client, name, messages);
      assert.deepEqual(await loadChat(client, name), messages);
    }
    assert.deepEqual(await chooseChat(client, name), messages);
    const { turns } = await client.getHistory({ sessionId: name });
    assert.equal(turns.length, 2);
    assert.ok(turns[1]!.clientJson.length < 1_000, "sealed data is stored once");
    const [, answer] = await tokensOf(name);
    assert.ok(answer! > 5_000, `${answer} tokens`);
    for (const format of [MessageFormat.OPENAI, MessageFormat.OPENAI_RESPONSES, MessageFormat.ANTHROPIC]) {
      const { messagesJson } = await client.buildContext({ sessionId: name, format, peek: true });
      const isOwn = format === MessageFormat.ANTHROPIC && "anthropic" in providerMetadata;
      assert.equal(messagesJson.includes(SEALED), isOwn, "sealed data goes to its own provider only");
    }
  });
}

test("results_of_server_tools_are_counted", async () => {
  const results = Array.from({ length: 5 }, (_, at) => ({
    type: "web_search_result",
    title: `Result ${at}`,
    encryptedContent: `${at} trains to Oslo and Bergen `.repeat(1_500),
  }));
  const search = { type: "tool-web_search", toolCallId: "srvtoolu_1", providerExecuted: true, input: { query: "trains" } };
  const parts = [
    { type: "step-start" },
    { ...search, state: "output-available", output: results },
    { type: "text", text: "There are." },
  ];
  const messages = [textMessage("u1", "user", "Search"), { id: "a1", role: "assistant", parts } as UIMessage];
  await saveChat(client, "server tools", messages);
  const tokens = await tokensOf("server tools");
  assert.ok(tokens.reduce((one, two) => one + two) > 40_000, `${tokens} tokens`);
  assert.deepEqual(await chooseChat(client, "server tools"), messages);
});

test("call_whose_id_no_turn_takes_is_counted", async () => {
  const output = "There is a train. ".repeat(2_000);
  const call = { type: "tool-trains", toolCallId: "c".repeat(5_000), state: "output-available", input: {}, output };
  const messages = [textMessage("u1", "user", "Hello"), { id: "a1", role: "assistant", parts: [call] } as UIMessage];
  await saveChat(client, "long id", messages);
  assert.ok((await tokensOf("long id"))[1]! > 5_000);
  assert.deepEqual(await chooseChat(client, "long id"), messages);
});

/** A PNG of this size in pixels, with noise of this many bytes behind its header. */
function png(width: number, height: number, bytes: number): string {
  const header = Buffer.from("89504e470d0a1a0a0000000d49484452", "hex");
  const size = Buffer.from([0, 0, width >> 8, width & 255, 0, 0, height >> 8, height & 255, 8, 2, 0, 0, 0]);
  const noise = Buffer.from(Array.from({ length: bytes }, (_, at) => (at * at * 31) % 256));
  return Buffer.concat([header, size, noise]).toString("base64");
}

const SHOT = png(1_024, 768, 300_000);
const OUTPUTS: [string, unknown][] = [
  ["MCP", { content: [{ type: "text", text: "See." }, { type: "image", data: SHOT, mimeType: "image/png" }] }],
  ["MCP with other fields", { isError: false, content: [{ type: "image", mimeType: "image/png", data: SHOT, _meta: { a: 1 } }] }],
  ["content of the AI SDK", { type: "content", value: [{ type: "media", data: SHOT, mediaType: "image/png" }] }],
  ["an image without a media type", { type: "image", data: SHOT }],
  ["several images", [{ type: "image", data: SHOT }, { type: "image", data: png(10, 10, 10) }]],
];

for (const [name, output] of OUTPUTS) {
  test(`media_in_a_tool_output_is_counted_as_media: ${name}`, async () => {
    const chat = `media ${name}`;
    const call = { type: "tool-shot", toolCallId: "c1", state: "output-available", input: {}, output };
    const messages = [textMessage("u1", "user", "Look"), { id: "a1", role: "assistant", parts: [call] } as UIMessage];
    for (const _ of [1, 2]) {
      await saveChat(client, chat, messages);
      assert.deepEqual(await loadChat(client, chat), messages);
    }
    assert.deepEqual(await chooseChat(client, chat), messages);
    const tokens = (await tokensOf(chat))[2]!;
    assert.ok(tokens > 500 && tokens < 6_000, `${tokens} tokens`);
  });
}

test("shortened_mcp_results_keep_their_form_and_what_the_provider_needs", async () => {
  const messages = Array.from({ length: 40 }, (_, at): UIMessage[] => [
    textMessage(`u${at}`, "user", `Is there a train, number ${at}? `.repeat(8)),
    {
      id: `a${at}`,
      role: "assistant",
      parts: [
        { type: "step-start" },
        {
          type: "tool-trains",
          toolCallId: `c${at}`,
          state: "output-available",
          input: { at },
          output: { content: [{ type: "text", text: `Departure ${at}. `.repeat(400) }] },
          callProviderMetadata: { google: { thoughtSignature: `signature ${at}` } },
        },
      ],
    },
  ]).flat();
  await saveChat(client, "shortened", messages);
  const budget = { contextWindow: 8_000n, maxReplyTokens: 500n, safetyHeadroom: 0n, toolResultHeadroom: 0n };
  const chosen = await chooseChat<UIMessage>(client, "shortened", { budget });
  const known = new Map(messages.map((message) => [message.id, message]));
  const calls = chosen.flatMap(({ id, parts }) => {
    const [, was] = known.get(id)?.parts ?? [];
    return was && parts[1] ? [{ was, is: parts[1] as typeof was & { output: { content: { text: string }[] } } }] : [];
  });
  const shortened = calls.filter(({ was, is }) => !isDeepStrictEqual(was, is));
  assert.ok(shortened.length > 0 && shortened.length <= calls.length);
  for (const { was, is } of shortened) {
    assert.deepEqual({ ...is, output: undefined }, { ...was, output: undefined });
    assert.match(is.output.content[0]!.text, /memoird/);
  }
});

test("text_in_a_tool_output_is_not_media", async () => {
  for (const output of [
    { type: "image", data: "not base64" },
    { type: "text", data: SHOT.slice(0, 4_000), mimeType: "image/png" },
    { type: "image", data: { $memoird: 0 }, mimeType: "image/png" },
    { content: [{ type: "image", data: SHOT, mimeType: "image/png" }, { $memoird: 3 }] },
    { content: "text" },
    [null, 1, true],
    null,
  ]) {
    const chat = `no media ${JSON.stringify(output).slice(0, 80)}`;
    const call = { type: "tool-shot", toolCallId: "c1", state: "output-available", input: {}, output };
    const messages = [textMessage("u1", "user", "Look"), { id: "a1", role: "assistant", parts: [call] } as UIMessage];
    await saveChat(client, chat, messages);
    assert.deepEqual(await loadChat(client, chat), messages);
    const { turns } = await client.getHistory({ sessionId: chat });
    const [part] = turns[2]!.parts;
    assert.equal(part!.part.case === "toolResult" && part!.part.value.parts.length, 0);
  }
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
  await client.updateSession({ sessionId: "regenerated", statePatchJson: '{"kept":true}' });
  const before = await client.getHistory({ sessionId: "regenerated" });
  const other = { ...THANKS, parts: [{ type: "text" as const, text: "And back?" }] };
  await saveChat(client, "regenerated", [QUESTION, ANSWERED, other]);
  const after = await client.getHistory({ sessionId: "regenerated" });
  assert.deepEqual(
    after.turns.slice(0, -1).map(({ seq }) => seq),
    before.turns.slice(0, -1).map(({ seq }) => seq),
  );
  assert.equal(after.session!.generation, before.session!.generation);
  const { session } = await client.getSession({ sessionId: "regenerated", includeState: true });
  assert.equal(session?.stateJson, '{"kept":true}');
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
  // The session of a page may be newer than its turns.
  let others = 0;
  const racing = (times: number): Client => ({
    ...client,
    async getHistory(which) {
      const page = await client.getHistory(which);
      if (others < times) {
        others += 1;
        await client.append({ sessionId: "raced", turns: [user("from another channel")] });
      }
      return { ...page, session: (await client.getSession({ sessionId: "raced" })).session };
    },
  });
  await assert.rejects(saveChat(racing(1), "raced", [QUESTION]), errors.StaleSeq);
  assert.equal((await client.getHistory({ sessionId: "raced" })).turns.length, 3);
  // A save that removes nothing is appended after turns that were added concurrently.
  await saveChat(racing(4), "raced", [QUESTION, THANKS, EMPTY]);
  assert.equal((await client.getHistory({ sessionId: "raced" })).turns.length, 7);
  assert.deepEqual(await loadChat(client, "raced"), [QUESTION, THANKS, EMPTY]);
  await assert.rejects(saveChat(racing(Infinity), "raced", [QUESTION, THANKS, EMPTY, ANSWERED]), errors.StaleSeq);
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
  await Promise.all(["x", "y"].map((id) => saveChat(client, "long", [...messages, { ...THANKS, id }])));
  const ids = (await loadChat(client, "long")).slice(messages.length).map(({ id }) => id);
  assert.deepEqual(ids.sort(), ["x", "y"]);
});

const STEPS = 25;
const SMALL = { contextWindow: 4_000n, maxReplyTokens: 500n, safetyHeadroom: 0n, toolResultHeadroom: 0n };
const DEPARTURES = "There is a train at 6:02. ".repeat(100);

/** A model that calls the tool in each of the first steps, and then answers. */
function callingModel(steps = STEPS): MockLanguageModelV3 {
  const model: MockLanguageModelV3 = new MockLanguageModelV3({
    doGenerate: async () => replyOf(model.doGenerateCalls.length),
    doStream: async () => ({ stream: convertArrayToReadableStream(chunksOf(replyOf(model.doStreamCalls.length))) }),
  });
  const replyOf = (step: number) => {
    const call = { type: "tool-call", toolCallId: `c${step}`, toolName: "trains", input: JSON.stringify({ step }) };
    const thought = { type: "reasoning", text: `I look, step ${step}.`, providerMetadata: { openai: { itemId: `rs_${step}` } } };
    return step <= steps
      ? { ...REPLY, content: [thought, call], finishReason: { unified: "tool-calls" } }
      : { ...REPLY, content: [{ type: "text", text: "At 6:02." }] };
  };
  return model;
}

function chunksOf({ content, finishReason }: typeof REPLY): any[] {
  const pieces = content.flatMap((piece: Record<string, unknown>, at: number) => {
    const { type, text, providerMetadata } = piece;
    const id = `${at}`;
    return type === "tool-call"
      ? [piece]
      : [
          { type: `${type}-start`, id, providerMetadata },
          { type: `${type}-delta`, id, delta: text },
          { type: `${type}-end`, id },
        ];
  });
  return [{ type: "stream-start", warnings: [] }, ...pieces, { type: "finish", finishReason, usage: USAGE }];
}

function trains(settings: Record<string, unknown> = {}): ToolSet {
  const inputSchema = jsonSchema({ type: "object" });
  return { trains: tool({ inputSchema, execute: async () => DEPARTURES, ...settings } as any) as ToolSet[string] };
}

test("each_model_call_of_a_run_stays_within_its_window", async () => {
  const chat = "stepwise";
  const model = callingModel();
  const messages = [textMessage("u1", "user", "Is there a train?")];
  const run = { originalMessages: messages, messageId: "a1", convert: convertToModelMessages, window: { budget: SMALL } };
  const { text } = await generateText({
    model,
    messages: await convertToModelMessages(messages),
    tools: trains(),
    stopWhen: stepCountIs(STEPS + 5),
    prepareStep: windowPerStep(client, chat, run),
  });
  assert.equal(text, "At 6:02.");
  assert.equal(model.doGenerateCalls.length, STEPS + 1);
  for (const { prompt } of model.doGenerateCalls) {
    assert.ok(JSON.stringify(prompt).length < 4 * 4_000, "a token is about four characters");
    assert.match(JSON.stringify(prompt), /Is there a train/);
    const pieces = prompt.flatMap(({ content }): { type: string; toolCallId?: string }[] =>
      typeof content === "string" ? [] : content,
    );
    const ids = (type: string) => pieces.filter((piece) => piece.type === type).map(({ toolCallId }) => toolCallId);
    assert.deepEqual(ids("tool-result"), ids("tool-call"));
  }
  const lastCalls = model.doGenerateCalls.map(({ prompt }) => JSON.stringify(prompt).match(/c\d+/g)?.at(-1));
  assert.deepEqual(lastCalls.slice(1), Array.from({ length: STEPS }, (_, step) => `c${step + 1}`));
});

/** Streams a run as routes do, and saves the chat at its end. */
async function streamed(chat: string, messages: UIMessage[], model: MockLanguageModelV3, tools: ToolSet) {
  const convert = (chosen: UIMessage[]) => convertToModelMessages(chosen, { tools });
  const result = streamText({
    model,
    tools,
    messages: await convert(messages),
    stopWhen: stepCountIs(10),
    prepareStep: windowPerStep(client, chat, { originalMessages: messages, messageId: "answer", convert }),
  });
  let finished: UIMessage[] = [];
  const stream = result.toUIMessageStream({
    originalMessages: messages,
    generateMessageId: () => "answer",
    onFinish: ({ messages: all }) => {
      finished = all;
    },
  });
  for await (const _ of stream);
  finished = JSON.parse(JSON.stringify(finished));
  await saveChat(client, chat, finished);
  return finished;
}

async function takenBack(chat: string): Promise<number> {
  const { turns } = await client.getHistory({ sessionId: chat, scope: HistoryScope.JOURNAL });
  return turns.filter(({ removed }) => removed).length;
}

test("saved_steps_become_the_answer_of_a_streamed_run", async () => {
  const messages = [textMessage("u1", "user", "Is there a train?")];
  const finished = await streamed("streamed", messages, callingModel(3), trains());
  assert.deepEqual(await loadChat(client, "streamed"), finished);
  assert.equal(await takenBack("streamed"), 0);
  assert.equal((await client.getSession({ sessionId: "streamed" })).session!.lastSeq, 8n);
});

test("message_of_another_tab_during_a_run_stays", async () => {
  const messages = [textMessage("u1", "user", "Is there a train?")];
  const other = textMessage("other", "user", "From another tab");
  const execute = async (_: unknown, { toolCallId }: { toolCallId: string }) => {
    if (toolCallId === "c2") {
      await saveChat(client, "run and tab", [other]);
    }
    return DEPARTURES;
  };
  const finished = await streamed("run and tab", messages, callingModel(3), trains({ execute }));
  assert.deepEqual(await loadChat<UIMessage>(client, "run and tab"), [...finished, other]);
  assert.equal(await takenBack("run and tab"), 0);
});

test("failed_calls_and_media_of_a_run_reach_the_model_as_in_the_ai_sdk", async () => {
  const execute = async (_: unknown, { toolCallId }: { toolCallId: string }) => {
    if (toolCallId === "c1") {
      throw new Error("no such station");
    }
    return { content: [{ type: "image", data: SHOT, mimeType: "image/png" }] };
  };
  const toModelOutput = ({ output }: any) => ({
    type: "content",
    value: output.content.map(({ data, mimeType }: any) => ({ type: "image-data", data, mediaType: mimeType })),
  });
  const model = callingModel(2);
  const asked = [textMessage("u1", "user", "Is there?")];
  const finished = await streamed("failed", asked, model, trains({ execute, toModelOutput }));
  assert.deepEqual(await loadChat(client, "failed"), finished);
  const results = model.doStreamCalls.at(-1)!.prompt.flatMap(({ role, content }) => (role === "tool" ? content : []));
  assert.deepEqual(
    results.map((result) => result.type === "tool-result" && result.output),
    [
      { type: "error-text", value: "no such station" },
      { type: "content", value: [{ type: "image-data", data: SHOT, mediaType: "image/png" }] },
    ],
  );
});

test("approved_and_denied_calls_continue_the_answer_that_asked", async () => {
  for (const approved of [true, false]) {
    const chat = `approval ${approved}`;
    const tools = trains({ needsApproval: true });
    const messages = await streamed(chat, [textMessage("u1", "user", "Is there a train?")], callingModel(1), tools);
    const asking = messages.at(-1)!;
    const call = asking.parts.at(-1) as Record<string, any>;
    assert.equal(call.state, "approval-requested");
    const responded = { ...call, state: "approval-responded", approval: { id: call.approval.id, approved } };
    const parts = [...asking.parts.slice(0, -1), responded] as UIMessage["parts"];
    const model = callingModel(0);
    const done = await streamed(chat, [messages[0]!, { ...asking, parts }], model, tools);
    assert.deepEqual(done.map(({ id }) => id), ["u1", "answer"]);
    assert.deepEqual(await loadChat(client, chat), done);
    const { prompt } = model.doStreamCalls[0]!;
    assert.deepEqual(prompt.map(({ role }) => role), ["user", "assistant", "tool"]);
  }
});

test("session_that_ends_during_a_run_starts_again_with_the_chat", async () => {
  const execute = async (_: unknown, { toolCallId }: { toolCallId: string }) => {
    if (toolCallId === "c2") {
      await client.endSession({ sessionId: "ended run" });
    }
    return DEPARTURES;
  };
  const model = callingModel(3);
  await streamed("ended run", [textMessage("u1", "user", "Is there a train?")], model, trains({ execute }));
  assert.match(JSON.stringify(model.doStreamCalls.at(-1)!.prompt), /Is there a train.*c1.*c2.*c3/);
});
