/**
 * The memory of Vercel's AI SDK: `saveChat` and `loadChat` of its UI messages, and `chooseChat` for the model.
 *
 * What a model reads of a message (texts, reasoning, files, calls of tools and their results) is in the parts of
 * turns, where memoird sees it. The rest of the message is the `client_json` of its first turn.
 */

import { isDeepStrictEqual } from "node:util";

import { create, equals } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";

import type { Client } from "./client.js";
import { GenerationNotFound, SessionNotFound } from "./errors.js";
import { PartSchema, Role, TurnSchema } from "./gen/memoird/v1/common_pb.js";
import type { Media, Part, Turn } from "./gen/memoird/v1/common_pb.js";
import { HistoryScope } from "./gen/memoird/v1/session_pb.js";
import { batched, isId, isMade, json, PARTS_MAX } from "./kept.js";
import type { Window } from "./kept.js";
import { misfit } from "./misfit.js";

export type { Window } from "./kept.js";

/** A `UIMessage` of the AI SDK, whatever its own types are. */
export interface UiMessage {
  id: string;
  role: "system" | "user" | "assistant";
  metadata?: unknown;
  parts: { type: string }[];
}

// The id of the message that a turn is of, in its metadata.
const ID = "ai-sdk.id";
// The message without what the turns say, in the `client_json` of the first.
const REST = "ai-sdk";
// Which fields of a part are in the turns, as texts or as JSON.
const FILLED = "memoird";
const ROLES = { system: Role.SYSTEM, user: Role.USER, assistant: Role.ASSISTANT };

type Fields = Record<string, unknown>;
type Filled = Record<string, "text" | "json">;
type Shown = Fields & { type: string };

/** The messages of a chat, as they were saved in the newest life of its session, ended ones too; none without any. */
export async function loadChat<M extends UiMessage>(client: Client, chatId: string): Promise<M[]> {
  return messagesOf<M>((await stored(client, chatId)).turns);
}

/**
 * What memoird chooses of a live chat for the next call of a model, within the budget of `window`; none without one.
 *
 * It is for `convertToModelMessages`, after `saveChat`. Messages that are shown as they were said come back equal; of one
 * that is shown in part, or in other words, only its id and role do. What memoird made, or another client said, has an
 * id that begins with `memoird-`. Instructions and tools are not in it: `overheadTokens` is for them.
 */
export async function chooseChat<M extends UiMessage>(client: Client, chatId: string, window: Window = {}): Promise<M[]> {
  try {
    const { turns, memoriesText } = await client.getContext({ ...window, sessionId: chatId });
    const chosen = shownIn(turns);
    if (memoriesText) {
      chosen.push({ id: "memoird-memories", role: "user", parts: [textPart(memoriesText)] });
    }
    return chosen as M[];
  } catch (error) {
    if (error instanceof SessionNotFound) {
      return [];
    }
    throw error;
  }
}

/**
 * Makes these the messages of a chat. What is new is appended. Where what was saved before is changed or left out,
 * it is taken back with all behind it, and what is to be there added, up to 256 turns and 6 MiB in one step.
 *
 * Throws `errors.StaleSeq` or `errors.StaleGeneration` where another call saved meanwhile.
 */
export async function saveChat(client: Client, chatId: string, messages: readonly UiMessage[]): Promise<void> {
  // As they come back: without what JSON does not have.
  const wanted = JSON.parse(json(messages)) as UiMessage[];
  check(wanted);
  const chat = await stored(client, chatId);
  // A life that ended is not gone on with.
  const before = chat.generation ? chat.turns : [];
  let turns = wanted.flatMap(turnsOf);
  let { lastSeq, generation } = chat;
  if (continues(turns, wanted, before)) {
    turns = turns.slice(before.length);
    const first = turns[0];
    const ongoing = wanted.find((message) => message.id === first?.metadata[ID]);
    if (first && ongoing) {
      first.clientJson = turnsOf(ongoing)[0]!.clientJson;
    }
  } else {
    const known = messagesOf(before);
    const end = known.findIndex((old, at) => !isDeepStrictEqual(old, wanted[at]));
    const stays = new Set(known.slice(0, end < 0 ? known.length : end).map(({ id }) => id));
    const first = before.find((turn) => !stays.has(turn.metadata[ID]!));
    turns = wanted.slice(stays.size).flatMap(turnsOf);
    if (first) {
      const { session } = await client.rewindSession({
        sessionId: chatId,
        afterSeq: first.seq - 1n,
        turns: turns.splice(0, batched([turns])[0]?.length),
        expectedSeq: lastSeq,
        expectedGeneration: generation,
      });
      lastSeq = session!.lastSeq;
    }
  }
  for (const some of batched([turns])) {
    const answer = await client.append({
      sessionId: chatId,
      turns: some,
      expectedSeq: lastSeq,
      expectedGeneration: generation,
    });
    lastSeq = answer.lastSeq;
    generation = answer.session!.generation;
  }
}

