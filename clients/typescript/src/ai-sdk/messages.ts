/** Converts UI messages of the AI SDK to turns, and turns to UI messages. */

import { create, equals } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";

import { MessageFormat, PartSchema, Role, TurnSchema } from "../gen/memoird/v1/common_pb.js";
import type { Media, Part, ToolResult, Turn } from "../gen/memoird/v1/common_pb.js";
import type { BuildContextResponse } from "../gen/memoird/v1/session_pb.js";
import { hasMarks, isId, isMade, isMark, isName, LIFTED, mapped, PARTS_MAX, sealedIn } from "../kept.js";

/** A `UIMessage` of the AI SDK with any type parameters. */
export interface UiMessage {
  id: string;
  role: "system" | "user" | "assistant";
  metadata?: unknown;
  parts: { type: string }[];
}

/** Metadata key of a turn: id of the message that it belongs to. */
export const ID = "ai-sdk.id";
/** Metadata key of a turn: id of the message before its own, if another tab's messages may come between. */
export const AFTER = "ai-sdk.after";
// Key in the `client_json` of a message's first turn: the message without the fields that the turns contain.
const REST = "ai-sdk";
// Key of a part in REST: its fields that the turns contain.
const FILLED = "memoird";

export const ROLES = { system: Role.SYSTEM, user: Role.USER, assistant: Role.ASSISTANT };

// Types of objects in tool outputs that contain media as base64 in `data`.
const MEDIA_TYPES = new Set(["image", "image-data", "media", "file", "file-data"]);
// Media types of images by the first characters of their base64.
const IMAGES: [string, string][] = [
  ["iVBORw0KGgo", "image/png"],
  ["/9j/", "image/jpeg"],
  ["R0lGOD", "image/gif"],
  ["UklGR", "image/webp"],
];

export type Fields = Record<string, unknown>;

/**
 * How to restore a field of a part from the turns: as text, as JSON, as the JSON of an MCP result, or by inserting the
 * sealed reasoning.
 */
type Filling = "text" | "json" | "mcp" | "sealed";
type Filled = Record<string, Filling>;

/** The turns of a message. Each step of an assistant is a turn, followed by a turn with its tool results. */
export function turnsOf(message: UiMessage): Turn[] {
  const role = ROLES[message.role];
  const metadata = { [ID]: message.id };
  const turns: Turn[] = [];
  let step: Recorded[] = [];
  const endStep = () => {
    const parts = step.flatMap(({ part }) => part ?? []);
    const results = step.flatMap(({ result }) => result ?? []);
    if (parts.length) {
      const format = step.some(({ isForeign }) => isForeign)
        ? MessageFormat.OPENAI_RESPONSES
        : MessageFormat.UNSPECIFIED;
      turns.push(create(TurnSchema, { role, parts, format, metadata: { ...metadata } }));
    }
    if (results.length) {
      turns.push(create(TurnSchema, { role: Role.TOOL, parts: results, metadata: { ...metadata } }));
    }
    step = [];
  };
  const rest = message.parts.map((given) => {
    const recorded = recordedIn(given as Fields);
    const isFull = recorded.part && step.filter(({ part }) => part).length === PARTS_MAX;
    if (isFull || (given.type === "step-start" && turns.length + step.length)) {
      endStep();
    }
    step.push(recorded);
    const kept = { ...given, ...recorded.kept };
    const fields = Object.fromEntries(
      Object.entries(kept).filter(([name]) => (recorded.filled[name] ?? "sealed") === "sealed"),
    );
    return recorded.part ? { ...fields, [FILLED]: recorded.filled } : fields;
  });
  endStep();
  if (!turns.length) {
    // A message is at least one turn, and a turn has at least one part.
    turns.push(create(TurnSchema, { role, parts: [partOf({ case: "text", value: "" })], metadata }));
  }
  turns[0]!.clientJson = JSON.stringify({ [REST]: { ...message, parts: rest } });
  return turns;
}

/** Whether two turns have the same role, message and parts. */
export function isSameTurn(one: Turn | undefined, other: Turn): boolean {
  return (
    one?.role === other.role &&
    one.metadata[ID] === other.metadata[ID] &&
    one.parts.length === other.parts.length &&
    one.parts.every((part, index) => equals(PartSchema, part, other.parts[index]!))
  );
}

