/** Converts Mastra's messages to turns, and turns to Mastra's messages. */

import type { MastraDBMessage } from "@mastra/core/memory";
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";

import { MessageFormat, PartSchema, Role, TurnSchema } from "../gen/memoird/v1/common_pb.js";
import type { Part, ToolResult, Turn } from "../gen/memoird/v1/common_pb.js";
import { grouped, isId, isMade, isName, json, keep, keptIn, PARTS_MAX, sealedIn } from "../kept.js";

const FRAMEWORK = "mastra";

type Fields = Record<string, any>;

/** The content of a message part that models read. */
interface Said {
  part?: Part | undefined;
  result?: Part | undefined;
  /** Whether the reasoning is sealed by a provider other than Anthropic. */
  isForeign?: boolean;
}

/** A message with its turns. */
export interface Stored {
  message: MastraDBMessage;
  turns: Turn[];
}

/** Returns the turns of a message: one for each step of the model, and one for the results of its calls. */
export function turnsOf(given: MastraDBMessage): Turn[] {
  // The thread is known from the session.
  const { threadId: _, ...held } = given;
  // As it is loaded again: without values that JSON cannot represent.
  const message = JSON.parse(json({ ...held, createdAt: new Date(given.createdAt ?? Date.now()) })) as MastraDBMessage;
  const role = roleOf(message.role);
  const about = { timestamp: timestampFromDate(new Date(message.createdAt)) };
  const turns: Turn[] = [];
  let step: { parts: Part[]; results: Part[]; isForeign?: boolean | undefined } = { parts: [], results: [] };
  const endStep = () => {
    if (step.parts.length) {
      const format = step.isForeign ? MessageFormat.OPENAI_RESPONSES : MessageFormat.UNSPECIFIED;
      turns.push(create(TurnSchema, { role, parts: step.parts, format, ...about }));
    }
    if (step.results.length) {
      turns.push(create(TurnSchema, { role: Role.TOOL, parts: step.results, ...about }));
    }
    step = { parts: [], results: [] };
  };
  const called = new Set<unknown>();
  for (const piece of partsOf(message.content)) {
    const id = piece.toolInvocation?.toolCallId;
    // A call that is repeated counts once, and only models make calls.
    const { part, result, isForeign } = saidIn(piece, role === Role.ASSISTANT, called.has(id));
    if (id) {
      called.add(id);
    }
    // Content after results starts a new step, even without a step marker.
    const isNext = step.results.length && part && part.part.case !== "toolUse";
    if (piece.type === "step-start" || isNext || step.parts.length === PARTS_MAX) {
      endStep();
    }
    step.isForeign ||= isForeign;
    step.parts.push(...(part ? [part] : []));
    step.results.push(...(result ? [result] : []));
  }
  endStep();
  if (!turns.length) {
    turns.push(create(TurnSchema, { role, parts: [textPart(textOf(message.content))], ...about }));
  }
  keep(turns, FRAMEWORK, message.id, message);
  return turns;
}

/** Returns the messages stored in turns, in order. Turns of no Mastra message become messages of their own. */
export function storedIn(turns: readonly Turn[], threadId: string, resourceId: string): Stored[] {
  const found: Stored[] = [];
  const teller = new Teller(threadId, resourceId);
  for (const group of grouped(turns)) {
    const held = keptIn(group, FRAMEWORK) as Fields | undefined;
    if (held) {
      const message = { ...held, createdAt: new Date(held.createdAt), threadId } as MastraDBMessage;
      found.push({ message, turns: group });
      teller.last = undefined;
      teller.await(message);
    } else if (!group.every(isRedacted)) {
      for (const turn of group) {
        const told = teller.tell(turn, found.length, found.at(-1)?.message.createdAt);
        found.push(...(told ? [told] : []));
      }
    }
  }
  const first = found.find(({ message }) => message.createdAt !== BEGINNING)?.message.createdAt;
  for (const { message } of found) {
    message.createdAt = message.createdAt === BEGINNING ? (first ?? new Date()) : message.createdAt;
  }
  return found;
}

