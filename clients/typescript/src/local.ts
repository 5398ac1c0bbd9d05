/** A local daemon for experiments and tests. */

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, closeSync, openSync } from "node:fs";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { connect } from "./client.js";
import type { Client } from "./client.js";

const START_MS_MAX = 30_000;
const STOP_MS_MAX = 40_000;
const ENDPOINTS = "endpoints.json";

/** Options of a local daemon. */
export interface LocalOptions {
  /** YAML to append to its configuration, which sets the addresses and the data directory. */
  config?: string | undefined;
  /** Data directory. If unset, a temporary one that is removed with the daemon. */
  dataDir?: string | undefined;
  /** Key of a tenant in `config`. If unset, none, regardless of `MEMOIRD_KEY`. */
  key?: string | undefined;
  /** The executable. If unset, `MEMOIRD_BIN`, or `memoird` on `PATH`. */
  binary?: string | undefined;
}

/**
 * Starts a daemon on this machine and returns a client of it. `close` stops it. Other clients connect to its `addr`.
 */
export async function local(options: LocalOptions = {}): Promise<Client> {
  const program = options.binary || process.env.MEMOIRD_BIN || onPath("memoird");
  const scratch = await mkdtemp(join(tmpdir(), "memoird-"));
  const data = options.dataDir ?? join(scratch, "data");
  const config = join(scratch, "memoird.yaml");
  const log = join(scratch, "log");
  await writeFile(config, settings(data) + (options.config ?? ""));
  const before = await written(join(data, ENDPOINTS));
  const words = openSync(log, "w");
  // Detached, so that signals such as Ctrl+C reach only this program, which then stops the daemon.
  const daemon = spawn(program, ["serve", "--config", config], {
    stdio: ["ignore", words, words],
    detached: true,
  });
  closeSync(words);
  const exited = once(daemon, "exit").catch(() => undefined);
  const watcher = watch(daemon);
  const stop = async () => {
    watcher?.kill("SIGKILL");
    daemon.kill("SIGTERM");
    const late = setTimeout(() => daemon.kill("SIGKILL"), STOP_MS_MAX);
    await exited;
    clearTimeout(late);
    await rm(scratch, { recursive: true, force: true });
  };
  try {
    const client = connect({ addr: await address(daemon, data, log, before), key: options.key ?? "" });
    const close = async () => {
      await client.close();
      await stop();
    };
    return { ...client, close, [Symbol.asyncDispose]: close };
  } catch (problem) {
    await stop();
    throw problem;
  }
}

/** Stops the daemon if this process ends without `close`: then the input of the watcher process ends. */
function watch(daemon: ChildProcess): ChildProcess | undefined {
  if (daemon.pid === undefined) {
    return undefined;
  }
  const watcher = spawn("/bin/sh", ["-c", 'read _; kill "$0"', String(daemon.pid)], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  // Without a shell there is no watcher.
  watcher.once("error", () => undefined);
  watcher.unref();
  (watcher.stdin as Socket).unref();
  return watcher;
}

function onPath(name: string): string {
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    const file = join(folder, name);
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch {
      // Try the next folder.
    }
  }
  throw new Error("there is no memoird on PATH: install it, or name it with MEMOIRD_BIN or binary");
}

function settings(data: string): string {
  return (
    "version: 1\n" +
    "server: { listen: '127.0.0.1:0', admin_listen: '127.0.0.1:0', allow_without_keys: true }\n" +
    `data_dir: ${JSON.stringify(data)}\n`
  );
}

/** Modification time of a file in nanoseconds. Undefined if it does not exist. */
async function written(file: string): Promise<bigint | undefined> {
  const found = await stat(file, { bigint: true }).catch(() => undefined);
  return found?.mtimeNs;
}

/** Waits for the daemon's address. Ignores a file written at `before`, which a killed daemon left. */
async function address(daemon: ChildProcess, data: string, log: string, before: bigint | undefined): Promise<string> {
  const file = join(data, ENDPOINTS);
  const ends = performance.now() + START_MS_MAX;
  let problem: Error | undefined;
  daemon.once("error", (error) => (problem = error));
  while (!problem && daemon.exitCode === null && daemon.signalCode === null && performance.now() < ends) {
    try {
      if ((await written(file)) !== before) {
        const endpoints: unknown = JSON.parse(await readFile(file, "utf8"));
        return (endpoints as { grpc: string }).grpc;
      }
    } catch {
      // The file is only partly written.
    }
    await sleep(5);
  }
  const said = problem?.message ?? (await readFile(log, "utf8")).slice(-2000).trim();
  throw new Error(`the daemon did not start: ${said}`);
}
