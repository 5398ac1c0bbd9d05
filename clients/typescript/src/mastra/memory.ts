/**
 * Mastra's memory domain on memoird: threads are sessions, messages their turns, resources documents.
 *
 * Mastra's in-memory store filters, sorts and pages the data, so that results are the same as with its other stores.
 */

import { setTimeout as sleep } from "node:timers/promises";

import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import { InMemoryDB, InMemoryMemory, MemoryStorage } from "@mastra/core/storage";
import type {
  StorageCloneThreadInput,
  StorageCopyThreadOutput,
  StorageListMessagesByResourceIdInput,
  StorageListMessagesInput,
  StorageListMessagesOutput,
  StorageListThreadsInput,
  StorageListThreadsOutput,
  StorageResourceType,
} from "@mastra/core/storage";

import type { Client } from "../client.js";
import { SessionNotFound, StaleStateVersion } from "../errors.js";
import { SessionOrder } from "../gen/memoird/v1/session_pb.js";
import type { SessionInfo } from "../gen/memoird/v1/session_pb.js";
import { json } from "../kept.js";
import type { Window } from "../kept.js";
import { Documents, InOrder, TRIES_MAX } from "./documents.js";
import { storedIn } from "./messages.js";
import { Observations } from "./observations.js";
import { RESOURCE, Thread } from "./thread.js";
import type { About } from "./thread.js";

const PAGE = 1_000;
const ERASURE_MS_MAX = 60_000;
// Label of sessions that are threads.
const THREAD = "mastra";
// Namespaces of documents: the thread of a message by its id, and resources.
const MESSAGES = ["message"];
const RESOURCES = ["resource"];

/** How to store threads. */
export interface MemoryOptions {
  /** Prefix of thread ids in session ids. Default none. */
  prefix?: string | undefined;
  /** TTL of threads: one of the tenant's `ttl_classes`. Default `session_ttl`. */
  ttlClass?: string | undefined;
  /** If set, agents get the window of a thread within a token budget, instead of `lastMessages`. */
  window?: Window | undefined;
}

/** A thread as stored in the state of its session. */
interface Kept {
  mastra?: {
    /** In a list, because a merge patch replaces lists as a whole, including nulls. */
    thread?: [Omit<StorageThreadType, "createdAt" | "updatedAt"> & { createdAt: string }];
    updated?: string;
  };
}

type Input<Method extends keyof MemoryStorage> = MemoryStorage[Method] extends (input: infer I) => any ? I : never;

/** Threads, messages, resources and observations of Mastra. */
export class MemoirdMemory extends MemoryStorage {
  override readonly supportsPartialThreadUpdate = true;
  override readonly supportsObservationalMemory = true;
  private readonly documents: Documents;
  private readonly observations: Observations;
  private readonly prefix: string;
  /** Serializes writes of this process. Concurrent writes of other processes are detected by seqs. */
  private readonly writes = new InOrder();

  constructor(
    private readonly client: Client,
    private readonly options: MemoryOptions = {},
  ) {
    super();
    this.prefix = options.prefix ?? "";
    this.documents = new Documents(client, this.prefix);
    this.observations = new Observations(this.documents);
  }

  // Threads.

  async getThreadById(which: { threadId: string; resourceId?: string }): Promise<StorageThreadType | null> {
    const found = await this.found(which.threadId);
    const isOther = which.resourceId !== undefined && found?.thread.resourceId !== which.resourceId;
    return found && !isOther ? found.thread : null;
  }

  async saveThread({ thread }: { thread: StorageThreadType }): Promise<StorageThreadType> {
    const { updatedAt, ...rest } = thread;
    await this.client.updateSession({
      sessionId: this.prefix + thread.id,
      statePatchJson: json({ mastra: { thread: [rest], updated: updatedAt } }),
      allowMissing: true,
      ...this.about(thread.resourceId),
    });
    return thread;
  }

