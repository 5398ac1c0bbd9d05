/** Reads the messages of chats, and appends or rewinds turns to match a changed list of messages. */

import { isDeepStrictEqual } from "node:util";

import type { Client } from "../client.js";
import { GenerationNotFound, SessionNotFound, StaleGeneration, StaleSeq } from "../errors.js";
import type { Turn } from "../gen/memoird/v1/common_pb.js";
import { HistoryScope } from "../gen/memoird/v1/session_pb.js";
import { batched, json } from "../kept.js";
import { misfit } from "../misfit.js";
import { AFTER, byMessage, ID, isSameTurn, messagesOf, ROLES, turnsOf } from "./messages.js";
import type { UiMessage } from "./messages.js";

// Maximum number of tries of a save. Each failed one means that another save of the chat succeeded.
const TRIES_MAX = 100;

/** The stored turns of a chat and the position of its session. Without a live session, `generation` is empty. */
export interface StoredChat {
  turns: Turn[];
  lastSeq: bigint;
  generation: string;
}

/** Reads a chat: the turns of its newest generation, even if it has ended. */
export async function readChat(client: Client, chatId: string): Promise<StoredChat> {
  const turns: Turn[] = [];
  let [afterSeq, lastSeq, generation] = [0n, 0n, ""];
  try {
    do {
      const page = await client.getHistory({
        sessionId: chatId,
        generation,
        scope: HistoryScope.LONGEST,
        afterSeq,
      });
      turns.push(...page.turns.filter((turn) => ID in turn.metadata));
      // `page.session` may be newer than the turns of the page.
      lastSeq = page.turns.at(-1)?.seq ?? lastSeq;
      generation = page.session?.generation ?? generation;
      afterSeq = page.nextAfterSeq;
    } while (afterSeq);
  } catch (error) {
    // Without a journal, a session that has ended is unknown.
    if (!(error instanceof GenerationNotFound || error instanceof SessionNotFound)) {
      throw error;
    }
  }
  return { turns, lastSeq: generation ? lastSeq : 0n, generation };
}

/**
 * Saves the messages of a chat. During a run, keeps user messages after the last one in the list, because they are
 * newer.
 *
 * Appends new messages after those that other calls save concurrently. Throws `StaleSeq` or `StaleGeneration` if
 * another call saves while stored messages are replaced.
 */
export async function writeChat(
  client: Client,
  chatId: string,
  messages: readonly UiMessage[],
  { isRun = false } = {},
): Promise<void> {
  // As they are loaded again: without values that JSON cannot represent.
  const wanted = JSON.parse(json(messages)) as UiMessage[];
  check(wanted);
  for (let tries = 1; ; tries += 1) {
    const chat = await readChat(client, chatId);
    // A generation that has ended is not continued.
    const change = changeOf(wanted, chat.generation ? chat.turns : [], isRun);
    try {
      await apply(client, chatId, chat, change);
      return;
    } catch (error) {
      const isStale = error instanceof StaleSeq || error instanceof StaleGeneration;
      if (!isStale || change.afterSeq !== undefined || tries === TRIES_MAX) {
        throw error;
      }
    }
  }
}

/** Throws unless the argument is a list of messages with distinct ids. */
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

/** Turns to append, after removing turns with a seq above `afterSeq`. */
interface Change {
  afterSeq?: bigint;
  turns: Turn[];
}

async function apply(client: Client, chatId: string, chat: StoredChat, { afterSeq, turns }: Change): Promise<void> {
  let { lastSeq, generation } = chat;
  let rest = turns;
  if (afterSeq !== undefined) {
    const first = batched([turns])[0] ?? [];
    const { session } = await client.rewindSession({
      sessionId: chatId,
      afterSeq,
      turns: first,
      expectedSeq: lastSeq,
      expectedGeneration: generation,
    });
    lastSeq = session!.lastSeq;
    rest = turns.slice(first.length);
  }
  for (const some of batched([rest])) {
    const appended = await client.append({
      sessionId: chatId,
      turns: some,
      expectedSeq: lastSeq,
      expectedGeneration: generation,
    });
    lastSeq = appended.lastSeq;
    generation = appended.session!.generation;
  }
}

/**
 * Returns the change that makes the chat contain the list of messages.
 *
 * Each message has a parent: the message before it in the list that it was saved with. So the stored messages form a
 * tree, and a list is one path in it. Messages saved by another tab are on other paths and stay.
 */
