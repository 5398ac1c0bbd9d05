/**
 * Messages of frameworks in turns: turns say what models read of one, and the `client_json` of the first the rest.
 *
 * So a message is given back equal, and windows, summaries and search see what was said.
 */

import { toBinary } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";

import { TurnSchema } from "./gen/memoird/v1/common_pb.js";
import type { Part, Turn } from "./gen/memoird/v1/common_pb.js";
import type { GetContextRequestSchema } from "./gen/memoird/v1/session_pb.js";

/** What memoird chooses by: see GetContextRequest. */
export type Window = Pick<
  MessageInitShape<typeof GetContextRequestSchema>,
  "model" | "budget" | "policy" | "overheadTokens" | "memories"
>;

/** Turns that a call adds. */
export const TURNS_MAX = 256;
/** Their bytes: a request may have at least 8 MiB by default (`server.max_request_bytes`), and room is left for what else is in it. */
export const BYTES_MAX = 6 << 20;
/** Parts of a turn (`limits.parts_per_turn`). */
export const PARTS_MAX = 128;
// A text of so many characters that a part has is not kept twice.
const LONG_TEXT = 64;
const NAME_BYTES_MAX = 256;
const CALL_ID_BYTES_MAX = 4096;
// Shorter strings of provider metadata are ids, not sealed reasoning.
const SEALED_CHARS_MIN = 64;
/** Key of an object that stands for a value which is in the turns. */
export const LIFTED = "$memoird";
// What memoird made of turns, or said in other words, has this in its metadata.
const MADE = "memoird";

/** Where a text of the turns is: the number of the part over all of them, and what of it. */
type Mark = [at: number, place: string];

/** A message as it stands in `client_json`. */
interface Held {
  /** So many turns are of the message. */
  turns: number;
  /** True: nothing was taken out of the message. */
  whole?: true;
  [framework: string]: unknown;
}

/** Makes the turns hold the message, under its id. The message is as JSON has it. */
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

/** The message that the turns hold; undefined where they hold none, not all of one, or memoird says it in other words. */
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

/** The value as JSON that every reader takes: without halves of characters, which models sometimes leave. */
export function json(value: unknown): string {
  return JSON.stringify(value, (_, inner) => (typeof inner === "string" ? inner.toWellFormed() : inner));
}

/** The turns of each message, in their order: those that follow each other and have the same id. */
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

/** The turns of each call that adds these; a group stays together where one call takes it. */
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

/** What turns have on the wire. */
export function bytesOf(turns: readonly Turn[]): number {
  return turns.reduce((bytes, turn) => bytes + toBinary(TurnSchema, turn).byteLength, 0);
}

/** Whether memoird made the turn, or says it in other words. */
export function isMade(turn: Turn): boolean {
  return MADE in turn.metadata;
}

/** Whether this is a valid id of a call. */
export function isId(value: unknown): value is string {
  return typeof value === "string" && value !== "" && Buffer.byteLength(value) <= CALL_ID_BYTES_MAX;
}

/** Whether this is a valid name of a tool. */
export function isName(value: unknown): value is string {
  return isId(value) && Buffer.byteLength(value) <= NAME_BYTES_MAX;
}

/** Texts of a part that a message may have too, by where they are. */
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

/** The value with marks for texts, and for what has such a text as its JSON. */
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

/** True where a message has what looks like our mark: then nothing is taken out of it. */
export function hasMarks(value: unknown): boolean {
  if (Array.isArray(value)) {
    return value.some(hasMarks);
  }
  return isObject(value) && (isMark(value) || Object.values(value).some(hasMarks));
}

/** A list or object with each inner value changed; any other value as it is. An item has the name of its list. */
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
  /** Whether Anthropic's models made it: only their seals may be sent to them. */
  isAnthropic: boolean;
  /** Whether there is no text that says the same. */
  isRedacted: boolean;
}

/** The sealed reasoning in a part's provider metadata: its longest string, if that is no id. */
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