/** Refuses what is no list of messages that have an id each. */
function check(messages: UiMessage[]): void {
  if (!Array.isArray(messages)) {
    throw misfit("messages", "takes a list of UI messages");
  }
  const ids = new Set<string>();
  for (const [at, message] of messages.entries()) {
    if (!Array.isArray(message?.parts)) {
      throw misfit(`messages[${at}].parts`, "takes a list of parts");
    }
    if (!Object.hasOwn(ROLES, message.role)) {
      throw misfit(`messages[${at}].role`, `takes ${Object.keys(ROLES).join(", ")}, not ${JSON.stringify(message.role)}`);
    }
    if (typeof message.id !== "string" || ids.has(message.id)) {
      throw misfit(`messages[${at}].id`, "takes a text that no other message has");
    }
    ids.add(message.id);
  }
}

/** What is saved of a chat, and where its session is; of one that has ended, without a generation. */
async function stored(client: Client, chatId: string) {
  const turns: Turn[] = [];
  let [afterSeq, lastSeq, generation] = [0n, 0n, ""];
  try {
    do {
      const page = await client.getHistory({
        sessionId: chatId,
        generation,
        scope: HistoryScope.LONGEST,
        afterSeq,
      });
      turns.push(...page.turns.filter((turn) => ID in turn.metadata));
      // The session may be newer than the turns.
      lastSeq = page.turns.at(-1)?.seq ?? lastSeq;
      generation = page.session?.generation ?? generation;
      afterSeq = page.nextAfterSeq;
    } while (afterSeq);
  } catch (error) {
    // Without a journal nothing is known of a session that does not live.
    if (!(error instanceof GenerationNotFound || error instanceof SessionNotFound)) {
      throw error;
    }
  }
  return { turns, lastSeq: generation ? lastSeq : 0n, generation };
}

/** Whether the turns begin with those that are stored, and the messages with theirs. */
function continues(turns: Turn[], messages: UiMessage[], before: Turn[]): boolean {
  const isSame = before.every((old, at) => {
    const turn = turns[at];
    return (
      turn?.role === old.role &&
      turn.metadata[ID] === old.metadata[ID] &&
      turn.parts.length === old.parts.length &&
      turn.parts.every((part, index) => equals(PartSchema, part, old.parts[index]!))
    );
  });
  const known = messagesOf(before);
  // The last one may go on: its other turns bring what else is new of it.
  const ongoing = turns[before.length]?.metadata[ID];
  return isSame && known.every((old, at) => old.id === ongoing || isDeepStrictEqual(old, messages[at]));
}

function turnsOf(message: UiMessage): Turn[] {
  const role = ROLES[message.role];
  const metadata = { [ID]: message.id };
  const turns: Turn[] = [];
  let step: Said[] = [];
  const endStep = () => {
    const parts = step.flatMap((said) => said.part ?? []);
    const results = step.flatMap((said) => said.result ?? []);
    if (parts.length) {
      turns.push(create(TurnSchema, { role, parts, metadata: { ...metadata } }));
    }
    if (results.length) {
      turns.push(create(TurnSchema, { role: Role.TOOL, parts: results, metadata: { ...metadata } }));
    }
    step = [];
  };
  const rest = message.parts.map((given) => {
    const said = saidIn(given as Fields);
    const isFull = said.part && step.filter(({ part }) => part).length === PARTS_MAX;
    if (isFull || (given.type === "step-start" && turns.length + step.length)) {
      endStep();
    }
    step.push(said);
    const fields = Object.fromEntries(Object.entries(given).filter(([name]) => !(name in said.filled)));
    return said.part ? { ...fields, [FILLED]: said.filled } : fields;
  });
  endStep();
  if (!turns.length) {
    // A turn has a part, and a message a turn.
    const parts = [partOf({ case: "text", value: "" })];
    turns.push(create(TurnSchema, { role, parts, metadata }));
  }
  turns[0]!.clientJson = JSON.stringify({ [REST]: { ...message, parts: rest } });
  return turns;
}

