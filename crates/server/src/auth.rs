//! Who calls: a key names a tenant and a role. Keys are kept as digests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_engine::{Engine, Tenant};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

/// What a key may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Calls the services of bots, for its tenant.
    #[default]
    Bot,
    /// That, and AdminService, which sees every tenant.
    Admin,
}

/// The digest of a key.
pub(crate) type KeyDigest = [u8; 32];

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// For whom.
    pub(crate) tenant: Arc<Tenant>,
    /// What it may do.
    pub(crate) role: Role,
    /// Cancelled when other keys apply: what goes on for long must ask anew.
    /// Shared as it is, because every call gets a caller and the token's own clone takes a
    /// lock.
    pub(crate) revoked: Arc<CancellationToken>,
}

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Its digest.
    pub(crate) digest: KeyDigest,
    /// Whose it is.
    pub(crate) tenant: TenantId,
    /// What it may do.
    pub(crate) role: Role,
}

/// All keys.
#[derive(Debug)]
pub(crate) enum Keyring {
    /// There are none: everybody who can connect, from this machine only, is `default`.
    Open(Caller),
    /// By the first bytes of their digest. Digests do not give their keys away, so a
    /// look-up by a part of one tells an attacker nothing; what decides is compared in
    /// constant time.
    Keys {
        /// By that.
        by_prefix: HashMap<[u8; 8], Vec<(KeyDigest, Caller)>>,
        /// True where they are of several tenants.
        is_shared: bool,
    },
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// There is no `authorization: Bearer <key>`.
    NoKey,
    /// Nobody has this key.
    WrongKey,
}

/// The digest of a key, as `sha256` in the configuration.
pub(crate) fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

impl Keyring {
    /// The keys with the engine's tenants; `None` when the engine lacks one of them.
    pub(crate) fn new(keys: &[Key], default: &TenantId, engine: &Engine) -> Option<Self> {
        let revoked = Arc::new(CancellationToken::new());
        let caller = |tenant, role| {
            let (tenant, revoked) = (engine.tenants.get(tenant)?, Arc::clone(&revoked));
            Some(Caller {
                tenant,
                role,
                revoked,
            })
        };
        if keys.is_empty() {
            return Some(Self::Open(caller(default, Role::Admin)?));
        }
        let mut by_prefix: HashMap<[u8; 8], Vec<_>> = HashMap::new();
        for key in keys {
            let entry = (key.digest, caller(&key.tenant, key.role)?);
            let same_prefix = by_prefix.entry(prefix(&key.digest)).or_default();
            same_prefix.push(entry);
        }
        let tenants: HashSet<&TenantId> = keys.iter().map(|key| &key.tenant).collect();
        Some(Self::Keys {
            by_prefix,
            is_shared: tenants.len() > 1,
        })
    }

    /// True where several tenants may call.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Open(_) => false,
            Self::Keys { is_shared, .. } => *is_shared,
        }
    }

    /// Tells everybody who was let in that other keys apply.
    pub(crate) fn revoke(&self) {
        match self {
            Self::Open(caller) => caller.revoked.cancel(),
            Self::Keys { by_prefix, .. } => {
                let callers = by_prefix.values().flatten().map(|(_, caller)| caller);
                callers.for_each(|caller| caller.revoked.cancel());
            }
        }
    }

    /// Who has the key in this `authorization` header.
    pub(crate) fn caller(&self, authorization: Option<&[u8]>) -> Result<&Caller, Denied> {
        let by_prefix = match self {
            Self::Open(caller) => return Ok(caller),
            Self::Keys { by_prefix, .. } => by_prefix,
        };
        let key = authorization.and_then(bearer).ok_or(Denied::NoKey)?;
        let presented = digest(key);
        let mut candidates = by_prefix.get(&prefix(&presented)).into_iter().flatten();
        let found = candidates.find(|(known, _)| known.ct_eq(&presented).into());
        found.map(|(_, caller)| caller).ok_or(Denied::WrongKey)
    }
}

fn prefix(digest: &KeyDigest) -> [u8; 8] {
    std::array::from_fn(|place| digest[place])
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, key) = header.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then_some(key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_key_is_found_in_its_header() {
        assert_eq!(bearer(b"Bearer secret"), Some(&b"secret"[..]));
        assert_eq!(bearer(b"bearer  secret "), Some(&b"secret"[..]));
        assert_eq!(bearer(b"Basic secret"), None);
        assert_eq!(bearer(b"secret"), None);
    }
}
