/** Mastra's thread state (tasks, goals), one document for each. */

import { ThreadStateStorage } from "@mastra/core/storage";

import type { Client } from "../client.js";
import { Documents } from "./documents.js";

const STATES = "state";

/** The data of a thread besides its messages, by type. It does not expire. */
export class MemoirdThreadState extends ThreadStateStorage {
  private readonly documents: Documents;

  constructor(client: Client, prefix = "") {
    super();
    this.documents = new Documents(client, prefix);
  }

  async init(): Promise<void> {}

  async getState<T = unknown>({ threadId, type }: { threadId: string; type: string }): Promise<T | undefined> {
    return this.documents.get<T>([STATES, threadId], type);
  }

  async setState<T = unknown>({ threadId, type, value }: { threadId: string; type: string; value: T }): Promise<void> {
    await this.documents.put([STATES, threadId], type, value);
  }

  async deleteState({ threadId, type }: { threadId: string; type: string }): Promise<void> {
    await this.documents.delete([STATES, threadId], type);
  }

  async dangerouslyClearAll(): Promise<void> {
    await this.documents.clear([STATES]);
  }
}
