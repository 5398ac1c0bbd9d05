//! The tenants of the file, their limits and their keys.

use std::collections::HashMap;
use std::path::PathBuf;

use memoird_core::config::{Environment, Problems, SecretRef};
use memoird_core::hex;
use memoird_core::ids::TenantId;
use memoird_core::outbox::Subscription;
use memoird_engine::{EngineConfig, TenantConfig, TenantLimits};
use serde::{Deserialize, Serialize};

use crate::keyring::{Key, KeyDigest, digest};
use crate::rpc::Role;

/// Minimum length of a key in bytes. Shorter keys are easily guessed.
const KEY_BYTES_MIN: usize = 8;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantSpec {
    pub(super) id: String,
    #[serde(default)]
    keys: Vec<KeySpec>,
    #[serde(default)]
    pub(super) limits: TenantLimits,
}

/// Location of a key, or its digest, and the role it grants.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct KeySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    role: Role,
}

pub(super) fn tenants(specs: &[TenantSpec], problems: &mut Problems) -> Vec<TenantConfig> {
    let mut tenants = Vec::with_capacity(specs.len());
    let mut ids = HashMap::new();
    for (index, spec) in specs.iter().enumerate() {
        let section = format!("tenants[{index}]");
        let limits = &spec.limits;
        problems.within(&format!("{section}.limits"), |problems| {
            limits.check(problems);
        });
        if let Some(first) = ids.insert(&spec.id, index) {
            let problem = format!("is that of tenants[{first}]");
            problems.add(format!("{section}.id"), problem);
        }
        match TenantId::parse(&spec.id) {
            Ok(id) => tenants.push(TenantConfig {
                id,
                limits: limits.clone(),
            }),
            Err(error) => problems.add(format!("{section}.id"), error),
        }
    }
    tenants
}

/// Whether any tenant has keys, including keys that cannot be read.
pub(super) fn have_keys(specs: &[TenantSpec]) -> bool {
    specs.iter().any(|spec| !spec.keys.is_empty())
}

/// Whether several tenants have keys with the role bot, and none has a limit on journal bytes.
pub(super) fn are_journals_unbounded(specs: &[TenantSpec]) -> bool {
    let has_bot = |spec: &&TenantSpec| spec.keys.iter().any(|key| key.role == Role::Bot);
    let mut with_bots = specs.iter().filter(has_bot);
    let is_unbounded = |spec: &TenantSpec| spec.limits.journal_bytes.unwrap_or(0) == 0;
    with_bots.clone().count() > 1 && with_bots.all(is_unbounded)
}

/// Warns about hooks that name unknown tenants.
///
/// These are not errors: a removed tenant may still have sessions that end.
pub(super) fn unknown_to(engine: &EngineConfig) -> Vec<String> {
    let is_known = |id: &TenantId| engine.tenants.iter().any(|tenant| tenant.id == *id);
    let mut warnings = Vec::new();
    for Subscription { hook, tenants, .. } in engine.hooks.hooks.iter().map(|it| &it.subscription) {
        for id in tenants.iter().filter(|id| !is_known(id)) {
            warnings.push(format!(
                "hooks: {hook} names the tenant {id}, which is not in tenants; check the spelling"
            ));
        }
    }
    warnings
}

/// Reads the keys of all tenants.
///
/// A key belongs to one tenant. If any tenant has keys, all must, unless callers can authenticate
/// in other ways.
pub(super) fn keys(
    specs: &[TenantSpec],
    needs_keys: bool,
    environment: &dyn Environment,
    problems: &mut Problems,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut owners = HashMap::new();
    let any_has_keys = have_keys(specs);
    for (index, spec) in specs.iter().enumerate() {
        let id = TenantId::parse(&spec.id).ok();
        let is_open = !any_has_keys && id == Some(TenantId::default_tenant());
        if spec.keys.is_empty() && !is_open && needs_keys {
            let problem = "there is none, so no client could call as this tenant; configure one, \
                such as { env: ACME_KEY }";
            problems.add(format!("tenants[{index}].keys"), problem);
        }
        for (number, key) in spec.keys.iter().enumerate() {
            let section = format!("tenants[{index}].keys[{number}]");
            match key.digest(environment) {
                Err(problem) => problems.add(section, problem),
                Ok(digest) => match owners.insert(digest, section.clone()) {
                    Some(other) => problems.add(section, format!("is the same key as {other}")),
                    // An id that does not parse is already reported.
                    None => keys.extend(id.clone().map(|tenant| Key {
                        digest,
                        tenant,
                        role: key.role,
                    })),
                },
            }
        }
    }
    keys
}

impl KeySpec {
    fn digest(&self, environment: &dyn Environment) -> Result<KeyDigest, String> {
        match (&self.env, &self.file, &self.sha256) {
            (None, None, Some(hex)) => {
                let digest = digest_of_hex(hex).ok_or("sha256 must have 64 hexadecimal digits")?;
                if is_of_no_key(&digest) {
                    Err("is the sha256 of an empty or one-byte key".into())
                } else {
                    Ok(digest)
                }
            }
            (Some(_), None, None) | (None, Some(_), None) => {
                let place = SecretRef {
                    env: self.env.clone(),
                    file: self.file.clone(),
                };
                let key = place.read(environment)?;
                let is_sendable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
                if key.len() < KEY_BYTES_MIN {
                    return Err(format!(
                        "has less than {KEY_BYTES_MIN} bytes, the minimum for a key"
                    ));
                }
                if !key.bytes().all(is_sendable) {
                    let problem = "has characters that are invalid in a header, such as a line \
                        end; a key is one line of ASCII, and a file contains one key";
                    return Err(problem.to_owned());
                }
                Ok(digest(key.as_bytes()))
            }
            _ => Err("must have exactly one of env, file, sha256".to_owned()),
        }
    }
}

/// Whether this is the digest of the empty key or of a one-byte key.
///
/// Scripts produce these from an unset variable. Otherwise a digest does not reveal the length.
fn is_of_no_key(known: &KeyDigest) -> bool {
    digest(b"") == *known || (0..=u8::MAX).any(|byte| digest(&[byte]) == *known)
}

fn digest_of_hex(digits: &str) -> Option<KeyDigest> {
    hex::decode(digits)?.try_into().ok()
}