/** Returns the turn without its text. Its calls and results stay, because `UpdateTurn` does not change them. */
export function redacted(turn: Turn): Turn {
  const parts = turn.parts.flatMap(({ part }): Part[] => {
    if (part.case === "toolUse") {
      return [partOf({ case: "toolUse", value: { ...part.value, inputJson: "{}" } })];
    }
    if (part.case === "toolResult") {
      return [partOf({ case: "toolResult", value: { toolUseId: part.value.toolUseId, content: REDACTED } })];
    }
    return [];
  });
  const { role, timestamp, pinned } = turn;
  const some = parts.length ? parts : [textPart(REDACTED)];
  return create(TurnSchema, { role, timestamp, pinned, parts: some, clientJson: JSON.stringify({ [FRAMEWORK]: null }) });
}

const REDACTED = "(deleted)";
// Time of content before the first message that has a time.
const BEGINNING = new Date(0);

function isRedacted(turn: Turn): boolean {
  return turn.clientJson === JSON.stringify({ [FRAMEWORK]: null });
}

/** Makes messages of turns that contain none: turns of another client, or made by memoird. */
class Teller {
  last: Stored | undefined;
  private readonly calls = new Map<string, Fields>();
  private readonly unanswered = new Map<unknown, Fields>();

  constructor(
    private readonly threadId: string,
    private readonly resourceId: string,
  ) {}

  /** Records the calls of a message that have no result, because memoird may add a note as the result. */
  await(message: MastraDBMessage): void {
    for (const { toolInvocation } of partsOf(message.content)) {
      if (toolInvocation && !answerOf(toolInvocation)) {
        this.unanswered.set(toolInvocation.toolCallId, toolInvocation);
      }
    }
  }

  /** Returns a message of the turn, or undefined if the turn belongs to the message before. */
  tell(turn: Turn, place: number, before: Date | undefined): Stored | undefined {
    if (isMade(turn) && turn.role === Role.TOOL && !turn.clientId) {
      turn.parts.forEach(({ part }) => part.case === "toolResult" && this.note(part.value));
      return undefined;
    }
    const parts = turn.parts.flatMap((part) => this.partOf(part));
    const isOfLast = this.last && turn.clientId && this.last.message.id === turn.clientId;
    if (this.last && (isOfLast || !parts.length)) {
      this.last.message.content.parts.push(...(parts as any[]));
      this.last.turns.push(turn);
      return undefined;
    }
    if (!parts.length) {
      return undefined;
    }
    // The time of a turn made by memoird does not give its position.
    const at = isMade(turn) ? undefined : turn.timestamp && timestampDate(turn.timestamp);
    const message = {
      id: turn.clientId || (isMade(turn) ? `memoird-made-${place}` : `memoird-${turn.seq}`),
      role: turn.role === Role.USER ? "user" : turn.role === Role.SYSTEM ? "system" : "assistant",
      createdAt: at ?? before ?? BEGINNING,
      threadId: this.threadId,
      resourceId: this.resourceId,
      content: { format: 2, parts },
    } as MastraDBMessage;
    return (this.last = { message, turns: [turn] });
  }

  /** Adds the note as the result of a call that was never answered. */
  private note({ toolUseId, content, isError }: ToolResult): void {
    const call = this.unanswered.get(toolUseId) ?? this.calls.get(toolUseId);
    this.unanswered.delete(toolUseId);
    Object.assign(call ?? {}, { state: "result", result: content, isError });
  }

