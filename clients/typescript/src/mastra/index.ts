/**
 * Mastra's storage on memoird. Threads are sessions, so they have windows, summaries and search.
 *
 *     const memory = new Memory({ storage: new MemoirdStore() });
 *     const agent = new Agent({ id: "trains", name: "trains", instructions, model, memory });
 */

import { MastraCompositeStore } from "@mastra/core/storage";

import { connect } from "../client.js";
import type { Client } from "../client.js";
import { MemoirdMemory } from "./memory.js";
import type { MemoryOptions } from "./memory.js";
import { MemoirdThreadState } from "./thread-state.js";
import { MemoirdWorkflows } from "./workflows.js";

export { MemoirdMemory } from "./memory.js";
export type { MemoryOptions } from "./memory.js";
export type { Window } from "../kept.js";
export { MemoirdThreadState } from "./thread-state.js";
export { MemoirdWorkflows } from "./workflows.js";

/** The daemon, and how to store Mastra's data in it. */
export interface StoreOptions extends MemoryOptions {
  /** Id of this storage in Mastra. Default `memoird`. */
  id?: string | undefined;
  /** If unset, a client of the daemon in `MEMOIRD_ADDR` with the key `MEMOIRD_KEY`, which is closed with the store. */
  client?: Client | undefined;
}

/**
 * Storage of Mastra with the domains `memory`, `workflows` and `threadState`. Use another store for all other domains
 * (traces, scores, the editor's): `new MastraCompositeStore({ id, default: another, domains: memoird.stores })`.
 */
export class MemoirdStore extends MastraCompositeStore {
  declare stores: { memory: MemoirdMemory; workflows: MemoirdWorkflows; threadState: MemoirdThreadState };
  private readonly own: Client | undefined;

  constructor(options: StoreOptions = {}) {
    super({ id: options.id ?? "memoird", name: "memoird" });
    const client = options.client ?? (this.own = connect());
    this.stores = {
      memory: new MemoirdMemory(client, options),
      workflows: new MemoirdWorkflows(client, options.prefix),
      threadState: new MemoirdThreadState(client, options.prefix),
    };
  }

  override async close(): Promise<void> {
    await this.own?.close();
  }
}
