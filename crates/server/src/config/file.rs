//! The configuration file: the sections that components own, composed. What a file leaves
//! out is as the components' defaults have it.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use memoird_core::compaction::CompactionPolicy;
use memoird_core::config::{AsText, Flat, Off, Size};
use memoird_core::limits::Limits;
use memoird_core::window::WindowSettings;
use memoird_engine::{CapacityConfig, CompactionConfig, HooksConfig, JournalConfig, SessionConfig};
use memoird_hooks::HookSpec;
use memoird_memories::MemoriesConfig;
use memoird_memories::files::FilesOptions;
use memoird_memories::rules::MemoryLimits;
use memoird_memories::rules::consolidation::ConsolidationSettings;
use memoird_models::{EmbedderSpec, SummarizerSpec};
use memoird_search::SearchConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::ModelsSection;
use super::tenants::TenantSpec;
use super::{LogConfig, ServerConfig};

/// The version of the file that this program reads.
pub(super) const VERSION: u32 = 1;
/// What `long_term.dir` says when memories are in the data directory.
pub(super) const AUTO: &str = "auto";
/// How like a known word an unknown one has to be to be taken for it, from 0 to 1.
const LIKENESS_MIN: f64 = 0.6;

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) version: u32,
    pub(super) data_dir: PathBuf,
    pub(super) server: ServerConfig,
    pub(super) log: LogConfig,
    pub(super) short_term: Flat<HistoryCaps, SessionConfig>,
    pub(super) journal: JournalConfig,
    pub(super) context: Flat<WindowSettings, ModelsSection>,
    pub(super) compaction: Flat<CompactionPolicy, CompactionConfig, SummarizerKey>,
    pub(super) long_term: Flat<MemoriesConfig, MemoryLimits, MemoryKeys>,
    pub(super) search: SearchConfig,
    pub(super) limits: Flat<Limits, HooksConfig, CapacityConfig>,
    pub(super) hooks: Vec<HookSpec>,
    pub(super) tenants: Vec<TenantSpec>,
}

/// The two of [`Limits`] that stand in `short_term`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryCaps {
    pub(super) max_history_turns: usize,
    #[serde(with = "AsText::<Size>")]
    pub(super) max_history_bytes: usize,
}

/// Who writes summaries, in `compaction`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SummarizerKey {
    pub(super) summarizer: SummarizerSpec,
}

/// What stands in `long_term` beside the engine's own settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MemoryKeys {
    pub(super) dir: PathBuf,
    pub(super) open_files: usize,
    pub(super) embedder: EmbedderSpec,
    pub(super) dream: Flat<ConsolidationSettings, DreamInterval>,
}

/// How often memories are consolidated, in `long_term.dream`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DreamInterval {
    #[serde(with = "AsText::<Off>")]
    pub(super) interval: Option<Duration>,
}

impl File {
    /// Reads the YAML.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        read_yaml(text).map_err(|message| with_suggestion(&without_secrets(&message, text)))
    }
}

/// The one call of the YAML library.
fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_yaml::from_str(text).map_err(|error| error.to_string())
}

/// Keys of the file in which secrets are, and what may stand there instead of one.
const SECRET_KEYS: [&str; 6] = [
    "keys",
    "key",
    "api_key",
    "secret",
    "secret_headers",
    "token",
];
const PLACES: [&str; 4] = ["env", "file", "sha256", "role"];
/// What stands for a secret, and what for the rest of a long line.
const NOT_SHOWN: &str = "[not shown]";
const CUT: &str = "…";
/// A shorter one is no secret, and may be a part of any word.
const SECRET_BYTES_MIN: usize = 4;

/// Takes out of a message what somebody wrote into the file as a key: the message quotes the
/// file, and is shown in logs and to clients.
fn without_secrets(message: &str, text: &str) -> String {
    let mut secrets = secrets_by_lines(text);
    if let Ok(file) = read_yaml::<Value>(text) {
        collect_secrets(&file, false, &mut secrets);
    }
    // The longest first: one may be a part of another.
    secrets.sort_by_key(|secret| Reverse(secret.len()));
    let shown = secrets.iter().fold(message.to_owned(), |shown, secret| {
        shown.replace(secret.as_str(), NOT_SHOWN)
    });
    let shown = without_cut(&shown, &secrets);
    match shown == message {
        true => shown,
        false => format!(
            "{shown}\na key is never written here: name where it is, {{ env: NAME }} or \
             {{ file: PATH }}"
        ),
    }
}

/// What stands between the words of a line. A message shows some of it as blanks, or not at all.
fn is_between(c: char) -> bool {
    let is_of_word = c.is_alphanumeric() || c.is_ascii_graphic();
    !is_of_word || "[]{},\"'".contains(c)
}

