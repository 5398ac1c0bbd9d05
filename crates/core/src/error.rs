//! Rejections of commands, each of which the caller can fix.

use thiserror::Error;

use crate::budget::Budget;
use crate::ids::{Generation, HOOK_NAME_BYTES_MAX};
use crate::options::CLASS_NAME_BYTES_MAX;

/// A rejected command. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoreError {
    #[error("{field} has {bytes} bytes; it takes 1 to {bytes_max}")]
    IdInvalid {
        field: &'static str,
        bytes: usize,
        bytes_max: usize,
    },
    #[error("generation {text:?} is not a ULID; send the one that SessionInfo gave")]
    GenerationInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    #[error("memory id {text:?} is not a ULID; send one that Remember or a list gave")]
    MemoryIdInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    #[error("lease {text:?} is not one that LeaseExtraction gave")]
    LeaseInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    #[error("id {text:?} is not one that EraseSession or EraseSubject gave")]
    ErasureIdInvalid {
        /// First 64 characters of the received text.
        text: String,
    },
    #[error("hook name {text:?} takes 1 to {HOOK_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    HookNameInvalid {
        /// First 80 characters of the name.
        text: String,
    },
    #[error("delivery id {text:?} is not generation/hook; send one that a list gave")]
    DeliveryIdInvalid {
        /// First 120 characters of the received text.
        text: String,
    },
    /// A turn is invalid by itself.
    #[error("{problem}")]
    TurnInvalid {
        /// Position in the append, from 0.
        index: usize,
        /// The problem and how to fix it.
        problem: String,
    },
    #[error("{what} is {actual}, the limit is {limit} ({setting})")]
    TurnTooLarge {
        index: usize,
        /// The measured quantity with its unit.
        what: &'static str,
        actual: usize,
        limit: usize,
        /// Name of the setting that limits it.
        setting: &'static str,
    },
    #[error("an append takes 1 to {limit} turns (limits.turns_per_append), this one has {actual}")]
    TurnCountInvalid {
        /// Turns in the append.
        actual: usize,
        limit: usize,
    },
    #[error("messages_json{path}: {problem}")]
    MessagesInvalid {
        /// Path of the invalid value, such as `[3].content`.
        path: String,
        problem: String,
    },
    #[error(
        "tool result for {id:?}, but no call of that id waits for a result; \
         append the assistant turn with the tool use first, or if that was in an earlier generation, \
         append the result before all other turns or as a user's text"
    )]
    ToolUseUnknown {
        index: usize,
        /// Id in the result.
        id: String,
    },
    #[error(
        "pinned turns would take {turns} turns and {bytes} bytes; \
         the limits are {turns_max} and {bytes_max}"
    )]
    PinnedTooMany {
        index: usize,
        turns: usize,
        bytes: usize,
        turns_max: usize,
        bytes_max: usize,
    },
    #[error("expected_seq is {expected}, but the newest turn is {actual}; read the history again")]
    StaleSeq {
        /// Seq in the command.
        expected: u64,
        /// Newest turn of the session.
        actual: u64,
    },
    #[error("expected_generation is {expected}, but {}", match actual {
        Some(live) => format!("{live} is live"),
        None => "the session has ended".to_owned(),
    })]
    StaleGeneration {
        expected: Generation,
        actual: Option<Generation>,
    },
    #[error("expected_version is {expected}, but the state has {actual}; read it again")]
    StaleStateVersion {
        /// Version in the command.
        expected: u64,
        /// Version of the session's state.
        actual: u64,
    },
    #[error("{problem}")]
    StateInvalid {
        /// The problem and how to fix it.
        problem: String,
    },
    #[error("the state would be {actual} bytes, the limit is {limit}; remove members with null")]
    StateTooLarge {
        /// Size in bytes.
        actual: usize,
        limit: usize,
    },
    #[error("label {name:?}: {problem}")]
    LabelInvalid {
        /// First 64 characters of the name.
        name: String,
        problem: String,
    },
    #[error(
        "the session would have {actual} labels, the limit is {limit}; an empty value takes a label away"
    )]
    LabelsTooMany {
        /// Labels after the patch.
        actual: usize,
        limit: usize,
    },
    #[error("ttl_class {text:?} takes 1 to {CLASS_NAME_BYTES_MAX} of a-z, 0-9, - and _")]
    TtlClassInvalid {
        /// First 80 characters of the name.
        text: String,
    },
    #[error(
        "ttl_class {class:?} is not one of the tenant's ttl_classes, which are: {}",
        known.join(", ")
    )]
    TtlClassUnknown {
        class: String,
        /// The configured names and `default`.
        known: Vec<String>,
    },
    #[error(
        "the session keeps all of its history (keep_all), and {actual} bytes of turns would be more \
         than its {limit} (max_history_bytes); raise the limit, reset or rewind the session, or set \
         keep_all to false"
    )]
    HistoryFull {
        /// Size in bytes that the history would have.
        actual: u64,
        limit: u64,
    },
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
    #[error("after_seq is {after_seq}, but the newest turn is {last_seq}")]
    RewindBeyondEnd {
        after_seq: u64,
        /// Last assigned seq of the generation.
        last_seq: u64,
    },
    #[error(
        "turn {seq} has another {what}; role, calls and results stay, in their order, so that \
         no tool unit is torn apart"
    )]
    TurnUpdateInvalid {
        seq: u64,
        /// The property that would change.
        what: &'static str,
    },
    #[error(
        "the turns that were appended with this idempotency_key were rewound; choose a new key to \
         append them again"
    )]
    IdempotencyKeyRewound,
    #[error("idempotency_key was used with other content; choose a new key")]
    IdempotencyKeyReused,
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
    #[error("model {model:?} is of no known family; add it to context.models, or use one of {}", known.join(", "))]
    UnknownModel {
        /// First 256 bytes of the requested name.
        model: String,
        known: Vec<String>,
    },
}

