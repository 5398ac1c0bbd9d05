//! The configuration file, composed of the sections that components define.
//!
//! Missing settings have the components' defaults.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use memoird_core::compaction::CompactionPolicy;
use memoird_core::config::{AsText, Auto, Flat, Off};
use memoird_core::limits::Limits;
use memoird_core::window::WindowSettings;
use memoird_engine::{CapacityConfig, CompactionConfig, HooksConfig, JournalConfig, SessionConfig};
use memoird_hooks::HookSpec;
use memoird_memories::rules::MemoryLimits;
use memoird_memories::rules::consolidation::ConsolidationSettings;
use memoird_memories::store::FilesOptions;
use memoird_memories::{ExtractionConfig, MemoriesConfig};
use memoird_models::{EmbedderSpec, ExtractorKeys, RerankerSpec, SummarizerSpec};
use memoird_search::SearchConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::ModelsSection;
use super::postgres::JournalKeys;
use super::tenants::TenantSpec;
use super::{ClusterConfig, LogConfig, ServerConfig};

/// Supported version of the file.
pub(super) const VERSION: u32 = 1;
/// Value of `long_term.dir` for memories in the data directory.
pub(super) const AUTO: &str = "auto";
/// Minimum similarity, from 0 to 1, for suggesting a known word.
const LIKENESS_MIN: f64 = 0.6;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    /// `None` if the file does not state it, and so may be truncated or empty.
    #[serde(default)]
    pub(super) version: Option<u32>,
    pub(super) data_dir: PathBuf,
    pub(super) server: ServerConfig,
    pub(super) log: LogConfig,
    pub(super) short_term: Flat<HistoryCaps, SessionConfig>,
    pub(super) journal: Flat<JournalConfig, JournalKeys>,
    pub(super) cluster: ClusterConfig,
    pub(super) context: Flat<WindowSettings, ModelsSection>,
    pub(super) compaction: Flat<CompactionPolicy, CompactionConfig, SummarizerKey>,
    pub(super) long_term: Flat<MemoriesConfig, MemoryLimits, MemoryKeys>,
    pub(super) search: SearchConfig,
    pub(super) limits: Flat<Limits, HooksConfig, CapacityConfig>,
    pub(super) hooks: Vec<HookSpec>,
    pub(super) tenants: Vec<TenantSpec>,
}

/// The part of [`Limits`] that is configured in `short_term`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryCaps {
    pub(super) max_history_turns: usize,
    /// `None` means `auto`: proportional to the largest context window of the models.
    #[serde(with = "AsText::<Auto>")]
    pub(super) max_history_bytes: Option<usize>,
}

/// The summarizer, in `compaction`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SummarizerKey {
    pub(super) summarizer: SummarizerSpec,
}

/// Settings of `long_term` in addition to those of the engine.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MemoryKeys {
    pub(super) dir: PathBuf,
    pub(super) open_files: usize,
    pub(super) embedder: EmbedderSpec,
    pub(super) extraction: Flat<ExtractorKeys, ExtractionConfig>,
    pub(super) reranker: RerankerSpec,
    pub(super) dream: Flat<ConsolidationSettings, DreamInterval>,
}

/// Interval of consolidation, in `long_term.dream`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DreamInterval {
    #[serde(with = "AsText::<Off>")]
    pub(super) interval: Option<Duration>,
}

impl File {
    /// Parses the YAML.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // The suggestion needs values that must not be shown.
        read_yaml(text).map_err(|message| match suggestion(&message) {
            Some(known) => format!(
                "{}\ndid you mean `{known}`?",
                without_values(&message, text)
            ),
            None => without_values(&message, text),
        })
    }
}

/// The only call of the YAML library.
fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    // A snippet would quote the surrounding lines, which may contain a secret.
    let options = serde_yaml::options! { with_snippet: false };
    serde_yaml::from_str_with_options(text, options).map_err(|error| {
        let message = error
            .to_string()
            .replace(
                "expected sequence start",
                "expected a list, with `- ` before each entry",
            )
            .replace(
                "expected mapping start",
                "expected settings, as `name: value`",
            );
        match message.rsplit_once(" at line ") {
            Some((problem, place)) => format!("line {}: {problem}", place.replace(',', "")),
            None => message,
        }
    })
}

/// Keys with secret values, and the keys allowed below them.
const SECRET_KEYS: [&str; 8] = [
    "keys",
    "key",
    "api_key",
    "data_key",
    "password",
    "secret",
    "secret_headers",
    "token",
];
const PLACES: [&str; 5] = ["env", "file", "command", "sha256", "role"];
/// Minimum length in bytes of a value treated as a secret. A shorter one may occur in any word.
const SECRET_BYTES_MIN: usize = 4;

