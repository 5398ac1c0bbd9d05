//! The credentials that callers may show, and the tenant and role of each. Only digests of keys are
//! stored.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memoird_core::ids::TenantId;
use memoird_core::sha256::Sha256;
use memoird_engine::{Engine, Tenant};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::connections::Connection;
use crate::rpc::Role;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// SHA-256 of a key.
pub(crate) type KeyDigest = [u8; 32];

#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) role: Role,
    /// Whether other tenants may call as well.
    pub(crate) is_one_of_several: bool,
    /// Cancelled when the keys change, so that long calls must authenticate again.
    ///
    /// In an `Arc` because every call clones the caller, and cloning the token takes a lock.
    pub(crate) revoked: Arc<CancellationToken>,
    /// Whether its key is still valid.
    pub(crate) key: KeyValidity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) digest: KeyDigest,
    pub(crate) tenant: TenantId,
    pub(crate) role: Role,
}

/// All credentials that are accepted.
#[derive(Debug, Default)]
pub(crate) struct Keyring {
    /// Every caller if there are no keys: the daemon listens on loopback only.
    open: Option<Caller>,
    /// Keys by a prefix of their digest.
    ///
    /// A digest does not reveal its key, so a prefix lookup leaks nothing. The full digest is
    /// compared in constant time.
    by_prefix: HashMap<[u8; 8], Vec<(KeyDigest, Caller)>>,
    /// Callers with a client certificate, by its name.
    by_name: HashMap<String, Caller>,
    /// Processes of this machine, by their user id.
    by_uid: HashMap<u32, Caller>,
    /// Whether there are several tenants.
    pub(crate) is_shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// No `authorization: Bearer <key>` header.
    NoKey,
    /// The key is not configured.
    WrongKey,
    /// More than one `authorization` header.
    SeveralKeys,
    /// The call has a key, but none is configured.
    NoKeysHere,
    /// The client's certificate names no tenant, or several.
    WrongCertificate,
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        let (reason, problem) = match error {
            AuthError::NoKey => (
                "NO_KEY",
                "send your key as metadata, `authorization: Bearer <key>`",
            ),
            AuthError::WrongKey => ("WRONG_KEY", "unknown key; ask your operator for one"),
            AuthError::SeveralKeys => (
                "SEVERAL_KEYS",
                "more than one `authorization` header; send one key",
            ),
            AuthError::NoKeysHere => (
                "NO_KEYS_HERE",
                "this daemon has no keys (server.allow_without_keys); send no key, or configure \
                 keys for the tenants",
            ),
            AuthError::WrongCertificate => (
                "WRONG_CERTIFICATE",
                "your certificate must name one tenant of this daemon in the field selected by \
                 server.tls.client_tenant",
            ),
        };
        status::new(Code::Unauthenticated, reason, problem, None)
    }
}

/// Callers that need no key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeylessCallers {
    /// Tenants that a certificate may name.
    pub(crate) by_certificate: Vec<TenantId>,
    /// Users of this machine, over a Unix socket.
    pub(crate) by_uid: Vec<(u32, TenantId, Role)>,
}

/// Computes the digest of a key, as in `sha256` of the configuration.
pub(crate) fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key)
}

/// Whether several tenants may call.
pub(crate) fn are_several(keys: &[Key], keyless: &KeylessCallers) -> bool {
    let of_users = keyless.by_uid.iter().map(|(_, tenant, _)| tenant);
    let of_keys = keys.iter().map(|key| &key.tenant);
    let tenants = of_keys.chain(&keyless.by_certificate).chain(of_users);
    tenants.collect::<HashSet<&TenantId>>().len() > 1
}

