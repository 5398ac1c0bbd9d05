/** Saves each step of a run and returns the window for the next one: a `prepareStep` of the AI SDK. */

import type { Client } from "../client.js";
import { StaleGeneration } from "../errors.js";
import type { Turn } from "../gen/memoird/v1/common_pb.js";
import type { BuildContextResponse } from "../gen/memoird/v1/session_pb.js";
import { batched, json } from "../kept.js";
import type { Window } from "../kept.js";
import { writeChat } from "./chat.js";
import { AFTER, chosenIn, isAnswered, isSameTurn, turnsOf } from "./messages.js";
import type { Fields, UiMessage } from "./messages.js";

/** A chat with a run of several steps. */
export interface ChatRun<M extends UiMessage, S> {
  /** The messages of the chat with the newest one, as for `saveChat`. */
  originalMessages: readonly M[];
  /**
   * Id of the answer, as returned by `generateMessageId` of `toUIMessageStreamResponse`. Ignored if the last message is
   * the assistant's: then the answer continues that message.
   */
  messageId: string;
  /** Converts a window: `(messages) => convertToModelMessages(messages, { tools })`. */
  convert: (messages: M[]) => S[] | PromiseLike<S[]>;
  /** Default: the window of the default model. */
  window?: Window | undefined;
}

/** Argument of `prepareStep`. */
export interface NextStep {
  steps: readonly { content: readonly { type: string }[] }[];
  messages: readonly { role: string; content: unknown }[];
}

/**
 * Returns a `prepareStep` for `streamText`, `generateText` and `ToolLoopAgent`, to use for one run.
 *
 * Before each model call it saves the messages and the steps so far, and replaces the messages of the call by the
 * window of the chat. So each call stays within the budget of `window`, regardless of the number of steps, and
 * `saveChat` is needed only after the run. Throws the errors of `saveChat` and `chooseChat`.
 */
export function windowPerStep<M extends UiMessage, S>(
  client: Client,
  chatId: string,
  { originalMessages, messageId, convert, window = {} }: ChatRun<M, S>,
): (next: NextStep) => Promise<{ messages: S[] }> {
  const last = originalMessages.at(-1);
  const continued = last?.role === "assistant" ? last : undefined;
  const before = continued ? originalMessages.slice(0, -1) : originalMessages;
  let saved: { turns: Turn[]; generation: string } | undefined;

  return async ({ steps, messages }) => {
    const answer = answerSoFar(continued ?? { id: messageId, role: "assistant", parts: [] }, steps, messages);
    const turns = answer.parts.length ? turnsOf(answer) : [];
    if (turns[0] && !continued && last) {
      turns[0].metadata[AFTER] = last.id;
    }
    let reply: BuildContextResponse | undefined;
    if (saved?.turns.every((turn, at) => isSameTurn(turns[at], turn))) {
      const more = turns.slice(saved.turns.length);
      if (more[0]) {
        more[0].clientJson = turns[0]!.clientJson;
      }
      reply = await appendAndChoose(client, chatId, more, saved.generation, window);
    }
    if (!reply) {
      const all = answer.parts.length ? [...before, answer] : before;
      await writeChat(client, chatId, all, { isRun: true });
      reply = await client.buildContext({ ...window, sessionId: chatId });
    }
    saved = { turns, generation: reply.session!.generation };
    return { messages: await convert(chosenIn(reply) as M[]) };
  };
}

/**
 * Appends turns and returns the window, in one call if the turns fit. Returns undefined if the generation has ended.
 */
async function appendAndChoose(
  client: Client,
  chatId: string,
  turns: Turn[],
  expectedGeneration: string,
  window: Window,
): Promise<BuildContextResponse | undefined> {
  const batches = batched([turns]).map((some) => ({ turns: some, expectedGeneration }));
  const append = batches.pop();
  try {
    for (const batch of batches) {
      await client.append({ ...batch, sessionId: chatId });
    }
    return await client.buildContext({ ...window, sessionId: chatId, ...(append && { append }) });
  } catch (error) {
    if (error instanceof StaleGeneration) {
      return undefined;
    }
    throw error;
  }
}

