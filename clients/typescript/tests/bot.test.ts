/** The example bot with a provider that fails at the calls a test selects. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { local, Role } from "memoird";
import type { Client } from "memoird";

import { Bot } from "../examples/bot.js";
import type { Message, OpenAi } from "../examples/bot.js";

let client: Client;
before(async () => {
  client = await local();
});
after(() => client.close());

/** Calls the train tool once, then answers with its result. Fails at the given calls. */
class Provider implements OpenAi {
  asked = 0;
  constructor(private readonly failsAt: number[] = []) {}

  chat = {
    completions: {
      create: async ({ model, messages }: { model: string; messages: Message[] }) => {
        this.asked++;
        if (this.failsAt.includes(this.asked)) {
          throw new Error("the provider is down");
        }
        const last = messages.at(-1)!;
        let message: Message = { role: "assistant", content: `There is ${last.content}.` };
        if (last.role !== "tool") {
          // A model's second try differs from its first one.
          const call = {
            id: `call-${this.asked}`,
            type: "function",
            function: { name: "trains", arguments: '{"to":"Oslo"}' },
          };
          message = { role: "assistant", content: null, tool_calls: [call] };
        }
        return { model, choices: [{ message }], usage: { prompt_tokens: 100, completion_tokens: 10 } };
      },
    },
  };
}

function bot(provider: Provider): Bot {
  const made = new Bot(client, provider, "gpt-4.1", "You book trains.");
  const parameters = { type: "object", properties: { to: { type: "string" } } };
  made.tools = [{ type: "function", function: { name: "trains", parameters } }];
  made.functions = { trains: ({ to }: { to: string }) => `a train to ${to} at 6:02` };
  return made;
}

for (const failsAt of [[], [1], [2], [1, 3]]) {
  test(`a message that is delivered again is answered once, after failures at ${failsAt}`, async () => {
    const provider = new Provider(failsAt);
    const [chat, answers] = [`chat-${failsAt}`, new Set<string>()];
    for (let delivery = 0; delivery < 4; delivery++) {
      try {
        answers.add(await bot(provider).answer(chat, "m1", "To Oslo, please."));
      } catch (problem) {
        assert.match(String(problem), /the provider is down/);
      }
    }
    assert.deepEqual([...answers], ["There is a train to Oslo at 6:02."]);
    assert.equal(provider.asked, 2 + failsAt.length, "the model is asked for each step once");
    const { turns } = await client.getHistory({ sessionId: chat });
    assert.deepEqual(
      turns.map((turn) => turn.role),
      [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT],
    );
  });
}

test("a bot without tools offers the recall tool", async () => {
  const asked: { tools?: { function: { name: string } }[] }[] = [];
  const create = async (request: object) => {
    asked.push(request);
    return { model: "gpt-4.1", choices: [{ message: { role: "assistant", content: "Good morning." } }] };
  };
  const bare = new Bot(client, { chat: { completions: { create } } }, "gpt-4.1", "You greet people.");
  assert.equal(await bare.answer("bare", "m1", "Good morning!"), "Good morning.");
  assert.deepEqual(
    asked[0]!.tools?.map((tool) => tool.function.name),
    ["read_earlier_turns"],
  );
});

test("memoird answers the calls of the recall tool", async () => {
  const call = {
    id: "c1",
    type: "function",
    function: { name: "read_earlier_turns", arguments: '{"from_seq": 1, "to_seq": 1}' },
  };
  const create = async ({ messages }: { messages: Message[] }) => {
    const last = messages.at(-1)!;
    const content = last.content ?? "";
    const message =
      last.role === "user"
        ? { role: "assistant", content: null, tool_calls: [call] }
        : { role: "assistant", content };
    return { model: "gpt-4.1", choices: [{ message }] };
  };
  const made = new Bot(client, { chat: { completions: { create } } }, "gpt-4.1", "You book trains.");
  assert.match(await made.answer("recall", "m1", "My seat is 41."), /#1 user.*\n {2}My seat is 41\./);
});

test("a tool that fails is told to the model", async () => {
  const made = bot(new Provider());
  made.functions = {
    trains: () => {
      throw new Error("no trains today");
    },
  };
  assert.equal(await made.answer("failing", "m1", "To Oslo, please."), "There is Error: no trains today.");
});