/** What a model reads of a part of a message, and which of its fields say that. */
interface Said {
  part?: Part;
  result?: Part;
  filled: Filled;
}

function saidIn(given: Fields): Said {
  const text = (name: string) => String(given[name] ?? "");
  if (given.type === "text") {
    return { part: partOf({ case: "text", value: text("text") }), filled: { text: "text" } };
  }
  if (given.type === "reasoning") {
    return { part: partOf({ case: "thinking", value: { text: text("text") } }), filled: { text: "text" } };
  }
  if (given.type === "file" && given.url) {
    const mediaType = text("mediaType");
    const source = sourceOf(text("url"), mediaType);
    return { part: partOf({ case: "media", value: { mediaType, source } }), filled: { url: "text" } };
  }
  const id = given.toolCallId;
  const name = given.type === "dynamic-tool" ? text("toolName") : text("type").replace(/^tool-/, "");
  if (!isId(id) || !isId(name)) {
    return { filled: {} };
  }
  const inputJson = JSON.stringify(given.input ?? {});
  const said: Said = {
    part: partOf({ case: "toolUse", value: { id, name, inputJson } }),
    filled: given.input == null ? {} : { input: "json" },
  };
  if (given.state === "output-available" && given.output !== undefined) {
    const isText = typeof given.output === "string";
    const content = isText ? text("output") : JSON.stringify(given.output);
    said.result = partOf({ case: "toolResult", value: { toolUseId: id, content } });
    said.filled.output = isText ? "text" : "json";
  } else if (given.state === "output-error") {
    const value = { toolUseId: id, content: text("errorText"), isError: true };
    said.result = partOf({ case: "toolResult", value });
    said.filled.errorText = "text";
  }
  return said;
}

function partOf(part: NonNullable<MessageInitShape<typeof PartSchema>["part"]>): Part {
  return create(PartSchema, { part });
}

function sourceOf(url: string, mediaType: string): Media["source"] {
  const head = `data:${mediaType};base64,`;
  const value = url.startsWith(head) ? Buffer.from(url.slice(head.length), "base64") : undefined;
  const isWhole = value && head + value.toString("base64") === url;
  return isWhole ? { case: "data", value: new Uint8Array(value) } : { case: "uri", value: url };
}

function restIn({ clientJson }: Turn): UiMessage | undefined {
  return clientJson ? (JSON.parse(clientJson) as { [REST]?: UiMessage })[REST] : undefined;
}

function messagesOf<M extends UiMessage>(turns: Turn[]): M[] {
  const messages = new Map<string, { rest: UiMessage | undefined; parts: Part[] }>();
  for (const turn of turns) {
    const id = turn.metadata[ID]!;
    const message = messages.get(id) ?? { rest: undefined, parts: [] };
    // Of a message that went on, the newest one holds.
    message.rest = restIn(turn) ?? message.rest;
    message.parts.push(...turn.parts);
    messages.set(id, message);
  }
  // One whose first turn is not kept any more is none.
  return [...messages.values()].flatMap(({ rest, parts }) => {
    if (!rest) {
      return [];
    }
    const results = parts.filter(({ part }) => part.case === "toolResult");
    const said = parts.filter(({ part }) => part.case !== "toolResult");
    const fill = (fields: Fields) => fillIn(fields, said, results);
    return { ...rest, parts: rest.parts.map((part) => fill(part as Fields)) } as M;
  });
}

