/**
 * The memory of Vercel's AI SDK: `saveChat` and `loadChat` of its UI messages, `chooseChat` for the model, and
 * `windowPerStep` for runs of several model calls.
 *
 * The parts of turns contain what the AI SDK sends to models: texts, reasoning, files, calls of tools and their results.
 * So memoird counts it. The rest of a message is the `client_json` of its first turn.
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

/** Returns the messages of a chat, as saved in the newest generation of its session, also if that has ended. */
export async function loadChat<M extends UiMessage>(client: Client, chatId: string): Promise<M[]> {
  return messagesOf<M>((await readChat(client, chatId)).turns);
}

/**
 * Returns the messages of a chat's window for the next model call, within the budget of `window`. Returns none if no
 * session is live.
 *
 * Call it after `saveChat`, and pass the result to `convertToModelMessages`. A message that the window has as it was
 * saved comes back equal. Of a message that is shown in part or in other words only id and role are as saved. A call of a
 * tool that was never answered has a note as its result, so that the AI SDK accepts the messages. Messages that memoird
 * or another client made have an id that begins with `memoird-`. Instructions and tools are not part of the window: set
 * `overheadTokens` for them.
 */
export async function chooseChat<M extends UiMessage>(client: Client, chatId: string, window: Window = {}): Promise<M[]> {
  try {
    return chosenIn(await client.getContext({ ...window, sessionId: chatId })) as M[];
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
 * Appends new messages, and keeps messages that another tab saved in the meantime. Takes stored messages back, together
 * with those that were saved after them:
 * - if the list contains a message with the same id and other contents, or in another order,
 * - if the list contains another answer to the same message,
 * - if the list contains nothing new and ends earlier.
 *
 * Replaces up to 256 turns and 6 MiB in one step. Throws `errors.StaleSeq` or `errors.StaleGeneration` if another call
 * saves during a replacement: load the chat again then.
 */
export async function saveChat(client: Client, chatId: string, messages: readonly UiMessage[]): Promise<void> {
  await writeChat(client, chatId, messages);
}
