//! Why a command was refused: always something the caller can change.

use thiserror::Error;

use crate::budget::Budget;
use crate::ids::{Generation, HOOK_NAME_BYTES_MAX};
use crate::options::CLASS_NAME_BYTES_MAX;

/// A command that the rules refuse. Nothing of it was done.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoreError {
    /// An id is empty or too long.
    #[error("{field} has {bytes} bytes; it takes 1 to {bytes_max}")]
    IdInvalid {
        /// Which id.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// Its maximum length in bytes.
        bytes_max: usize,
    },
    /// A generation is not a ULID.
    #[error("generation {text:?} is not a ULID; send the one that SessionInfo gave")]
    GenerationInvalid {
        /// The text that was sent, at most 64 characters of it.
        text: String,
    },
    /// A memory's id is not a ULID.
    #[error("memory id {text:?} is not a ULID; send one that Remember or a list gave")]
    MemoryIdInvalid {
        /// The text that was sent, at most 64 characters of it.
        text: String,
    },
    /// A lease's id is not a ULID.
    #[error("lease {text:?} is not one that LeaseExtraction gave")]
    LeaseInvalid {
        /// The text that was sent, at most 64 characters of it.
        text: String,
    },
    /// An erasure's id is not a ULID.
    #[error("job_id {text:?} is not one that EraseSession or EraseSubject gave")]
    ErasureIdInvalid {
        /// The text that was sent, at most 64 characters of it.
        text: String,
    },
    /// A hook's name has other characters, or too many.
    #[error("hook name {text:?} takes 1 to {HOOK_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    HookNameInvalid {
        /// The name that was given, at most 80 characters of it.
        text: String,
    },
    /// The id of a delivery is not `generation/hook`.
    #[error("delivery id {text:?} is not generation/hook; send one that a list gave")]
    DeliveryIdInvalid {
        /// The text that was sent, at most 120 characters of it.
        text: String,
    },
    /// A turn breaks a rule by itself.
    #[error("turns[{index}]: {problem}")]
    TurnInvalid {
        /// Its place in the append, from 0.
        index: usize,
        /// The mistake, and how to correct it.
        problem: String,
    },
    /// A turn, or a part of it, is larger than a limit.
    #[error("turns[{index}]: {what} is {actual}, the limit is {limit} ({setting})")]
    TurnTooLarge {
        /// Its place in the append, from 0.
        index: usize,
        /// What was measured, with its unit.
        what: &'static str,
        /// What it measures.
        actual: usize,
        /// What it may measure.
        limit: usize,
        /// The setting of this limit.
        setting: &'static str,
    },
    /// An append without turns, or with too many.
    #[error("an append takes 1 to {limit} turns (limits.turns_per_append), this one has {actual}")]
    TurnCountInvalid {
        /// How many it has.
        actual: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A provider's message array does not have the provider's shape.
    #[error("messages_json{path}: {problem}")]
    MessagesInvalid {
        /// Where, such as `[3].content`.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// A tool result answers no call that waits for one.
    #[error(
        "turns[{index}]: tool result for {id:?}, but no call of that id waits for a result; \
         append the assistant turn with the tool use first"
    )]
    ToolUseUnknown {
        /// The turn's place in the append, from 0.
        index: usize,
        /// The id it names.
        id: String,
    },
    /// Pinned turns, with those they travel with, would take too much.
    #[error(
        "turns[{index}]: pinned turns would take {turns} turns and {bytes} bytes; \
         the limits are {turns_max} and {bytes_max}"
    )]
    PinnedTooMany {
        /// The turn's place in the append, from 0.
        index: usize,
        /// Turns they would take.
        turns: usize,
        /// Bytes they would take.
        bytes: usize,
        /// Turns they may take.
        turns_max: usize,
        /// Bytes they may take.
        bytes_max: usize,
    },
    /// The caller's `expected_seq` is not the newest turn.
    #[error("expected_seq is {expected}, but the newest turn is {actual}; read the history again")]
    StaleSeq {
        /// The value that the caller expected.
        expected: u64,
        /// The value of the session.
        actual: u64,
    },
    /// The caller's `expected_generation` is not the live one.
    #[error("expected_generation is {expected}, but {}", match actual {
        Some(live) => format!("{live} is live"),
        None => "the session has ended".to_owned(),
    })]
    StaleGeneration {
        /// What the caller expected.
        expected: Generation,
        /// The live generation.
        actual: Option<Generation>,
    },
    /// The caller's `expected_version` is not the state's.
    #[error("expected_version is {expected}, but the state has {actual}; read it again")]
    StaleStateVersion {
        /// The value that the caller expected.
        expected: u64,
        /// The value of the session.
        actual: u64,
    },
    /// A merge patch, or the state after it, is not acceptable.
    #[error("merge_patch_json: {problem}")]
    StateInvalid {
        /// What is wrong.
        problem: String,
    },
    /// The state after a patch would be too large.
    #[error("the state would be {actual} bytes, the limit is {limit}; remove members with null")]
    StateTooLarge {
        /// What it would measure.
        actual: usize,
        /// What it may measure.
        limit: usize,
    },
    /// A label of a session has no name, or is too long.
    #[error("label {name:?}: {problem}")]
    LabelInvalid {
        /// Its name, at most 64 characters of it.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A session would have too many labels.
    #[error(
        "the session would have {actual} labels, the limit is {limit}; an empty value takes a label away"
    )]
    LabelsTooMany {
        /// How many it would have.
        actual: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The name of a class of TTLs has other characters, or too many.
    #[error("ttl_class {text:?} takes 1 to {CLASS_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    TtlClassInvalid {
        /// The name that was given, at most 80 characters of it.
        text: String,
    },
    /// The tenant's configuration has no such class of TTLs.
    #[error(
        "ttl_class {class:?} is not one of the tenant's ttl_classes, which are: {}",
        known.join(", ")
    )]
    TtlClassUnknown {
        /// The name that was given.
        class: String,
        /// The names that the configuration has, and `default`.
        known: Vec<String>,
    },
    /// A session that keeps all of its history has no room for more.
    #[error(
        "the session keeps all of its history (keep_all), and {actual} bytes of turns would be more \
         than its {limit} (max_history_bytes); raise the limit, reset or rewind the session, or set \
         keep_all to false"
    )]
    HistoryFull {
        /// Bytes that it would have.
        actual: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// A rewind would take a part of a tool unit away.
    #[error(
        "after_seq {after_seq} is inside a tool unit: turns {first_seq} and {last_seq} hold a call \
         and its result, and go together; choose an after_seq before {first_seq} or from \
         {last_seq} on"
    )]
    RewindSplitsUnit {
        /// What was asked for.
        after_seq: u64,
        /// A turn of the unit that would stay.
        first_seq: u64,
        /// A turn of the unit that would go.
        last_seq: u64,
    },
    /// A rewind to behind the newest turn.
    #[error("after_seq is {after_seq}, but the newest turn is {last_seq}")]
    RewindBeyondEnd {
        /// What was asked for.
        after_seq: u64,
        /// The newest turn.
        last_seq: u64,
    },
    /// A turn would get another place among the others.
    #[error(
        "turn {seq} has another {what}; role, calls and results stay, in their order, so that \
         no tool unit is torn apart"
    )]
    TurnUpdateInvalid {
        /// Which turn.
        seq: u64,
        /// What would be another one.
        what: &'static str,
    },
    /// The turns of an idempotency key were rewound.
    #[error(
        "the turns that were appended with this idempotency_key were rewound; choose a new key to \
         append them again"
    )]
    IdempotencyKeyRewound,
    /// An idempotency key came again with other content.
    #[error("idempotency_key was used with other content; choose a new key")]
    IdempotencyKeyReused,
    /// Nothing is left for a window.
    #[error(
        "no budget is left on attempt {attempt}: context_window {} - max_reply_tokens {} - \
         safety_headroom {} - tool_result_headroom {}; raise the first or lower the others",
        budget.context_window, budget.max_reply_tokens, budget.safety_headroom,
        budget.tool_result_headroom
    )]
    BudgetNotPositive {
        /// The budget.
        budget: Budget,
        /// Which try it is, from 0.
        attempt: u32,
    },
    /// What must be in a window does not fit.
    #[error(
        "the window takes {budget} tokens, but what it may not leave out has {tokens}: \
         {system} of system prompt and tools, {pinned} of the first and of pinned turns, {turn} \
         of the current turn; shorten it, or ask for a larger context_window"
    )]
    CurrentTurnTooLarge {
        /// Tokens the window may use.
        budget: u64,
        /// Tokens of the parts that it may not leave out.
        tokens: u64,
        /// Of these, the system prompt, the tool schemas and what the bot adds.
        system: u64,
        /// Of these, the first turn or its shortest excerpt, system turns and pinned turns.
        pinned: u64,
        /// Of these, the current turn with the other turns of its unit.
        turn: u64,
    },
    /// No profile has this name.
    #[error("model {model:?} is not known; known are {}", known.join(", "))]
    UnknownModel {
        /// The name that was asked for, at most 256 bytes of it.
        model: String,
        /// The names that are known.
        known: Vec<String>,
    },
}