/// The field of a command that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A turn, by its index in the command.
    Turn(usize),
    Turns,
    /// A path inside the messages of a provider, such as `[3].content`.
    Messages(&'a str),
    /// The change of the session's state.
    StatePatch,
    /// The expected version of the state.
    StateVersion,
    /// An option of a window, by its name in `BuildContext`.
    Window(&'static str),
    /// A field with the same name in every request.
    Other(&'static str),
}

impl CoreError {
    /// The invalid field. `None` if it depends on several.
    pub fn field(&self) -> Option<Field<'_>> {
        Some(match self {
            Self::IdInvalid { field, .. } => Field::Other(field),
            Self::HookNameInvalid { .. } => Field::Other("hook"),
            Self::DeliveryIdInvalid { .. } | Self::MemoryIdInvalid { .. } => Field::Other("id"),
            Self::GenerationInvalid { .. } => Field::Other("generation"),
            Self::TurnInvalid { index, .. }
            | Self::TurnTooLarge { index, .. }
            | Self::ToolUseUnknown { index, .. }
            | Self::PinnedTooMany { index, .. } => Field::Turn(*index),
            Self::TurnCountInvalid { .. } | Self::HistoryFull { .. } => Field::Turns,
            Self::MessagesInvalid { path, .. } => Field::Messages(path),
            Self::StaleSeq { .. } => Field::Other("expected_seq"),
            Self::StaleGeneration { .. } => Field::Other("expected_generation"),
            Self::StaleStateVersion { .. } => Field::StateVersion,
            Self::StateInvalid { .. } | Self::StateTooLarge { .. } => Field::StatePatch,
            Self::RewindSplitsUnit { .. } | Self::RewindBeyondEnd { .. } => {
                Field::Other("after_seq")
            }
            Self::TurnUpdateInvalid { .. } => Field::Other("turn"),
            Self::LabelInvalid { .. } | Self::LabelsTooMany { .. } => Field::Other("labels"),
            Self::TtlClassInvalid { .. } | Self::TtlClassUnknown { .. } => {
                Field::Other("ttl_class")
            }
            Self::IdempotencyKeyRewound | Self::IdempotencyKeyReused => {
                Field::Other("idempotency_key")
            }
            Self::BudgetNotPositive { .. } => Field::Window("budget"),
            Self::UnknownModel { .. } => Field::Window("model"),
            Self::ErasureIdInvalid { .. } => Field::Other("id"),
            Self::LeaseInvalid { .. } => Field::Other("lease"),
            Self::CurrentTurnTooLarge { .. } => return None,
        })
    }
}
