/**
 * The memory tool of Anthropic's SDK on memoird. Files are documents.
 *
 *     const tools = [betaMemoryTool(new MemoryTool(client, ["memories", user]))];
 */

import type { MemoryToolHandlers } from "@anthropic-ai/sdk/helpers/beta/memory";
import type {
  BetaMemoryTool20250818CreateCommand,
  BetaMemoryTool20250818DeleteCommand,
  BetaMemoryTool20250818InsertCommand,
  BetaMemoryTool20250818RenameCommand,
  BetaMemoryTool20250818StrReplaceCommand,
  BetaMemoryTool20250818ViewCommand,
} from "@anthropic-ai/sdk/resources/beta";

import type { Client } from "../client.js";
import { StaleVersion, Unavailable } from "../errors.js";
import type { Document } from "../gen/memoird/v1/document_pb.js";
import { BYTES_MAX } from "../kept.js";

const ROOT = "/memories";
/** Deepest level that the view of a directory lists. */
const LEVELS = 2;
const LINES_MAX = 999_999;
const NUMBER_WIDTH = String(LINES_MAX).length;
/** Lines shown before and after a replacement. */
const CONTEXT_LINES = 2;
const PAGE = 1_000;
/** Maximum number of tries of a change. Each failed one means that a concurrent change succeeded. */
const TRIES_MAX = 20;
/** Maximum number of files of a rename: each is deleted and put, and a transaction has up to 256 operations. */
const MOVED_MAX = 128;

/**
 * Handlers of Anthropic's memory tool. Files are documents.
 *
 * `namespace` is where the files are stored, for example `["memories", user]`: a file `/memories/a/b.txt` is the
 * document `b.txt` in the namespace `["memories", user, "a"]`. Give each user a namespace, and do not put one below
 * another.
 *
 * Results and errors are those of the SDK's tool for local files. A directory exists as long as it contains files.
 * Edits are retried if the file changes concurrently. A rename of a directory is atomic, and moves up to 128 files and
 * 6 MiB. A file has at most 4 MiB by default (`long_term.document_bytes`).
 */
export class MemoryTool implements MemoryToolHandlers {
  private readonly root: readonly string[];

  constructor(
    private readonly client: Client,
    namespace: readonly string[],
  ) {
    if (!Array.isArray(namespace) || namespace.length === 0) {
      throw new TypeError('namespace must be an array of at least one part, e.g. ["memories", user]');
    }
    this.root = [...namespace];
  }

  /** Returns the numbered lines of a file, or the entries of a directory. */
  async view({ path, view_range }: BetaMemoryTool20250818ViewCommand): Promise<string> {
    const parts = split(path);
    const [file] = await this.found([parts]);
    if (file) {
      return numbered(path, textOf(path, file), view_range);
    }
    const files = await this.below(parts);
    if (parts.length > 0 && files.length === 0) {
      throw new Error(`The path ${path} does not exist. Please provide a valid path.`);
    }
    return listed(path, files.map((it) => ({ name: this.pathOf(it).slice(parts.length), size: Number(it.size) })));
  }

  /** Creates a file. */
  async create({ path, file_text }: BetaMemoryTool20250818CreateCommand): Promise<string> {
    const parts = split(path);
    const exists = `File ${path} already exists`;
    if (await this.isTaken(parts)) {
      throw new Error(exists);
    }
    try {
      await this.client.putDocument({ ...this.at(parts), value: encoded(file_text), expectedVersion: 0n });
    } catch (error) {
      throw error instanceof StaleVersion ? new Error(exists) : error;
    }
    return `File created successfully at: ${path}`;
  }