  async updateThread(change: {
    id: string;
    title?: string;
    metadata?: Record<string, unknown>;
  }): Promise<StorageThreadType> {
    for (let tries = 1; ; tries++) {
      const found = await this.found(change.id);
      if (!found) {
        throw new Error(`Thread with id ${change.id} not found`);
      }
      const thread = {
        ...found.thread,
        title: change.title ?? found.thread.title,
        metadata: { ...found.thread.metadata, ...change.metadata },
        updatedAt: new Date(Math.max(Date.now(), found.thread.updatedAt.getTime() + 1)),
      } as StorageThreadType;
      const { updatedAt, ...rest } = thread;
      try {
        await this.client.updateSession({
          sessionId: this.prefix + change.id,
          statePatchJson: json({ mastra: { thread: [rest], updated: updatedAt } }),
          expectedStateVersion: found.version,
        });
        return thread;
      } catch (error) {
        if (!(error instanceof StaleStateVersion) || tries === TRIES_MAX) {
          throw error;
        }
      }
    }
  }

  /** Erases the session of a thread. No hook is called, and no data of it stays on the daemon's disk. */
  async deleteThread({ threadId }: { threadId: string }): Promise<void> {
    const messages = await this.thread(threadId).messages();
    await this.erase(this.prefix + threadId);
    await this.documents.deleteAll(MESSAGES, messages.map(({ id }) => id));
  }

  async listThreads(args: StorageListThreadsInput): Promise<StorageListThreadsOutput> {
    const db = new InMemoryDB();
    for (const session of await this.sessions(args.filter?.resourceId)) {
      const thread = threadIn(session.stateJson);
      if (thread) {
        db.threads.set(thread.id, thread);
      }
    }
    return new InMemoryMemory({ db }).listThreads(args);
  }

  /** Copies messages under new ids. The copy becomes a thread once all of it is stored. */
  override async copyThread(args: StorageCloneThreadInput): Promise<StorageCopyThreadOutput> {
    const db = new InMemoryDB();
    for (const threadId of [args.sourceThreadId, args.newThreadId]) {
      const thread = threadId && (await this.getThreadById({ threadId }));
      if (thread) {
        db.threads.set(threadId, thread);
      }
    }
    await this.load(db, [args.sourceThreadId]);
    const copy = await new InMemoryMemory({ db }).copyThread(args);
    const { messages } = await new InMemoryMemory({ db }).listMessages({ threadId: copy.thread.id, perPage: false });
    await this.saveMessages({ messages });
    await this.saveThread({ thread: copy.thread });
    return copy;
  }

  // Messages.

  /** Adds messages. Existing messages with the same ids are replaced, even in another thread. */
  async saveMessages({ messages }: { messages: MastraDBMessage[] }): Promise<{ messages: MastraDBMessage[] }> {
    for (const { id, threadId, role } of messages) {
      if (!threadId) {
        throw new TypeError(`the message ${JSON.stringify(id)} (${role}) has no threadId: say which thread it is of`);
      }
    }
    const newest = [...new Map(messages.map((message) => [message.id, message])).values()];
    for (const [threadId, some] of grouped(newest, ({ threadId }) => threadId!)) {
      const ids = some.map(({ id }) => id);
      const places = await this.documents.getAll<string>(MESSAGES, ids, threadId);
      await this.put(threadId, some, places);
    }
    return { messages };
  }

  async updateMessages({ messages }: Parameters<MemoryStorage["updateMessages"]>[0]): Promise<MastraDBMessage[]> {
    const ids = messages.map(({ id }) => id);
    const places = await this.documents.getAll<string>(MESSAGES, ids);
    const db = new InMemoryDB();
    await this.load(db, places.values());
    const inMemory = new InMemoryMemory({ db });
    const known = (await inMemory.updateMessages({ messages })).map(({ id }) => db.messages.get(id)!);
    const updated = known.map(({ thread_id: threadId, resourceId, content, ...rest }) => ({
      ...rest,
      threadId,
      ...(resourceId && { resourceId }),
      content: JSON.parse(content),
    })) as MastraDBMessage[];
    for (const [threadId, some] of grouped(updated, ({ threadId }) => threadId!)) {
      await this.documents.getAll(MESSAGES, some.map(({ id }) => id), threadId);
      await this.put(threadId, some, places);
    }
    return updated;
  }

  /**
   * Rewinds messages: they leave all windows, summaries and searches, and the journal keeps them, marked as removed,
   * until retention. Messages followed by more than 256 turns are overwritten permanently instead, and windows say so.
   */
  override async deleteMessages(messageIds: string[]): Promise<void> {
    const places = await this.documents.getAll<string>(MESSAGES, messageIds);
    for (const [threadId, some] of grouped(places.keys(), (id) => places.get(id)!)) {
      await this.remove(threadId, some);
      await this.touch(threadId);
    }
    await this.documents.deleteAll(MESSAGES, [...places.keys()]);
  }

