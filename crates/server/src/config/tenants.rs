//! The tenants of the file, their limits and their keys.

use std::collections::HashMap;
use std::path::PathBuf;

use memoird_core::ids::TenantId;
use memoird_engine::TenantLimits;
use serde::{Deserialize, Serialize};

use super::file::Problems;
use super::secret::{Secret, digest_of_hex, digest_of_text};
use super::units::{Size, Span};
use crate::auth::{Key, KeyDigest, Role};

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantShape {
    pub(super) id: String,
    #[serde(default)]
    keys: Vec<KeyShape>,
    #[serde(default)]
    pub(super) limits: TenantLimitsShape,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct KeyShape {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    role: RoleShape,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum RoleShape {
    #[default]
    Bot,
    Admin,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TenantLimitsShape {
    max_sessions: Option<usize>,
    session_ttl: Option<Span>,
    max_history_turns: Option<usize>,
    max_history_bytes: Option<Size>,
}

impl TenantShape {
    pub(super) fn check(&self, place: usize, problems: &mut Problems) {
        let limits = &self.limits;
        let at = |field: &str| format!("tenants[{place}].limits.{field}");
        let ttl = limits.session_ttl.is_none_or(|span| !span.0.is_zero());
        problems.unless(ttl, &at("session_ttl"), "must be more than zero");
        let at_least_one = "must be at least 1";
        let turns = limits.max_history_turns != Some(0);
        problems.unless(turns, &at("max_history_turns"), at_least_one);
        let bytes = limits.max_history_bytes.is_none_or(|size| size.0 > 0);
        problems.unless(bytes, &at("max_history_bytes"), at_least_one);
    }

    /// The files that its keys are in.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.keys.iter().filter_map(|key| key.file.clone())
    }
}

impl TenantLimitsShape {
    pub(super) fn engine(&self) -> TenantLimits {
        TenantLimits {
            max_sessions: self.max_sessions,
            session_ttl: self.session_ttl.map(|span| span.0),
            max_history_turns: self.max_history_turns,
            max_history_bytes: self.max_history_bytes.map(|size| size.0),
        }
    }
}

/// The keys of all tenants. No two tenants share one, and where one tenant has keys all
/// have.
pub(super) fn keys(tenants: &[TenantShape], problems: &mut Problems) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut owners = HashMap::new();
    let mut ids = HashMap::new();
    let any_has_keys = tenants.iter().any(|tenant| !tenant.keys.is_empty());
    for (place, tenant) in tenants.iter().enumerate() {
        if let Some(first) = ids.insert(&tenant.id, place) {
            problems.add(
                &format!("tenants[{place}].id"),
                format!("is that of tenants[{first}]"),
            );
        }
        let id = TenantId::parse(&tenant.id).ok();
        let is_open = !any_has_keys && id == Some(TenantId::default_tenant());
        if tenant.keys.is_empty() && !is_open {
            let problem = "there is none, so nobody could call as this tenant; give it one, \
                           such as { env: ACME_KEY }";
            problems.add(&format!("tenants[{place}].keys"), problem);
        }
        for (number, shape) in tenant.keys.iter().enumerate() {
            let at = format!("tenants[{place}].keys[{number}]");
            match shape.digest() {
                Err(problem) => problems.add(&at, problem),
                Ok(digest) => match owners.insert(digest, at.clone()) {
                    Some(other) => problems.add(&at, format!("is the same key as {other}")),
                    // An id that does not parse was told already.
                    None => keys.extend(id.clone().map(|tenant| Key {
                        digest,
                        tenant,
                        role: shape.role(),
                    })),
                },
            }
        }
    }
    keys
}

impl KeyShape {
    fn digest(&self) -> Result<KeyDigest, String> {
        match (&self.env, &self.file, &self.sha256) {
            (Some(name), None, None) => Secret::Env(name).read().map(|key| digest_of_text(&key)),
            (None, Some(path), None) => Secret::File(path).read().map(|key| digest_of_text(&key)),
            (None, None, Some(hex)) => digest_of_hex(hex),
            _ => Err("takes one of env, file, sha256".to_owned()),
        }
    }

    fn role(&self) -> Role {
        match self.role {
            RoleShape::Bot => Role::Bot,
            RoleShape::Admin => Role::Admin,
        }
    }
}
