/** Stores Mastra's data that belongs to no session, as JSON documents. */

import { isDeepStrictEqual } from "node:util";

import type { Client } from "../client.js";
import { DocumentNotFound, StaleVersion, Unavailable } from "../errors.js";
import type { DocumentResult } from "../gen/memoird/v1/document_pb.js";
import { json } from "../kept.js";

/** Maximum number of tries of a change. Each failed one means that a concurrent change succeeded. */
export const TRIES_MAX = 64;
const PAGE = 1_000;
const OPERATIONS_MAX = 256;

/** Serializes work by name. Work of different names runs concurrently. */
export class InOrder {
  private readonly last = new Map<string, Promise<unknown>>();

  async run<T>(name: string, work: () => Promise<T>): Promise<T> {
    const before = this.last.get(name) ?? Promise.resolve();
    const mine = before.catch(() => undefined).then(work);
    this.last.set(name, mine);
    try {
      return await mine;
    } finally {
      if (this.last.get(name) === mine) {
        this.last.delete(name);
      }
    }
  }
}

/** Documents below one namespace. */
export class Documents {
  private readonly root: string[];
  private readonly changes = new InOrder();

  constructor(
    private readonly client: Client,
    prefix: string,
  ) {
    this.root = ["mastra", prefix];
  }

  async get<T>(place: string[], key: string): Promise<T | undefined> {
    return (await this.read<T>(place, key)).value;
  }

  async put(place: string[], key: string, value: unknown): Promise<void> {
    await this.client.putDocument({ ...this.at(place, key), value: { case: "json", value: json(value) } });
  }

  /** Replaces a value by the result of `change`, and retries if it is changed concurrently. Undefined: no change. */
  async change<T>(
    place: string[],
    key: string,
    change: (value: T | undefined) => T | undefined | Promise<T | undefined>,
  ): Promise<T | undefined> {
    return this.changes.run(JSON.stringify([place, key]), async () => {
      // The value of a put with an unknown outcome.
      let lost: { changed: T; text: string } | undefined;
      for (let tries = 1; ; tries++) {
        const { value, version } = await this.read<T>(place, key);
        if (lost && isDeepStrictEqual(value, JSON.parse(lost.text))) {
          return lost.changed;
        }
        const changed = await change(value);
        if (changed === undefined) {
          return undefined;
        }
        const text = json(changed);
        try {
          const put = { ...this.at(place, key), value: { case: "json" as const, value: text } };
          await this.client.putDocument({ ...put, expectedVersion: version });
          return changed;
        } catch (error) {
          const isLost = error instanceof Unavailable;
          if (!(isLost || error instanceof StaleVersion) || tries === TRIES_MAX) {
            throw error;
          }
          lost = isLost ? { changed, text } : undefined;
        }
      }
    });
  }

  async delete(place: string[], key: string): Promise<void> {
    await this.client.deleteDocument(this.at(place, key));
  }

  /** Returns the values of a namespace and of those below it. */
  async list<T>(place: string[]): Promise<T[]> {
    const found: T[] = [];
    let pageToken = "";
    do {
      const page = await this.client.listDocuments({
        namespacePrefix: [...this.root, ...place],
        pageSize: PAGE,
        pageToken,
      });
      for (const { value } of page.documents) {
        if (value.case === "json") {
          found.push(JSON.parse(value.value) as T);
        }
      }
      pageToken = page.nextPageToken;
    } while (pageToken);
    return found;
  }

  /** Deletes all documents of a namespace and of those below it. */
  async clear(place: string[]): Promise<void> {
    await this.client.deleteDocuments({ namespacePrefix: [...this.root, ...place] });
  }

  /** Returns the values of these keys. If `value` is given, sets each of them to it afterwards. */
  async getAll<T>(place: string[], keys: readonly string[], value?: unknown): Promise<Map<string, T>> {
    const found = new Map<string, T>();
    const results = await this.batch(keys, value === undefined ? 1 : 2, (key) => {
      const get = { operation: { case: "get" as const, value: this.at(place, key) } };
      const held = { case: "json" as const, value: json(value) };
      const put = { operation: { case: "put" as const, value: { ...this.at(place, key), value: held } } };
      return value === undefined ? [get] : [get, put];
    });
    for (const { document } of results) {
      if (document?.value.case === "json") {
        found.set(document.key, JSON.parse(document.value.value) as T);
      }
    }
    return found;
  }

  async deleteAll(place: string[], keys: readonly string[]): Promise<void> {
    await this.batch(keys, 1, (key) => [{ operation: { case: "delete" as const, value: this.at(place, key) } }]);
  }

  private async batch(
    keys: readonly string[],
    operationsPerKey: number,
    make: (key: string) => any[],
  ): Promise<DocumentResult[]> {
    const results: DocumentResult[] = [];
    const some = OPERATIONS_MAX / operationsPerKey;
    for (let at = 0; at < keys.length; at += some) {
      const operations = keys.slice(at, at + some).flatMap(make);
      results.push(...(await this.client.batchDocuments({ operations })).results);
    }
    return results;
  }

  private async read<T>(place: string[], key: string): Promise<{ value: T | undefined; version: bigint }> {
    try {
      const { document } = await this.client.getDocument(this.at(place, key));
      const value = document?.value.case === "json" ? (JSON.parse(document.value.value) as T) : undefined;
      return { value, version: document?.version ?? 0n };
    } catch (error) {
      if (error instanceof DocumentNotFound) {
        return { value: undefined, version: 0n };
      }
      throw error;
    }
  }

  private at(place: string[], key: string) {
    return { namespace: [...this.root, ...place], key };
  }
}