  /** Replaces a text that occurs once in a file. */
  async str_replace({ path, old_str, new_str }: BetaMemoryTool20250818StrReplaceCommand): Promise<string> {
    return this.edit(path, (text) => {
      const at = old_str ? text.indexOf(old_str) : -1;
      if (at < 0) {
        throw new Error(
          `No replacement was performed, old_str \`${old_str}\` did not appear verbatim in ${path}.`,
        );
      }
      const after = text.slice(at + old_str.length);
      if (after.includes(old_str)) {
        const lines = linesWith(text, old_str).join(", ");
        throw new Error(
          `No replacement was performed. Multiple occurrences of old_str \`${old_str}\` in lines: ${lines}. Please ensure it is unique`,
        );
      }
      const changed = text.slice(0, at) + new_str + after;
      const line = lineAt(text, at);
      const first = Math.max(0, line - CONTEXT_LINES);
      const snippet = withNumbers(changed.split("\n").slice(first, line + CONTEXT_LINES + 1), first + 1);
      const header = "The memory file has been edited. Here is the snippet showing the change (with line numbers):";
      return { changed, result: `${header}\n${snippet}` };
    });
  }

  /** Inserts lines after a line of a file. */
  async insert({ path, insert_line, insert_text }: BetaMemoryTool20250818InsertCommand): Promise<string> {
    return this.edit(path, (text) => {
      const lines = text.split("\n");
      if (insert_line < 0 || insert_line > lines.length) {
        throw new Error(
          `Invalid \`insert_line\` parameter: ${insert_line}. It should be within the range of lines of the file: [0, ${lines.length}]`,
        );
      }
      lines.splice(insert_line, 0, insert_text.replace(/\n$/, ""));
      return { changed: lines.join("\n"), result: `The file ${path} has been edited.` };
    });
  }

  /** Deletes a file or a directory. */
  async delete({ path }: BetaMemoryTool20250818DeleteCommand): Promise<string> {
    const parts = split(path);
    if (parts.length === 0) {
      throw new Error(`Cannot delete the ${ROOT} directory itself`);
    }
    // `deleted` of the response is false if the client repeated the deletion after a lost response.
    const [file] = await this.found([parts]);
    if (file) {
      await this.client.deleteDocument(this.at(parts));
    } else if (await this.isDirectory(parts)) {
      await this.client.deleteDocuments({ namespacePrefix: [...this.root, ...parts] });
    } else {
      throw new Error(`The path ${path} does not exist`);
    }
    return `Successfully deleted ${path}`;
  }

  /** Moves a file or a directory. */
  async rename({ old_path, new_path }: BetaMemoryTool20250818RenameCommand): Promise<string> {
    const source = split(old_path);
    const target = split(new_path);
    if (source.length === 0) {
      throw new Error(`Cannot rename the ${ROOT} directory itself`);
    }
    await retried(async () => {
      if (await this.isTaken(target)) {
        throw new Error(`The destination ${new_path} already exists`);
      }
      const [file] = await this.found([source]);
      const files = file ? [file] : await this.movable(old_path, source);
      if (files.length === 0) {
        throw new Error(`The path ${old_path} does not exist`);
      }
      if (source.every((name, at) => target[at] === name)) {
        throw new Error(`Cannot move ${old_path} into itself`);
      }
      const sources = files.map((it) => this.pathOf(it));
      const targets = sources.map((it) => [...target, ...it.slice(source.length)]);
      const operations = files.flatMap(({ namespace, key, version, value }, at) => {
        const gone = { case: "delete" as const, value: { namespace, key, expectedVersion: version } };
        const made = { case: "put" as const, value: { ...this.at(targets[at]!), value, expectedVersion: 0n } };
        return [{ operation: gone }, { operation: made }];
      });
      try {
        await this.client.batchDocuments({ operations });
      } catch (error) {
        // If only the response was lost, the files have moved.
        if (!(error instanceof Unavailable) || !(await this.haveMoved(sources, targets))) {
          throw error;
        }
      }
    });
    return `Successfully renamed ${old_path} to ${new_path}`;
  }

  /** Deletes all files. */
  async clear(): Promise<void> {
    await this.client.deleteDocuments({ namespacePrefix: [...this.root] });
  }

