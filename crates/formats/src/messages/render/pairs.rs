//! Repairs incomplete pairs of calls and outputs before turns are rendered.
//!
//! - A note replaces an output without its call. In a history this applies only to the first page:
//!   the calls of other pages may be on the previous one.
//! - In a request, a call that can no longer be answered is dropped: one answered by the provider,
//!   by a program, or with a screenshot. Calls made by a program lose their link to it and remain
//!   as ordinary calls. The same applies if a user message is between a program and its output,
//!   which the provider rejects.
//! - In a request to OpenAI's responses, reasoning is dropped if its item does not follow it, and
//!   always if the model does not reason.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use memoird_core::nonce::Nonce;
use memoird_core::ties::PartIds;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use memoird_core::{condense, quote};
use serde_json::{Map, Value, json};

use super::RenderOptions;
use super::extra::Extra;
use crate::messages::calls;
use crate::messages::fields::{OURS, extra};

/// Position of a part: index of its turn, and index within the turn.
type PartPosition = (usize, usize);

/// Maximum length in bytes of an output that a note quotes as JSON.
const QUOTE_BYTES_MAX: usize = 16 << 10;

/// Change to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Edit {
    /// Remove the fields with ids of missing calls.
    Unlink,
    /// Replace it with a note.
    Note,
    /// Drop it.
    Drop,
    /// Drop it, and the reasoning that led to it.
    DropWithReasoning,
}

/// A call that is not answered by a result part.
#[derive(Debug, Default)]
struct OpenCall {
    place: PartPosition,
    /// Index of the last turn that belongs to it.
    last_turn: usize,
    /// Calls that it makes, and other parts that name it as their caller.
    made: Vec<PartPosition>,
    answers: Vec<PartPosition>,
}

/// Returns the turns without incomplete pairs.
pub(super) fn paired<'a>(
    format: MessageFormat,
    turns: &'a [Turn],
    options: &RenderOptions<'_>,
) -> Cow<'a, [Turn]> {
    let mut turns = Cow::Borrowed(turns);
    if options.is_request && !options.rules.reasoning {
        let edits = reasoning(&turns);
        apply(format, &mut turns, &edits, options.nonce);
    }
    if options.is_request || options.is_start {
        let edits = Finder::new(format, &turns).edits(options.is_request);
        apply(format, &mut turns, &edits, options.nonce);
    }
    if options.is_request && format == MessageFormat::OpenAiResponses {
        let edits = lone_reasoning(format, &turns);
        apply(format, &mut turns, &edits, options.nonce);
    }
    turns
}

struct Finder<'a> {
    format: MessageFormat,
    turns: &'a [Turn],
    edits: BTreeMap<PartPosition, Edit>,
    /// Ids of all earlier calls.
    known: HashSet<Box<str>>,
    /// Calls that the provider or a program answers, by id.
    open: HashMap<Box<str>, OpenCall>,
    /// Id of the program that makes a call, by the id of the call.
    programs: HashMap<&'a str, Box<str>>,
    /// Calls whose type has no synthesized answer, by id.
    unanswerable: HashMap<&'a str, PartPosition>,
}

impl<'a> Finder<'a> {
    fn new(format: MessageFormat, turns: &'a [Turn]) -> Self {
        Self {
            format,
            turns,
            edits: BTreeMap::new(),
            known: HashSet::new(),
            open: HashMap::new(),
            programs: HashMap::new(),
            unanswerable: HashMap::new(),
        }
    }

    fn edits(mut self, is_request: bool) -> BTreeMap<PartPosition, Edit> {
        let turns = self.turns;
        for (turn_index, turn) in turns.iter().enumerate() {
            for (part_index, part) in turn.parts.iter().enumerate() {
                self.read((turn_index, part_index), part, part.ids());
            }
        }
        if is_request {
            self.drop_open_calls();
        }
        self.edits
    }

    fn edit(&mut self, place: PartPosition, edit: Edit) {
        let found = self.edits.entry(place).or_insert(edit);
        *found = edit.max(*found);
    }

