//! Parses and validates requests into arguments of the engine.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::idempotency::{Fingerprint, IdempotencyKey, fingerprint};
use memoird_core::ids::{Generation, HookName, ID_BYTES_MAX, SessionId, Subject, TenantId};
use memoird_core::limits::Limits;
use memoird_core::options::{DEFAULT_CLASS, LABELS_MAX, OptionsPatch, check_label};
use memoird_core::outbox::DeliveryState;
use memoird_core::session::{AppendCommand, ModelUsage, RewindCommand};
use memoird_core::state::StatePatch;
use memoird_core::time::Timestamp;
use memoird_core::turn::{MessageFormat, NewTurn, Turn};
use memoird_engine::{
    CopyCommand, EndCommand, HistoryQuery, HistoryScope, JournalRange, PatchCommand, SessionOrder,
    SessionQuery, SessionState, TurnRef, TurnUpdateCommand,
};
use memoird_formats::messages;
use memoird_proto::prost_reflect::EnumDescriptor;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE, v1};
use memoird_store::{DeliveryFilter, encoding};
use prost::Message;

use super::refusal::{Names, Refusal};
use super::{PAGE_BYTES_MAX, status};

/// Maximum number of turns in a page of history.
const HISTORY_TURNS_MAX: usize = 1_000;
/// Maximum and default number of items in a page of any list.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;

pub(crate) fn session_id(text: &str) -> Result<SessionId, Refusal> {
    Ok(SessionId::parse(text)?)
}

/// Parses an optional field, where empty means unset.
pub(crate) fn optional<T>(
    field: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, CoreError>,
) -> Result<Option<T>, Refusal> {
    match text {
        "" => Ok(None),
        text => required(field, text, parse).map(Some),
    }
}

/// Parses a required field. An error names the field.
pub(crate) fn required<T>(
    field: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, CoreError>,
) -> Result<T, Refusal> {
    parse(text).map_err(|error| Refusal::from(error).about(field))
}

/// Size of an append's turns in bytes, an estimate of their parsing time.
pub(crate) fn append_bytes(request: &v1::AppendRequest) -> usize {
    let turns = request.turns.iter().map(Message::encoded_len);
    request.messages_json.len() + turns.sum::<usize>()
}

/// Names of an append's fields in errors.
pub(crate) fn append_names(messages_json: &str) -> Names {
    Names::Append {
        has_messages: !messages_json.is_empty(),
    }
}

/// Parses an append. Validates and encodes its turns.
pub(crate) fn append(
    request: v1::AppendRequest,
    limits: &Limits,
) -> Result<AppendCommand, Refusal> {
    let names = append_names(&request.messages_json);
    let refused = |error: CoreError| status::core_named(&error, names);
    let expected_generation = generation("expected_generation", &request.expected_generation)?;
    let subject = optional("subject", &request.subject, Subject::parse)?;
    if let Some(usage) = &request.usage {
        check_length("usage.model", &usage.model)?;
    }
    let key = request.idempotency_key;
    let decoded = match (request.turns.is_empty(), request.messages_json.is_empty()) {
        (false, false) => {
            let problem = "send turns or messages_json, not both";
            return Err(status::invalid("TURNS_AMBIGUOUS", "messages_json", problem));
        }
        (true, false) => {
            let format = format(request.format)?;
            messages::parse(format, &request.messages_json).map_err(refused)?
        }
        (_, true) => turns(request.turns, limits).map_err(refused)?,
    };
    let turns = encoded(decoded, limits).map_err(refused)?;
    let state = state_patch(request.state_patch_json, request.expected_state_version)?;
    let options = options_patch(request.labels, request.ttl_class, request.keep_all)?;
    let content = || content_fingerprint(subject.as_ref(), &turns, state.as_ref(), &options);
    let idempotency = idempotency(&key, content)?;
    Ok(AppendCommand {
        turns,
        subject,
        copied_from: None,
        idempotency,
        expected_seq: request.expected_seq,
        expected_generation,
        partial: request.partial,
        usage: request.usage.map(|usage| ModelUsage {
            model: usage.model,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_creation_tokens: usage.cache_creation_tokens,
        }),
        state,
        options,
    })
}

/// Fields that the mask of an update may name.
const UPDATABLE: [&str; 4] = ["state_json", "labels", "ttl_class", "keep_all"];