  async listMessages(args: StorageListMessagesInput): Promise<StorageListMessagesOutput> {
    const newest = await this.newest(args);
    if (newest) {
      return newest;
    }
    const threadIds = [args.threadId].flat().filter((id) => id.trim());
    const included = await this.documents.getAll<string>(MESSAGES, (args.include ?? []).map(({ id }) => id));
    const db = new InMemoryDB();
    await this.load(db, [...(args.perPage === 0 ? [] : threadIds), ...included.values()]);
    return new InMemoryMemory({ db }).listMessages(args);
  }

  override async listMessagesByResourceId(
    args: StorageListMessagesByResourceIdInput,
  ): Promise<StorageListMessagesOutput> {
    const db = new InMemoryDB();
    const sessions = await this.sessions(args.resourceId);
    await this.load(db, sessions.map(({ sessionId }) => sessionId.slice(this.prefix.length)));
    return new InMemoryMemory({ db }).listMessagesByResourceId(args);
  }

  async listMessagesById({ messageIds }: { messageIds: string[] }): Promise<{ messages: MastraDBMessage[] }> {
    const places = await this.documents.getAll<string>(MESSAGES, messageIds);
    const db = new InMemoryDB();
    await this.load(db, places.values());
    return new InMemoryMemory({ db }).listMessagesById({ messageIds });
  }

  // Resources.

  override async getResourceById({ resourceId }: { resourceId: string }): Promise<StorageResourceType | null> {
    const resource = await this.documents.get<StorageResourceType>(RESOURCES, resourceId);
    return resource ? dated(resource) : null;
  }

  override async saveResource({ resource }: { resource: StorageResourceType }): Promise<StorageResourceType> {
    await this.documents.put(RESOURCES, resource.id, resource);
    return resource;
  }

  override async updateResource(change: {
    resourceId: string;
    workingMemory?: string;
    metadata?: Record<string, unknown>;
  }): Promise<StorageResourceType> {
    const { resourceId: id, workingMemory, metadata } = change;
    const now = new Date();
    const resource = await this.documents.change<StorageResourceType>(RESOURCES, id, (there) => ({
      ...(there ?? { id, createdAt: now }),
      workingMemory: workingMemory ?? there?.workingMemory,
      metadata: { ...there?.metadata, ...metadata },
      updatedAt: now,
    }) as StorageResourceType);
    return dated(resource!);
  }

  // Observational memory.

  override async getObservationalMemory(threadId: string | null, resourceId: string) {
    return this.observations.newest(threadId, resourceId);
  }

  override async getObservationalMemoryHistory(...args: Parameters<MemoryStorage["getObservationalMemoryHistory"]>) {
    return this.observations.history(...args);
  }

  override async initializeObservationalMemory(input: Input<"initializeObservationalMemory">) {
    return this.observations.add((store) => store.initializeObservationalMemory(input));
  }

  override async insertObservationalMemoryRecord(record: Input<"insertObservationalMemoryRecord">) {
    return this.observations.insert(record);
  }

  override async clearObservationalMemory(threadId: string | null, resourceId: string) {
    return this.observations.clear(threadId, resourceId);
  }

  override async updateActiveObservations(input: Input<"updateActiveObservations">) {
    return this.observations.change(input.id, (store) => store.updateActiveObservations(input));
  }

  override async updateBufferedObservations(input: Input<"updateBufferedObservations">) {
    return this.observations.change(input.id, (store) => store.updateBufferedObservations(input));
  }

  override async swapBufferedToActive(input: Input<"swapBufferedToActive">) {
    return this.observations.change(input.id, (store) => store.swapBufferedToActive(input));
  }

  override async createReflectionGeneration(input: Input<"createReflectionGeneration">) {
    return this.observations.change(input.currentRecord.id, (store) => store.createReflectionGeneration(input));
  }

  override async updateBufferedReflection(input: Input<"updateBufferedReflection">) {
    return this.observations.change(input.id, (store) => store.updateBufferedReflection(input));
  }

  override async swapBufferedReflectionToActive(input: Input<"swapBufferedReflectionToActive">) {
    return this.observations.change(input.currentRecord.id, (store) => store.swapBufferedReflectionToActive(input));
  }

