/** The messages of one thread, stored as the turns of a session. */

import { createHash } from "node:crypto";

import { equals } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { MastraDBMessage } from "@mastra/core/memory";

import type { Client } from "../client.js";
import {
  GenerationNotFound,
  IdempotencyKeyReused,
  IdempotencyKeyRewound,
  SessionNotFound,
  StaleGeneration,
  StaleSeq,
} from "../errors.js";
import { PartSchema } from "../gen/memoird/v1/common_pb.js";
import type { Turn } from "../gen/memoird/v1/common_pb.js";
import { HistoryScope } from "../gen/memoird/v1/session_pb.js";
import type { AppendRequestSchema, SessionInfo } from "../gen/memoird/v1/session_pb.js";
import { batched, BYTES_MAX, bytesOf, TURNS_MAX } from "../kept.js";
import { TRIES_MAX } from "./documents.js";
import { redacted, storedIn, turnsOf } from "./messages.js";
import type { Stored } from "./messages.js";

/** Label with the resource of a thread. */
export const RESOURCE = "mastra.resource";
const PAGE = 1_000;

/** The other fields of an append. */
export type About = Omit<MessageInitShape<typeof AppendRequestSchema>, "turns" | "sessionId" | "$typeName">;

/** The messages read from a thread: all, or the newest. */
interface Read {
  session: SessionInfo;
  stored: Stored[];
  /** Seq of the newest turn read. The session may be newer. */
  lastSeq: bigint;
  isWhole: boolean;
}

/** The session of a thread. */
export class Thread {
  constructor(
    private readonly client: Client,
    private readonly sessionId: string,
    private readonly threadId: string,
  ) {}

  /** Returns all messages as they were saved. Empty if no session is live. */
  async messages(): Promise<MastraDBMessage[]> {
    return ((await this.readAll())?.stored ?? []).map(({ message }) => message);
  }

  /** Returns at least `count` of the newest messages as saved, or all. Undefined if they cannot be determined. */
  async newest(count: number): Promise<MastraDBMessage[] | undefined> {
    const read = await this.readNewest(Math.min(Math.max(4 * count, 16), PAGE));
    const messages = (read?.stored ?? []).map(({ message }) => message);
    const isSorted = messages.every((message, at) => at === 0 || messages[at - 1]!.createdAt <= message.createdAt);
    return !read || (isSorted && (read.isWhole || messages.length > count)) ? messages : undefined;
  }

  /**
   * Appends messages, atomically if they have up to 256 turns and 6 MiB. Messages that another process appends
   * concurrently are stored once.
   */
  async append(messages: readonly MastraDBMessage[], about: About): Promise<void> {
    if (!(await this.appendTurns(messages.map(turnsOf), about, true))) {
      await this.change(messages, new Set(), about);
    }
  }

  /**
   * Replaces messages by id, appends those that do not exist, and removes `removed`.
   *
   * Among the last 256 turns and 6 MiB, messages that are removed or get other steps are replaced atomically
   * (`RewindSession`). Before that, removed messages are overwritten in place (`UpdateTurn`), and messages with other
   * steps are appended at the end.
   */
  async change(messages: readonly MastraDBMessage[], removed: ReadonlySet<string>, about: About): Promise<void> {
    const byId = new Map(messages.map((it) => [it.id, it]));
    for (let [tries, isNew] = [1, true]; ; tries++) {
      try {
        if (await this.tryChange(byId, removed, about, isNew)) {
          return;
        }
        isNew = false;
      } catch (error) {
        const isStale = error instanceof StaleSeq || error instanceof StaleGeneration || error instanceof SessionNotFound;
        if (!isStale || tries === TRIES_MAX) {
          throw error;
        }
      }
    }
  }

  /** Returns false if the messages in `isNew` were appended before, so that they may be stored or removed. */
  private async tryChange(
    messages: ReadonlyMap<string, MastraDBMessage>,
    removed: ReadonlySet<string>,
    about: About,
    isNew: boolean,
  ): Promise<boolean> {
    const read = await this.readFor(new Set([...messages.keys(), ...removed]));
    const before = (read?.stored ?? []).map(({ turns, message: { id } }) => ({ id, turns }));
    const known = new Set(before.map(({ id }) => id));
    const after = before.map(({ id, turns }) => {
      const message = messages.get(id);
      return removed.has(id) ? [] : message ? changed(turns, message) : turns;
    });
    const added = [...messages.values()].filter(({ id }) => !known.has(id)).map(turnsOf);
    const now = { expectedSeq: read?.lastSeq ?? 0n, expectedGeneration: read?.session.generation ?? "" };
    if (!read || before.every(({ turns }, at) => fits(turns, after[at]!))) {
      if (!(await this.appendTurns(added, { ...about, ...now }, isNew))) {
        return false;
      }
      await this.update(before.map(({ turns }, at) => [turns, after[at]!]), now.expectedGeneration);
      return true;
    }
    let near = before.length;
    let turnsLeft = TURNS_MAX - added.flat().length;
    let bytesLeft = BYTES_MAX - bytesOf(added.flat());
    for (; near; near--) {
      turnsLeft -= after[near - 1]!.length;
      bytesLeft -= bytesOf(after[near - 1]!);
      if (turnsLeft < 0 || bytesLeft < 0) {
        break;
      }
    }
    const updates: [Turn[], Turn[]][] = [];
    const again: Turn[][] = [];
    for (const [at, { turns }] of before.slice(0, near).entries()) {
      const wanted = after[at]!;
      if (fits(turns, wanted)) {
        updates.push([turns, wanted]);
      } else {
        updates.push([turns, turns.map(redacted)]);
        again.push(wanted);
      }
    }
    // Append first, so that a later failure loses nothing.
    const first = before.findIndex(({ turns }, at) => at >= near && after[at] !== turns);
    if (first >= 0) {
      await this.client.rewindSession({
        sessionId: this.sessionId,
        afterSeq: before[first]!.turns[0]!.seq - 1n,
        turns: [...after.slice(first), ...added].flat(),
        ...now,
      });
    } else if (!(await this.appendTurns(added, { ...about, ...now }, isNew))) {
      return false;
    }
    await this.appendTurns(again, about);
    await this.update(updates, now.expectedGeneration);
    return true;
  }