    fn read(&mut self, place: PartPosition, part: &'a Part, ids: PartIds) {
        for id in ids.callers {
            match self.open.get_mut(&id) {
                Some(call) => {
                    call.made.push(place);
                    call.last_turn = place.0;
                    if let PartKind::ToolUse { id: made, .. } = &part.kind {
                        self.programs.insert(made, id);
                    }
                }
                None if self.known.contains(&id) => {}
                None => self.edit(place, Edit::Unlink),
            }
        }
        match &part.kind {
            PartKind::ToolUse { id, .. } => {
                self.known.insert(id.as_str().into());
                let extra = Extra::read(&part.extra_json);
                let kind = extra
                    .kind()
                    .and_then(|kind| calls::of_call(self.format, kind));
                if kind.is_some_and(|kind| kind.answer.is_none()) {
                    self.unanswerable.insert(id, place);
                }
            }
            PartKind::ToolResult { tool_use_id, .. } => {
                let id = tool_use_id.as_str();
                let program = self.programs.get(id);
                if let Some(call) = program.and_then(|program| self.open.get_mut(program)) {
                    call.last_turn = place.0;
                }
                if !self.known.contains(id) {
                    self.edit(place, Edit::Note);
                } else if let Some(call) = self.unanswerable.remove(id)
                    && part.extra_json.is_empty()
                {
                    // Clients answer these with an object of the provider, so this result was
                    // synthesized by memoird.
                    self.edit(call, Edit::DropWithReasoning);
                    self.edit(place, Edit::DropWithReasoning);
                }
            }
            _ if ids.name.is_some() || ids.answers.is_some() => {
                self.read_opaque(place, part, ids.name, ids.answers);
            }
            _ => {}
        }
    }

    fn read_opaque(
        &mut self,
        place: PartPosition,
        part: &Part,
        name: Option<Box<str>>,
        answers: Option<Box<str>>,
    ) {
        let extra = Extra::read(&part.extra_json);
        let kind = extra.kind().unwrap_or_default();
        let format = self.turns[place.0].format.unwrap_or(self.format);
        let is_call = calls::is_call(format, kind, &extra.rest);
        if let (true, Some(name)) = (is_call, &name) {
            let call = OpenCall {
                place,
                last_turn: place.0,
                ..OpenCall::default()
            };
            self.open.insert(name.clone(), call);
        } else if let Some(id) = answers {
            match self.open.get_mut(&id) {
                Some(call) => {
                    call.answers.push(place);
                    call.last_turn = place.0;
                }
                None if self.known.contains(&id) => {}
                None if calls::is_output(format, kind) => self.edit(place, Edit::Note),
                None if extra.rest.contains_key("approval_request_id") => {
                    self.edit(place, Edit::Unlink);
                }
                None => {}
            }
        }
        self.known.extend(name);
    }

    /// Drops calls that remain unanswered although the conversation has continued.
    fn drop_open_calls(&mut self) {
        let turns = self.turns;
        let is_other = |part: &Part| !matches!(part.kind, PartKind::ToolResult { .. });
        let is_said = |turn: &Turn| turn.role == Role::User && turn.parts.iter().any(is_other);
        let goes_on = |after: usize| {
            let mut later = turns[after + 1..].iter();
            later.any(|turn| turn.role == Role::Assistant || is_said(turn))
        };
        for call in std::mem::take(&mut self.open).into_values() {
            let is_open = call.answers.is_empty() && goes_on(call.last_turn);
            let between = &turns[call.place.0 + 1..=call.last_turn];
            if !is_open && !between.iter().any(is_said) {
                continue;
            }
            self.edit(call.place, Edit::DropWithReasoning);
            for place in call.made {
                self.edit(place, Edit::Unlink);
            }
            for place in call.answers {
                self.edit(place, Edit::Note);
            }
        }
        let unanswerable = std::mem::take(&mut self.unanswerable);
        for place in unanswerable.into_values().filter(|place| goes_on(place.0)) {
            self.edit(place, Edit::DropWithReasoning);
        }
    }
}

