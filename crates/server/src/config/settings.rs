//! Settings as paths with values: differences between two files, and which apply at runtime.

use std::collections::BTreeMap;

use memoird_core::sha256::Sha256;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::policy::Policy;
#[cfg(feature = "postgres")]
use super::policy::differing_paths;

/// The value of each setting by its path, such as `short_term.max_sessions`.
///
/// A list is one setting. So are the embedder, reranker, summarizer, extraction, TLS, data key and
/// journal database, because their parts have no meaning on their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings(BTreeMap<String, String>);

/// Sections that count as one setting each.
const EMBEDDER: &str = "long_term.embedder";
const RERANKER: &str = "long_term.reranker";
const SUMMARIZER: &str = "compaction.summarizer";
const EXTRACTION: &str = "long_term.extraction";
const TLS: &str = "server.tls";
const DATA_KEY: &str = "server.data_key";
const POSTGRES: &str = "journal.postgres";

/// Settings that apply only at startup, in addition to those with the [`PREFIXES_AT_START`].
const AT_START: [&str; 8] = [
    "data_dir",
    "journal.durability",
    POSTGRES,
    "journal.queue_bytes",
    "long_term.dir",
    EMBEDDER,
    "long_term.open_files",
    RERANKER,
];

/// Prefixes of settings that apply only at startup, and the exceptions.
const PREFIXES_AT_START: [&str; 2] = ["search.", "server."];
const SERVER_AT_ONCE: [&str; 2] = ["server.allow_without_keys", "server.shutdown_grace"];

/// Prefixes of settings that daemons sharing a journal must agree on: any may serve or lead.
const COMMON: [&str; 8] = [
    "compaction.",
    "context.",
    "hooks",
    "journal.retention",
    "limits.",
    "long_term.",
    "short_term.",
    "tenants",
];
/// Exceptions to [`COMMON`].
const OWN: [&str; 3] = ["limits.memory", "long_term.dir", "long_term.open_files"];

/// Digests of the settings that daemons sharing a journal must agree on, by path.
#[derive(Default, Deserialize, Serialize)]
struct Digests {
    /// Those of the file's policy.
    policy: BTreeMap<String, u32>,
    others: BTreeMap<String, u32>,
}

/// Returns the settings of another daemon's file that differ, by its [digests](Settings::digests).
///
/// Settings of the policy are compared with the cluster's, all others with the file of this daemon.
/// None if one is not a digest set, as from a daemon of another version.
#[cfg(feature = "postgres")]
pub(crate) fn differing(policy: &Policy, own: &[u8], other: &[u8]) -> Vec<String> {
    let read = |digests| serde_json::from_slice::<Digests>(digests).ok();
    let (Some(own), Some(other)) = (read(own), read(other)) else {
        return Vec::new();
    };
    let mut differing = differing_paths(&digests_of(policy.values().iter()), &other.policy);
    let gone = own.others.keys();
    let gone = gone.filter(|path| !other.others.contains_key(*path));
    let paths = other.others.keys().chain(gone);
    let differs = |path: &&String| own.others.get(*path) != other.others.get(*path);
    differing.extend(paths.filter(differs).cloned());
    differing
}

fn digests_of<'a>(values: impl Iterator<Item = (&'a String, &'a String)>) -> BTreeMap<String, u32> {
    let digest = |(path, value): (&String, &String)| {
        let hash = Sha256::digest(value);
        // Two values collide with probability 2⁻³².
        let digest = hash[..4]
            .iter()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
        (path.clone(), digest)
    };
    values.map(digest).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Paths of settings that apply at once.
    pub(crate) at_once: Vec<String>,
    /// Paths of settings that need a restart, with the current value.
    pub(crate) at_start: Vec<(String, String)>,
}

impl Settings {
    pub(super) fn of(file: &impl Serialize) -> Self {
        let mut settings = BTreeMap::new();
        // Serialization cannot fail for these types.
        let value = serde_json::to_value(file).unwrap_or_default();
        flatten(String::new(), value, &mut settings);
        Self(settings)
    }

    pub(crate) fn difference(&self, newer: &Self) -> Difference {
        let mut difference = Difference::default();
        let gone = self.0.keys().filter(|path| !newer.0.contains_key(*path));
        for path in newer.0.keys().chain(gone) {
            let (was, is) = (self.0.get(path), newer.0.get(path));
            if was == is {
                continue;
            }
            if is_at_start(path) {
                let stays = was.cloned().unwrap_or_default();
                difference.at_start.push((path.clone(), stays));
            } else {
                difference.at_once.push(path.clone());
            }
        }
        difference
    }

