/**
 * Stores messages of frameworks in turns. The turns have the content that models read. The `client_json` of the first
 * turn has the rest.
 *
 * So a message is restored exactly, and its content is available to windows, summaries and search.
 */

import { toBinary } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";

import { TurnSchema } from "./gen/memoird/v1/common_pb.js";
import type { Part, Turn } from "./gen/memoird/v1/common_pb.js";
import type { BuildContextRequestSchema } from "./gen/memoird/v1/session_pb.js";

/** Options of windows, see BuildContextRequest. */
export type Window = Pick<
  MessageInitShape<typeof BuildContextRequestSchema>,
  "model" | "budget" | "policy" | "overheadTokens" | "memories"
>;

/** Maximum number of turns in a call. */
export const TURNS_MAX = 256;
/**
 * Maximum size of the turns in a call, in bytes. A request may have at least 8 MiB by default
 * (`server.max_request_bytes`), of which the rest is for its other fields.
 */
export const BYTES_MAX = 6 << 20;
/** Maximum number of parts of a turn (`limits.parts_per_turn`). */
export const PARTS_MAX = 128;
// Minimum length of a text that is stored in a part only, not in `client_json` as well.
const LONG_TEXT = 64;
const NAME_BYTES_MAX = 256;
const CALL_ID_BYTES_MAX = 4096;
// Shorter strings of provider metadata are ids, not sealed reasoning.
const SEALED_CHARS_MIN = 64;
/** Key of an object that refers to a value in the turns. */
export const LIFTED = "$memoird";
// Metadata key of turns that memoird made or changed.
const MADE = "memoird";

/** Reference to a text of the turns: index of the part over all turns, and name of its field. */
type Mark = [at: number, place: string];

/** A message as stored in `client_json`. */
interface Held {
  /** Number of turns of the message. */
  turns: number;
  /** Set if no text of the message was replaced by a reference. */
  whole?: true;
  [framework: string]: unknown;
}

/** Stores a message, a JSON value, in its turns, and sets its id. */
export function keep(turns: Turn[], framework: string, id: string, message: unknown): void {
  const texts = new Map<string, Mark>();
  for (const [at, part] of turns.flatMap((turn) => turn.parts).entries()) {
    for (const [place, text] of Object.entries(textsOf(part))) {
      if (text.length >= LONG_TEXT && !texts.has(text)) {
        texts.set(text, [at, place]);
      }
    }
  }
  const held: Held = hasMarks(message)
    ? { [framework]: message, turns: turns.length, whole: true }
    : { [framework]: lifted(message, texts), turns: turns.length };
  for (const turn of turns) {
    turn.clientId = id;
  }
  turns[0]!.clientJson = JSON.stringify(held);
}

/**
 * Returns the message stored in the turns. Undefined if there is none, if turns are missing, or if memoird changed one.
 */
export function keptIn(turns: readonly Turn[], framework: string): unknown {
  if (!turns[0]?.clientJson || turns.some(isMade)) {
    return undefined;
  }
  const held: unknown = JSON.parse(turns[0].clientJson);
  if (!isObject(held) || !isObject(held[framework]) || held.turns !== turns.length) {
    return undefined;
  }
  const parts = turns.flatMap((turn) => turn.parts);
  return held.whole ? held[framework] : filled(held[framework], parts);
}

/** Encodes a value as JSON that every parser accepts: without lone surrogates, which models sometimes write. */
export function json(value: unknown): string {
  return JSON.stringify(value, (_, inner) => (typeof inner === "string" ? inner.toWellFormed() : inner));
}

/** Groups turns by message: consecutive turns with the same id. */
export function grouped(turns: readonly Turn[]): Turn[][] {
  const groups: Turn[][] = [];
  for (const turn of turns) {
    const group = groups.at(-1);
    if (turn.clientId && !turn.clientJson && group?.[0]?.clientId === turn.clientId) {
      group.push(turn);
    } else {
      groups.push([turn]);
    }
  }
  return groups;
}

/** Splits turns into batches for one call each. Keeps a group together if it fits in one call. */
export function batched(groups: readonly (readonly Turn[])[]): Turn[][] {
  const batches: Turn[][] = [];
  let [turnsLeft, bytesLeft] = [0, 0];
  const add = (group: readonly Turn[]) => {
    const bytes = bytesOf(group);
    if (group.length > 1 && (group.length > TURNS_MAX || bytes > BYTES_MAX)) {
      group.forEach((turn) => add([turn]));
      return;
    }
    if (group.length > turnsLeft || bytes > bytesLeft) {
      batches.push([]);
      [turnsLeft, bytesLeft] = [TURNS_MAX, BYTES_MAX];
    }
    batches.at(-1)?.push(...group);
    turnsLeft -= group.length;
    bytesLeft -= bytes;
  };
  groups.forEach(add);
  return batches;
}