/// Replaces a value of the file in a message.
const NOT_SHOWN: &str = "[not shown]";

/// Removes values of the file from a message, which goes to logs and clients.
///
/// A value may be a secret in the wrong place. The message still contains the position.
pub(super) fn without_values(message: &str, text: &str) -> String {
    let mut values = Values::default();
    // If the file is not YAML, its values are unknown.
    let is_yaml = read_yaml::<Value>(text).map(|file| values.collect(&file, false));
    // The known words after this may also be values.
    let (said, known) = message.split_at(message.find(", expected").unwrap_or(message.len()));
    let mut shown = match is_yaml {
        Ok(()) => said.to_owned(),
        Err(_) => without_quotes(said),
    };
    for value in &values.quoted {
        shown = shown.replace(&format!("{value:?}"), NOT_SHOWN);
        shown = shown.replace(&format!("`{value}`"), NOT_SHOWN);
    }
    shown.push_str(known);
    // Longest first, because one may be part of another.
    values.secrets.sort_by_key(|secret| Reverse(secret.len()));
    for secret in &values.secrets {
        shown = shown.replace(secret.as_str(), NOT_SHOWN);
    }
    if values.secrets.is_empty() {
        shown
    } else {
        format!("{shown}\nkeys must not be written here; use {{ env: NAME }} or {{ file: PATH }}")
    }
}

/// Replaces everything between the first and the last quote of a message.
fn without_quotes(said: &str) -> String {
    const QUOTES: [char; 3] = ['"', '\'', '`'];
    match (said.find(QUOTES), said.rfind(QUOTES)) {
        (Some(first), Some(last)) => format!("{}{NOT_SHOWN}{}", &said[..first], &said[last + 1..]),
        _ => said.to_owned(),
    }
}

#[derive(Default)]
struct Values {
    /// Removed between quotes.
    quoted: Vec<String>,
    /// Removed anywhere, because they are in the places of secrets.
    secrets: Vec<String>,
}

impl Values {
    fn collect(&mut self, value: &Value, is_secret: bool) {
        match value {
            Value::String(text) => self.add(text.clone(), is_secret),
            Value::Number(number) => self.add(number.to_string(), is_secret),
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, is_secret)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    // `tls` names files, including that of a key.
                    let is_pem = |text: &str| text.contains("-----") || text.contains('\n');
                    let names_files = || {
                        let files = value.as_object()?.values();
                        Some(files.filter_map(Value::as_str).all(|text| !is_pem(text)))
                    };
                    if name == "tls" && names_files() == Some(true) {
                        continue;
                    }
                    let is_place = PLACES.contains(&name.as_str());
                    // A setting's name is a lowercase word. Other names are treated as values.
                    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
                    if !is_place && !name.bytes().all(is_word) {
                        self.add(name.clone(), is_secret);
                    }
                    let is_secret =
                        !is_place && (is_secret || SECRET_KEYS.contains(&name.as_str()));
                    self.collect(value, is_secret);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn add(&mut self, text: String, is_secret: bool) {
        if is_secret && text.len() >= SECRET_BYTES_MIN {
            self.secrets.push(text.clone());
        }
        self.quoted.push(text);
    }
}

/// Returns the most similar known word, if it is similar enough.
fn suggestion(message: &str) -> Option<&str> {
    let (_, unknown) = message.split_once("unknown ")?;
    let (_, unknown) = unknown.split_once('`')?;
    let (word, expected) = unknown.split_once("`, expected one of ")?;
    let known = expected.lines().next()?.split(", ");
    let like = known.map(|known| (likeness(word, known), known));
    let (likeness, known) = like.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (likeness >= LIKENESS_MIN).then_some(known)
}

/// Similarity of two words, from 0 to 1. Tolerates typos and missing parts.
fn likeness(one: &str, other: &str) -> f64 {
    let by_letters = strsim::normalized_damerau_levenshtein(one, other);
    by_letters.max(strsim::sorensen_dice(one, other))
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: Some(VERSION),
            data_dir: PathBuf::from("./memoird-data"),
            server: ServerConfig::default(),
            log: LogConfig::default(),
            short_term: Flat::default(),
            journal: Flat::default(),
            cluster: ClusterConfig::default(),
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
        Self {
            max_history_turns: Limits::default().max_history_turns,
            max_history_bytes: None,
        }
    }
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self {
            dir: AUTO.into(),
            open_files: FilesOptions::default().files_open_max,
            embedder: EmbedderSpec::default(),
            extraction: Flat::default(),
            reranker: RerankerSpec::default(),
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