/** The turns of each message, by its id. */
export function byMessage(turns: readonly Turn[]): Map<string, Turn[]> {
  const messages = new Map<string, Turn[]>();
  for (const turn of turns) {
    const id = turn.metadata[ID]!;
    const group = messages.get(id);
    if (group) {
      group.push(turn);
    } else {
      messages.set(id, [turn]);
    }
  }
  return messages;
}

/** The messages of stored turns. A message whose first turn is gone is left out. */
export function messagesOf<M extends UiMessage>(turns: readonly Turn[]): M[] {
  return [...byMessage(turns).values()].flatMap((group) => (restIn(group) ? [messageOf(group) as M] : []));
}

/** Returns the messages of a window, followed by a message with its memories. */
export function chosenIn({ turns, memoriesText }: Pick<BuildContextResponse, "turns" | "memoriesText">): UiMessage[] {
  const memories: UiMessage = { id: "memoird-memories", role: "user", parts: [textPart(memoriesText)] };
  return [...shownIn(turns), ...(memoriesText ? [memories] : [])];
}

function shownIn(turns: readonly Turn[]): UiMessage[] {
  const groups: Turn[][] = [];
  const notes: ToolResult[] = [];
  for (const turn of turns) {
    const id = turn.metadata[ID];
    if (isMade(turn) && turn.role === Role.TOOL && !id) {
      // A note on calls of the previous message, which may continue afterwards.
      notes.push(...turn.parts.flatMap(({ part }) => (part.case === "toolResult" ? part.value : [])));
    } else if (id && groups.at(-1)?.[0]?.metadata[ID] === id) {
      groups.at(-1)!.push(turn);
    } else {
      groups.push([turn]);
    }
  }
  const calls = new OpenCalls();
  const messages = groups.flatMap((group, place) => {
    if (!hasAll(group)) {
      return toldIn(group, place, calls);
    }
    const message = messageOf(group);
    message.parts.forEach((part) => calls.add(part as Fields));
    return [message];
  });
  notes.forEach((note) => calls.note(note));
  const ids = new Set<string>();
  return messages.map((message, place) => {
    // A message that another one interrupts is shown as two messages.
    const id = ids.has(message.id) ? `memoird-made-${place}` : message.id;
    ids.add(id);
    return { ...message, id, parts: calls.sent(message.parts) };
  });
}

/** Tool calls in a window that have no result so far. */
class OpenCalls {
  // By id, in order. Several calls may have the same id.
  private readonly open = new Map<unknown, Fields[]>();
  private readonly dropped = new Set<unknown>();

  add(part: Fields): void {
    if (toolName(part) !== undefined && !isAnswered(part)) {
      this.open.set(part.toolCallId, [...(this.open.get(part.toolCallId) ?? []), part]);
    }
  }

  /** Adds a result to the newest call of its id. Returns false if there is none. */
  answer(result: ToolResult): boolean {
    const call = this.open.get(result.toolUseId)?.pop();
    if (call) {
      settle(call, result);
    }
    return call !== undefined;
  }

  /** Adds memoird's note to the oldest unanswered call of its id. */
  note(note: ToolResult): void {
    const call = this.open.get(note.toolUseId)?.shift();
    if (call?.providerExecuted || call?.state === "input-streaming") {
      // A provider accepts only its own results for its tools, and an unfinished call is never sent.
      this.dropped.add(call);
    } else if (call) {
      settle(call, note);
    }
  }

  /** Returns the parts without calls that no provider accepts unanswered. */
  sent(parts: UiMessage["parts"]): UiMessage["parts"] {
    return parts.filter((part) => !this.dropped.has(part));
  }
}

/** Adds a result to a call. */
function settle(call: Fields, result: ToolResult): void {
  const { approved } = (call.approval ?? {}) as { approved?: boolean };
  if (!approved && approved !== false) {
    delete call.approval;
  }
  if (!result.isError) {
    Object.assign(call, { state: "output-available", output: toldOutput(result, false) });
  } else if (approved === false) {
    call.state = "output-denied";
  } else {
    Object.assign(call, { state: "output-error", errorText: result.content });
  }
}

