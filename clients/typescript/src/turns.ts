/** Functions that make turns. */

import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";

import { Role, TurnSchema } from "./gen/memoird/v1/common_pb.js";
import type { PartSchema, Turn } from "./gen/memoird/v1/common_pb.js";

function turn(role: Role, part: MessageInitShape<typeof PartSchema>["part"]): Turn {
  return create(TurnSchema, { role, parts: [{ part }] });
}

/** Returns a turn of the user. */
export function user(text: string): Turn {
  return turn(Role.USER, { case: "text", value: text });
}

/** Returns a turn of the model. */
export function assistant(text: string): Turn {
  return turn(Role.ASSISTANT, { case: "text", value: text });
}

/** Returns a turn with instructions by the bot's author. */
export function system(text: string): Turn {
  return turn(Role.SYSTEM, { case: "text", value: text });
}

/** Returns a turn with a tool call by the model. `input` is the JSON that the model wrote, or a value to encode. */
export function toolUse(id: string, name: string, input: unknown): Turn {
  const inputJson = typeof input === "string" ? input : JSON.stringify(input);
  return turn(Role.ASSISTANT, { case: "toolUse", value: { id, name, inputJson } });
}

/** Returns a turn with the result of a tool call. */
export function toolResult(toolUseId: string, content: string, { isError = false } = {}): Turn {
  return turn(Role.TOOL, { case: "toolResult", value: { toolUseId, content, isError } });
}
