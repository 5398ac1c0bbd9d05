/** A daemon of one's own, for experiments and tests. */

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

/** What a daemon of one's own is started with. */
export interface LocalOptions {
  /** More of its YAML file than where it listens and keeps its data. */
  config?: string | undefined;
  /** Where it keeps its data; unset: in a directory that goes with it. */
  dataDir?: string | undefined;
  /** The key of a tenant that `config` names; unset: none, whatever `MEMOIRD_KEY` says. */
  key?: string | undefined;
  /** The program; unset: `MEMOIRD_BIN`, or `memoird` on `PATH`. */
  binary?: string | undefined;
}

/**
 * Starts a daemon on this machine and gives a client of it; `close` stops it. Another client calls it by `addr`.
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
  // What interrupts the program, such as Ctrl+C, is for the program, which stops it.
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

/** Stops the daemon where this process ends without `close`, however: the watcher's input ends then. */
function watch(daemon: ChildProcess): ChildProcess | undefined {
  if (daemon.pid === undefined) {
    return undefined;
  }
  const watcher = spawn("/bin/sh", ["-c", 'read _; kill "$0"', String(daemon.pid)], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  // Where there is no shell, nobody watches.
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
      // Perhaps in the next one.
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

/** When a file was written, in nanoseconds; unset: never. */
async function written(file: string): Promise<bigint | undefined> {
  const found = await stat(file, { bigint: true }).catch(() => undefined);
  return found?.mtimeNs;
}

/** Where it serves, once it does; a daemon that was killed leaves its file, written when `before` says. */
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
      // Half of it is written.
    }
    await sleep(5);
  }
  const said = problem?.message ?? (await readFile(log, "utf8")).slice(-2000).trim();
  throw new Error(`the daemon did not start: ${said}`);
}