  private async update(changes: [Turn[], Turn[]][], expectedGeneration: string): Promise<void> {
    for (const [before, after] of changes) {
      for (const [at, turn] of after.entries()) {
        const old = before[at]!;
        if (turn !== old && !isSame(turn, old)) {
          await this.client.updateTurn({ sessionId: this.sessionId, seq: old.seq, turn, expectedGeneration });
        }
      }
    }
  }

  /** Appends turns. New messages have an idempotency key derived from them. Returns false if it was used before. */
  private async appendTurns(groups: readonly Turn[][], about: About, isNew = false): Promise<boolean> {
    for (const [at, turns] of batched(groups).entries()) {
      const idempotencyKey = isNew ? keyOf(at, turns) : "";
      try {
        const { duplicate } = await this.client.append({ ...about, sessionId: this.sessionId, turns, idempotencyKey });
        if (isNew && duplicate) {
          return false;
        }
      } catch (error) {
        if (isNew && (error instanceof IdempotencyKeyReused || error instanceof IdempotencyKeyRewound)) {
          return false;
        }
        throw error;
      }
    }
    return true;
  }

  /** Returns the newest messages if they include all of these ids, otherwise all messages. */
  private async readFor(ids: ReadonlySet<string>): Promise<Read | undefined> {
    const read = await this.readNewest(TURNS_MAX);
    const found = new Set(read?.stored.map(({ message }) => message.id));
    const isEnough = !read || read.isWhole || [...ids].every((id) => found.has(id));
    return isEnough ? read : this.readAll();
  }

  private async readNewest(last: number): Promise<Read | undefined> {
    const page = await this.page({ last });
    if (!page?.session) {
      return undefined;
    }
    const isWhole = !page.previousBeforeSeq;
    const stored = this.stored(page.turns, page.session);
    // The first message may be incomplete.
    return { session: page.session, stored: isWhole ? stored : stored.slice(1), lastSeq: lastSeqOf(page.turns), isWhole };
  }

  private async readAll(): Promise<Read | undefined> {
    const turns: Turn[] = [];
    let session: SessionInfo | undefined;
    let afterSeq = 0n;
    do {
      const page = await this.page({ afterSeq, limit: PAGE, generation: session?.generation ?? "" });
      if (!page?.session) {
        return undefined;
      }
      turns.push(...page.turns);
      session = page.session;
      afterSeq = page.nextAfterSeq;
    } while (afterSeq);
    return { session, stored: this.stored(turns, session), lastSeq: lastSeqOf(turns), isWhole: true };
  }

  /** Returns a page of a live session. The history of an ended one is only in the journal. */
  private async page(which: { last?: number; afterSeq?: bigint; limit?: number; generation?: string }) {
    try {
      return await this.client.getHistory({ sessionId: this.sessionId, scope: HistoryScope.LONGEST, ...which });
    } catch (error) {
      if (error instanceof SessionNotFound || error instanceof GenerationNotFound) {
        return undefined;
      }
      throw error;
    }
  }

  private stored(turns: Turn[], session: SessionInfo): Stored[] {
    return storedIn(turns, this.threadId, session.labels[RESOURCE] ?? session.subject);
  }
}

/** Idempotency key of an append of these messages, the same in all processes. */
function keyOf(at: number, turns: readonly Turn[]): string {
  const ids = [...new Set(turns.map(({ clientId }) => clientId))];
  return createHash("sha256").update(JSON.stringify([at, ids])).digest("hex");
}

function lastSeqOf(turns: readonly Turn[]): bigint {
  return turns.at(-1)?.seq ?? 0n;
}

/** Returns the turns that replace those of a message: the same array if nothing changed. */
function changed(turns: Turn[], message: MastraDBMessage): Turn[] {
  const wanted = turnsOf(message).map((turn, at) => ({ ...turn, pinned: turns[at]?.pinned ?? false }));
  return fits(turns, wanted) && wanted.every((turn, at) => isSame(turn, turns[at]!)) ? turns : wanted;
}

/** Whether turns can replace others one by one with `UpdateTurn`. */
function fits(before: readonly Turn[], after: readonly Turn[]): boolean {
  return (
    before.length === after.length &&
    before.every((turn, at) => turn.role === after[at]!.role && links(turn) === links(after[at]!))
  );
}

function links({ parts }: Turn): string {
  const ids = parts.map(({ part }) => {
    const id = part.case === "toolUse" ? part.value.id : part.case === "toolResult" ? part.value.toolUseId : undefined;
    return id && [part.case, id, part.case === "toolUse" ? part.value.name : ""];
  });
  return JSON.stringify(ids.filter(Boolean));
}

function isSame(one: Turn, other: Turn): boolean {
  return (
    one.clientId === other.clientId &&
    one.clientJson === other.clientJson &&
    one.timestamp?.seconds === other.timestamp?.seconds &&
    one.timestamp?.nanos === other.timestamp?.nanos &&
    one.parts.length === other.parts.length &&
    one.parts.every((part, at) => equals(PartSchema, part, other.parts[at]!))
  );
}