/// Parses a change of a session's state and options.
pub(crate) fn session_update(request: v1::UpdateSessionRequest) -> Result<PatchCommand, Refusal> {
    let mask = request.update_mask.map(|mask| mask.paths);
    let unknown = |path: &&String| !UPDATABLE.contains(&path.as_str());
    if let Some(path) = mask.iter().flatten().find(unknown) {
        let other: String = path.chars().take(64).collect();
        let known = UPDATABLE.join(", ");
        let problem = format!("unknown field {other:?} in update_mask; expected some of {known}");
        return Err(status::invalid(
            "UPDATE_MASK_INVALID",
            "update_mask",
            problem,
        ));
    }
    // Whether to set a field. Without a mask, all fields with a value are set.
    let is_set = |name: &str, has_value: bool| match &mask {
        Some(paths) => paths.iter().any(|path| path == name),
        None => has_value,
    };
    let replaces = is_set("state_json", !request.state_json.is_empty());
    let state = match (replaces, request.state_patch_json) {
        (true, patch) if !patch.is_empty() => {
            let problem = "send either state_json or state_patch_json";
            return Err(status::invalid(
                "STATE_INVALID",
                "state_patch_json",
                problem,
            ));
        }
        (true, _) if request.state_json.is_empty() => "{}".to_owned(),
        (true, _) => request.state_json,
        (false, patch) => patch,
    };
    let mut options = options_patch(request.labels, request.ttl_class, request.keep_all)?;
    if !is_set("labels", true) {
        options.labels.clear();
    }
    options.ttl_class = is_set("ttl_class", options.ttl_class.is_some())
        .then(|| options.ttl_class.unwrap_or_else(|| DEFAULT_CLASS.into()));
    options.keep_all =
        is_set("keep_all", options.keep_all.is_some()).then(|| options.keep_all.unwrap_or(false));
    if state.is_empty() && options.is_empty() {
        let problem = "nothing to update; send state_patch_json, state_json, labels, ttl_class or \
                       keep_all";
        return Err(status::invalid(
            "UPDATE_MASK_INVALID",
            "update_mask",
            problem,
        ));
    }
    let mut state = state_patch(state, request.expected_state_version)?;
    if let Some(state) = &mut state {
        state.replaces = replaces;
    }
    let content = || {
        let patched = content_fingerprint(None, &[], state.as_ref(), &options);
        fingerprint([&b"patch"[..], &[u8::from(replaces)], &patched])
    };
    Ok(PatchCommand {
        idempotency: idempotency(&request.idempotency_key, content)?,
        state,
        options,
        create: request.allow_missing,
    })
}

fn options_patch(
    labels: BTreeMap<String, String>,
    ttl_class: String,
    keep_all: Option<bool>,
) -> Result<OptionsPatch, Refusal> {
    let labels = labels.into_iter();
    let patch = OptionsPatch {
        labels: labels
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        ttl_class: Some(ttl_class).filter(|it| !it.is_empty()).map(Into::into),
        keep_all,
    };
    patch.check()?;
    Ok(patch)
}

/// Size of a rewind's turns in bytes, an estimate of their parsing time.
pub(crate) fn rewind_bytes(request: &v1::RewindSessionRequest) -> usize {
    let turns = request.turns.iter().map(Message::encoded_len);
    request.messages_json.len() + turns.sum::<usize>()
}

/// Parses a rewind, optionally with turns as in an append.
pub(crate) fn rewind(
    request: v1::RewindSessionRequest,
    limits: &Limits,
) -> Result<RewindCommand, Refusal> {
    let v1::RewindSessionRequest {
        after_seq,
        turns,
        messages_json,
        format,
        expected_seq,
        expected_generation,
        idempotency_key,
        ..
    } = request;
    let mut command = if turns.is_empty() && messages_json.is_empty() {
        AppendCommand {
            expected_seq,
            expected_generation: generation("expected_generation", &expected_generation)?,
            ..AppendCommand::default()
        }
    } else {
        let request = v1::AppendRequest {
            turns,
            messages_json,
            format,
            expected_seq,
            expected_generation,
            ..v1::AppendRequest::default()
        };
        append(request, limits)?
    };
    let content = || {
        let none = OptionsPatch::default();
        let added = content_fingerprint(None, &command.turns, None, &none);
        fingerprint([&b"rewind"[..], &after_seq.to_le_bytes(), &added])
    };
    command.idempotency = idempotency(&idempotency_key, content)?;
    Ok(RewindCommand {
        after_seq,
        append: command,
    })
}

