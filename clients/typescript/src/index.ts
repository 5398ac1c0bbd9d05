/**
 * A client of memoird, the session daemon for chat bots.
 *
 *     const client = connect();
 *     await client.append({ sessionId: "telegram:4711", turns: [user("Where is my parcel?")] });
 *     const window = await client.buildContext({ sessionId: "telegram:4711", format: MessageFormat.OPENAI });
 */

export { connect } from "./client.js";
export type { Client, Options, Tls } from "./client.js";
export * as errors from "./errors.js";
export { MemoirdError } from "./errors.js";
export * from "./gen/memoird/v1/common_pb.js";
export * from "./gen/memoird/v1/document_pb.js";
export * from "./gen/memoird/v1/memory_pb.js";
export * from "./gen/memoird/v1/session_pb.js";
export { local } from "./local.js";
export type { LocalOptions } from "./local.js";
export { assistant, system, toolResult, toolUse, user } from "./turns.js";