/** The representation of a message part in a turn. */
interface Recorded {
  part?: Part;
  result?: Part | undefined;
  /** Fields of the message's part that the turns contain. */
  filled: Filled;
  /** Fields that replace those of the message's part in the `client_json`. */
  kept?: Fields;
  /** Whether the reasoning is sealed by a provider other than Anthropic. */
  isForeign?: boolean;
}

function recordedIn(given: Fields): Recorded {
  const text = (name: string) => String(given[name] ?? "");
  if (given.type === "text") {
    return { part: partOf({ case: "text", value: text("text") }), filled: { text: "text" } };
  }
  if (given.type === "reasoning") {
    return reasoningIn(given, { text: "text" });
  }
  if (given.type === "custom") {
    return reasoningIn(given, {});
  }
  if ((given.type === "file" || given.type === "reasoning-file") && given.url) {
    const mediaType = text("mediaType");
    const source = sourceOf(text("url"), mediaType);
    return { part: partOf({ case: "media", value: { mediaType, source } }), filled: { url: "text" } };
  }
  const [id, name] = [given.toolCallId, toolName(given)];
  // The AI SDK does not send a call that is still streaming.
  if (name === undefined || given.state === "input-streaming") {
    return { filled: {} };
  }
  const inputJson = JSON.stringify(given.input ?? given.rawInput ?? {});
  const result = resultOf(given);
  if (!isId(id) || !isName(name)) {
    // Counted as text, because no turn takes a call of such a name or id.
    const value = `${name}(${inputJson})${result ? ` → ${result.content}` : ""}`;
    return { part: partOf({ case: "text", value }), filled: {} };
  }
  return {
    part: partOf({ case: "toolUse", value: { id, name, inputJson } }),
    result: result && partOf({ case: "toolResult", value: { toolUseId: id, ...result.value } }),
    filled: { ...(given.input == null ? {} : { input: "json" }), ...result?.filled },
  };
}

/** Reasoning, or custom content of a provider, with sealed data as its signature, so that it is counted. */
function reasoningIn(given: Fields, filled: Filled): Recorded {
  const text = String(given.text ?? "");
  const metadata = given.providerMetadata;
  const sealed = hasMarks(metadata) ? undefined : sealedIn(metadata);
  if (!sealed) {
    return { part: partOf({ case: "thinking", value: { text } }), filled };
  }
  const redacted = sealed.isRedacted && !text;
  const value = redacted ? { text: sealed.data, redacted } : { text, signature: sealed.data };
  const lifted = (inner: unknown): unknown => (inner === sealed.data ? { [LIFTED]: 0 } : mapped(inner, lifted));
  return {
    part: partOf({ case: "thinking", value }),
    filled: { ...(redacted ? {} : filled), providerMetadata: "sealed" },
    kept: { providerMetadata: lifted(metadata) },
    isForeign: !sealed.isAnthropic,
  };
}

interface Result {
  value: { content: string; parts?: Part[]; isError?: boolean };
  content: string;
  filled: Filled;
}

/** The result of a call, as the AI SDK sends it; undefined if there is none yet. */
function resultOf(given: Fields): Result | undefined {
  const failed = (content: string, filled: Filled) => ({ value: { content, isError: true }, content, filled });
  switch (given.state) {
    case "output-error":
      return failed(String(given.errorText ?? ""), { errorText: "text" });
    case "output-denied": {
      const { reason } = (given.approval ?? {}) as Fields;
      return failed(String(reason ?? "Tool call execution denied."), {});
    }
    case "output-available": {
      if (given.output === undefined) {
        return undefined;
      }
      if (typeof given.output === "string") {
        return { value: { content: given.output }, content: given.output, filled: { output: "text" } };
      }
      const parts: Part[] = [];
      const content = JSON.stringify(hasMarks(given.output) ? given.output : withoutMedia(given.output, parts));
      const output = Array.isArray((given.output as Fields | null)?.content) ? "mcp" : "json";
      return { value: { content, parts }, content, filled: { output } };
    }
    default:
      return undefined;
  }
}