  /** Replaces a text, and again if it changes concurrently. */
  private async edit(path: string, change: (text: string) => { changed: string; result: string }): Promise<string> {
    const parts = split(path);
    return retried(async () => {
      const [file] = await this.found([parts]);
      if (!file) {
        const isDirectory = await this.isDirectory(parts);
        throw new Error(
          `The path ${path} ${isDirectory ? "is not a file." : "does not exist. Please provide a valid path."}`,
        );
      }
      const { changed, result } = change(textOf(path, file));
      await this.client.putDocument({
        ...this.at(parts),
        value: encoded(changed),
        expectedVersion: file.version,
      });
      return result;
    });
  }

  /** Returns the files below a directory. Throws if one transaction cannot move them. */
  private async movable(path: string, parts: readonly string[]): Promise<Document[]> {
    const files = await this.below(parts);
    if (files.length > MOVED_MAX || files.reduce((sum, it) => sum + Number(it.size), 0) > BYTES_MAX) {
      throw new Error(
        `${path} is too large to be renamed: it has more than ${MOVED_MAX} files or ${sizeOf(BYTES_MAX)} in total. ` +
          "Rename its files or its subdirectories.",
      );
    }
    return (await this.found(files.map((it) => this.pathOf(it)))).filter((it) => it !== undefined);
  }

  private async haveMoved(sources: readonly string[][], targets: readonly string[][]): Promise<boolean> {
    const found = await this.found([...sources, ...targets]);
    return found.every((it, at) => (it !== undefined) === (at >= sources.length));
  }

  /** Whether a file or a directory has this path. Throws if it cannot have one. */
  private async isTaken(parts: readonly string[]): Promise<boolean> {
    const above = parts.slice(1).map((_, at) => parts.slice(0, at + 1));
    const found = await this.found([parts, ...above]);
    const other = found.slice(1).findIndex((it) => it !== undefined);
    if (other >= 0) {
      throw new Error(`The path ${[ROOT, ...above[other]!].join("/")} is not a directory.`);
    }
    return found[0] !== undefined || this.isDirectory(parts);
  }

  private async isDirectory(parts: readonly string[]): Promise<boolean> {
    if (parts.length === 0) {
      return true;
    }
    const namespacePrefix = [...this.root, ...parts];
    const page = await this.client.listDocuments({ namespacePrefix, includeValues: false, pageSize: 1 });
    return page.documents.length > 0;
  }

  /** Returns the file of each path, or undefined if there is none. */
  private async found(paths: readonly (readonly string[])[]): Promise<(Document | undefined)[]> {
    const operations = paths
      .filter((parts) => parts.length > 0)
      .map((parts) => ({ operation: { case: "get" as const, value: this.at(parts) } }));
    if (operations.length === 0) {
      return paths.map(() => undefined);
    }
    const results = (await this.client.batchDocuments({ operations })).results.values();
    return paths.map((parts) => (parts.length > 0 ? results.next().value?.document : undefined));
  }

  /** Returns all files below a directory, without their texts. */
  private async below(parts: readonly string[]): Promise<Document[]> {
    const namespacePrefix = [...this.root, ...parts];
    const files: Document[] = [];
    let pageToken = "";
    do {
      const page = await this.client.listDocuments({
        namespacePrefix,
        includeValues: false,
        pageSize: PAGE,
        pageToken,
      });
      files.push(...page.documents);
      pageToken = page.nextPageToken;
    } while (pageToken);
    return files;
  }

  private at(parts: readonly string[]): { namespace: string[]; key: string } {
    return { namespace: [...this.root, ...parts.slice(0, -1)], key: parts.at(-1)! };
  }

  private pathOf(file: Document): string[] {
    return [...file.namespace.slice(this.root.length), file.key];
  }
}

/** Repeats work that fails because of a concurrent change. */
async function retried<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof StaleVersion) || tries === TRIES_MAX) {
        throw error;
      }
    }
  }
}

