//! A turn: one contribution by one role, made of parts; and what the rules need to
//! know of it once its content is encoded.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::CoreError;
use crate::ids::{CALL_ID_BYTES_MAX, ID_BYTES_MAX};
use crate::json::{VALUES_MAX, has_too_many_values};
use crate::limits::Limits;
use crate::ties::PartIds;
use crate::time::Timestamp;

/// Who contributed a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person, or the program, that talks to the bot.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
    /// Instructions of the bot's author.
    System,
}

impl Role {
    /// Its name in prompts and in most providers' messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::System => "system",
        }
    }
}

/// The shape of a provider's message array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageFormat {
    /// OpenAI chat completions: the `messages` array.
    OpenAi,
    /// OpenAI responses: the `input` item array.
    OpenAiResponses,
    /// Anthropic messages: the `messages` array.
    Anthropic,
}

/// One contribution by one role.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Who contributed it.
    pub role: Role,
    /// What it says, in order; at least one part.
    pub parts: Vec<Part>,
    /// When it was said; without it, when it arrives.
    pub timestamp: Option<Timestamp>,
    /// How important the bot finds it, 0 to 1.
    pub salience: Option<f32>,
    /// Keep it whatever is dropped.
    pub pinned: bool,
    /// Free labels of the bot.
    pub metadata: BTreeMap<String, String>,
    /// The provider's fields that memoird has no use for: a JSON object or empty.
    pub extra_json: String,
    /// Whose fields those are, here and in the parts; `None`: any provider's.
    pub format: Option<MessageFormat>,
    /// The client's own id of the message; or empty. For no provider.
    pub client_id: String,
    /// What else the client wants to have back with it: JSON or empty. For no provider.
    pub client_json: String,
}

/// A piece of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// The provider's fields that memoird has no use for: a JSON object or empty.
    pub extra_json: String,
}

/// What a part is.
#[derive(Clone, Debug, PartialEq)]
pub enum PartKind {
    /// Plain text, possibly empty.
    Text(String),
    /// A call of a tool.
    ToolUse {
        /// The provider's id of the call.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments, to the byte as the model wrote them.
        input_json: String,
    },
    /// What a tool answered.
    ToolResult {
        /// The call it answers.
        tool_use_id: String,
        /// The answer as text, to the byte.
        content: String,
        /// The answer as rich content: text and media only.
        parts: Vec<Part>,
        /// True when the tool failed.
        is_error: bool,
    },
    /// An image, a document, a sound.
    Media {
        /// The IANA media type, or empty.
        media_type: String,
        /// A name for people.
        name: String,
        /// Where the content is.
        source: MediaSource,
    },
    /// The model's reasoning.
    Thinking {
        /// The reasoning, or the provider's opaque data.
        text: String,
        /// The provider's signature over it.
        signature: String,
        /// True when the provider hid the reasoning.
        redacted: bool,
    },
}

/// Where the content of a media part is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSource {
    /// Here.
    Data(Vec<u8>),
    /// Where the provider finds it.
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
    /// A turn of `role` with these parts and nothing else.
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

    /// The tool uses and tool results in it, in order, and its other ties to other turns.
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

    /// Bytes of what is for the client alone, and never sent to a provider.
    pub fn client_bytes(&self) -> usize {
        self.client_id.len() + self.client_json.len()
    }

    /// Checks what a turn must keep by itself; `index` is its place in the append.
    ///
    /// # Errors
    /// [`CoreError::TurnInvalid`] or [`CoreError::TurnTooLarge`], naming the place.
    pub fn check(&self, index: usize, limits: &Limits) -> Result<(), CoreError> {
        let invalid = |problem: String| CoreError::TurnInvalid { index, problem };
        let at_most = |(what, setting), actual, limit| match actual <= limit {
            true => Ok(()),
            false => Err(CoreError::TurnTooLarge {
                index,
                what,
                actual,
                limit,
                setting,
            }),
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
        at_most(what, self.client_json.len(), limits.client_json_bytes)?;
        check_client_json(&self.client_json).map_err(invalid)?;
        for (position, part) in self.parts.iter().enumerate() {
            let problem = part.check(self.role);
            problem.map_err(|problem| invalid(format!("parts[{position}]: {problem}")))?;
        }
        Ok(())
    }
}

impl Part {
    /// How many parts it is, with those inside.
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
    match (min..=max).contains(&bytes) {
        true => Ok(()),
        false => Err(format!("{what} has {bytes} bytes; it takes {min} to {max}")),
    }
}

/// The parser itself refuses JSON that is nested deeper than 128 levels.
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

/// The same for JSON of any kind.
fn check_client_json(json: &str) -> Result<(), String> {
    if json.is_empty() {
        return Ok(());
    }
    let problem = |error| format!("client_json is not JSON: {error}");
    serde_json::from_str::<Value>(json)
        .map(drop)
        .map_err(problem)
}

/// The tool uses and results of a turn, by the provider's ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Ids of the calls it makes.
    pub uses: Vec<Box<str>>,
    /// Ids of the calls it answers.
    pub results: Vec<Box<str>>,
    /// Ids of its other parts that later turns may name. See [`crate::ties`].
    pub names: Vec<Box<str>>,
    /// Ids of parts of earlier turns that its parts name.
    pub refs: Vec<Box<str>>,
    /// True where a result may answer a call that the history never had: lists of OpenAI's items
    /// have such, as the first turn after a session expired.
    pub takes_orphans: bool,
    /// True where it ends in reasoning: OpenAI takes no such item without the one that follows.
    pub leads_on: bool,
}

impl Links {
    /// True when the turn stands by itself.
    pub fn is_empty(&self) -> bool {
        let all = [&self.uses, &self.results, &self.names, &self.refs];
        all.iter().all(|ids| ids.is_empty()) && !self.leads_on
    }

    /// Adds the ids of the next part. Ids that its own turn names are no ties to another.
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

/// A turn that was checked and encoded, before it has its place.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// Its encoded content, without seq, and without the time where the bot gave none.
    pub body: Vec<u8>,
    /// Who contributed it.
    pub role: Role,
    /// When it was said, where the bot gave a time.
    pub timestamp: Option<Timestamp>,
    /// Keep it whatever is dropped.
    pub pinned: bool,
    /// Its calls and results.
    pub links: Links,
    /// The client's own id of it, or empty.
    pub client_id: Box<str>,
    /// Bytes of the body that are for the client alone: see [`Turn::client_bytes`].
    pub client_bytes: usize,
}

impl NewTurn {
    /// What the rules need to know of a turn, without its content.
    pub fn of(turn: &Turn) -> Self {
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

/// Tokens of an encoded turn, without what is for the client alone, estimated as a quarter of its bytes and four for the
/// message itself. A provider's tokenizer is more exact and slower.
pub fn estimate_tokens(encoded_bytes: usize) -> u32 {
    u32::try_from(encoded_bytes.div_ceil(4) + 4).unwrap_or(u32::MAX)
}
