/** Validates requests before they are sent. Connect would report Internal, or send something else. */

import type { DescEnum, DescField, DescMessage, DescOneof } from "@bufbuild/protobuf";
import { ScalarType } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";

import { InvalidArgument } from "./errors.js";

const UINT32_MAX = 2 ** 32 - 1;
const INT32_MAX = 2 ** 31 - 1;
const UINT64_MAX = 2n ** 64n - 1n;
const OWN = new Set(["$typeName", "$unknown"]);

/** Returns an error with the path of the invalid value and the accepted values. */
export function misfit(place: string, problem: string): InvalidArgument {
  const message = `${place} ${problem}`;
  return new InvalidArgument(message, {
    code: Code.InvalidArgument,
    reason: "",
    facts: { field: place },
    retryAfter: undefined,
    cause: new ConnectError(message, Code.InvalidArgument),
  });
}

/** Throws if `given` has fields or values that a message of this kind does not accept. `at` is its own path. */
export function look(kind: DescMessage, given: unknown, at = ""): void {
  if (typeof given !== "object" || given === null || Array.isArray(given) || given instanceof Date) {
    throw misfit(at || "request", `takes ${described(kind)}, not ${named(given)}`);
  }
  if ("$typeName" in given && given.$typeName !== kind.typeName) {
    throw misfit(at || "request", `takes ${described(kind)}, not a ${String(given.$typeName)}`);
  }
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || OWN.has(name)) {
      continue;
    }
    const place = at ? `${at}.${name}` : name;
    const member = kind.members.find((it) => it.localName === name);
    if (!member) {
      throw misfit(place, `is nothing that ${kind.name} takes; ${hint(kind, name)}`);
    }
    if (member.kind === "oneof") {
      lookAtChoice(member, value, place);
    } else {
      lookAtField(member, value, place);
    }
  }
}

function hint(kind: DescMessage, name: string): string {
  const field = kind.fields.find((it) => it.localName === name || it.name === name);
  if (field?.oneof) {
    return `is it ${field.oneof.localName}: { case: "${field.localName}", value: … }?`;
  }
  return field ? `is it ${field.localName}?` : `it takes ${kind.members.map((it) => it.localName).join(", ")}`;
}

function lookAtChoice(choice: DescOneof, value: unknown, place: string): void {
  const cases = choice.fields.map((it) => it.localName).join(", ");
  if (typeof value !== "object" || value === null || !("case" in value)) {
    throw misfit(place, `takes { case, value } with a case of ${cases}, not ${named(value)}`);
  }
  if (value.case === undefined) {
    return;
  }
  const field = choice.fields.find((it) => it.localName === value.case);
  if (!field) {
    throw misfit(`${place}.case`, `is one of ${cases}, not ${named(value.case)}`);
  }
  lookAtField(field, "value" in value ? value.value : undefined, `${place}.value`);
}

function lookAtField(field: DescField, value: unknown, place: string): void {
  if (field.fieldKind === "list") {
    if (!Array.isArray(value)) {
      throw misfit(place, `takes a list, not ${named(value)}`);
    }
    value.forEach((one, index) => lookAtOne(field, one, `${place}[${index}]`));
  } else if (field.fieldKind === "map") {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw misfit(place, `takes an object with texts, not ${named(value)}`);
    }
    for (const [name, one] of Object.entries(value)) {
      lookAtScalar(ScalarType.STRING, name, place);
      lookAtOne({ ...field, listKind: field.mapKind }, one, `${place}[${JSON.stringify(name)}]`);
    }
  } else {
    lookAtOne({ ...field, listKind: field.fieldKind }, value, place);
  }
}

/** Type of a list item, a map value or a field. */
interface Kind {
  listKind: "message" | "enum" | "scalar";
  message?: DescMessage | undefined;
  enum?: DescEnum | undefined;
  scalar?: ScalarType | undefined;
}

function lookAtOne(kind: Kind, value: unknown, place: string): void {
  if (kind.message) {
    look(kind.message, value, place);
  } else if (kind.enum) {
    if (!isWhole(value, -INT32_MAX - 1, INT32_MAX)) {
      throw misfit(place, `takes a member of ${kind.enum.name}, not ${named(value)}`);
    }
  } else {
    lookAtScalar(kind.scalar, value, place);
  }
}

function lookAtScalar(kind: ScalarType | undefined, value: unknown, place: string): void {
  const takes = wantedOf(kind, value);
  if (takes) {
    throw misfit(place, `takes ${takes}, not ${named(value)}`);
  }
}

/** Returns a description of the expected type, or undefined if the value has it. */
function wantedOf(kind: ScalarType | undefined, value: unknown): string | undefined {
  switch (kind) {
    case ScalarType.STRING:
      if (typeof value !== "string") {
        return "a text";
      }
      return value.isWellFormed() ? undefined : "a text without halves of characters (toWellFormed)";
    case ScalarType.BOOL:
      return typeof value === "boolean" ? undefined : "true or false";
    case ScalarType.BYTES:
      return value instanceof Uint8Array ? undefined : "a Uint8Array";
    case ScalarType.UINT32:
      return isWhole(value, 0, UINT32_MAX) ? undefined : `a whole number from 0 to ${UINT32_MAX}`;
    case ScalarType.UINT64:
      return isLong(value) ? undefined : `a bigint from 0n to ${UINT64_MAX}n`;
    case ScalarType.INT32:
      return isWhole(value, -INT32_MAX - 1, INT32_MAX) ? undefined : "a whole number of 32 bits";
    case ScalarType.INT64:
      return typeof value === "bigint" || Number.isSafeInteger(value) ? undefined : "a bigint";
    default:
      return typeof value === "number" ? undefined : "a number";
  }
}

function isWhole(value: unknown, least: number, most: number): boolean {
  return typeof value === "number" && Number.isInteger(value) && value >= least && value <= most;
}

function isLong(value: unknown): boolean {
  // protobuf-es also accepts a number, and a string of digits.
  const digits = typeof value === "string" && /^\d+$/.test(value);
  if (typeof value !== "bigint" && !Number.isSafeInteger(value) && !digits) {
    return false;
  }
  const long = BigInt(value as bigint | number | string);
  return long >= 0n && long <= UINT64_MAX;
}

function described(kind: DescMessage): string {
  switch (kind.typeName) {
    case "google.protobuf.Timestamp":
      return "a Timestamp (timestampFromDate)";
    case "google.protobuf.Duration":
      return "a Duration (durationFromMs)";
    case "google.protobuf.FieldMask":
      return "a FieldMask, { paths: [...] }";
    default:
      return `a ${kind.name}`;
  }
}

/** Describes a value for an error message. Only numbers are shown, because other values may be confidential. */
function named(value: unknown): string {
  if (typeof value === "number" || typeof value === "boolean" || value === null || value === undefined) {
    return String(value);
  }
  if (typeof value === "bigint") {
    return `${value}n`;
  }
  if (typeof value !== "object") {
    return typeof value === "string" ? "a text" : `a ${typeof value}`;
  }
  const kind = value.constructor?.name ?? "Object";
  return Array.isArray(value) ? "a list" : kind === "Object" ? "an object" : `a ${kind}`;
}
