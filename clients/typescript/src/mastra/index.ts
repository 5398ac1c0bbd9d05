/**
 * Mastra's storage on memoird: threads are sessions that memoird cuts windows of, summarizes and searches.
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

/** Where the daemon is, and how it keeps what is Mastra's. */
export interface StoreOptions extends MemoryOptions {
  /** The name of this storage among Mastra's; unset: `memoird`. */
  id?: string | undefined;
  /** Unset: of the daemon that `MEMOIRD_ADDR` and `MEMOIRD_KEY` name; it is closed with the store. */
  client?: Client | undefined;
}

/**
 * Storage of Mastra: the domains `memory`, `workflows` and `threadState`. What has no such domain (traces, scores, the
 * editor's) is for another store: `new MastraCompositeStore({ id, default: another, domains: memoird.stores })`.
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