/** Splits a path below the root. Throws if it is outside. */
function split(path: string): string[] {
  if (path !== ROOT && !path.startsWith(`${ROOT}/`)) {
    throw new Error(`Path must start with ${ROOT}, got: ${path}`);
  }
  const parts: string[] = [];
  for (const name of path.slice(ROOT.length).split("/")) {
    if (name === ".." && parts.pop() === undefined) {
      throw new Error(`Path ${path} would escape ${ROOT} directory`);
    }
    if (!["", ".", ".."].includes(name)) {
      parts.push(name);
    }
  }
  return parts;
}

function encoded(text: string) {
  return { case: "bytes" as const, value: new TextEncoder().encode(text) };
}

function textOf(path: string, file: Document): string {
  try {
    if (file.value.case === "bytes") {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(file.value.value);
    }
  } catch {
    // Reported below.
  }
  throw new Error(`The file ${path} is not a valid UTF-8 text file.`);
}

/** Returns the index of the line at this position. */
function lineAt(text: string, at: number): number {
  return text.slice(0, at).split("\n").length - 1;
}

/** Returns the number of the line of each occurrence. */
function linesWith(text: string, part: string): number[] {
  const lines: number[] = [];
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + 1)) {
    lines.push(lineAt(text, at) + 1);
  }
  return lines;
}

function numbered(path: string, text: string, range: readonly number[] | undefined): string {
  const lines = text.split("\n");
  if (lines.length > LINES_MAX) {
    throw new Error(`File ${path} has too many lines (${lines.length}). Maximum is 999,999 lines.`);
  }
  const [from, to] = range?.length === 2 ? range : [];
  const first = Math.max(1, from ?? 1) - 1;
  const last = to === undefined || to === -1 ? lines.length : to;
  return `Here's the content of ${path} with line numbers:\n${withNumbers(lines.slice(first, last), first + 1)}`;
}

function withNumbers(lines: readonly string[], first: number): string {
  return lines.map((line, at) => `${String(at + first).padStart(NUMBER_WIDTH)}\t${line}`).join("\n");
}

/** Returns the view of a directory. The size of a directory is that of its files. */
function listed(path: string, files: readonly { name: string[]; size: number }[]): string {
  let total = 0;
  const entries = new Map<string, { parts: string[]; size: number; isDirectory: boolean }>();
  for (const { name, size } of files) {
    total += size;
    for (let depth = 1; depth <= Math.min(name.length, LEVELS); depth++) {
      const last = name[depth - 1]!;
      if (last.startsWith(".") || last === "node_modules") {
        break;
      }
      const parts = name.slice(0, depth);
      const entry = entries.get(parts.join("/")) ?? { parts, size: 0, isDirectory: false };
      entry.size += size;
      entry.isDirectory ||= depth < name.length;
      entries.set(parts.join("/"), entry);
    }
  }
  const sorted = [...entries.values()].sort((one, other) => compare(one.parts, other.parts));
  return [
    `Here're the files and directories up to ${LEVELS} levels deep in ${path}, excluding hidden items and node_modules:`,
    `${sizeOf(total)}\t${path}`,
    ...sorted.map((it) => `${sizeOf(it.size)}\t${path}/${it.parts.join("/")}${it.isDirectory ? "/" : ""}`),
  ].join("\n");
}

/** Orders paths by their parts. */
function compare(one: readonly string[], other: readonly string[]): number {
  const at = one.findIndex((part, index) => part !== other[index]);
  if (at < 0 || other[at] === undefined) {
    return one.length - other.length;
  }
  return one[at]! < other[at]! ? -1 : 1;
}

function sizeOf(bytes: number): string {
  if (bytes === 0) {
    return "0B";
  }
  const unit = Math.floor(Math.log(bytes) / Math.log(1024));
  const size = bytes / 1024 ** unit;
  return (size % 1 === 0 ? size.toString() : size.toFixed(1)) + "BKMG"[unit];
}
