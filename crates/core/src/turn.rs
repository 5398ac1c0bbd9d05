//! Turns: one contribution by one role each, and the metadata of a turn once it is encoded.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::embedded_media;
use crate::error::CoreError;
use crate::ids::{CALL_ID_BYTES_MAX, ID_BYTES_MAX};
use crate::json::{VALUES_MAX, has_too_many_values};
use crate::limits::Limits;
use crate::ties::PartIds;
use crate::time::Timestamp;

/// Metadata label of turns that memoird created or changed. Its value is the kind of change.
pub const LABEL: &str = "memoird";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person or program that talks to the bot.
    User,
    Assistant,
    Tool,
    /// Instructions of the bot's author.
    System,
}

impl Role {
    /// Name in prompts and in the messages of most providers.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::System => "system",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageFormat {
    /// The `messages` array of OpenAI chat completions.
    OpenAi,
    /// The `input` item array of OpenAI responses.
    OpenAiResponses,
    /// The `messages` array of Anthropic.
    Anthropic,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub role: Role,
    /// At least one, in order.
    pub parts: Vec<Part>,
    /// Time set by the bot. If absent, the arrival time applies.
    pub timestamp: Option<Timestamp>,
    /// Importance, 0 to 1.
    pub salience: Option<f32>,
    /// Exempts the turn from being dropped.
    pub pinned: bool,
    /// Labels for the bot's own use.
    pub metadata: BTreeMap<String, String>,
    /// Provider fields that memoird does not interpret: a JSON object, or empty.
    pub extra_json: String,
    /// Provider of the `extra_json` here and in the parts. `None` means any provider.
    pub format: Option<MessageFormat>,
    /// The client's own message id, or empty. Never sent to a provider.
    pub client_id: String,
    /// Client data returned with the turn: JSON, or empty. Never sent to a provider.
    pub client_json: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub kind: PartKind,
    /// Provider fields that memoird does not interpret: a JSON object, or empty.
    pub extra_json: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PartKind {
    /// Plain text, possibly empty.
    Text(String),
    ToolUse {
        /// The provider's id of the call.
        id: String,
        name: String,
        /// The arguments, byte for byte as the model wrote them.
        input_json: String,
    },
    ToolResult {
        tool_use_id: String,
        /// The result as text, byte for byte.
        content: String,
        /// The result as rich content. Only text and media are allowed.
        parts: Vec<Part>,
        is_error: bool,
    },
    Media {
        /// IANA media type, or empty.
        media_type: String,
        name: String,
        source: MediaSource,
    },
    Thinking {
        /// The reasoning, or the provider's opaque data.
        text: String,
        /// The provider's signature over the reasoning.
        signature: String,
        redacted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSource {
    Data(Vec<u8>),
    /// URI from which the provider loads the content.
    Uri(String),
}

impl From<PartKind> for Part {
    fn from(kind: PartKind) -> Self {
        Self {
            kind,
            extra_json: String::new(),
        }
    }
}

impl Turn {
    /// Creates a turn without optional fields.
    pub fn new(role: Role, parts: Vec<Part>) -> Self {
        Self {
            role,
            parts,
            timestamp: None,
            salience: None,
            pinned: false,
            metadata: BTreeMap::new(),
            extra_json: String::new(),
            format: None,
            client_id: String::new(),
            client_json: String::new(),
        }
    }

    /// Labels the turn as created or changed by memoird.
    #[must_use]
    pub(crate) fn labelled(mut self, what: &str) -> Self {
        self.metadata.insert(LABEL.to_owned(), what.to_owned());
        self
    }

    /// Returns the tool uses and results of the turn in order, and its other references.
    pub fn links(&self) -> Links {
        let has_items = self.format == Some(MessageFormat::OpenAiResponses);
        let last = self.parts.last().map(|part| &part.kind);
        let mut links = Links {
            takes_orphans: has_items,
            leads_on: has_items && matches!(last, Some(PartKind::Thinking { .. })),
            ..Links::default()
        };
        for part in &self.parts {
            links.add_ids(part.ids());
            match &part.kind {
                PartKind::ToolUse { id, .. } => links.uses.push(id.as_str().into()),
                PartKind::ToolResult { tool_use_id, .. } => {
                    links.results.push(tool_use_id.as_str().into());
                }
                PartKind::Text(_) | PartKind::Media { .. } | PartKind::Thinking { .. } => {}
            }
        }
        links
    }

    /// Bytes of the fields that are never sent to a provider.
    pub fn client_bytes(&self) -> usize {
        self.client_id.len() + self.client_json.len()
    }

    /// Checks the rules that apply to a single turn. `index` is its position in the append.
    ///
    /// # Errors
    /// [`CoreError::TurnInvalid`] or [`CoreError::TurnTooLarge`], with the position.
    pub fn check(&self, index: usize, limits: &Limits) -> Result<(), CoreError> {
        let invalid = |problem: String| CoreError::TurnInvalid { index, problem };
        let at_most = |(what, setting), actual, limit| {
            if actual <= limit {
                Ok(())
            } else {
                Err(CoreError::TurnTooLarge {
                    index,
                    what,
                    actual,
                    limit,
                    setting,
                })
            }
        };
        if self.parts.is_empty() {
            let problem = "no parts; send at least one, an empty text if need be";
            return Err(invalid(problem.into()));
        }
        if self
            .salience
            .is_some_and(|salience| !(0.0..=1.0).contains(&salience))
        {
            return Err(invalid("salience is outside 0 to 1".into()));
        }
        check_extra(&self.extra_json).map_err(invalid)?;
        let parts = self.parts.iter().map(Part::count).sum();
        at_most(
            ("parts", "limits.parts_per_turn"),
            parts,
            limits.parts_per_turn,
        )?;
        let entries = self.metadata.len();
        let what = ("metadata entries", "limits.metadata_entries");
        at_most(what, entries, limits.metadata_entries)?;
        let metadata = self.metadata.iter();
        let bytes = metadata.map(|(name, value)| name.len() + value.len()).sum();
        let what = ("metadata bytes", "limits.metadata_bytes");
        at_most(what, bytes, limits.metadata_bytes)?;
        check_length("client_id", &self.client_id, 0, ID_BYTES_MAX).map_err(invalid)?;
        let what = ("client_json bytes", "limits.client_json_bytes");
        if self.client_json.len() > limits.client_json_bytes {
            let bytes = embedded_media::bytes_without(&self.client_json);
            at_most(what, bytes, limits.client_json_bytes)?;
        }
        check_client_json(&self.client_json).map_err(invalid)?;
        for (position, part) in self.parts.iter().enumerate() {
            let problem = part.check(self.role);
            problem.map_err(|problem| invalid(format!("parts[{position}]: {problem}")))?;
        }
        Ok(())
    }
}

impl Part {
    /// Number of parts, including nested ones.
    fn count(&self) -> usize {
        match &self.kind {
            PartKind::ToolResult { parts, .. } => 1 + parts.len(),
            _ => 1,
        }
    }

    fn check(&self, role: Role) -> Result<(), String> {
        check_extra(&self.extra_json)?;
        match &self.kind {
            PartKind::ToolUse { id, name, .. } => {
                if role != Role::Assistant {
                    return Err("a tool use; only ROLE_ASSISTANT calls tools".into());
                }
                check_length("tool_use.id", id, 1, CALL_ID_BYTES_MAX)?;
                check_length("tool_use.name", name, 1, ID_BYTES_MAX)
            }
            PartKind::ToolResult {
                tool_use_id, parts, ..
            } => {
                if !matches!(role, Role::Tool | Role::User) {
                    return Err("a tool result; only ROLE_TOOL and ROLE_USER bring one".into());
                }
                if let Some(position) = parts.iter().position(|part| !part.may_stand_in_a_result())
                {
                    let problem = "is neither text nor media";
                    return Err(format!("tool_result.parts[{position}] {problem}"));
                }
                let mut extras = parts.iter().map(|part| &part.extra_json);
                extras.try_for_each(|extra| check_extra(extra))?;
                check_length("tool_result.tool_use_id", tool_use_id, 1, CALL_ID_BYTES_MAX)
            }
            PartKind::Media {
                media_type,
                source,
                name,
            } => {
                if matches!(source, MediaSource::Uri(uri) if uri.is_empty()) {
                    return Err("media without data or uri".into());
                }
                check_length("media.media_type", media_type, 0, ID_BYTES_MAX)?;
                check_length("media.name", name, 0, 1_024)
            }
            PartKind::Text(_) | PartKind::Thinking { .. } => Ok(()),
        }
    }

    fn may_stand_in_a_result(&self) -> bool {
        matches!(self.kind, PartKind::Text(_) | PartKind::Media { .. })
    }
}

fn check_length(what: &str, text: &str, min: usize, max: usize) -> Result<(), String> {
    let bytes = text.len();
    if (min..=max).contains(&bytes) {
        Ok(())
    } else {
        Err(format!("{what} has {bytes} bytes; it takes {min} to {max}"))
    }
}

/// Checks `extra_json`. The parser rejects JSON nested more than 128 levels deep.
fn check_extra(json: &str) -> Result<(), String> {
    if json.is_empty() {
        return Ok(());
    }
    if has_too_many_values(json) {
        return Err(format!("extra_json has more than {VALUES_MAX} values"));
    }
    let object = serde_json::from_str::<Map<String, Value>>(json);
    let problem = |error| format!("extra_json is not a JSON object: {error}");
    object.map(drop).map_err(problem)
}

fn check_client_json(json: &str) -> Result<(), String> {
    if json.is_empty() {
        return Ok(());
    }
    let problem = |error| format!("client_json is not JSON: {error}");
    serde_json::from_str::<Value>(json)
        .map(drop)
        .map_err(problem)
}

/// Ids that relate a turn to others. They are the provider's ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    pub uses: Vec<Box<str>>,
    /// Ids of the calls whose results the turn contains.
    pub results: Vec<Box<str>>,
    /// Ids of its other parts that later turns may reference. See [`crate::ties`].
    pub names: Vec<Box<str>>,
    /// Ids of parts of earlier turns that its parts reference.
    pub refs: Vec<Box<str>>,
    /// Whether a result may belong to a call that the history never had.
    ///
    /// Such results occur in OpenAI item lists, for example in the first turn after a session
    /// expired.
    pub takes_orphans: bool,
    /// Whether the turn ends in reasoning.
    ///
    /// OpenAI rejects a reasoning item without the item after it.
    pub leads_on: bool,
}

impl Links {
    /// Whether the turn has no references to or from other turns.
    pub fn is_empty(&self) -> bool {
        let all = [&self.uses, &self.results, &self.names, &self.refs];
        all.iter().all(|ids| ids.is_empty()) && !self.leads_on
    }

    /// Adds the ids of the next part. References to ids of the same turn are not recorded.
    fn add_ids(&mut self, ids: PartIds) {
        let PartIds {
            name,
            answers,
            callers,
        } = ids;
        let is_own = |links: &Self, id: &str| {
            let mut own = links.names.iter().chain(&links.uses);
            own.any(|own| **own == *id)
        };
        let answers_own = answers.as_deref().filter(|id| is_own(self, id));
        let answered = answers_own.map(Box::<str>::from);
        for id in callers.into_iter().chain(answers) {
            if !is_own(self, &id) && !self.refs.contains(&id) {
                self.refs.push(id);
            }
        }
        match answered {
            Some(answered) => self.names.retain(|name| *name != answered),
            None => self.names.extend(name),
        }
    }
}

/// A checked and encoded turn that has no seq yet.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// Encoded content, without seq, and without a timestamp if the bot set none.
    pub body: Vec<u8>,
    pub role: Role,
    pub timestamp: Option<Timestamp>,
    pub pinned: bool,
    pub links: Links,
    pub client_id: Box<str>,
    /// Bytes of the body that are only for the client. See [`Turn::client_bytes`].
    pub client_bytes: usize,
}

impl NewTurn {
    /// Copies the metadata of a turn and leaves the body empty.
    pub fn from_turn(turn: &Turn) -> Self {
        Self {
            body: Vec::new(),
            role: turn.role,
            timestamp: turn.timestamp,
            pinned: turn.pinned,
            links: turn.links(),
            client_id: turn.client_id.as_str().into(),
            client_bytes: turn.client_bytes(),
        }
    }
}

/// Estimates the tokens of an encoded turn: a quarter of its bytes, plus four for the message.
///
/// The bytes must not include the fields that are only for the client.
pub fn estimate_tokens(encoded_bytes: usize) -> u32 {
    u32::try_from(encoded_bytes.div_ceil(4) + 4).unwrap_or(u32::MAX)
}