/// Finds reasoning, and items with nothing but encrypted content.
fn reasoning(turns: &[Turn]) -> BTreeMap<PartPosition, Edit> {
    let is_reasoning = |part: &Part| match &part.kind {
        PartKind::Thinking { .. } => true,
        PartKind::Text(text) if text.is_empty() => {
            let extra = Extra::read(&part.extra_json);
            extra.kind().is_some() && extra.has_text(&["encrypted_content"])
        }
        _ => false,
    };
    let places = turns.iter().enumerate().flat_map(|(turn_index, turn)| {
        let parts = turn
            .parts
            .iter()
            .enumerate()
            .filter(|(_, part)| is_reasoning(part));
        parts.map(move |(part_index, _)| ((turn_index, part_index), Edit::Drop))
    });
    places.collect()
}

/// Finds reasoning that is not followed by an item of the model.
fn lone_reasoning(format: MessageFormat, turns: &[Turn]) -> BTreeMap<PartPosition, Edit> {
    let mut edits = BTreeMap::new();
    let mut is_followed = false;
    for (turn_index, turn) in turns.iter().enumerate().rev() {
        if turn.role != Role::Assistant || turn.format != Some(format) {
            is_followed = turn.role == Role::Assistant;
            continue;
        }
        for (part_index, part) in turn.parts.iter().enumerate().rev() {
            match part.kind {
                PartKind::Thinking { .. } if !is_followed => {
                    edits.insert((turn_index, part_index), Edit::Drop);
                }
                _ if Extra::read(&part.extra_json).is_placeholder() => {}
                _ => is_followed = true,
            }
        }
    }
    edits
}

fn apply(
    format: MessageFormat,
    turns: &mut Cow<'_, [Turn]>,
    edits: &BTreeMap<PartPosition, Edit>,
    nonce: Nonce,
) {
    if edits.is_empty() {
        return;
    }
    let turns = turns.to_mut();
    for (&(turn, part), edit) in edits.iter().rev() {
        let mut edited = EditedTurn::new(&mut turns[turn]);
        match edit {
            Edit::Unlink => edited.unlink(part),
            Edit::Note => edited.note(part, nonce),
            Edit::Drop => edited.remove(part),
            Edit::DropWithReasoning => edited.leave(format, part),
        }
        edited.close();
    }
}

/// A turn being edited, with the extra that describes its items.
struct EditedTurn<'t> {
    turn: &'t mut Turn,
    extra: Map<String, Value>,
}

impl<'t> EditedTurn<'t> {
    fn new(turn: &'t mut Turn) -> Self {
        let extra = serde_json::from_str(&turn.extra_json).unwrap_or_default();
        Self { turn, extra }
    }

    fn close(self) {
        self.turn.extra_json = extra(&self.extra);
        let is_result = |part: &Part| matches!(part.kind, PartKind::ToolResult { .. });
        if self.turn.role == Role::Tool && !self.turn.parts.iter().any(is_result) {
            // A tool message without a result is invalid.
            self.turn.extra_json.clear();
            self.turn.format = None;
        }
    }

    fn items(&mut self) -> Option<&mut Vec<Value>> {
        self.extra.get_mut(OURS)?.get_mut("items")?.as_array_mut()
    }

    /// Returns the index of the item that this part is. `None` if it is part of a message.
    fn item(&mut self, part: usize) -> Option<usize> {
        let mut first = 0;
        self.items()?.iter().position(|item| {
            let parts = item.get(0).and_then(Value::as_u64);
            let is_it = item.is_null() && first == part;
            first += parts.map_or(1, |parts| usize::try_from(parts).unwrap_or(usize::MAX));
            is_it
        })
    }