    /// Digests, as JSON, of settings that daemons sharing a journal must agree on.
    pub(super) fn digests(&self, policy: &Policy) -> Vec<u8> {
        let is_common = |path: &str| {
            COMMON.iter().any(|prefix| path.starts_with(prefix)) && !OWN.contains(&path)
        };
        let others = self.0.iter();
        let others = others.filter(|(path, _)| is_common(path) && !policy.contains(path));
        let digests = Digests {
            policy: digests_of(policy.values().iter()),
            others: digests_of(others),
        };
        serde_json::to_vec(&digests).unwrap_or_default()
    }

    /// These settings, but those needing a restart as in `running`.
    pub(crate) fn applied_to(mut self, running: &Self) -> Self {
        for (path, value) in &running.0 {
            if is_at_start(path) {
                self.0.insert(path.clone(), value.clone());
            }
        }
        self
    }
}

fn is_at_start(path: &str) -> bool {
    let has_prefix = PREFIXES_AT_START
        .iter()
        .any(|prefix| path.starts_with(prefix));
    AT_START.contains(&path) || has_prefix && !SERVER_AT_ONCE.contains(&path)
}

fn flatten(path: String, value: Value, settings: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields)
            if ![
                EMBEDDER, RERANKER, SUMMARIZER, EXTRACTION, TLS, DATA_KEY, POSTGRES,
            ]
            .contains(&&*path) =>
        {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                flatten(path.trim_start_matches('.').to_owned(), value, settings);
            }
        }
        Value::String(text) => drop(settings.insert(path, text)),
        other => drop(settings.insert(path, other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use super::*;

    /// Settings that apply on reload.
    const AT_ONCE: [&str; 30] = [
        "cluster.",
        "compaction.",
        "context.",
        "hooks",
        "journal.flush_interval",
        "journal.queue_wait",
        "journal.retention",
        "limits.",
        "log.",
        "long_term.content_bytes",
        "long_term.document_bytes",
        "long_term.documents_bytes",
        "long_term.dream.",
        "long_term.expired_kept",
        "long_term.extraction",
        "long_term.extraction_lease",
        "long_term.half_lives.",
        "long_term.max_documents",
        "long_term.max_memories",
        "long_term.near_duplicate_cosine",
        "long_term.query_wait",
        "long_term.recall_events",
        "long_term.recall_limit",
        "long_term.secrets",
        "long_term.window_tokens",
        "server.allow_without_keys",
        "server.shutdown_grace",
        "short_term.",
        "tenants",
        "version",
    ];

    impl Settings {
        /// The paths of all settings.
        pub(in crate::config) fn paths(&self) -> impl Iterator<Item = &String> {
            self.0.keys()
        }
    }

    fn settings(text: &str) -> Settings {
        Settings::of(&File::parse(text).unwrap())
    }

    #[test]
    fn every_setting_is_classified_as_reloadable_or_not() {
        for path in settings("{}").0.keys() {
            let at_once = AT_ONCE.iter().any(|start| path.starts_with(start));
            assert!(
                is_at_start(path) != at_once,
                "{path}: can it change at run time, or not?"
            );
        }
    }

    #[test]
    fn embedder_is_one_setting() {
        let running = settings("{}");
        let newer = settings("long_term: { embedder: { openai: { model: m } } }");
        let difference = running.difference(&newer);
        assert_eq!(difference.at_once, [""; 0]);
        let stays = ("long_term.embedder".to_owned(), "none".to_owned());
        assert_eq!(difference.at_start, [stays]);
        let applied = newer.applied_to(&running);
        assert_eq!(applied, running);
    }

    #[test]
    fn compaction_reloads_and_summarizer_is_one_setting() {
        let newer = settings(
            "compaction: { soft_watermark: 40%, breaker: { turns: 9 }, \
             summarizer: { openai: { model: m } } }",
        );
        let difference = settings("{}").difference(&newer);
        let paths = [
            "compaction.breaker.turns",
            "compaction.soft_watermark",
            "compaction.summarizer",
        ];
        assert_eq!(difference.at_once, paths);
        assert_eq!(difference.at_start, []);
    }

    #[test]
    fn difference_lists_applied_and_pending_settings() {
        let running = settings("{}");
        let newer = settings(
            "{ data_dir: ./elsewhere, short_term: { session_ttl: 5s, max_sessions: 10000 }, \
             tenants: [ { id: a } ] }",
        );
        let difference = running.difference(&newer);
        assert_eq!(difference.at_once, ["short_term.session_ttl", "tenants"]);
        let stays = ("data_dir".to_owned(), "./memoird-data".to_owned());
        assert_eq!(difference.at_start, [stays]);
        let applied = newer.clone().applied_to(&running);
        assert_eq!(applied.difference(&newer).at_once, [""; 0]);
        assert_eq!(
            applied.difference(&newer).at_start,
            difference.at_start,
            "it still differs"
        );
    }
}