  override async setReflectingFlag(id: string, is: boolean) {
    return this.observations.change(id, (store) => store.setReflectingFlag(id, is));
  }

  override async setObservingFlag(id: string, is: boolean) {
    return this.observations.change(id, (store) => store.setObservingFlag(id, is));
  }

  override async setBufferingObservationFlag(id: string, is: boolean, lastBufferedAtTokens?: number) {
    return this.observations.change(id, (store) => store.setBufferingObservationFlag(id, is, lastBufferedAtTokens));
  }

  override async setBufferingReflectionFlag(id: string, is: boolean) {
    return this.observations.change(id, (store) => store.setBufferingReflectionFlag(id, is));
  }

  override async setPendingMessageTokens(id: string, tokenCount: number) {
    return this.observations.change(id, (store) => store.setPendingMessageTokens(id, tokenCount));
  }

  override async updateObservationalMemoryConfig(input: Input<"updateObservationalMemoryConfig">) {
    return this.observations.change(input.id, (store) => store.updateObservationalMemoryConfig(input));
  }

  async dangerouslyClearAll(): Promise<void> {
    for (const { sessionId } of await this.sessions()) {
      await this.erase(sessionId);
    }
    await this.documents.clear(MESSAGES);
    await this.documents.clear(RESOURCES);
    await this.observations.clearAll();
  }

  private thread(threadId: string): Thread {
    return new Thread(this.client, this.prefix + threadId, threadId);
  }

  /** Other fields of an append to a thread. */
  private about(resourceId: string | undefined): About {
    const labels: Record<string, string> = { [THREAD]: "thread" };
    if (resourceId) {
      labels[RESOURCE] = resourceId;
    }
    return { labels, ...(this.options.ttlClass && { ttlClass: this.options.ttlClass }) };
  }

  private async found(threadId: string): Promise<{ thread: StorageThreadType; version: bigint } | undefined> {
    try {
      const answer = await this.client.getSession({ sessionId: this.prefix + threadId, includeState: true });
      const { stateJson, stateVersion } = answer.session!;
      const thread = threadIn(stateJson);
      return thread && { thread, version: stateVersion };
    } catch (error) {
      if (error instanceof SessionNotFound) {
        return undefined;
      }
      throw error;
    }
  }

  /** Returns the sessions that are threads, of one resource or all, with their state. */
  private async sessions(resourceId?: string): Promise<SessionInfo[]> {
    const labels: Record<string, string> = { [THREAD]: "thread" };
    if (resourceId) {
      labels[RESOURCE] = resourceId;
    }
    const found: SessionInfo[] = [];
    let pageToken = "";
    do {
      const page = await this.client.listSessions({
        pageSize: PAGE,
        pageToken,
        includeState: true,
        idPrefix: this.prefix,
        labels,
        order: SessionOrder.ID,
      });
      // The prefix also matches sessions of a store with a longer prefix.
      found.push(...page.sessions.filter((session) => this.isOwn(session)));
      pageToken = page.nextPageToken;
    } while (pageToken);
    return found;
  }

  private isOwn({ sessionId, stateJson }: SessionInfo): boolean {
    const thread = threadIn(stateJson);
    return !thread || this.prefix + thread.id === sessionId;
  }

  /** Puts messages into a thread. `places` has the thread in which each message is stored now. */
  private async put(threadId: string, messages: MastraDBMessage[], places: ReadonlyMap<string, string>): Promise<void> {
    const resourceId = messages.find((message) => message.resourceId)?.resourceId;
    const statePatchJson = JSON.stringify({ mastra: { updated: new Date() } });
    const about = { ...this.about(undefined), subject: resourceId ?? "", statePatchJson };
    await this.writes.run(threadId, async () => {
      if (messages.some(({ id }) => places.get(id) === threadId)) {
        await this.thread(threadId).change(messages, new Set(), about);
        await this.touch(threadId);
      } else {
        await this.thread(threadId).append(messages, about);
      }
    });
    const moved = messages.filter(({ id }) => places.has(id) && places.get(id) !== threadId);
    for (const [from, some] of grouped(moved, ({ id }) => places.get(id)!)) {
      await this.remove(from, some.map(({ id }) => id));
      await this.touch(from);
    }
  }

  private async remove(threadId: string, ids: readonly string[]): Promise<void> {
    await this.writes.run(threadId, () => this.thread(threadId).change([], new Set(ids), {}));
  }

