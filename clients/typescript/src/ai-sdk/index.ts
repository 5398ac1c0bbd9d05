/**
 * The memory of Vercel's AI SDK: `saveChat` and `loadChat` of its UI messages, `chooseChat` for the model, and
 * `windowPerStep` for runs of several model calls.
 *
 * Turns contain the content that the AI SDK sends to models: texts, reasoning, files, tool calls and their results. So
 * memoird counts it. The rest of a message is the `client_json` of its first turn.
 */

import type { Client } from "../client.js";
import { SessionNotFound } from "../errors.js";
import type { Window } from "../kept.js";
import { readChat, writeChat } from "./chat.js";
import { chosenIn, messagesOf } from "./messages.js";
import type { UiMessage } from "./messages.js";

export type { Window } from "../kept.js";
export type { UiMessage } from "./messages.js";
export { windowPerStep } from "./steps.js";
export type { ChatRun, NextStep } from "./steps.js";

/** Returns the messages of a chat as they were saved in the newest generation of its session, even if it has ended. */
export async function loadChat<M extends UiMessage>(client: Client, chatId: string): Promise<M[]> {
  return messagesOf<M>((await readChat(client, chatId)).turns);
}

/**
 * Returns the messages of a chat's window for the next model call, within the budget of `window`. Returns none if no
 * session is live.
 *
 * Call it after `saveChat`, and pass the result to `convertToModelMessages`. A message that the window contains
 * unchanged is equal to the saved one. If the window omits or changes content of a message, only its id and role are as
 * saved. A tool call without a result gets a note as its result, so that the AI SDK accepts the messages. Messages made
 * by memoird or another client have an id with the prefix `memoird-`. Instructions and tools are not part of the
 * window: set `overheadTokens` for them.
 */
export async function chooseChat<M extends UiMessage>(client: Client, chatId: string, window: Window = {}): Promise<M[]> {
  try {
    return chosenIn(await client.buildContext({ ...window, sessionId: chatId })) as M[];
  } catch (error) {
    if (error instanceof SessionNotFound) {
      return [];
    }
    throw error;
  }
}

/**
 * Saves the messages of a chat.
 *
 * Appends new messages, and keeps messages that another tab saved in the meantime. Removes stored messages, together
 * with those that were saved after them, if the list
 * - contains a message with the same id and other contents, or in another order,
 * - contains another answer to the same message,
 * - contains nothing new and ends earlier.
 *
 * Replaces up to 256 turns and 6 MiB in one step. Throws `errors.StaleSeq` or `errors.StaleGeneration` if another call
 * saves during a replacement: load the chat again then.
 */
export async function saveChat(client: Client, chatId: string, messages: readonly UiMessage[]): Promise<void> {
  await writeChat(client, chatId, messages);
}