    fn unlink(&mut self, part: usize) {
        let part = &mut self.turn.parts[part];
        let mut fields: Map<String, Value> =
            serde_json::from_str(&part.extra_json).unwrap_or_default();
        fields.shift_remove("caller");
        if matches!(part.kind, PartKind::Text(_)) {
            fields.shift_remove("approval_request_id");
        }
        part.extra_json = extra(&fields);
    }

    fn note(&mut self, part: usize, nonce: Nonce) {
        let note = note(&self.turn.parts[part], nonce);
        if let Some(item) = self.item(part)
            && let Some(items) = self.items()
        {
            items[item] = json!([note.len(), {}]);
        }
        self.turn.parts.splice(part..=part, note);
    }

    /// Removes a part and, in responses, the reasoning directly before it.
    fn leave(&mut self, format: MessageFormat, part: usize) {
        self.remove(part);
        let has_items = format == MessageFormat::OpenAiResponses;
        for before in (0..part).rev().take_while(|_| has_items) {
            if !matches!(self.turn.parts[before].kind, PartKind::Thinking { .. }) {
                break;
            }
            self.remove(before);
        }
    }

    fn remove(&mut self, part: usize) {
        if let Some(item) = self.item(part)
            && let Some(items) = self.items()
        {
            items.remove(item);
        }
        self.turn.parts.remove(part);
    }
}

/// Returns the note that replaces an output without its call, followed by the media of the output.
fn note(part: &Part, nonce: Nonce) -> Vec<Part> {
    let fields = Extra::read(&part.extra_json);
    let kind = fields.kind().unwrap_or_default().to_owned();
    let (what, content, media) = match &part.kind {
        PartKind::ToolResult {
            content,
            parts,
            is_error,
            ..
        } => {
            let what = if *is_error { "error" } else { "result" };
            let (content, media) = if content.is_empty() && parts.is_empty() {
                readable(fields.rest)
            } else {
                (content.clone(), parts.clone())
            };
            (what.to_owned(), content, media)
        }
        _ => {
            let (content, media) = readable(fields.rest);
            (kind, content, media)
        }
    };
    let line = format!("[memoird {nonce}: {what} of a call that is not shown here]");
    let text = format!("{line}\n{content}").trim_end().to_owned();
    [vec![PartKind::Text(text).into()], media].concat()
}

/// Returns an output as JSON without ids and encrypted content, and its images.
///
/// The values alone if the JSON is too long.
fn readable(mut fields: Map<String, Value>) -> (String, Vec<Part>) {
    fields.retain(|name, _| !["type", "id", "status", "execution"].contains(&name.as_str()));
    fields.retain(|name, _| !name.ends_with("_id"));
    let mut images = Vec::new();
    let mut value = Value::Object(fields);
    take_unreadable(&mut value, &mut images);
    if value.as_object().is_none_or(Map::is_empty) {
        return (String::new(), images);
    }
    let mut text = value.to_string();
    if text.len() > QUOTE_BYTES_MAX {
        text = condense::scalars(&value, QUOTE_BYTES_MAX);
    }
    (quote::unmarked(&text).into_owned(), images)
}

/// Removes images, encrypted fields and types, then empty values.
fn take_unreadable(value: &mut Value, images: &mut Vec<Part>) {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "type" && !name.starts_with("encrypted"));
            for inner in fields.values_mut() {
                take_unreadable(inner, images);
            }
            fields.retain(|_, inner| !is_nothing(inner));
        }
        Value::Array(items) => {
            for item in items.iter_mut() {
                take_unreadable(item, images);
            }
            items.retain(|item| !is_nothing(item));
        }
        Value::String(text) => {
            let image = text.strip_prefix("data:image/");
            if let Some((kind, _)) = image.and_then(|image| image.split_once(";base64,")) {
                let image = PartKind::Media {
                    media_type: format!("image/{kind}"),
                    name: String::new(),
                    source: MediaSource::Uri(std::mem::take(text)),
                };
                images.push(image.into());
                *value = Value::Null;
            }
        }
        _ => {}
    }
}