/// Parses the source and target of a copy.
pub(crate) fn copy(request: &v1::CopySessionRequest) -> Result<CopyCommand, Refusal> {
    let target = SessionId::parse(&request.target_session_id);
    let target = target.map_err(|_| CoreError::IdInvalid {
        field: "target_session_id",
        bytes: request.target_session_id.len(),
        bytes_max: ID_BYTES_MAX,
    })?;
    let content = || {
        let through = request.through_seq.to_le_bytes();
        let (session, generation) = (request.session_id.as_bytes(), request.generation.as_bytes());
        fingerprint([&b"copy"[..], session, generation, &through])
    };
    Ok(CopyCommand {
        generation: generation("generation", &request.generation)?,
        through_seq: request.through_seq,
        target,
        replaces: request.replace_existing,
        idempotency: idempotency(&request.idempotency_key, content)?,
    })
}

pub(crate) fn reset(request: &v1::ResetSessionRequest) -> Result<EndCommand, Refusal> {
    let content = || fingerprint([&b"reset"[..], &[u8::from(request.run_hooks)]]);
    Ok(EndCommand {
        expected_generation: generation("expected_generation", &request.expected_generation)?,
        idempotency: idempotency(&request.idempotency_key, content)?,
    })
}

pub(crate) fn end(request: &v1::EndSessionRequest) -> Result<EndCommand, Refusal> {
    Ok(EndCommand {
        expected_generation: generation("expected_generation", &request.expected_generation)?,
        idempotency: idempotency(&request.idempotency_key, || fingerprint([&b"end"[..]]))?,
    })
}

/// Parses the new content of a turn. The update checks the tenant's limits.
pub(crate) fn turn_update(request: v1::UpdateTurnRequest) -> Result<TurnUpdateCommand, Refusal> {
    let turn = new_content(request.turn, &request.messages_json, request.format)?;
    let turn_name = match (request.seq, request.client_id) {
        (seq, id) if id.is_empty() => TurnRef::Seq(seq),
        (0, id) => TurnRef::ClientId(id),
        _ => {
            let problem = "send either seq or client_id";
            return Err(status::invalid("TURN_INVALID", "client_id", problem));
        }
    };
    let content = || {
        let seq = request.seq.to_le_bytes();
        let name = match &turn_name {
            TurnRef::Seq(_) => &seq[..],
            TurnRef::ClientId(id) => id.as_bytes(),
        };
        fingerprint([&b"update"[..], name, &encoding::encode(turn.clone()).body])
    };
    Ok(TurnUpdateCommand {
        idempotency: idempotency(&request.idempotency_key, content)?,
        turn_name,
        turn,
        expected_generation: generation("expected_generation", &request.expected_generation)?,
    })
}

/// Parses the new content of a turn, which can be sent in one of two forms.
fn new_content(turn: Option<v1::Turn>, messages_json: &str, number: i32) -> Result<Turn, Refusal> {
    let has_messages = !messages_json.is_empty();
    let refused = |error: CoreError| status::core_named(&error, Names::UpdateTurn { has_messages });
    match (turn, has_messages) {
        (Some(_), true) => {
            let problem = "send turn or messages_json, not both";
            Err(status::invalid("TURNS_AMBIGUOUS", "messages_json", problem))
        }
        (Some(turn), false) => encoding::from_proto(turn).map_err(|malformed| {
            let problem = malformed.to_string();
            refused(CoreError::TurnInvalid { index: 0, problem })
        }),
        (None, true) => {
            let mut turns = messages::parse(format(number)?, messages_json).map_err(refused)?;
            let count = turns.len();
            turns.pop().filter(|_| count == 1).ok_or_else(|| {
                let problem = format!("messages_json makes {count} turns; an update replaces one");
                status::invalid("TURN_INVALID", "messages_json", problem)
            })
        }
        (None, false) => {
            let problem = "turn is missing; send the new content";
            Err(status::invalid("TURN_INVALID", "turn", problem))
        }
    }
}

/// Parses the state change of an append. `None` if there is none.
fn state_patch(json: String, expected_version: Option<u64>) -> Result<Option<StatePatch>, Refusal> {
    if json.is_empty() && expected_version.is_some() {
        let problem = "expected_state_version requires a change of the state";
        return Err(status::invalid(
            "STATE_INVALID",
            "expected_state_version",
            problem,
        ));
    }
    Ok((!json.is_empty()).then_some(StatePatch {
        json,
        replaces: false,
        expected_version,
    }))
}

/// Parses an idempotency key, if any, and adds the request's fingerprint.
pub(super) fn idempotency(
    key: &str,
    content: impl FnOnce() -> Fingerprint,
) -> Result<Option<IdempotencyKey>, Refusal> {
    check_length("idempotency_key", key)?;
    Ok((!key.is_empty()).then(|| IdempotencyKey {
        key: fingerprint([key.as_bytes()]),
        content: content(),
    }))
}

