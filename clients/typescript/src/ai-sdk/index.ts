/**
 * The memory of Vercel's AI SDK: `saveChat` and `loadChat` of its UI messages, `chooseChat` for the model, and
 * `windowPerStep` for runs of several model calls.
 *
 * The parts of turns contain what the AI SDK sends to models: texts, reasoning, files, calls of tools and their results.
 * So memoird counts it. The rest of a message is the `client_json` of its first turn.
 */

import type { Client } from "../client.js";
import { SessionNotFound } from "../errors.js";
import { json } from "../kept.js";
import type { Window } from "../kept.js";
import { misfit } from "../misfit.js";
import { readChat, writeChat } from "./chat.js";
import { chosenIn, messagesOf, ROLES } from "./messages.js";
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
 * New messages are appended. Messages that another tab saved in the meantime stay, and keep their place. Taken back
 * are, together with the messages that were saved after them:
 * - messages that the list has with other contents, or in another order,
 * - messages after the last one of the list, if the list has nothing new,
 * - an answer, if the list has another one in its place.
 *
 * Up to 256 turns and 6 MiB are replaced in one step. Throws `errors.StaleSeq` or `errors.StaleGeneration` if messages
 * have to be taken back and another call saved concurrently; load the chat again then.
 */
export async function saveChat(client: Client, chatId: string, messages: readonly UiMessage[]): Promise<void> {
  // As they come back: without what JSON does not have.
  const wanted = JSON.parse(json(messages)) as UiMessage[];
  check(wanted);
  await writeChat(client, chatId, wanted);
}

/** Rejects what is not a list of messages with an id each. */
function check(messages: UiMessage[]): void {
  if (!Array.isArray(messages)) {
    throw misfit("messages", "takes a list of UI messages");
  }
  const ids = new Set<string>();
  for (const [at, message] of messages.entries()) {
    if (!Array.isArray(message?.parts)) {
      throw misfit(`messages[${at}].parts`, "takes a list of parts");
    }
    if (!Object.hasOwn(ROLES, message.role)) {
      throw misfit(`messages[${at}].role`, `takes ${Object.keys(ROLES).join(", ")}, not ${JSON.stringify(message.role)}`);
    }
    if (typeof message.id !== "string" || ids.has(message.id)) {
      throw misfit(`messages[${at}].id`, "takes a text that no other message has");
    }
    ids.add(message.id);
  }
}