impl Keyring {
    /// Binds the keys to the engine's tenants. `None` if the engine lacks one of them.
    ///
    /// Credentials also in `before` keep their validity, so that their calls continue.
    pub(crate) fn new(
        keys: &[Key],
        keyless: &KeylessCallers,
        engine: &Engine,
        before: Option<&Self>,
    ) -> Option<Self> {
        let revoked = Arc::new(CancellationToken::new());
        let is_shared = are_several(keys, keyless);
        let caller = |tenant: &TenantId, role, key| {
            let (tenant, revoked) = (engine.tenants.get(tenant)?, Arc::clone(&revoked));
            Some(Caller {
                tenant,
                role,
                is_one_of_several: is_shared,
                revoked,
                key,
            })
        };
        let mut keyring = Self {
            is_shared,
            ..Self::default()
        };
        if keys.is_empty() && *keyless == KeylessCallers::default() {
            let tenant = TenantId::default_tenant();
            keyring.open = Some(caller(&tenant, Role::Admin, KeyValidity::default())?);
        }
        for key in keys {
            let same = before.and_then(|before| before.of_key(key));
            let validity = same.map(|same| same.key.clone()).unwrap_or_default();
            let entry = (key.digest, caller(&key.tenant, key.role, validity)?);
            let same_prefix = keyring.by_prefix.entry(prefix(&key.digest)).or_default();
            same_prefix.push(entry);
        }
        for tenant in &keyless.by_certificate {
            let same = before.and_then(|before| before.by_name.get(tenant.as_str()));
            let validity = same.map(|same| same.key.clone()).unwrap_or_default();
            let caller = caller(tenant, Role::Bot, validity)?;
            keyring.by_name.insert(tenant.as_str().to_owned(), caller);
        }
        for (uid, tenant, role) in &keyless.by_uid {
            let same = before
                .and_then(|before| before.by_uid.get(uid))
                .filter(|same| same.tenant.id == *tenant && same.role == *role);
            let validity = same.map(|same| same.key.clone()).unwrap_or_default();
            keyring
                .by_uid
                .insert(*uid, caller(tenant, *role, validity)?);
        }
        Some(keyring)
    }

    /// Ends the streams of all callers, and the calls of those that are not in `next`.
    pub(crate) fn revoke(&self, next: &Self) {
        for caller in self.callers() {
            caller.revoked.cancel();
            let mut others = next.callers();
            if !others.any(|other| other.key.is_same(&caller.key)) {
                caller.key.revoke();
            }
        }
    }

    fn callers(&self) -> impl Iterator<Item = &Caller> {
        let keyed = self.by_prefix.values().flatten().map(|(_, caller)| caller);
        let keyless = self.by_name.values().chain(self.by_uid.values());
        self.open.iter().chain(keyed).chain(keyless)
    }

    /// Finds a caller with the same key, tenant and role.
    fn of_key(&self, key: &Key) -> Option<&Caller> {
        let same_prefix = self.by_prefix.get(&prefix(&key.digest))?;
        let same = same_prefix.iter().find(|(digest, caller)| {
            *digest == key.digest && caller.tenant.id == key.tenant && caller.role == key.role
        });
        same.map(|(_, caller)| caller)
    }

    /// Returns the caller by this `authorization` header, or else by the connection.
    pub(crate) fn caller(
        &self,
        authorization: Option<&[u8]>,
        connection: &Connection,
    ) -> Result<&Caller, AuthError> {
        if let Some(caller) = &self.open {
            // A client that sends a key expects authentication, and to be its tenant.
            let has_key = authorization.is_some();
            return (!has_key).then_some(caller).ok_or(AuthError::NoKeysHere);
        }
        let Some(authorization) = authorization else {
            if let Some(names) = connection.certificate() {
                return one_named(names, &self.by_name).ok_or(AuthError::WrongCertificate);
            }
            let caller = connection.peer.uid.and_then(|uid| self.by_uid.get(&uid));
            return caller.ok_or(AuthError::NoKey);
        };
        let key = bearer(authorization).ok_or(AuthError::NoKey)?;
        let presented = digest(key);
        let mut candidates = self
            .by_prefix
            .get(&prefix(&presented))
            .into_iter()
            .flatten();
        let found = candidates.find(|(known, _)| known.ct_eq(&presented).into());
        found.map(|(_, caller)| caller).ok_or(AuthError::WrongKey)
    }
}

/// Returns the caller of these names, unless they belong to several tenants.
fn one_named<'a>(names: &[String], by_name: &'a HashMap<String, Caller>) -> Option<&'a Caller> {
    let mut callers = names.iter().filter_map(|name| by_name.get(name));
    let first = callers.next()?;
    let is_one = callers.all(|other| other.tenant.id == first.tenant.id);
    is_one.then_some(first)
}

fn prefix(digest: &KeyDigest) -> [u8; 8] {
    std::array::from_fn(|index| digest[index])
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, key) = header.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then_some(key.trim_ascii())
}

/// Validity of a key, shared with the calls it admitted.
///
/// The next keyring takes it over if it contains the same key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyValidity(Arc<AtomicBool>);

impl KeyValidity {
    /// Invalidates the key: its calls have no further effect.
    pub(crate) fn revoke(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks the key. Must be called directly before a command.
    ///
    /// # Errors
    /// If the key was revoked.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.0.load(Ordering::Acquire) {
            Err(AuthError::WrongKey.into())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_key_is_parsed() {
        assert_eq!(bearer(b"Bearer secret"), Some(&b"secret"[..]));
        assert_eq!(bearer(b"bearer  secret "), Some(&b"secret"[..]));
        assert_eq!(bearer(b"Basic secret"), None);
        assert_eq!(bearer(b"secret"), None);
    }
}