/** Whether a call of a tool has its result. */
export function isAnswered({ state, output }: Fields): boolean {
  return state === "output-available" ? output !== undefined : state === "output-error" || state === "output-denied";
}

/** Returns the name of the tool that a part calls. Undefined if the part is not a call. */
function toolName(given: Fields): string | undefined {
  if (given.type === "dynamic-tool") {
    return String(given.toolName ?? "");
  }
  return /^tool-(.*)$/s.exec(String(given.type))?.[1];
}

function partOf(part: NonNullable<MessageInitShape<typeof PartSchema>["part"]>): Part {
  return create(PartSchema, { part });
}

function sourceOf(url: string, mediaType: string): Media["source"] {
  const head = `data:${mediaType};base64,`;
  const data = url.startsWith(head) ? bytesIn(url.slice(head.length)) : undefined;
  return data ? { case: "data", value: data } : { case: "uri", value: url };
}

/** The bytes of base64; undefined if encoding them does not give the same text. */
function bytesIn(base64: string): Uint8Array<ArrayBuffer> | undefined {
  const bytes = Buffer.from(base64, "base64");
  return bytes.length && bytes.toString("base64") === base64 ? new Uint8Array(bytes) : undefined;
}

function base64Of({ part }: Part): string {
  const source = part.case === "media" ? part.value.source : undefined;
  return source?.case === "data" ? Buffer.from(source.value).toString("base64") : "";
}

/** Replaces the media in a tool's output by references, and adds them to `media`. */
function withoutMedia(output: unknown, media: Part[]): unknown {
  const fields = (output ?? {}) as Fields;
  const { type, data } = fields;
  const bytes = MEDIA_TYPES.has(String(type)) && typeof data === "string" ? bytesIn(data) : undefined;
  const sniffed = IMAGES.find(([start]) => String(data).startsWith(start))?.[1];
  const mediaType = fields.mimeType ?? fields.mediaType ?? sniffed;
  if (!bytes || typeof mediaType !== "string") {
    return mapped(output, (inner) => withoutMedia(inner, media));
  }
  media.push(partOf({ case: "media", value: { mediaType, source: { case: "data", value: bytes } } }));
  return { ...fields, data: { [LIFTED]: media.length - 1 } };
}

/** Replaces the references in a value by their strings. */
function withLifted(value: unknown, lifted: string[]): unknown {
  return isMark(value) ? (lifted[Number(value[LIFTED])] ?? "") : mapped(value, (inner) => withLifted(inner, lifted));
}

/** The newest `client_json` of a message, without the fields that the turns contain. */
function restIn(group: readonly Turn[]): UiMessage | undefined {
  const rests = group.map(({ clientJson }) =>
    clientJson ? (JSON.parse(clientJson) as { [REST]?: UiMessage })[REST] : undefined,
  );
  return rests.findLast((rest) => rest);
}

/** Restores a message from its turns. Results that memoird shortened stay short. */
function messageOf(group: readonly Turn[]): UiMessage {
  const rest = restIn(group)!;
  const parts = group.flatMap((turn) => turn.parts.map((part) => ({ part, isReduced: isMade(turn) })));
  const results = parts.filter(({ part: { part } }) => part.case === "toolResult");
  const said = parts.flatMap(({ part }) => (part.part.case === "toolResult" ? [] : part));
  const fill = (fields: Fields) => filledIn(fields, said, results);
  return { ...rest, parts: rest.parts.map((part) => fill(part as Fields) as Fields & { type: string }) };
}

/** Whether a window has all turns of a message, with only results shortened. */
function hasAll(group: Turn[]): boolean {
  const rest = restIn(group);
  if (!rest || group.some((turn) => isMade(turn) && turn.role !== Role.TOOL)) {
    return false;
  }
  const said = group.flatMap(({ parts }) => parts).filter(({ part }) => part.case !== "toolResult");
  // A message without content is one turn with an empty text.
  return said.length === (rest.parts.filter((part) => FILLED in part).length || 1);
}

interface StoredResult {
  part: Part;
  isReduced: boolean;
}