/** Size of the encoded turns in bytes. */
export function bytesOf(turns: readonly Turn[]): number {
  return turns.reduce((bytes, turn) => bytes + toBinary(TurnSchema, turn).byteLength, 0);
}

/** Whether memoird made or changed the turn. */
export function isMade(turn: Turn): boolean {
  return MADE in turn.metadata;
}

/** Whether this is a valid id of a tool call. */
export function isId(value: unknown): value is string {
  return typeof value === "string" && value !== "" && Buffer.byteLength(value) <= CALL_ID_BYTES_MAX;
}

/** Whether this is a valid name of a tool. */
export function isName(value: unknown): value is string {
  return isId(value) && Buffer.byteLength(value) <= NAME_BYTES_MAX;
}

/** Texts of a part that its message may contain as well, by field. */
function textsOf({ part }: Part): Record<string, string> {
  switch (part.case) {
    case "text":
      return { text: part.value };
    case "thinking":
      return { thinking: part.value.text, signature: part.value.signature };
    case "toolUse":
      return { input: part.value.inputJson };
    case "toolResult":
      return { content: part.value.content };
    case "media": {
      const uri = part.value.source.case === "uri" ? part.value.source.value : "";
      return { uri, base64: uri.slice(uri.indexOf(";base64,") + ";base64,".length) };
    }
    case undefined:
      return {};
  }
}

/** Replaces texts that the turns contain by references, and values encoded as such a text too. */
function lifted(value: unknown, texts: ReadonlyMap<string, Mark>): unknown {
  const isText = typeof value === "string";
  if (texts.size && (isText || (typeof value === "object" && value !== null))) {
    const mark = texts.get(isText ? value : JSON.stringify(value));
    if (mark) {
      return { [LIFTED]: isText ? mark : [...mark, "json"] };
    }
  }
  return mapped(value, (inner) => lifted(inner, texts));
}

function filled(value: unknown, parts: readonly Part[]): unknown {
  if (isMark(value)) {
    const [at, place, as] = value[LIFTED] as [number, string, string?];
    const text = textsOf(parts[at]!)[place] ?? "";
    return as === "json" ? JSON.parse(text) : text;
  }
  return mapped(value, (inner) => filled(inner, parts));
}

/** Whether a message contains an object that looks like a reference. Then no text of it is replaced. */
export function hasMarks(value: unknown): boolean {
  if (Array.isArray(value)) {
    return value.some(hasMarks);
  }
  return isObject(value) && (isMark(value) || Object.values(value).some(hasMarks));
}

/**
 * Returns a list or object with each inner value changed, and other values unchanged. Items get the name of their list.
 */
export function mapped(value: unknown, change: (inner: unknown, name: string) => unknown, name = ""): unknown {
  if (Array.isArray(value)) {
    return value.map((inner) => change(inner, name));
  }
  if (!isObject(value)) {
    return value;
  }
  return Object.fromEntries(Object.entries(value).map(([inner, it]) => [inner, change(it, inner)]));
}

/** Reasoning that only its provider can read, such as a signature or encrypted content. */
export interface Sealed {
  data: string;
  /** Whether an Anthropic model made it. Anthropic accepts only those. */
  isAnthropic: boolean;
  /** Whether no plaintext of it exists. */
  isRedacted: boolean;
}

/** Returns the sealed reasoning in a part's provider metadata: its longest string, unless that is an id. */
export function sealedIn(metadata: unknown): Sealed | undefined {
  let [longest, field] = ["", ""];
  const look = (value: unknown, name: string): unknown => {
    if (typeof value === "string" && value.length > longest.length) {
      [longest, field] = [value, name];
    }
    return mapped(value, look, name);
  };
  look(metadata, "");
  if (longest.length < SEALED_CHARS_MIN) {
    return undefined;
  }
  const isRedacted = field === "redactedData";
  return { data: longest, isAnthropic: isRedacted || field === "signature", isRedacted };
}

export function isMark(value: unknown): value is Record<typeof LIFTED, unknown> {
  return isObject(value) && LIFTED in value && Object.keys(value).length === 1;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