pub(super) fn check_length(field: &'static str, text: &str) -> Result<(), Refusal> {
    let (bytes, bytes_max) = (text.len(), ID_BYTES_MAX);
    if bytes > bytes_max {
        let invalid = CoreError::IdInvalid {
            field,
            bytes,
            bytes_max,
        };
        return Err(invalid.into());
    }
    Ok(())
}

/// Rejects a number that is not a value of the enum `of`, and lists the values.
pub(super) fn unknown<T>(
    reason: &'static str,
    field: &'static str,
    number: i32,
    of: &str,
) -> Result<T, Refusal> {
    let descriptor = DESCRIPTOR_POOL.get_enum_by_name(&format!("{PACKAGE}.{of}"));
    let values = descriptor.iter().flat_map(EnumDescriptor::values).skip(1);
    let names: Vec<_> = values.map(|value| value.name().to_owned()).collect();
    let problem = format!("{field} is {number}, expected {}", names.join(" or "));
    Err(status::invalid(reason, field, problem))
}

pub(crate) fn format(format: i32) -> Result<MessageFormat, Refusal> {
    match encoding::format_from_proto(format) {
        Some(format) => Ok(format),
        None => unknown("FORMAT_INVALID", "format", format, "MessageFormat"),
    }
}

/// Parses which turns to read.
pub(crate) fn history(request: &v1::GetHistoryRequest) -> Result<HistoryQuery, Refusal> {
    let scope = match v1::HistoryScope::try_from(request.scope) {
        Ok(v1::HistoryScope::Unspecified | v1::HistoryScope::Live) => HistoryScope::Live,
        Ok(v1::HistoryScope::Journal) => HistoryScope::Journal,
        Ok(v1::HistoryScope::Longest) => HistoryScope::Longest,
        Err(_) => unknown("SCOPE_INVALID", "scope", request.scope, "HistoryScope")?,
    };
    if request.last > 0 && request.limit > 0 {
        let problem = "send either `last` or `limit`";
        return Err(status::invalid("LIMIT_INVALID", "limit", problem));
    }
    Ok(HistoryQuery {
        scope,
        generation: generation("generation", &request.generation)?,
        range: JournalRange {
            after_seq: request.after_seq,
            before_seq: match request.before_seq {
                0 => u64::MAX,
                before_seq => before_seq,
            },
            last: request.last > 0,
            with_rewound: scope == HistoryScope::Journal,
            turns_max: match request.limit.max(request.last) {
                0 => HISTORY_TURNS_MAX,
                turns => HISTORY_TURNS_MAX.min(turns as usize),
            },
            bytes_max: PAGE_BYTES_MAX,
        },
    })
}

/// Number of items for the requested page size.
pub(crate) fn page_size(asked: u32) -> usize {
    match asked {
        0 => PAGE_DEFAULT,
        asked => PAGE_MAX.min(asked as usize),
    }
}

/// Parses the last item of the previous page. `None` at the beginning of the list.
pub(crate) fn page_token<T: FromStr>(token: &str) -> Result<Option<T>, Refusal> {
    read_page_token(token, |token| token.parse().ok())
}

/// Parses the filters and order of a list of sessions.
pub(crate) fn session_query(request: v1::ListSessionsRequest) -> Result<SessionQuery, Refusal> {
    let order = match v1::SessionOrder::try_from(request.order) {
        Ok(v1::SessionOrder::Unspecified | v1::SessionOrder::Newest) => SessionOrder::Newest,
        Ok(v1::SessionOrder::Oldest) => SessionOrder::Oldest,
        Ok(v1::SessionOrder::Id) => SessionOrder::Id,
        Err(_) => unknown("ORDER_INVALID", "order", request.order, "SessionOrder")?,
    };
    let state = match v1::SessionState::try_from(request.state) {
        Ok(v1::SessionState::Unspecified | v1::SessionState::Live) => SessionState::Live,
        Ok(v1::SessionState::Ended) => SessionState::Ended,
        Ok(v1::SessionState::Any) => SessionState::Any,
        Err(_) => unknown("STATE_UNKNOWN", "state", request.state, "SessionState")?,
    };
    check_length("id_prefix", &request.id_prefix)?;
    let labels: BTreeMap<Arc<str>, Arc<str>> = request
        .labels
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    for (name, value) in &labels {
        check_label(name, value)?;
    }
    if labels.len() > LABELS_MAX {
        let problem = format!(
            "labels has {} entries, the maximum is {LABELS_MAX}",
            labels.len()
        );
        return Err(status::invalid("LABELS_TOO_MANY", "labels", problem));
    }
    Ok(SessionQuery {
        state,
        id_prefix: request.id_prefix.into(),
        subject: optional("subject", &request.subject, Subject::parse)?,
        labels,
        used_after: moment("updated_after", request.updated_after)?,
        used_before: moment("updated_before", request.updated_before)?,
        order,
    })
}

