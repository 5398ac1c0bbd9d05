//! The policy: settings by which one daemon of a cluster decides about the sessions of all.
//!
//! The database has the policy that applies. A file's own policy is compared with it, and replaces
//! it only if the leader reloads the file or `memoird cluster apply` is run. Settings with secrets,
//! models or paths are not part of it.

use std::collections::BTreeMap;

use memoird_core::ids::TenantId;
use memoird_engine::{TenantConfig, TenantLimits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::file::File;

/// Section of the limits of tenants, by their id.
const TENANTS: &str = "tenants";

/// The settings of a policy by section and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Policy(BTreeMap<String, Map<String, Value>>);

/// A struct of settings in a section of the file.
trait SectionPart {
    fn settings(&self) -> Map<String, Value>;

    fn set(&mut self, settings: Map<String, Value>) -> Result<(), serde_json::Error>;
}

impl<T: Serialize + DeserializeOwned> SectionPart for T {
    fn settings(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(settings)) => settings,
            // Structs always serialize to objects.
            _ => Map::new(),
        }
    }

    fn set(&mut self, settings: Map<String, Value>) -> Result<(), serde_json::Error> {
        *self = serde_json::from_value(Value::Object(settings))?;
        Ok(())
    }
}

/// The parts of the file that contain settings of the policy.
fn parts(file: &mut File) -> [(&'static str, &mut dyn SectionPart); 11] {
    let (short_term, limits) = (&mut file.short_term, &mut file.limits);
    let (compaction, long_term) = (&mut file.compaction, &mut file.long_term);
    [
        ("short_term", &mut short_term.first),
        ("short_term", &mut short_term.second),
        ("journal", &mut file.journal.first),
        ("context", &mut file.context.first),
        ("compaction", &mut compaction.first),
        ("compaction", &mut compaction.second),
        ("long_term", &mut long_term.first),
        ("long_term", &mut long_term.second),
        ("limits", &mut limits.first),
        ("limits", &mut limits.second),
        ("limits", &mut limits.third),
    ]
}

/// Whether a setting of these parts decides about more than its daemon.
fn is_common(section: &str, name: &str) -> bool {
    match section {
        "journal" => name == "retention",
        "limits" => name != "memory",
        _ => true,
    }
}

impl Policy {
    pub(super) fn of(file: &File) -> Self {
        let mut sections = BTreeMap::<String, Map<String, Value>>::new();
        for (section, part) in parts(&mut file.clone()) {
            let settings = part.settings().into_iter();
            let common = settings.filter(|(name, _)| is_common(section, name));
            sections
                .entry(section.to_owned())
                .or_default()
                .extend(common);
        }
        let unlimited = TenantLimits::default().settings();
        let limits = file
            .tenants
            .iter()
            .map(|tenant| (tenant.id.clone(), tenant.limits.settings()))
            .filter(|(_, limits)| *limits != unlimited)
            .map(|(id, limits)| (id, Value::Object(limits)));
        sections.insert(TENANTS.to_owned(), limits.collect());
        Self(sections)
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Maps of values always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// # Errors
    /// If the bytes are no policy.
    #[cfg(feature = "postgres")]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// Replaces the settings of a file. Settings that the policy does not contain stay.
    pub(super) fn apply_to(&self, file: &mut File) -> Result<(), String> {
        for (section, part) in parts(file) {
            let Some(policy) = self.0.get(section) else {
                continue;
            };
            let mut settings = part.settings();
            for (name, value) in &mut settings {
                if let Some(other) = policy.get(name).filter(|_| is_common(section, name)) {
                    value.clone_from(other);
                }
            }
            let set = part.set(settings);
            set.map_err(|error| format!("{section}: {error}"))?;
        }
        for tenant in &mut file.tenants {
            tenant.limits = self.limits_of(&tenant.id)?;
        }
        Ok(())
    }

    /// The tenants with limits that a file does not name, as another daemon's file does.
    pub(super) fn other_tenants(
        &self,
        known: &[TenantConfig],
    ) -> Result<Vec<TenantConfig>, String> {
        let ids = self.0.get(TENANTS).into_iter().flat_map(Map::keys);
        let mut others = Vec::new();
        for id in ids.filter(|id| known.iter().all(|tenant| tenant.id.as_str() != id.as_str())) {
            others.push(TenantConfig {
                id: TenantId::parse(id).map_err(|error| error.to_string())?,
                limits: self.limits_of(id)?,
            });
        }
        Ok(others)
    }

    fn limits_of(&self, tenant: &str) -> Result<TenantLimits, String> {
        let limits = self.0.get(TENANTS).and_then(|tenants| tenants.get(tenant));
        let parsed = limits.cloned().map(serde_json::from_value).transpose();
        parsed
            .map(Option::unwrap_or_default)
            .map_err(|error| format!("tenants[{tenant}].limits: {error}"))
    }

    /// Whether the policy contains a setting, by its path as in [`super::Settings`].
    pub(super) fn contains(&self, path: &str) -> bool {
        let mut names = path.split('.');
        let section = names.next().and_then(|section| self.0.get(section));
        let name = names.next();
        section
            .zip(name)
            .is_some_and(|(section, name)| section.contains_key(name))
    }

    /// The value of each setting by its path, in JSON.
    pub(super) fn values(&self) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        for (section, settings) in &self.0 {
            for (name, value) in settings {
                let path = if section == TENANTS {
                    format!("{section}[{name}].limits")
                } else {
                    format!("{section}.{name}")
                };
                values.insert(path, value.to_string());
            }
        }
        values
    }

    /// Paths of settings that have another value in a file.
    pub(crate) fn differing(&self, of_file: &Self) -> Vec<String> {
        differing_paths(&self.values(), &of_file.values())
    }
}

/// The paths with different values.
///
/// A setting that only one side has is of another version of memoird, and is not compared. A tenant
/// that only one side has is without limits on the other.
pub(super) fn differing_paths<V: PartialEq>(
    policy: &BTreeMap<String, V>,
    of_file: &BTreeMap<String, V>,
) -> Vec<String> {
    let is_tenant = |path: &&String| path.starts_with(TENANTS);
    let differs = |path: &&String| match (policy.get(*path), of_file.get(*path)) {
        (Some(one), Some(other)) => one != other,
        _ => is_tenant(path),
    };
    let only_in_file = of_file.keys().filter(|path| !policy.contains_key(*path));
    let paths = policy.keys().chain(only_in_file);
    paths.filter(differs).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::of(&File::parse(text).unwrap())
    }

    #[test]
    fn policy_replaces_common_settings_and_no_others() {
        let policy = policy(
            "{ short_term: { session_ttl: 1h, ttl_classes: { week: 7d } }, \
             journal: { retention: 3d, queue_wait: 9s }, limits: { memory: 1GiB, hooks_under_way: 3 }, \
             tenants: [ { id: a, limits: { max_sessions: 7 } }, { id: b, limits: { max_sessions: 8 } } ] }",
        );
        let stored = serde_json::to_vec(&policy).unwrap();
        let policy: Policy = serde_json::from_slice(&stored).unwrap();
        let mut config = parse(
            "{ short_term: { session_ttl: 9h, ttl_classes: { day: 1d } }, \
             journal: { retention: 9d, queue_wait: 5s }, limits: { memory: 2GiB }, \
             tenants: [ { id: a, keys: [ { sha256: \
             '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a' } ] } ] }",
        )
        .unwrap();
        let differing = policy.differing(&config.policy);
        let expected = [
            "journal.retention",
            "limits.hooks_under_way",
            "short_term.session_ttl",
            "short_term.ttl_classes",
            "tenants[a].limits",
            "tenants[b].limits",
        ];
        assert_eq!(differing, expected);
        config.adopt(1, &policy).unwrap();
        let engine = &config.engine;
        let hours = |hours: u64| std::time::Duration::from_secs(hours * 60 * 60);
        assert_eq!(engine.sessions.session_ttl, hours(1));
        let classes: Vec<_> = engine.sessions.ttl_classes.0.keys().collect();
        assert_eq!(classes, ["week"]);
        assert_eq!(engine.journal.retention, hours(3 * 24));
        assert_eq!(engine.journal.queue_wait.as_secs(), 5);
        assert_eq!(engine.memory_bytes, 2 << 30);
        assert_eq!(engine.hooks.concurrency, 3);
        let caps = engine.tenants.iter();
        let caps: Vec<_> = caps
            .map(|tenant| (tenant.id.as_str(), tenant.limits.max_sessions))
            .collect();
        assert_eq!(caps, [("a", Some(7)), ("b", Some(8))]);
        // The daemon still knows the file's own policy.
        assert_eq!(policy.differing(&config.policy), expected);
    }

    #[test]
    fn setting_of_another_version_is_neither_applied_nor_compared() {
        let mut newer = policy("{}");
        let short_term = newer.0.get_mut("short_term").unwrap();
        short_term.insert("introduced_later".to_owned(), Value::from(1));
        short_term.remove("max_sessions");
        let mut config = parse("short_term: { max_sessions: 3 }").unwrap();
        assert_eq!(newer.differing(&config.policy), [""; 0]);
        config.adopt(1, &newer).unwrap();
        assert_eq!(config.engine.sessions.max_sessions, 3);
    }

    #[test]
    fn policy_that_does_not_fit_the_file_is_rejected_as_a_whole() {
        let policy = policy("{ short_term: { session_ttl: 1h }, limits: { turn_bytes: 9MiB } }");
        let mut config = parse("server: { max_request_bytes: 8MiB }").unwrap();
        let before = format!("{config:?}");
        let problem = config.adopt(7, &policy).unwrap_err();
        assert!(
            problem.contains("version 7") && problem.contains("server.max_request_bytes"),
            "{problem}"
        );
        assert_eq!(format!("{config:?}"), before);
    }

    #[test]
    fn policy_contains_no_secret_and_no_path() {
        let text = "{ compaction: { summarizer: { openai: { model: m, api_key: { env: PATH } } } }, \
            hooks: [ { name: h, exec: { argv: [ /bin/true ] } } ], long_term: { dir: /var/m }, \
            tenants: [ { id: a, keys: [ { env: PATH } ] } ] }";
        assert_eq!(policy(text), policy("{}"));
    }
}
