//! Paths of invalid fields, such as `turns[1]`, the metadata `field` of every INVALID_ARGUMENT.
//!
//! A rule uses the name that most calls have. Other calls rename it (`append.turns[1]`).
//! `tests/suite/refused_fields.rs` checks each path against the descriptor of its request.

use memoird_core::CoreError;
use tonic::Status;
use tonic_types::StatusExt;

/// Key of the field path in the error's metadata.
pub(super) const FIELD: &str = "field";
/// Path for a request that cannot be decoded as a whole.
const WHOLE: &str = "request";

/// The field of a core error, by its most common name.
pub(super) fn of(refusal: &CoreError) -> Option<String> {
    let field = match refusal {
        CoreError::IdInvalid { field, .. } => field,
        CoreError::HookNameInvalid { .. } => "hook",
        CoreError::DeliveryIdInvalid { .. } | CoreError::MemoryIdInvalid { .. } => "id",
        CoreError::GenerationInvalid { .. } => "generation",
        CoreError::TurnInvalid { index, .. }
        | CoreError::TurnTooLarge { index, .. }
        | CoreError::ToolUseUnknown { index, .. }
        | CoreError::PinnedTooMany { index, .. } => return Some(format!("turns[{index}]")),
        CoreError::TurnCountInvalid { .. } | CoreError::HistoryFull { .. } => "turns",
        CoreError::MessagesInvalid { path, .. } => return Some(format!("messages_json{path}")),
        CoreError::StaleSeq { .. } => "expected_seq",
        CoreError::StaleGeneration { .. } => "expected_generation",
        CoreError::StaleStateVersion { .. } => "expected_version",
        CoreError::StateInvalid { .. } | CoreError::StateTooLarge { .. } => "merge_patch_json",
        CoreError::RewindSplitsUnit { .. } | CoreError::RewindBeyondEnd { .. } => "after_seq",
        CoreError::TurnUpdateInvalid { .. } => "turn",
        CoreError::LabelInvalid { .. } | CoreError::LabelsTooMany { .. } => "labels",
        CoreError::TtlClassInvalid { .. } | CoreError::TtlClassUnknown { .. } => "ttl_class",
        CoreError::IdempotencyKeyRewound | CoreError::IdempotencyKeyReused => "idempotency_key",
        CoreError::BudgetNotPositive { .. } => "budget",
        CoreError::UnknownModel { .. } => "model",
        CoreError::ErasureIdInvalid { .. } => "job_id",
        CoreError::LeaseInvalid { .. } => "lease",
        // Depends on several fields.
        CoreError::CurrentTurnTooLarge { .. } => return None,
    };
    Some(field.to_owned())
}

pub(crate) fn named_in(refusal: &Status) -> Option<String> {
    refusal.get_details_error_info()?.metadata.remove(FIELD)
}

/// Renames the field of an error, if any, also at the beginning of its message.
pub(crate) fn renamed(refusal: &Status, rename: impl FnOnce(&str) -> String) -> Status {
    let mut details = refusal.get_error_details();
    let mut text = refusal.message().to_owned();
    if let Some(mut info) = details.error_info().cloned()
        && let Some(field) = info.metadata.get_mut(FIELD)
    {
        let was = std::mem::take(field);
        *field = rename(&was);
        if let Some(rest) = text.strip_prefix(&was).filter(|rest| rest.starts_with(':')) {
            text = format!("{field}{rest}");
        }
        details.set_error_info(info.reason, info.domain, info.metadata);
    }
    Status::with_error_details(refusal.code(), text, details)
}

/// Sets the field of an error that has one.
pub(crate) fn about(refusal: &Status, field: &str) -> Status {
    renamed(refusal, |_| field.to_owned())
}

/// Sets the field of an error that has one, and keeps the old position in the message.
///
/// An element may produce several turns, so the path cannot contain its index.
pub(crate) fn read_from(refusal: &Status, field: &str) -> Status {
    let text = format!("{field}: {}", refusal.message());
    let details = about(refusal, field).get_error_details();
    Status::with_error_details(refusal.code(), text, details)
}

/// Prefixes the field of an error with the field of the enclosing message.
pub(crate) fn within(refusal: &Status, message: &str) -> Status {
    renamed(refusal, |field| format!("{message}.{field}"))
}

/// Extracts the path from a decoding error: `turns.role` of `Turn.role: AppendRequest.turns: why`.
pub(super) fn malformed(said: &str) -> String {
    let fields = said.split(": ").filter_map(|piece| {
        let (message, field) = piece.split_once('.')?;
        let is_name = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        (is_name(message) && is_name(field)).then_some(field)
    });
    let names: Vec<&str> = fields.collect();
    if names.is_empty() {
        WHOLE.to_owned()
    } else {
        // The innermost field comes first.
        names.into_iter().rev().collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::malformed;

    #[test]
    fn field_of_decoding_error_is_named_if_known() {
        let said =
            "failed to decode Protobuf message: Turn.role: AppendRequest.turns: invalid varint";
        assert_eq!(malformed(said), "turns.role");
        assert_eq!(malformed("unexpected end of file. Try again"), "request");
    }
}
