/**
 * A bot on OpenAI's API that answers each message once, despite failures at any point.
 *
 * Each message is appended before the bot acts on it, and the window's last message determines the next step. So if a
 * platform delivers a message again, the bot continues where the first delivery stopped.
 */

import { MessageFormat } from "memoird";
import type { Client, BuildContextResponse } from "memoird";

const STEPS_MAX = 8;
const READ_EARLIER_TURNS = "read_earlier_turns";

/** The fields of an OpenAI chat completions message that a bot reads. */
export interface Message {
  role: string;
  content?: string | null;
  tool_calls?: ToolCall[];
}

export interface ToolCall {
  id: string;
  function: { name: string; arguments: string };
}

/** The part of OpenAI's package that is used. */
export interface OpenAi {
  chat: {
    completions: {
      create(request: { model: string; messages: any[]; tools?: any[] }): Promise<{
        model: string;
        choices: { message: object }[];
        usage?: { prompt_tokens: number; completion_tokens: number };
      }>;
    };
  };
}

/** Answers the messages of chats. */
export class Bot {
  tools: object[] = [];
  functions: Record<string, (input: any) => string | Promise<string>> = {};

  constructor(
    private readonly client: Client,
    private readonly openai: OpenAi,
    private readonly model: string,
    private readonly system: string,
  ) {}

  /** Returns the answer to a message: the same one if the message is delivered again. */
  async answer(chat: string, messageId: string, text: string): Promise<string> {
    let window = await this.say(chat, [{ role: "user", content: text }], { idempotencyKey: messageId });
    for (let step = 0; step < STEPS_MAX; step++) {
      const messages: Message[] = JSON.parse(window.messagesJson);
      const last = messages.at(-1)!;
      if (last.tool_calls?.length) {
        // memoird answers calls of its own tool.
        const own = last.tool_calls.filter((call) => call.function.name !== READ_EARLIER_TURNS);
        window = await this.say(chat, await Promise.all(own.map((call) => this.run(call))));
      } else if (last.role === "assistant") {
        return last.content ?? "";
      } else {
        const reply = await this.openai.chat.completions.create({
          model: this.model,
          messages,
          tools: [...this.tools, JSON.parse(window.recallToolJson)],
        });
        window = await this.say(chat, [reply.choices[0]!.message], {
          usage: {
            model: reply.model,
            inputTokens: BigInt(reply.usage?.prompt_tokens ?? 0),
            outputTokens: BigInt(reply.usage?.completion_tokens ?? 0),
          },
        });
      }
    }
    return "I could not find an end to this.";
  }

  private say(
    chat: string,
    messages: object[],
    more: {
      idempotencyKey?: string;
      usage?: { model: string; inputTokens: bigint; outputTokens: bigint };
    } = {},
  ): Promise<BuildContextResponse> {
    return this.client.buildContext({
      sessionId: chat,
      append: { messagesJson: JSON.stringify(messages), format: MessageFormat.OPENAI, ...more },
      model: this.model,
      system: this.system,
      toolsJson: JSON.stringify(this.tools),
      format: MessageFormat.OPENAI,
      recallTool: true,
    });
  }

  private async run(call: ToolCall): Promise<object> {
    let content: string;
    try {
      content = await this.functions[call.function.name]!(JSON.parse(call.function.arguments));
    } catch (problem) {
      content = `Error: ${problem instanceof Error ? problem.message : problem}`;
    }
    return { role: "tool", tool_call_id: call.id, content };
  }
}