fn moment(
    field: &'static str,
    time: Option<prost_types::Timestamp>,
) -> Result<Option<Timestamp>, Refusal> {
    let Some(time) = time else { return Ok(None) };
    let nanos = u32::try_from(time.nanos).ok();
    let read = nanos.and_then(|nanos| Timestamp::new(time.seconds, nanos));
    let problem = || format!("{field} is outside the years 1970 to 9999");
    let invalid = || status::invalid("TIME_INVALID", field, problem());
    read.map(Some).ok_or_else(invalid)
}

/// Parses a page token. `None` at the beginning of the list.
pub(crate) fn read_page_token<T>(
    token: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    if token.is_empty() {
        return Ok(None);
    }
    let problem = "invalid page_token: use a returned next_page_token, or start again without it";
    let invalid = || status::invalid("PAGE_TOKEN_INVALID", "page_token", problem);
    read(token).map(Some).ok_or_else(invalid)
}

/// Parses the filters of a list of hook deliveries.
pub(crate) fn delivery_filter(
    request: &v1::ListHookDeliveriesRequest,
    tenant: Option<TenantId>,
) -> Result<DeliveryFilter, Refusal> {
    let hook = optional("hook", &request.hook, HookName::parse)?;
    let state = match v1::DeliveryState::try_from(request.state) {
        Ok(v1::DeliveryState::Unspecified) => None,
        Ok(v1::DeliveryState::Pending) => Some(DeliveryState::Pending),
        Ok(v1::DeliveryState::Done) => Some(DeliveryState::Done),
        Ok(v1::DeliveryState::Dead) => Some(DeliveryState::Dead),
        Err(_) => unknown("STATE_UNKNOWN", "state", request.state, "DeliveryState")?,
    };
    Ok(DeliveryFilter {
        tenant,
        hook,
        state,
    })
}

fn turns(turns: Vec<v1::Turn>, limits: &Limits) -> Result<Vec<Turn>, CoreError> {
    check_count(turns.len(), limits)?;
    let read = |(index, turn)| {
        encoding::from_proto(turn).map_err(|malformed| CoreError::TurnInvalid {
            index,
            problem: malformed.to_string(),
        })
    };
    turns.into_iter().enumerate().map(read).collect()
}

fn encoded(turns: Vec<Turn>, limits: &Limits) -> Result<Vec<NewTurn>, CoreError> {
    check_count(turns.len(), limits)?;
    let encode = |(index, turn): (usize, Turn)| {
        turn.check(index, limits)?;
        let turn = encoding::encode(turn);
        limits.check_turn_bytes(index, turn.body.len())?;
        Ok(turn)
    };
    turns.into_iter().enumerate().map(encode).collect()
}

fn check_count(actual: usize, limits: &Limits) -> Result<(), CoreError> {
    if (1..=limits.turns_per_append).contains(&actual) {
        Ok(())
    } else {
        Err(CoreError::TurnCountInvalid {
            actual,
            limit: limits.turns_per_append,
        })
    }
}

pub(crate) fn generation(field: &'static str, text: &str) -> Result<Option<Generation>, Refusal> {
    optional(field, text, str::parse)
}

/// Fingerprint of an append, equal for every repeat.
///
/// Independent of the order in which the client encodes metadata.
fn content_fingerprint(
    subject: Option<&Subject>,
    turns: &[NewTurn],
    state: Option<&StatePatch>,
    options: &OptionsPatch,
) -> Fingerprint {
    let subject = subject.map_or(&[][..], |subject| subject.as_str().as_bytes());
    let bodies = turns.iter().map(|turn| &turn.body[..]);
    let state = state.map(|patch| patch.json.as_bytes());
    let labels = options
        .labels
        .iter()
        .flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    let class = options.ttl_class.as_ref().map(|class| class.as_bytes());
    let keep_all = options
        .keep_all
        .map(|keeps| if keeps { &b"all"[..] } else { b"fifo" });
    let options = labels.chain(class).chain(keep_all);
    fingerprint(
        [subject]
            .into_iter()
            .chain(bodies)
            .chain(state)
            .chain(options),
    )
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
