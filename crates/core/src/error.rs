//! Rejections of commands, each of which the caller can fix.

use thiserror::Error;

use crate::budget::Budget;
use crate::ids::{Generation, HOOK_NAME_BYTES_MAX};
use crate::options::CLASS_NAME_BYTES_MAX;

/// A rejected command. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoreError {
    /// An id is empty or too long.
    #[error("{field} has {bytes} bytes; it takes 1 to {bytes_max}")]
    IdInvalid {
        field: &'static str,
        bytes: usize,
        bytes_max: usize,
    },
    /// A generation is not a ULID.
    #[error("generation {text:?} is not a ULID; send the one that SessionInfo gave")]
    GenerationInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    /// A memory id is not a ULID.
    #[error("memory id {text:?} is not a ULID; send one that Remember or a list gave")]
    MemoryIdInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    /// A lease id is not a ULID.
    #[error("lease {text:?} is not one that LeaseExtraction gave")]
    LeaseInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    /// An erasure job id is not a ULID.
    #[error("job_id {text:?} is not one that EraseSession or EraseSubject gave")]
    ErasureIdInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    /// A hook name is too long or has invalid characters.
    #[error("hook name {text:?} takes 1 to {HOOK_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    HookNameInvalid {
        /// First 80 characters of the name.
        text: String,
    },
    /// A delivery id is not `generation/hook`.
    #[error("delivery id {text:?} is not generation/hook; send one that a list gave")]
    DeliveryIdInvalid {
        /// First 120 characters of the received text.
        text: String,
    },
    /// A turn is invalid by itself.
    #[error("turns[{index}]: {problem}")]
    TurnInvalid {
        /// Position in the append, from 0.
        index: usize,
        /// The problem and how to fix it.
        problem: String,
    },
    /// A turn, or a part of it, exceeds a limit.
    #[error("turns[{index}]: {what} is {actual}, the limit is {limit} ({setting})")]
    TurnTooLarge {
        /// Position in the append, from 0.
        index: usize,
        /// The measured quantity with its unit.
        what: &'static str,
        actual: usize,
        limit: usize,
        /// Name of the setting that limits it.
        setting: &'static str,
    },
    /// An append has no turns or too many.
    #[error("an append takes 1 to {limit} turns (limits.turns_per_append), this one has {actual}")]
    TurnCountInvalid {
        /// Turns in the append.
        actual: usize,
        limit: usize,
    },
    /// A provider's message array is malformed.
    #[error("messages_json{path}: {problem}")]
    MessagesInvalid {
        /// Path of the invalid value, such as `[3].content`.
        path: String,
        problem: String,
    },
    /// A tool result matches no pending call.
    #[error(
        "turns[{index}]: tool result for {id:?}, but no call of that id waits for a result; \
         append the assistant turn with the tool use first"
    )]
    ToolUseUnknown {
        /// Position of the turn in the append, from 0.
        index: usize,
        /// Id in the result.
        id: String,
    },
    /// Pinned turns, with the turns of their units, would exceed a limit.
    #[error(
        "turns[{index}]: pinned turns would take {turns} turns and {bytes} bytes; \
         the limits are {turns_max} and {bytes_max}"
    )]
    PinnedTooMany {
        /// Position of the turn in the append, from 0.
        index: usize,
        turns: usize,
        bytes: usize,
        turns_max: usize,
        bytes_max: usize,
    },
    /// `expected_seq` is not the newest turn.
    #[error("expected_seq is {expected}, but the newest turn is {actual}; read the history again")]
    StaleSeq {
        /// Seq in the command.
        expected: u64,
        /// Newest turn of the session.
        actual: u64,
    },
    /// `expected_generation` is not the live generation.
    #[error("expected_generation is {expected}, but {}", match actual {
        Some(live) => format!("{live} is live"),
        None => "the session has ended".to_owned(),
    })]
    StaleGeneration {
        expected: Generation,
        actual: Option<Generation>,
    },
    /// `expected_version` is not the version of the state.
    #[error("expected_version is {expected}, but the state has {actual}; read it again")]
    StaleStateVersion {
        /// Version in the command.
        expected: u64,
        /// Version of the session's state.
        actual: u64,
    },
    /// A merge patch, or the state after it, is invalid.
    #[error("merge_patch_json: {problem}")]
    StateInvalid {
        /// The problem and how to fix it.
        problem: String,
    },
    /// The state after a patch would be too large.
    #[error("the state would be {actual} bytes, the limit is {limit}; remove members with null")]
    StateTooLarge {
        /// Size in bytes.
        actual: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// A label has no name or is too long.
    #[error("label {name:?}: {problem}")]
    LabelInvalid {
        /// First 64 characters of the name.
        name: String,
        problem: String,
    },
    /// A session would have too many labels.
    #[error(
        "the session would have {actual} labels, the limit is {limit}; an empty value takes a label away"
    )]
    LabelsTooMany {
        /// Labels after the patch.
        actual: usize,
        limit: usize,
    },
    /// The name of a TTL class is too long or has invalid characters.
    #[error("ttl_class {text:?} takes 1 to {CLASS_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    TtlClassInvalid {
        /// First 80 characters of the name.
        text: String,
    },
    /// The tenant's configuration has no such TTL class.
    #[error(
        "ttl_class {class:?} is not one of the tenant's ttl_classes, which are: {}",
        known.join(", ")
    )]
    TtlClassUnknown {
        class: String,
        /// The configured names and `default`.
        known: Vec<String>,
    },
    /// A session with `keep_all` has no room for more turns.
    #[error(
        "the session keeps all of its history (keep_all), and {actual} bytes of turns would be more \
         than its {limit} (max_history_bytes); raise the limit, reset or rewind the session, or set \
         keep_all to false"
    )]
    HistoryFull {
        /// Size in bytes that the history would have.
        actual: u64,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// A rewind would remove only a part of a tool unit.
    #[error(
        "after_seq {after_seq} is inside a tool unit: turns {first_seq} and {last_seq} hold a call \
         and its result, and go together; choose an after_seq before {first_seq} or from \
         {last_seq} on"
    )]
    RewindSplitsUnit {
        after_seq: u64,
        /// Turn of the unit that would remain.
        first_seq: u64,
        /// Turn of the unit that would be rewound.
        last_seq: u64,
    },
    /// A rewind to a turn after the newest one.
    #[error("after_seq is {after_seq}, but the newest turn is {last_seq}")]
    RewindBeyondEnd {
        after_seq: u64,
        /// Last assigned seq of the generation.
        last_seq: u64,
    },
    /// An update would change a turn's position, role, calls or results.
    #[error(
        "turn {seq} has another {what}; role, calls and results stay, in their order, so that \
         no tool unit is torn apart"
    )]
    TurnUpdateInvalid {
        seq: u64,
        /// The property that would change.
        what: &'static str,
    },
    /// The turns of an idempotency key were rewound.
    #[error(
        "the turns that were appended with this idempotency_key were rewound; choose a new key to \
         append them again"
    )]
    IdempotencyKeyRewound,
    /// An idempotency key was reused with different content.
    #[error("idempotency_key was used with other content; choose a new key")]
    IdempotencyKeyReused,
    /// The budget leaves no tokens for a window.
    #[error(
        "no budget is left on attempt {attempt}: context_window {} - max_reply_tokens {} - \
         safety_headroom {} - tool_result_headroom {}; raise the first or lower the others",
        budget.context_window, budget.max_reply_tokens, budget.safety_headroom,
        budget.tool_result_headroom
    )]
    BudgetNotPositive {
        budget: Budget,
        /// Attempt number, from 0.
        attempt: u32,
    },
    /// The required content of a window does not fit.
    #[error(
        "the window takes {budget} tokens, but what it may not leave out has {tokens}: \
         {system} of system prompt and tools, {pinned} of the first and of pinned turns, {turn} \
         of the current turn; shorten it, or ask for a larger context_window"
    )]
    CurrentTurnTooLarge {
        /// Tokens available to the window.
        budget: u64,
        /// Tokens of the required content.
        tokens: u64,
        /// Share of the system prompt, the tool schemas and the bot's additions.
        system: u64,
        /// Share of the first turn or its shortest excerpt, system turns and pinned turns.
        pinned: u64,
        /// Share of the current turn and the other turns of its unit.
        turn: u64,
    },
    /// No profile has this name.
    #[error("model {model:?} is not known; known are {}", known.join(", "))]
    UnknownModel {
        /// First 256 bytes of the requested name.
        model: String,
        /// Names of the configured profiles.
        known: Vec<String>,
    },
}