/** Restores the fields of a part from the turns. Removes the used ones from the front of `said` and `results`. */
function filledIn({ [FILLED]: filled, ...fields }: Fields, said: Part[], results: StoredResult[]): Fields {
  if (!filled) {
    return fields;
  }
  const part = said.shift();
  // Several calls may have the same id, each with its own result.
  const hasResult = "output" in (filled as Filled) || isAnswered(fields);
  const at = hasResult
    ? results.findIndex(({ part: { part } }) => part.case === "toolResult" && part.value.toolUseId === fields.toolCallId)
    : -1;
  const result = at < 0 ? undefined : results.splice(at, 1)[0];
  for (const [name, as] of Object.entries(filled as Filled)) {
    if (name === "output") {
      fields[name] = result && outputOf(result, as);
    } else if (as === "sealed") {
      fields[name] = withLifted(fields[name], part ? [sealedOf(part)] : []);
    } else {
      const from = name === "errorText" ? result?.part : part;
      const text = from ? textOf(from.part) : "";
      fields[name] = as === "json" ? JSON.parse(text || "null") : text;
    }
  }
  return fields;
}

function sealedOf({ part }: Part): string {
  return part.case !== "thinking" ? "" : part.value.redacted ? part.value.text : part.value.signature;
}

function outputOf({ part: { part }, isReduced }: StoredResult, as: Filling): unknown {
  const result = part.value as ToolResult;
  if (isReduced) {
    return toldOutput(result, as === "mcp");
  }
  if (as === "text") {
    return result.content;
  }
  const output: unknown = JSON.parse(result.content || "null");
  return result.parts.length ? withLifted(output, result.parts.map(base64Of)) : output;
}

/** Output of a result that memoird changed or another client made: text, or an MCP result if requested. */
function toldOutput({ content, parts }: ToolResult, isMcp: boolean): unknown {
  if (!isMcp && !parts.length) {
    return content;
  }
  const texts = content ? [textPart(content)] : [];
  const others = parts.map((inner) => {
    const { part } = inner;
    return part.case === "media" && part.value.source.case === "data"
      ? { type: "image", data: base64Of(inner), mimeType: part.value.mediaType }
      : textPart(textOf(part));
  });
  return { content: [...texts, ...others] };
}

/** Makes a message of turns that are not those of a saved message. Returns none if they have only results. */
function toldIn(group: Turn[], place: number, calls: OpenCalls): UiMessage[] {
  const [first] = group as [Turn];
  const parts = group.flatMap((turn, at) => {
    const told = turn.parts.flatMap(({ part }) => toldPart(part, calls));
    // Each turn of the assistant is a step.
    return at && turn.role === Role.ASSISTANT ? [{ type: "step-start" }, ...told] : told;
  });
  const id = first.metadata[ID] ?? (isMade(first) ? `memoird-made-${place}` : `memoird-${first.seq}`);
  return parts.length ? [{ id, role: roleOf(first.role), parts }] : [];
}

function roleOf(role: Role): UiMessage["role"] {
  switch (role) {
    case Role.SYSTEM:
      return "system";
    case Role.USER:
      return "user";
    default:
      // Results belong to the assistant's messages.
      return "assistant";
  }
}

function toldPart(part: Part["part"], calls: OpenCalls): (Fields & { type: string })[] {
  switch (part.case) {
    case "text":
      return [textPart(part.value)];
    case "thinking":
      return part.value.redacted ? [] : [{ type: "reasoning", text: part.value.text }];
    case "media":
      return [{ type: "file", mediaType: part.value.mediaType, url: textOf(part) }];
    case "toolUse": {
      const { id, name, inputJson } = part.value;
      const call = {
        type: "dynamic-tool",
        toolName: name,
        toolCallId: id,
        state: "input-available",
        input: parsed(inputJson || "{}"),
      };
      calls.add(call);
      return [call];
    }
    case "toolResult":
      return calls.answer(part.value) ? [] : [textPart(part.value.content)];
    case undefined:
      return [];
  }
}

/** Parses JSON. Returns the text itself if it is invalid, as models sometimes write it. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function textPart(text: string): Fields & { type: string } {
  return { type: "text", text };
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