  /** Sets the thread's time of update to now. */
  private async touch(threadId: string): Promise<void> {
    const statePatchJson = JSON.stringify({ mastra: { updated: new Date() } });
    try {
      await this.client.updateSession({ sessionId: this.prefix + threadId, statePatchJson });
    } catch (error) {
      if (!(error instanceof SessionNotFound)) {
        throw error;
      }
    }
  }

  private async load(db: InMemoryDB, threadIds: Iterable<string>): Promise<void> {
    for (const threadId of new Set(threadIds)) {
      for (const message of await this.thread(threadId).messages()) {
        db.messages.set(message.id, {
          id: message.id,
          thread_id: threadId,
          content: JSON.stringify(message.content),
          role: message.role,
          type: message.type ?? "text",
          createdAt: message.createdAt,
          resourceId: message.resourceId ?? null,
        });
      }
    }
  }

  /** Returns the newest messages of a thread, if the arguments request only these without a total, as agents do. */
  private async newest(args: StorageListMessagesInput): Promise<StorageListMessagesOutput | undefined> {
    const { threadId, resourceId, perPage = 40, page = 0, orderBy } = args;
    const isAgents = args.includeTotal === false && page === 0 && orderBy?.direction === "DESC";
    if (!isAgents || typeof threadId !== "string" || args.include?.length || args.filter) {
      return undefined;
    }
    const isOwn = (message: MastraDBMessage) => !resourceId || message.resourceId === resourceId;
    const answer = (messages: MastraDBMessage[], hasMore: boolean) => ({
      messages: messages.reverse(),
      total: messages.length,
      page,
      perPage,
      hasMore,
    });
    // A request for a single message only checks whether there is any.
    if (this.options.window && perPage !== 1 && perPage !== 0) {
      return answer((await this.chosen(threadId, this.options.window)).filter(isOwn), false);
    }
    const messages = perPage ? await this.thread(threadId).newest(perPage) : undefined;
    return messages?.every(isOwn) && perPage
      ? answer(messages.slice(-perPage), messages.length > perPage)
      : undefined;
  }

  /** Returns the window of a thread as messages. */
  private async chosen(threadId: string, window: Window): Promise<MastraDBMessage[]> {
    try {
      const { turns, session, memoriesText } = await this.client.buildContext({
        ...window,
        sessionId: this.prefix + threadId,
      });
      const resourceId = session?.labels[RESOURCE] ?? session?.subject ?? "";
      const messages = storedIn(turns, threadId, resourceId).map(({ message }) => message);
      if (memoriesText) {
        messages.push({
          id: "memoird-memories",
          role: "user",
          createdAt: messages.at(-1)?.createdAt ?? new Date(),
          threadId,
          resourceId,
          content: { format: 2, parts: [{ type: "text", text: memoriesText }] },
        });
      }
      return messages;
    } catch (error) {
      if (error instanceof SessionNotFound) {
        return [];
      }
      throw error;
    }
  }

  private async erase(sessionId: string): Promise<void> {
    let { erasure } = await this.client.eraseSession({ sessionId });
    const { id } = erasure!;
    const ends = performance.now() + ERASURE_MS_MAX;
    for (let pause = 50; !erasure!.done; pause = Math.min(2 * pause, 1_000)) {
      if (performance.now() > ends) {
        throw new Error(`the erasure ${id} is still under way: ask getErasure for it`);
      }
      await sleep(pause);
      ({ erasure } = await this.client.getErasure({ id }));
    }
  }
}

function threadIn(stateJson: string): StorageThreadType | undefined {
  const { mastra } = JSON.parse(stateJson || "{}") as Kept;
  const thread = mastra?.thread?.[0];
  return thread && dated({ ...thread, updatedAt: mastra!.updated ?? thread.createdAt } as any);
}

function grouped<K, V>(values: Iterable<V>, keyOf: (value: V) => K): Map<K, V[]> {
  const groups = new Map<K, V[]>();
  for (const value of values) {
    const key = keyOf(value);
    const group = groups.get(key);
    if (group) {
      group.push(value);
    } else {
      groups.set(key, [value]);
    }
  }
  return groups;
}

function dated<T extends { createdAt: Date; updatedAt: Date }>(held: T): T {
  return { ...held, createdAt: new Date(held.createdAt), updatedAt: new Date(held.updatedAt) };
}