  private partOf({ part }: Part): Fields[] {
    switch (part.case) {
      case "text":
        return part.value ? [{ type: "text", text: part.value }] : [];
      case "thinking":
        return [{ type: "reasoning", reasoning: part.value.text, details: [{ type: "text", text: part.value.text }] }];
      case "media": {
        const { mediaType, source } = part.value;
        const data = source.case === "data" ? Buffer.from(source.value).toString("base64") : (source.value ?? "");
        return [{ type: "file", mimeType: mediaType, data }];
      }
      case "toolUse": {
        const { id, name, inputJson } = part.value;
        const toolInvocation = { state: "call", toolCallId: id, toolName: name, args: parsed(inputJson) };
        this.calls.set(id, toolInvocation);
        return [{ type: "tool-invocation", toolInvocation }];
      }
      case "toolResult": {
        const { toolUseId, content, isError } = part.value;
        const call = this.calls.get(toolUseId);
        if (!call) {
          return [{ type: "text", text: content }];
        }
        Object.assign(call, { state: "result", result: parsed(content), ...(isError && { isError }) });
        return [];
      }
      case undefined:
        return [];
    }
  }
}

function saidIn(given: Fields, isModel: boolean, isCalled: boolean): Said {
  switch (given.type) {
    case "text":
      return { part: textPart(String(given.text ?? "")) };
    case "reasoning": {
      const details = Array.isArray(given.details) ? given.details : [];
      const text = String(given.reasoning || given.text || details.map(({ text }: Fields) => text ?? "").join(""));
      const sealed = sealedIn([given.providerMetadata, details.map(({ text: _, ...rest }: Fields) => rest)]);
      const value = { text, signature: sealed?.data ?? "" };
      const isSealed = sealed !== undefined && !sealed.isAnthropic;
      return isModel && (text || sealed) ? { part: partOf({ case: "thinking", value }), isForeign: isSealed } : {};
    }
    case "file": {
      const [data, mediaType] = [given.data ?? given.url, String(given.mimeType ?? given.mediaType ?? "")];
      return typeof data === "string" && data ? { part: mediaPart(data, mediaType) } : {};
    }
    case "tool-invocation": {
      const call: Fields = given.toolInvocation ?? {};
      const answer = answerOf(call);
      if (!isModel || isCalled || !isId(call.toolCallId) || !isName(call.toolName)) {
        return { part: textPart(`${call.toolName}(${textIn(call.args)})${answer ? ` → ${answer.content}` : ""}`) };
      }
      const { toolCallId: id, toolName: name } = call;
      return {
        part: partOf({ case: "toolUse", value: { id, name, inputJson: JSON.stringify(call.args ?? {}) } }),
        result: answer && partOf({ case: "toolResult", value: { toolUseId: id, ...answer } }),
      };
    }
    default:
      return {};
  }
}

function answerOf(call: Fields): { content: string; isError: boolean } | undefined {
  switch (call.state) {
    case "result":
      return { content: textIn(call.result), isError: call.isError === true };
    case "output-error":
      return { content: String(call.errorText ?? "the tool failed"), isError: true };
    case "output-denied":
      return { content: String(call.approval?.reason ?? "the call was not allowed"), isError: true };
    default:
      return undefined;
  }
}

function partsOf(content: unknown): Fields[] {
  const parts = (content as Fields | undefined)?.parts;
  return Array.isArray(parts) ? parts : [];
}

function textOf(content: unknown): string {
  const text = typeof content === "object" ? (content as Fields | null)?.content : content;
  return typeof text === "string" ? text : "";
}

function roleOf(role: string): Role {
  return role === "assistant" ? Role.ASSISTANT : role === "system" ? Role.SYSTEM : Role.USER;
}

function mediaPart(data: string, mediaType: string): Part {
  const uri = /^[a-z][a-z0-9+.-]*:/i.test(data) ? data : `data:${mediaType};base64,${data}`;
  return partOf({ case: "media", value: { mediaType, source: { case: "uri", value: uri } } });
}

function textPart(text: string): Part {
  return partOf({ case: "text", value: text });
}

function partOf(part: NonNullable<MessageInitShape<typeof PartSchema>["part"]>): Part {
  return create(PartSchema, { part });
}

function textIn(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
