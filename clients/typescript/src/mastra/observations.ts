/**
 * Mastra's observational memory: a document for each record, and one with the order of a thread's or resource's
 * records.
 *
 * Mastra's in-memory store applies changes to a record, which is loaded into it before and read from it afterwards.
 */

import { InMemoryDB, InMemoryMemory } from "@mastra/core/storage";
import type { ObservationalMemoryHistoryOptions, ObservationalMemoryRecord } from "@mastra/core/storage";

import type { Documents } from "./documents.js";

const [ORDERS, RECORDS] = [["observed"], ["observation"]];

/** Ids of a thread's or resource's records, newest first. */
interface Order {
  ids: string[];
}

/** A record and its owner. */
interface Held {
  key: string;
  record: ObservationalMemoryRecord;
}

/** The records of all threads and resources. */
export class Observations {
  constructor(private readonly documents: Documents) {}

  async newest(threadId: string | null, resourceId: string): Promise<ObservationalMemoryRecord | null> {
    const order = await this.documents.get<Order>(ORDERS, keyOf(threadId, resourceId));
    const id = order?.ids[0];
    const held = id === undefined ? undefined : await this.documents.get<Held>(RECORDS, id);
    return held ? dated(held.record) : null;
  }

  async history(
    threadId: string | null,
    resourceId: string,
    limit?: number,
    options?: ObservationalMemoryHistoryOptions,
  ): Promise<ObservationalMemoryRecord[]> {
    const key = keyOf(threadId, resourceId);
    const { db, store } = inMemory(key, await this.all(await this.documents.get<Order>(ORDERS, key)));
    return db.observationalMemory.size ? store.getObservationalMemoryHistory(threadId, resourceId, limit, options) : [];
  }

  /** Runs an operation that makes a record, and stores the record. */
  async add<T>(work: (store: InMemoryMemory) => Promise<T>): Promise<T> {
    const { db, store } = inMemory("", []);
    const answer = await work(store);
    await this.keep(db, undefined);
    return answer;
  }

  /** Runs an operation on one record, which may make another one. */
  async change<T>(id: string, work: (store: InMemoryMemory) => Promise<T>): Promise<T> {
    let answer: T;
    let db = new InMemoryDB();
    await this.documents.change<Held>(RECORDS, id, async (there) => {
      const made = inMemory(there?.key ?? "", there ? [dated(there.record)] : []);
      db = made.db;
      answer = await work(made.store);
      const record = there && db.observationalMemory.get(there.key)?.find((one) => one.id === id);
      return record && { key: there.key, record };
    });
    await this.keep(db, id);
    return answer!;
  }

  /** Inserts a record at the position of its generation. */
  async insert(record: ObservationalMemoryRecord): Promise<void> {
    const key = keyOf(record.threadId, record.resourceId);
    await this.documents.put(RECORDS, record.id, { key, record });
    await this.documents.change<Order>(ORDERS, key, async (there) => {
      const { db, store } = inMemory(key, await this.all(there));
      await store.insertObservationalMemoryRecord(record);
      return { ids: db.observationalMemory.get(key)!.map(({ id }) => id) };
    });
  }

  async clear(threadId: string | null, resourceId: string): Promise<void> {
    const key = keyOf(threadId, resourceId);
    const order = await this.documents.get<Order>(ORDERS, key);
    await this.documents.delete(ORDERS, key);
    await this.documents.deleteAll(RECORDS, order?.ids ?? []);
  }

  async clearAll(): Promise<void> {
    await this.documents.clear(ORDERS);
    await this.documents.clear(RECORDS);
  }

  /** Stores the records made in addition to the one with this id. */
  private async keep(db: InMemoryDB, id: string | undefined): Promise<void> {
    for (const [key, records] of db.observationalMemory) {
      const added = records.filter((record) => record.id !== id);
      for (const record of added) {
        await this.documents.put(RECORDS, record.id, { key, record });
      }
      if (added.length) {
        const ids = added.map((record) => record.id);
        await this.documents.change<Order>(ORDERS, key, (there) => ({ ids: [...ids, ...(there?.ids ?? [])] }));
      }
    }
  }

  private async all(order: Order | undefined): Promise<ObservationalMemoryRecord[]> {
    const ids = order?.ids ?? [];
    const held = await this.documents.getAll<Held>(RECORDS, ids);
    return ids.flatMap((id) => held.get(id) ?? []).map(({ record }) => dated(record));
  }
}

function inMemory(key: string, records: ObservationalMemoryRecord[]): { db: InMemoryDB; store: InMemoryMemory } {
  const db = new InMemoryDB();
  if (records.length) {
    db.observationalMemory.set(key, records);
  }
  return { db, store: new InMemoryMemory({ db }) };
}

/** Key of the owner, as in Mastra's in-memory store. */
function keyOf(threadId: string | null, resourceId: string): string {
  return threadId ? `thread:${threadId}` : `resource:${resourceId}`;
}

function dated(record: ObservationalMemoryRecord): ObservationalMemoryRecord {
  const date = (value: Date | null | undefined) => (value ? new Date(value) : value);
  return {
    ...record,
    createdAt: new Date(record.createdAt),
    updatedAt: new Date(record.updatedAt),
    lastObservedAt: date(record.lastObservedAt) ?? undefined,
    lastBufferedAtTime: date(record.lastBufferedAtTime) ?? null,
    ...(record.bufferedObservationChunks && {
      bufferedObservationChunks: record.bufferedObservationChunks.map((chunk) => ({
        ...chunk,
        createdAt: new Date(chunk.createdAt),
        lastObservedAt: new Date(chunk.lastObservedAt),
      })),
    }),
  } as ObservationalMemoryRecord;
}