/** The messages of a window. */
function shownIn(turns: readonly Turn[]): UiMessage[] {
  const groups: Turn[][] = [];
  for (const turn of turns) {
    const id = turn.metadata[ID];
    if (id && groups.at(-1)?.[0]?.metadata[ID] === id) {
      groups.at(-1)!.push(turn);
    } else {
      groups.push([turn]);
    }
  }
  const calls = new Map<string, Fields>();
  return groups.flatMap((group, place) => (isWhole(group) ? messagesOf(group) : toldIn(group, place, calls)));
}

/** Whether the turns are all that a message has, as it was said. */
function isWhole(group: Turn[]): boolean {
  const rest = group.map(restIn).findLast((it) => it);
  if (!rest || group.some(isMade)) {
    return false;
  }
  const said = group.flatMap(({ parts }) => parts).filter(({ part }) => part.case !== "toolResult");
  // One that says nothing to a model has an empty text.
  return said.length === (rest.parts.filter((part) => FILLED in part).length || 1);
}

/** A message that says what the turns say; none where they are results of calls that are shown. */
function toldIn(group: Turn[], place: number, calls: Map<string, Fields>): UiMessage[] {
  const [first] = group as [Turn];
  const parts = group.flatMap((turn, at) => {
    const told = turn.parts.flatMap(({ part }) => toldPart(part, calls));
    // A step of the model's own.
    return at && turn.role === Role.ASSISTANT ? [{ type: "step-start" }, ...told] : told;
  });
  const id = first.metadata[ID] ?? (isMade(first) ? `memoird-made-${place}` : `memoird-${first.seq}`);
  const role = first.role === Role.ASSISTANT ? "assistant" : first.role === Role.SYSTEM ? "system" : "user";
  return parts.length ? [{ id, role, parts }] : [];
}

function toldPart(part: Part["part"], calls: Map<string, Fields>): Shown[] {
  switch (part.case) {
    case "text":
      return [textPart(part.value)];
    case "thinking":
      return [{ type: "reasoning", text: part.value.text }];
    case "media":
      return [{ type: "file", mediaType: part.value.mediaType, url: textOf(part) }];
    case "toolUse": {
      const { id, name, inputJson } = part.value;
      const call = {
        type: "dynamic-tool",
        toolName: name,
        toolCallId: id,
        state: "input-available",
        input: JSON.parse(inputJson || "{}"),
      };
      calls.set(id, call);
      return [call];
    }
    case "toolResult": {
      const { toolUseId, content, isError } = part.value;
      const call = calls.get(toolUseId);
      if (!call) {
        return [textPart(content)];
      }
      const answer = isError ? { errorText: content } : { output: content };
      Object.assign(call, { state: isError ? "output-error" : "output-available", ...answer });
      return [];
    }
    case undefined:
      return [];
  }
}

function textPart(text: string): Shown {
  return { type: "text", text };
}

/** A part of a message as it was; takes what it said from the front of `said`. */
function fillIn({ [FILLED]: filled, ...fields }: Fields, said: Part[], results: Part[]): Fields {
  if (!filled) {
    return fields;
  }
  const part = said.shift()?.part;
  // An id may be of several calls: each has its own result.
  const at = ["output", "errorText"].some((name) => name in (filled as Filled))
    ? results.findIndex(({ part }) => part.case === "toolResult" && part.value.toolUseId === fields.toolCallId)
    : -1;
  const result = at < 0 ? undefined : results.splice(at, 1)[0]?.part;
  for (const [name, as] of Object.entries(filled as Filled)) {
    const from = name === "output" || name === "errorText" ? result : part;
    const text = from ? textOf(from) : "";
    fields[name] = as === "json" ? JSON.parse(text || "null") : text;
  }
  return fields;
}

function textOf(part: Part["part"]): string {
  switch (part.case) {
    case "text":
      return part.value;
    case "thinking":
      return part.value.text;
    case "toolUse":
      return part.value.inputJson;
    case "toolResult":
      return part.value.content;
    case "media": {
      const { mediaType, source } = part.value;
      return source.case === "data"
        ? `data:${mediaType};base64,${Buffer.from(source.value).toString("base64")}`
        : (source.value ?? "");
    }
    case undefined:
      return "";
  }
}
