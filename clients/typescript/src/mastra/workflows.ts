/**
 * Mastra's workflows domain: the snapshot of a run is a document.
 *
 * Mastra's in-memory store applies changes to a run, which is loaded into it before and read from it afterwards.
 */

import { InMemoryDB, WorkflowsInMemory, WorkflowsStorage } from "@mastra/core/storage";
import type { StorageListWorkflowRunsInput, StorageWorkflowRun, WorkflowRun, WorkflowRuns } from "@mastra/core/storage";

import type { Client } from "../client.js";
import { Documents } from "./documents.js";

const RUNS = "workflow";

type Args<Method extends keyof WorkflowsStorage> = WorkflowsStorage[Method] extends (args: infer A) => any ? A : never;
type Answer<Method extends keyof WorkflowsStorage> = WorkflowsStorage[Method] extends (...args: any) => infer A
  ? A
  : never;

/** Runs of workflows. They do not expire. A snapshot has up to `long_term.document_bytes` (4 MiB). */
export class MemoirdWorkflows extends WorkflowsStorage {
  private readonly documents: Documents;

  constructor(client: Client, prefix = "") {
    super();
    this.documents = new Documents(client, prefix);
  }

  supportsConcurrentUpdates(): boolean {
    return true;
  }

  async updateWorkflowResults(args: Args<"updateWorkflowResults">): Answer<"updateWorkflowResults"> {
    return this.change(args, (runs) => runs.updateWorkflowResults(args));
  }

  async updateWorkflowState(args: Args<"updateWorkflowState">): Answer<"updateWorkflowState"> {
    return this.change(args, (runs) => runs.updateWorkflowState(args));
  }

  async persistWorkflowSnapshot(args: Args<"persistWorkflowSnapshot">): Answer<"persistWorkflowSnapshot"> {
    return this.change(args, (runs) => runs.persistWorkflowSnapshot(args));
  }

  async loadWorkflowSnapshot(args: Args<"loadWorkflowSnapshot">): Answer<"loadWorkflowSnapshot"> {
    const run = await this.documents.get<StorageWorkflowRun>([RUNS, args.workflowName], args.runId);
    return inMemory(run ? [run] : []).runs.loadWorkflowSnapshot(args);
  }

  async listWorkflowRuns(args: StorageListWorkflowRunsInput = {}): Promise<WorkflowRuns> {
    const place = args.workflowName ? [RUNS, args.workflowName] : [RUNS];
    return inMemory(await this.documents.list(place)).runs.listWorkflowRuns(args);
  }

  async getWorkflowRunById(args: { runId: string; workflowName?: string }): Promise<WorkflowRun | null> {
    const { runId, workflowName } = args;
    const found = workflowName
      ? [await this.documents.get<StorageWorkflowRun>([RUNS, workflowName], runId)]
      : await this.documents.list<StorageWorkflowRun>([RUNS]);
    return inMemory(found.filter((run) => run !== undefined)).runs.getWorkflowRunById(args);
  }

  async deleteWorkflowRunById({ runId, workflowName }: { runId: string; workflowName: string }): Promise<void> {
    await this.documents.delete([RUNS, workflowName], runId);
  }

  async dangerouslyClearAll(): Promise<void> {
    await this.documents.clear([RUNS]);
  }

  /** Runs an operation on one run, and stores the result. */
  private async change<T>(
    { workflowName, runId }: { workflowName: string; runId: string },
    work: (runs: WorkflowsInMemory) => Promise<T>,
  ): Promise<T> {
    let answer: T;
    await this.documents.change<StorageWorkflowRun>([RUNS, workflowName], runId, async (there) => {
      const before = JSON.stringify(there);
      const { db, runs } = inMemory(there ? [there] : []);
      answer = await work(runs);
      const changed = [...db.workflows.values()][0];
      return JSON.stringify(changed) === before ? undefined : changed;
    });
    return answer!;
  }
}

function inMemory(found: StorageWorkflowRun[]): { db: InMemoryDB; runs: WorkflowsInMemory } {
  const db = new InMemoryDB();
  for (const run of found) {
    const name = `${run.workflow_name}-${run.run_id}`;
    // Mastra's own keys are ambiguous, and needed only if there is exactly one run.
    db.workflows.set(found.length === 1 ? name : JSON.stringify([run.workflow_name, run.run_id]), {
      ...run,
      createdAt: new Date(run.createdAt),
      updatedAt: new Date(run.updatedAt),
    });
  }
  return { db, runs: new WorkflowsInMemory({ db }) };
}