/** Adds the parts of the steps to the answer, in the form of the AI SDK's stream of UI messages. */
function answerSoFar(begun: UiMessage, steps: NextStep["steps"], sent: NextStep["messages"]): UiMessage {
  const parts: Fields[] = begun.parts.map((part) => ({ ...part }));
  const calls = new Map(parts.filter((part) => "toolCallId" in part).map((part) => [part.toolCallId, part]));
  // Calls approved by the user are executed before the first step, so only the messages have their results.
  for (const { type, toolCallId, output } of sent.flatMap(piecesOf)) {
    const call = calls.get(toolCallId);
    if (type === "tool-result" && call && !isAnswered(call)) {
      Object.assign(call, resultIn(output as Fields));
    }
  }
  for (const { content } of steps) {
    parts.push({ type: "step-start" });
    for (const piece of content as readonly Fields[]) {
      const known = calls.get(piece.toolCallId);
      const part = partIn(piece, known);
      if (known && part) {
        Object.assign(known, part);
      } else if (part) {
        parts.push(part);
        if (piece.type === "tool-call") {
          calls.set(piece.toolCallId, part);
        }
      }
    }
  }
  return { ...begun, parts: JSON.parse(json(parts)) as UiMessage["parts"] };
}

function piecesOf({ role, content }: NextStep["messages"][number]): Fields[] {
  return role === "tool" && Array.isArray(content) ? (content as Fields[]) : [];
}

/**
 * Returns the part for a piece of a step's content, or the changed fields of its call. Undefined if no model reads it.
 */
function partIn(piece: Fields, call: Fields | undefined): Fields | undefined {
  const { providerMetadata, toolCallId } = piece;
  const metadata = providerMetadata == null ? {} : { providerMetadata };
  switch (piece.type) {
    case "text":
    case "reasoning":
      return { type: piece.type, text: piece.text, state: "done", ...metadata };
    case "custom":
      return { type: piece.type, kind: piece.kind, ...metadata };
    case "file":
    case "reasoning-file": {
      const { mediaType, base64 } = piece.file as { mediaType: string; base64: string };
      return { type: piece.type, mediaType, url: `data:${mediaType};base64,${base64}`, ...metadata };
    }
    case "tool-call":
      return {
        ...(piece.dynamic ? { type: "dynamic-tool", toolName: piece.toolName } : { type: `tool-${piece.toolName}` }),
        toolCallId,
        state: "input-available",
        input: piece.input,
        ...(piece.providerExecuted === true && { providerExecuted: true }),
        ...(providerMetadata != null && { callProviderMetadata: providerMetadata }),
      };
    case "tool-result":
      return call && { state: "output-available", output: piece.output };
    case "tool-error":
      return call && { state: "output-error", errorText: textOfError(piece.error) };
    default:
      return undefined;
  }
}

/** Returns the result of an executed call in the form sent to the model. */
function resultIn(output: Fields): Fields {
  switch (output.type) {
    case "error-text":
    case "error-json":
      return { state: "output-error", errorText: textOfError(output.value) };
    case "execution-denied":
      return { state: "output-denied" };
    case "content":
      return { state: "output-available", output: { content: (output.value as Fields[]).map(mcpContentOf) } };
    default:
      return { state: "output-available", output: output.value };
  }
}

/** Converts content of a result back to content of an MCP result, from which the AI SDK made it. */
function mcpContentOf(content: Fields): Fields {
  return "data" in content ? { type: "image", data: content.data, mimeType: content.mediaType } : content;
}

/** Returns the text that the AI SDK sends for the error of a tool. */
function textOfError(error: unknown): string {
  if (error == null) {
    return "unknown error";
  }
  if (typeof error === "string") {
    return error;
  }
  return error instanceof Error ? error.message : JSON.stringify(error);
}