function changeOf(wanted: readonly UiMessage[], stored: Turn[], isRun: boolean): Change {
  const tree = new Tree(stored);
  const fresh = wanted.findIndex((message, at) => !tree.has(message, wanted[at - 1]?.id));
  let added = fresh < 0 ? [] : wanted.slice(fresh);
  const tip = (fresh < 0 ? wanted : wanted.slice(0, fresh)).at(-1)?.id ?? "";
  const [first] = added;
  const grown = first && !added.slice(1).some(({ id }) => tree.turns.has(id)) ? tree.growth(first, tip) : [];
  if (grown.length) {
    added = added.slice(1);
  }
  const removed = grown.length ? new Set<string>() : tree.replaced(tip, added, isRun);
  const from = startOf(stored, removed);
  const stays = stored.slice(0, from);
  const moved = stored.slice(from).filter((turn) => !removed.has(turn.metadata[ID]!));
  const turns = [...moved, ...grown, ...added.flatMap(turnsOf)];
  const parent = grown.length ? first!.id : tip;
  const before = [...byMessage([...stays, ...moved]).keys()].at(-1) ?? "";
  if (before !== parent) {
    turns.filter((turn) => turn.metadata[ID] === added[0]?.id).forEach((turn) => (turn.metadata[AFTER] = parent));
  }
  return from < stored.length ? { afterSeq: stored[from]!.seq - 1n, turns } : { turns };
}

/** Index of the first turn to rewind so that these messages are removed and no other message is split. */
function startOf(stored: readonly Turn[], removed: ReadonlySet<string>): number {
  let moved = removed;
  for (let from = stored.length; ; ) {
    const start = stored.findIndex((turn) => moved.has(turn.metadata[ID]!));
    if (start < 0 || start === from) {
      return from;
    }
    from = start;
    moved = new Set(stored.slice(from).map((turn) => turn.metadata[ID]!));
  }
}

/** The stored messages of a chat as a tree. The parent of a root is "". */
class Tree {
  readonly turns: Map<string, Turn[]>;
  private readonly messages: Map<string, UiMessage>;
  private readonly parents = new Map<string, string>();

  constructor(stored: Turn[]) {
    this.turns = byMessage(stored);
    this.messages = new Map(messagesOf(stored).map((message) => [message.id, message]));
    let before = "";
    for (const [id, [first]] of this.turns) {
      this.parents.set(id, first!.metadata[AFTER] ?? before);
      before = id;
    }
  }

  /** Whether an equal message is stored after this parent. */
  has(message: UiMessage, parent = ""): boolean {
    return this.parents.get(message.id) === parent && isDeepStrictEqual(this.messages.get(message.id), message);
  }

  /**
   * Returns the missing turns of a stored message that has only grown. The first has the other fields of the message.
   */
  growth(message: UiMessage, parent: string): Turn[] {
    const stored = this.turns.get(message.id) ?? [];
    const turns = turnsOf(message);
    const isPrefix = stored.every((turn, at) => isSameTurn(turns[at], turn));
    if (this.parents.get(message.id) !== parent || !isPrefix) {
      return [];
    }
    const more = turns.slice(stored.length);
    if (more.length) {
      more[0]!.clientJson = turns[0]!.clientJson;
    }
    return more;
  }

  /** Ids of the stored messages that a list replaces, if it is the same up to `tip` and continues with `added`. */
  replaced(tip: string, added: readonly UiMessage[], isRun: boolean): Set<string> {
    const [first] = added;
    const isLeftOut = (id: string) => {
      const isAnswer = this.messages.get(id)?.role === "assistant";
      return first ? isAnswer && first.role === "assistant" : isAnswer || !isRun;
    };
    const changed = new Set(added.map(({ id }) => id));
    const roots = new Set<string>();
    // The child of `tip` that each message descends from. A parent is stored before its children.
    const branches = new Map<string, string>();
    for (const [id, parent] of this.parents) {
      const branch = parent === tip ? id : branches.get(parent);
      if (branch !== undefined) {
        branches.set(id, branch);
      }
      if (changed.has(id)) {
        roots.add(branch ?? id);
      } else if (parent === tip && isLeftOut(id)) {
        roots.add(id);
      }
    }
    const replaced = new Set<string>();
    for (const [id, parent] of this.parents) {
      if (roots.has(id) || replaced.has(parent)) {
        replaced.add(id);
      }
    }
    return replaced;
  }
}