/// The same where a long line is cut in the middle of a secret.
fn without_cut(message: &str, secrets: &[String]) -> String {
    let is_part = |word: &str| {
        word.len() >= SECRET_BYTES_MIN && secrets.iter().any(|secret| secret.contains(word))
    };
    let pieces: Vec<&str> = message.split(CUT).collect();
    let last = pieces.len() - 1;
    let shown = pieces.into_iter().enumerate().map(|(place, mut piece)| {
        let (mut before, mut behind) = ("", "");
        let word = piece.split(is_between).next().unwrap_or_default();
        if place > 0 && is_part(word) {
            (before, piece) = (NOT_SHOWN, &piece[word.len()..]);
        }
        let word = piece.rsplit(is_between).next().unwrap_or_default();
        if place < last && is_part(word) {
            (behind, piece) = (NOT_SHOWN, &piece[..piece.len() - word.len()]);
        }
        [before, piece, behind].concat()
    });
    shown.collect::<Vec<String>>().join(CUT)
}

/// The words behind the keys in which secrets are, line by line: of a file that is no YAML, and
/// of comments, a message quotes as much.
fn secrets_by_lines(text: &str) -> Vec<String> {
    let mut secrets = Vec::new();
    // How far the line is indented that a list goes on from.
    let mut list_of: Option<usize> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let is_item = line.trim_start().starts_with('-');
        let goes_on = list_of.is_some_and(|start| indent > start || is_item && indent == start);
        let named = SECRET_KEYS.iter().find_map(|key| {
            let (before, behind) = line.split_once(key)?;
            let is_whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            behind.trim_start().strip_prefix(':').filter(|_| is_whole)
        });
        list_of = match (named, goes_on) {
            (Some(_), _) => Some(indent),
            (None, true) => list_of,
            (None, false) => None,
        };
        if let Some(behind) = named.or(goes_on.then_some(line)) {
            collect_words(behind, &mut secrets);
        }
    }
    secrets
}

/// The words of a line that are neither names of fields nor what says where a secret is.
fn collect_words(line: &str, secrets: &mut Vec<String>) {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let mut is_place = false;
    for word in line.split(is_between).filter(|word| !word.is_empty()) {
        let name = word.strip_suffix(':');
        let name = name.filter(|name| name.bytes().all(is_of_name));
        if name.is_none() && !is_place && word.len() >= SECRET_BYTES_MIN {
            secrets.push(word.to_owned());
        }
        is_place = name.is_some_and(|name| PLACES.contains(&name));
    }
}

fn collect_secrets(value: &Value, is_secret: bool, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) if is_secret && text.len() >= SECRET_BYTES_MIN => {
            secrets.push(text.clone());
        }
        Value::Number(number) if is_secret => secrets.push(number.to_string()),
        Value::Array(items) => {
            let items = items.iter();
            items.for_each(|item| collect_secrets(item, is_secret, secrets));
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_place = PLACES.contains(&name.as_str());
                let is_secret = !is_place && (is_secret || SECRET_KEYS.contains(&name.as_str()));
                collect_secrets(value, is_secret, secrets);
            }
        }
        _ => {}
    }
}

/// Adds to the message of an unknown word which of the known ones was probably meant.
fn with_suggestion(message: &str) -> String {
    match suggestion(message) {
        Some(known) => format!("{message}\ndid you mean `{known}`?"),
        None => message.to_owned(),
    }
}

/// The known word that is most like the unknown one, if any is.
fn suggestion(message: &str) -> Option<&str> {
    let (_, unknown) = message.split_once("unknown ")?;
    let (_, unknown) = unknown.split_once('`')?;
    let (word, known) = unknown.split_once("`, expected one of ")?;
    let known = known.lines().next()?.split(", ");
    let like = known.map(|known| (likeness(word, known), known));
    let (likeness, known) = like.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (likeness >= LIKENESS_MIN).then_some(known)
}

/// How like two words are, from 0 to 1: a letter may be wrong, and a part may be missing.
fn likeness(one: &str, other: &str) -> f64 {
    let by_letters = strsim::normalized_damerau_levenshtein(one, other);
    by_letters.max(strsim::sorensen_dice(one, other))
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: VERSION,
            data_dir: PathBuf::from("./memoird-data"),
            server: ServerConfig::default(),
            log: LogConfig::default(),
            short_term: Flat::default(),
            journal: JournalConfig::default(),
            context: Flat::default(),
            compaction: Flat::default(),
            long_term: Flat::default(),
            search: SearchConfig::default(),
            limits: Flat::default(),
            hooks: Vec::new(),
            tenants: Vec::new(),
        }
    }
}

impl Default for HistoryCaps {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_history_turns: limits.max_history_turns,
            max_history_bytes: limits.max_history_bytes,
        }
    }
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self {
            dir: AUTO.into(),
            open_files: FilesOptions::default().files_open_max,
            embedder: EmbedderSpec::default(),
            dream: Flat::default(),
        }
    }
}

impl Default for DreamInterval {
    fn default() -> Self {
        Self {
            interval: MemoriesConfig::default().consolidation_interval,
        }
    }
}
